//! A running node reads its file again: `causeway reload`, and SIGHUP.
//!
//! Everything that can be refused is refused first: the file is read and checked as at the start, images are opened and
//! locked, sockets are bound, places and memory are found. Only then is anything done, all of it. What others have to
//! do before something can go (a borrower gives a device back, a guest lets go of a function) is waited for meanwhile.

mod coming;
mod leaving;
mod sockets;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use io::agent::{Edge, LoanEnd, LoanSpec};
use io::event::Event;

use self::coming::Coming;
use self::leaving::Leaving;
use super::{Node, Observer};
use crate::config::{Change, Config, Device, Fixed, Loan};
use crate::exit::{Exit, Failure};
use crate::reload::{Progress, ReloadReport};
use crate::roles::lend;
use crate::roles::lines::Lines;

/// Between two looks whether somebody has let go of what is to leave.
const LOOK: Duration = Duration::from_millis(100);

/// What something borrowed waits for, which may be refused.
const ANSWER: &str = "its lender to answer";

/// What a node with a file keeps of it.
pub(in crate::roles) struct Reload {
    path: PathBuf,
    /// What was asked of the node last, and is so but for what is leaving.
    config: Config,
    /// It has rails that lenders have.
    listens: bool,
    leaving: Vec<Leaving>,
    lines: Lines,
}

impl Reload {
    /// Of a node that was started with the file at `path`.
    pub(in crate::roles) fn new(path: &Path, config: Config, listens: bool, lines: Lines) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self { path, config, listens, leaving: Vec::new(), lines }
    }
}

impl Node {
    /// Tells the lines of what is lent at the start.
    pub(in crate::roles) fn tell_lines(&mut self, lines: &[String]) -> Result<(), Failure> {
        self.reload.as_mut().map_or(Ok(()), |reload| reload.lines.tell(lines, &BTreeSet::new()))
    }

    /// Does what has changed in the node's file, or says what that is.
    pub(super) fn reload(&mut self, dry_run: bool, observer: &mut dyn Observer) -> ReloadReport {
        let mut report = ReloadReport::new(&self.agent.view().spec().name, dry_run);
        let done = match self.reload.take() {
            None => Err(Failure::refused(
                "this node was not started from a file: `causeway node --config NODE.toml` is",
            )),
            Some(mut reload) => {
                let done = self.reload_from(&mut reload, &mut report, observer);
                self.reload = Some(reload);
                if let Some(managed) = self.managed.as_mut().filter(|_| !dry_run) {
                    managed.handle_reloaded();
                }
                done
            }
        };
        match done {
            Err(failure) => {
                report.refuse(&failure);
                if !dry_run {
                    Event::ReloadRefused { why: failure.message().to_owned() }.say();
                }
            }
            Ok(()) if !dry_run => {
                let (changes, pending) = (report.changes.len() as u64, report.pending() as u64);
                Event::ReloadDone { changes, pending }.say();
            }
            Ok(()) => {}
        }
        report
    }

    fn reload_from(
        &mut self,
        reload: &mut Reload,
        report: &mut ReloadReport,
        observer: &mut dyn Observer,
    ) -> Result<(), Failure> {
        if self.ending.has_begun() {
            return Err(Failure::refused("the node is ending; start it again, and it reads its file"));
        }
        let wanted = Config::load(&reload.path)?;
        lend::check(&wanted.devices)?;
        stands_twice(&wanted)?;
        let changes = reload.compare(&wanted, self);
        changes.iter().for_each(|change| report.add(change));
        report.made = self.made();
        possible(&changes)?;
        let mut coming = Coming::reserve(&changes, reload, self)?;
        coming.find_memory(self, !report.dry_run)?;
        let mut before = reload.leaving_still(&changes, self);
        before.extend(self.unlisted_still(&changes, &wanted));
        before.extend(self.domains.changing_still(&changes, &self.agent));
        if report.dry_run {
            self.foresee(&changes, &coming, report);
            before.into_iter().for_each(|(change, whom)| report.add_pending(&change, whom));
            return Ok(());
        }
        let mut changing = coming.take_changing();
        let arrived = coming.admit(self, observer)?;
        (report.card_replaced, report.lines) = (arrived.is_card_replaced, arrived.lines);
        for (at, change) in changes.iter().enumerate() {
            let waits_for = match changing.remove(&at) {
                Some(slot) => self.domains.change(slot, &mut self.agent, &self.state),
                None => self.perform(change, reload),
            };
            let entry = &mut report.changes[at];
            entry.state = if waits_for.is_some() { Progress::Pending } else { Progress::Done };
            entry.waits_for = waits_for;
        }
        before.into_iter().for_each(|(change, whom)| report.add_pending(&change, whom));
        reload.config = wanted;
        self.devices.clone_from(&reload.config.devices);
        let lent = reload.config.devices.iter().map(lend::functions).collect::<Result<Vec<_>, _>>()?;
        let lent = lent.iter().flatten().map(|it| it.name.to_string()).collect();
        // Whoever asked for this has the lines, too, unless they are to be nowhere but in a file.
        if let Err(failure) = reload.lines.tell(&report.lines, &lent) {
            Event::LinesUnprinted { error: failure.message().to_owned() }.say();
        } else if reload.lines.are_kept() {
            report.lines.clear();
        }
        Ok(())
    }

    /// Does what no longer can be refused. For whom it waits, if it does.
    fn perform(&mut self, change: &Change, reload: &mut Reload) -> Option<String> {
        match change {
            Change::DeviceAdded(device) if reload.keep(device) => {
                Event::DeviceKept { device: device.function.to_string() }.say();
                None
            }
            // They have come, or are seen to elsewhere.
            Change::DeviceAdded(_) | Change::SlotsAdded(..) => None,
            Change::RailAdded(_) | Change::RailRemoved(_) => None,
            Change::SlotChanged(..) | Change::Fixed(_) => None,
            Change::LoanAdded(_) => Some(ANSWER.to_owned()),
            Change::DeviceRemoved(device) => {
                let leaving = Leaving::device(device, self);
                self.let_go(leaving, reload)
            }
            Change::LoanRemoved(loan) => {
                let leaving = Leaving::loan(loan, self)?;
                self.let_go(leaving, reload)
            }
            Change::SlotsRemoved(domain, slots) => {
                let leaving = Leaving::slots(domain, slots, self);
                self.let_go(leaving, reload)
            }
            Change::Allow(device) => self.allow(device),
            Change::Limits(device) => {
                self.set_limits(device);
                None
            }
        }
    }

    /// For whom changes would wait.
    fn foresee(&self, changes: &[Change], coming: &Coming, report: &mut ReloadReport) {
        for (at, (change, entry)) in changes.iter().zip(&mut report.changes).enumerate() {
            entry.waits_for = match change {
                Change::DeviceRemoved(device) => self.drive_of(device).and_then(|drive| self.holder(drive)),
                Change::Allow(device) => self.unlisted(device),
                Change::LoanAdded(_) => Some(ANSWER.to_owned()),
                Change::LoanRemoved(loan) => self.place_of(loan).and_then(|place| self.machine(place)),
                Change::SlotsRemoved(domain, slots) => Leaving::slots(domain, slots, self).waits_for(self),
                Change::SlotChanged(..) => {
                    coming.changing(at).and_then(|slot| self.domains.foresee(slot, &self.agent))
                }
                _ => None,
            };
        }
    }

    /// Whoever has it keeps it as long as it answers: for whom that waits.
    fn allow(&mut self, device: &Device) -> Option<String> {
        let drive = self.drive_of(device)?;
        self.agent.set_allowed(drive, device.allow.as_deref());
        let what = "who may have functions".to_owned();
        Event::DeviceChanged { device: device.function.to_string(), what }.say();
        self.unlisted(device)
    }

    fn set_limits(&mut self, device: &Device) {
        // Names were made of this once before.
        for lend::Lent { name: function, limit, .. } in lend::functions(device).unwrap_or_default() {
            let lends = |loan: &LoanSpec| {
                loan.lent().is_some_and(|had| had.limit != limit) && loan.function == function.as_str()
            };
            let view = self.agent.view();
            let place = view.spec().loans.iter().position(lends);
            let number = place.map(|place| view.spec().loans[place].config.function.0);
            // What the manager has said of it stays.
            if number
                .zip(self.managed.as_ref())
                .is_some_and(|(number, managed)| managed.is_limited(number, function.as_str()))
            {
                continue;
            }
            if place.is_some_and(|place| self.agent.set_limit(place, limit)) {
                let (iops, bytes_per_s) = (limit.iops(), limit.bytes_per_s());
                Event::LimitChanged { function: function.to_string(), iops, bytes_per_s }.say();
            }
        }
    }

    /// Places for loans that come: those of slots are kept for these.
    fn free_places(&self) -> Vec<usize> {
        self.agent.free_places(|place| self.domains.slot_of(place).is_some())
    }

    /// Numbers for virtual machines that come with loans, beside those in `taken`: each has a domain.
    fn free_machines(&self, taken: BTreeSet<u32>) -> Vec<u32> {
        let view = self.agent.view();
        // One that has left may still be connected to where it was.
        let present =
            view.spec().loans.iter().enumerate().filter_map(|(place, loan)| match loan.config.role.edge() {
                Some(Edge::Vm { machine, .. }) if !loan.is_vacant() || self.agent.has_guest(place) => {
                    Some(*machine)
                }
                _ => None,
            });
        let used: BTreeSet<u32> = present.chain(taken).chain(self.domains.machines()).collect();
        (0..view.spec().domains.machines()).filter(|machine| !used.contains(machine)).collect()
    }

    /// Where a device is among the drives.
    fn drive_of(&self, device: &Device) -> Option<usize> {
        let name = device.function.as_str();
        self.agent.view().spec().drives().find(|(_, drive)| drive.name == name).map(|(place, _)| place)
    }

    /// Functions that a manager has made, which no file of the node speaks of.
    fn made(&self) -> Vec<String> {
        let loans = self.agent.view().spec().loans.iter().filter(|loan| lend::made::is_made(loan));
        loans.map(|loan| loan.function.clone()).collect()
    }

    /// Those of a device.
    fn made_on(&self, device: &Device) -> Vec<String> {
        let Some(drive) = self.drive_of(device) else { return Vec::new() };
        let is_its = |loan: &&LoanSpec| loan.lent().is_some_and(|lent| lent.drive == drive);
        let loans = self.agent.view().spec().loans.iter().filter(|loan| lend::made::is_made(loan));
        let lent = loans.filter(is_its).map(|loan| loan.function.clone());
        // Also those whose places are still being cleared.
        let made = self.managed.iter().flat_map(|managed| managed.made_on(device.function.as_str()));
        let all: BTreeSet<String> = lent.chain(made.map(str::to_owned)).collect();
        all.into_iter().collect()
    }

    /// Where something borrowed has its place.
    fn place_of(&self, loan: &Loan) -> Option<usize> {
        let function = lend::function_id(loan.line.secret().reveal());
        let borrows = |it: &LoanSpec| matches!(it.config.role, LoanEnd::Borrow { .. });
        let is_it = |it: &LoanSpec| borrows(it) && it.config.function == function;
        self.agent.view().spec().loans.iter().position(is_it)
    }
}

impl Reload {
    /// What differs, as far as it is not just going anyway.
    fn compare(&self, wanted: &Config, node: &Node) -> Vec<Change> {
        let mut running = self.config.clone();
        // Rails that say none have an id, too.
        let view = node.agent.view();
        for rail in &mut running.rails {
            rail.id = view.spec().rails.iter().find(|it| it.name == rail.name).map(|it| it.id);
        }
        let changes = crate::config::compare(&running, wanted);
        changes.into_iter().map(|change| self.settled(change, node)).collect()
    }

    /// What is still leaving cannot come as something else meanwhile.
    fn settled(&self, change: Change, node: &Node) -> Change {
        if let Change::DeviceRemoved(device) = &change
            && let made = node.made_on(device)
            && !made.is_empty()
        {
            let (thing, name, action, detail) = change.parts();
            let remedy = format!("the manager has made {} on it: delete that first", made.join(", "));
            return Change::Fixed(Fixed { thing, name, action, detail, remedy });
        }
        let leaving = match &change {
            Change::DeviceAdded(device) => {
                self.leaving.iter().find(|it| it.is_named(device) && !it.is_device(device))
            }
            Change::LoanAdded(loan) => self.leaving.iter().find(|it| it.is_loan(loan)),
            Change::SlotsAdded(domain, _) => self.leaving.iter().find(|it| it.is_of(domain)),
            _ => None,
        };
        let Some(leaving) = leaving else { return change };
        let (thing, name, action, detail) = change.parts();
        let whom = leaving.waits_for(node).unwrap_or_else(|| "the node".to_owned());
        let remedy =
            format!("the one before has not left yet, and waits for {whom}: reload again when it has");
        Change::Fixed(Fixed { thing, name, action, detail, remedy })
    }

    /// What has been leaving since an earlier reload and is not touched by this one, and for whom it waits.
    fn leaving_still(&self, changes: &[Change], node: &Node) -> Vec<(Change, String)> {
        let stays = |it: &&Leaving| {
            let keeps =
                |change: &Change| matches!(change, Change::DeviceAdded(device) if it.is_device(device));
            !changes.iter().any(keeps)
        };
        self.leaving.iter().filter(stays).map(|it| (it.change().clone(), it.waits(node))).collect()
    }

    /// Whether the device is leaving, and stays instead.
    fn keep(&mut self, device: &Device) -> bool {
        let before = self.leaving.len();
        self.leaving.retain(|it| !it.is_device(device));
        self.leaving.len() < before
    }

    /// Whether the device is there already, and only was to leave.
    fn is_kept(&self, device: &Device) -> bool {
        self.leaving.iter().any(|it| it.is_device(device))
    }
}

/// Refuses what a running node cannot do, all of it at once.
fn possible(changes: &[Change]) -> Result<(), Failure> {
    let fixed = changes.iter().filter_map(|change| match change {
        Change::Fixed(fixed) => Some(fixed),
        _ => None,
    });
    let words: Vec<String> = fixed
        .map(|Fixed { thing, name, action, detail, remedy }| {
            format!("{thing} {name} cannot be {action} while the node runs ({detail}): {remedy}")
        })
        .collect();
    if words.is_empty() { Ok(()) } else { Err(Failure::new(Exit::Refused, words.join("; "))) }
}

/// A function that is borrowed twice: frames name a loan by it.
fn stands_twice(config: &Config) -> Result<(), Failure> {
    let presets =
        config.domains.iter().flat_map(|domain| &domain.slots).filter_map(|slot| slot.preset.as_ref());
    let mut seen = std::collections::BTreeSet::new();
    let mut lines = config.loans.iter().map(|loan| &loan.line).chain(presets);
    match lines.find(|line| !seen.insert(lend::function_id(line.secret().reveal()))) {
        Some(line) => Err(Failure::usage(format!(
            "{} stands twice among what this node borrows; remove one of them",
            line.function()
        ))),
        None => Ok(()),
    }
}
