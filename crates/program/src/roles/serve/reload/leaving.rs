//! What leaves a node, when those who use it have let go of it.

use std::time::{Duration, Instant};

use base::times::SILENCE;
use io::agent::{AgentEvent, LoanSpec, Withdrawn};
use io::event::Event;

use super::super::{GIVE_BACK, Node, Observer, keep_end};
use super::{LOOK, Reload};
use crate::cli::{NodeName, SlotName};
use crate::config::{Change, Config, Device, Domain, Loan, Slot};
use crate::roles::report;

/// Who has given a device back may not have heard yet that this was heard.
const FAREWELL: Duration = Duration::from_secs(1);
/// A function that no driver of a machine has had for so long was let go of.
const LET_GO: Duration = Duration::from_secs(2);

/// Something that is to go.
pub(super) struct Leaving {
    what: What,
    /// What a report says of it.
    change: Change,
    /// Since when nobody has it,
    free_since: Option<Instant>,
    /// and for how long nobody must have had it.
    patience: Duration,
}

enum What {
    Device(Device),
    /// With its place, and since when its lender has been asked to take it back.
    Loan {
        loan: Loan,
        place: usize,
        told_at: Option<Instant>,
        /// Nobody waits for its lender any more.
        is_abandoned: bool,
    },
    /// Slots of a virtual machine, with their places.
    Slots {
        domain: NodeName,
        names: String,
        places: Vec<usize>,
    },
}

impl Leaving {
    pub(super) fn device(device: &Device, node: &Node) -> Self {
        // One that nobody has had in this life has nobody to take leave of.
        let patience = if device_was_had(node, device) { FAREWELL } else { Duration::ZERO };
        let change = Change::DeviceRemoved(device.clone());
        Self { what: What::Device(device.clone()), change, free_since: None, patience }
    }

    /// `None`: it is not there.
    pub(super) fn loan(loan: &Loan, node: &Node) -> Option<Self> {
        let place = node.place_of(loan)?;
        let patience = if node.agent.has_guest(place) { LET_GO } else { Duration::ZERO };
        let what = What::Loan { loan: loan.clone(), place, told_at: None, is_abandoned: false };
        Some(Self { what, change: Change::LoanRemoved(loan.clone()), free_since: None, patience })
    }

    pub(super) fn slots(domain: &Domain, slots: &[Slot], node: &Node) -> Self {
        let is_one =
            |name: &SlotName| name.domain == domain.name && slots.iter().any(|it| it.name == name.slot);
        let places = node.domains.places_of(is_one);
        let names: Vec<String> = slots.iter().map(|slot| format!("{}/{}", domain.name, slot.name)).collect();
        let what = What::Slots { domain: domain.name.clone(), names: names.join(", "), places };
        let change = Change::SlotsRemoved(domain.clone(), slots.to_vec());
        Self { what, change, free_since: None, patience: Duration::ZERO }
    }

    pub(super) fn is_of(&self, domain: &Domain) -> bool {
        matches!(&self.what, What::Slots { domain: name, .. } if *name == domain.name)
    }

    pub(super) fn is_named(&self, device: &Device) -> bool {
        matches!(&self.what, What::Device(it) if it.function == device.function || it.source == device.source)
    }

    pub(super) fn is_device(&self, device: &Device) -> bool {
        matches!(&self.what, What::Device(it) if it == device)
    }

    pub(super) fn is_loan(&self, loan: &Loan) -> bool {
        matches!(&self.what, What::Loan { loan: it, .. } if it.line.secret() == loan.line.secret())
    }

    /// The change that this is the rest of.
    pub(super) fn change(&self) -> &Change {
        &self.change
    }

    /// For whom a report says that it waits.
    pub(super) fn waits(&self, node: &Node) -> String {
        let heard = || "those who had it to hear that they have given it back".to_owned();
        self.waits_for(node).unwrap_or_else(heard)
    }

    /// Who has to let go of it.
    pub(super) fn waits_for(&self, node: &Node) -> Option<String> {
        match &self.what {
            What::Device(device) => {
                let drive = node.drive_of(device)?;
                let kept = || node.agent.is_keeping(drive).then(|| keeping(node));
                let disk =
                    || node.agent.is_syncing(drive).then(|| "its disk to keep what was written".to_owned());
                // Who has given it back is still the one who has it by what is durable.
                kept().or_else(|| node.holder(drive)).or_else(disk)
            }
            What::Loan { place, told_at: None, .. } => node.machine(*place),
            What::Slots { places, .. } => {
                let view = node.agent.view();
                let has_loan = |place: &&usize| view.loan(**place).is_some_and(|(loan, _)| !loan.is_vacant());
                let place = places.iter().find(has_loan)?;
                let (loan, _) = view.loan(*place)?;
                let back = || format!("the lender of {} to take it back", loan.function);
                Some(node.machine(*place).unwrap_or_else(back))
            }
            What::Loan { loan, .. } => {
                Some(format!("the lender of {} to take it back", loan.line.function()))
            }
        }
    }
}

/// What is to be done where it cannot be written who has given something back.
fn keeping(node: &Node) -> String {
    format!("the state directory {} to keep who had it", node.state.path().display())
}

impl Node {
    /// Who has any function of a drive, or for whom it is kept, and what he is to do.
    pub(super) fn holder(&self, drive: usize) -> Option<String> {
        let view = self.agent.view();
        let mut lent = view.loans().filter(|(loan, _)| lends(loan, drive));
        lent.find_map(|(loan, cells)| {
            // One that was never heard in this life of the node has not been silent for longer than that.
            let silence = view.silence(cells).min(self.said.running());
            let is_had = report::is_open(cells) || loan.config.tenancy.is_held;
            (is_had && silence < hold(loan)).then(|| {
                let name = cells.edge().peer().map_or(loan.config.tenancy.name, |(_, name)| name);
                format!("{name} to give it back")
            })
        })
    }

    /// Who has a function of a device, answers, and does not stand on its list in the file.
    pub(super) fn unlisted(&self, device: &Device) -> Option<String> {
        let (view, drive) = (self.agent.view(), self.drive_of(device)?);
        let allow = device.allow.as_deref()?;
        let mut lent = view.loans().filter(|(loan, _)| lends(loan, drive));
        lent.find_map(|(_, cells)| {
            let (node, name) = cells.edge().peer().filter(|(node, _)| !allow.contains(node))?;
            let answers = report::is_open(cells) && view.silence(cells) < SILENCE;
            answers.then(|| format!("{name} ({node}) to give it back"))
        })
    }

    /// The same of all devices with which a reload does nothing.
    pub(super) fn unlisted_still(&self, changes: &[Change], wanted: &Config) -> Vec<(Change, String)> {
        let is_said = |device: &Device| {
            changes.iter().any(|change| {
                matches!(change, Change::DeviceAdded(it) | Change::Allow(it) if it.function == device.function)
            })
        };
        let devices = wanted.devices.iter().filter(|device| !is_said(device));
        devices.filter_map(|it| Some((Change::Allow(it.clone()), self.unlisted(it)?))).collect()
    }

    /// The virtual machine that is connected to what is borrowed in this place.
    pub(super) fn machine(&self, place: usize) -> Option<String> {
        self.agent.has_guest(place).then(|| "its virtual machine to let go of it".to_owned())
    }

    /// Has something go, at once if nobody has it. For whom it waits, if it does.
    pub(super) fn let_go(&mut self, leaving: Leaving, reload: &mut Reload) -> Option<String> {
        match &leaving.what {
            What::Loan { place, .. } => self.agent.close_edge(*place),
            What::Slots { places, .. } => {
                places.iter().for_each(|place| self.domains.let_go(*place, &mut self.agent));
            }
            What::Device(_) => {}
        }
        let leaving = self.advance(leaving)?;
        let waits_for = leaving.waits(self);
        match &leaving.what {
            What::Device(device) => {
                let device = device.function.to_string();
                Event::DeviceLeaving { device, waits_for: waits_for.clone() }.say();
            }
            What::Loan { loan, .. } => {
                let function = loan.line.function().to_string();
                Event::LoanLeaving { function, waits_for: waits_for.clone() }.say();
            }
            What::Slots { domain, names, .. } => {
                let (domain, slots) = (domain.to_string(), names.clone());
                Event::SlotsLeaving { domain, slots, waits_for: waits_for.clone() }.say();
            }
        }
        reload.leaving.push(leaving);
        Some(waits_for)
    }

    /// When [`Node::follow_leaving`] has something to look at.
    pub(in crate::roles::serve) fn leaving_poll_timeout(&self) -> Option<Instant> {
        let reload = self.reload.as_ref()?;
        (!reload.leaving.is_empty()).then(|| Instant::now() + LOOK)
    }

    /// Lets those go that nobody has any more, and takes note of those that have gone.
    pub(in crate::roles::serve) fn follow_leaving(&mut self) {
        while let Some(withdrawn) = self.agent.take_withdrawn() {
            self.conclude_withdrawn(&withdrawn);
        }
        if !self.ending.has_begun()
            && let Some(mut reload) = self.reload.take()
        {
            let leaving = std::mem::take(&mut reload.leaving);
            reload.leaving = leaving.into_iter().filter_map(|it| self.advance(it)).collect();
            self.reload = Some(reload);
        }
    }

    /// Lets something go if nobody has had it for long enough. `None`: it has gone.
    fn advance(&mut self, mut leaving: Leaving) -> Option<Leaving> {
        if let What::Slots { domain, names, places } = &mut leaving.what {
            places.retain(|place| !self.domains.has_gone(*place));
            if !places.is_empty() {
                return Some(leaving);
            }
            Event::SlotsRemoved { domain: domain.to_string(), slots: std::mem::take(names) }.say();
            return None;
        }
        let is_had = match &mut leaving.what {
            What::Device(device) => self.drive_of(device).is_some_and(|drive| self.holder(drive).is_some()),
            What::Loan { place, told_at: Some(told_at), is_abandoned, .. } => {
                // Nobody waits for ever for a lender that does not take something back.
                if told_at.elapsed() >= GIVE_BACK && !*is_abandoned {
                    *is_abandoned = true;
                    self.agent.abandon(*place);
                }
                return Some(leaving);
            }
            // A machine keeps its connection when its guest has let go.
            What::Loan { place, .. } => self.agent.has_guest(*place) && self.agent.has_driver(*place),
            What::Slots { .. } => true,
        };
        if is_had {
            leaving.free_since = None;
            return Some(leaving);
        }
        if leaving.free_since.get_or_insert_with(Instant::now).elapsed() < leaving.patience {
            return Some(leaving);
        }
        match &mut leaving.what {
            What::Device(device) => {
                let drive = self.drive_of(device)?;
                if self.agent.is_keeping(drive) || !self.agent.sync_beside(drive) {
                    return Some(leaving);
                }
                self.agent.withdraw(drive);
                None
            }
            What::Loan { place, told_at, .. } => {
                *told_at = Some(Instant::now());
                self.agent.detach(*place);
                Some(leaving)
            }
            What::Slots { .. } => Some(leaving),
        }
    }

    /// An event of the agent may be what something waits for.
    pub(in crate::roles::serve) fn note_leaving(&mut self, event: &AgentEvent, observer: &mut dyn Observer) {
        let (AgentEvent::GivenBack { loan: given, .. }, Some(reload)) = (event, &mut self.reload) else {
            return;
        };
        let has_gone =
            |what: &What| matches!(what, What::Loan { place, told_at: Some(_), .. } if place == given);
        for gone in reload.leaving.extract_if(.., |it| has_gone(&it.what)) {
            if let What::Loan { loan, place, is_abandoned, .. } = gone.what {
                let function = loan.line.function().to_string();
                match is_abandoned {
                    true => Event::LoanAbandoned { function }.say(),
                    false => Event::LoanRemoved { function }.say(),
                }
                observer.goes(place);
            }
        }
    }

    /// No card has a drive any more that was lent: what it came to is kept.
    fn conclude_withdrawn(&mut self, withdrawn: &Withdrawn) {
        if withdrawn.end.has_lost {
            let (source, drive) = (withdrawn.spec.source.clone(), withdrawn.spec.name.clone());
            let node = self.agent.view().spec().name.clone();
            Event::MediaFault { source, drive, node }.say();
        }
        self.is_kept &= keep_end(&self.state, withdrawn) && withdrawn.end.identity.is_some();
        let (device, source) = (withdrawn.spec.name.clone(), withdrawn.spec.source.clone());
        self.said.faults().remove(&withdrawn.place);
        Event::DeviceRemoved { device, source }.say();
    }

    /// Whether what is in this place, or is lent as this drive, is to go.
    pub(in crate::roles::serve) fn leaving(&self) -> (Vec<usize>, Vec<String>) {
        let leaving = self.reload.iter().flat_map(|reload| &reload.leaving);
        let (mut loans, mut devices) = (Vec::new(), Vec::new());
        for it in leaving {
            match &it.what {
                What::Device(device) => devices.push(device.function.to_string()),
                What::Loan { place, .. } => loans.push(*place),
                What::Slots { places, .. } => loans.extend(places),
            }
        }
        (loans, devices)
    }
}

/// Whether anybody has had a function of a device in this life of the node.
fn device_was_had(node: &Node, device: &Device) -> bool {
    let Some(drive) = node.drive_of(device) else { return false };
    let view = node.agent.view();
    let mut lent = view.loans().filter(|(loan, _)| lends(loan, drive));
    lent.any(|(_, cells)| cells.edge().peer().is_some())
}

fn lends(loan: &LoanSpec, drive: usize) -> bool {
    loan.lent().is_some_and(|lent| lent.drive == drive)
}

/// For how long whoever has a function may be silent before it has lost it; what is not lent nobody has.
fn hold(loan: &LoanSpec) -> Duration {
    loan.lent().map_or(Duration::ZERO, |lent| lent.patience(loan.config.tenancy.node))
}
