//! What comes to a node by its file: reserved first, then admitted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::ids::RailId;
use io::agent::{self, Arrivals, DriveSpec, Edge, LoanEnd, LoanSpec};
use io::event::Event;
use node::{FunctionId, LoanKind};

use super::super::{Node, Observer};
use super::{Reload, sockets};
use crate::config::{Change, Device, Domain, LoanEdge, Slot};
use crate::exit::Failure;
use crate::line::FunctionName;
use crate::roles::domains::{Changing, Opened};
use crate::roles::{borrow, lend, rails};

/// What is open, locked and bound for a node, and given back if it is dropped: nobody has heard of it.
pub(super) struct Coming {
    devices: Vec<(FunctionName, lend::Ready)>,
    loans: Vec<(borrow::Wanted, Bound)>,
    slots: Vec<(String, Opened)>,
    /// Slots that change, by the place of the change among all.
    changing: BTreeMap<usize, Changing>,
    rails: Vec<agent::Rail>,
    /// Rails that go.
    gone: Vec<RailId>,
}

/// The loan of a line, whose socket goes with it.
struct Bound(Option<LoanSpec>);

/// What has come.
pub(super) struct Arrived {
    pub(super) is_card_replaced: bool,
    pub(super) lines: Vec<String>,
}

/// A device whose loans have their places.
struct Seated {
    place: usize,
    name: FunctionName,
    layout: u64,
    drive: DriveSpec,
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.0.iter().for_each(remove_socket);
    }
}

fn remove_socket(loan: &LoanSpec) {
    if let LoanEnd::Borrow { edge: Edge::Nbd { path, .. } | Edge::Vm { path, .. }, .. } = &loan.config.role {
        // If that fails the next start finds a dead socket, and removes it.
        let _ = std::fs::remove_file(path);
    }
}

impl Coming {
    /// Opens, locks and binds everything that is to come. Nobody's lock is waited for, since a node that waits looks
    /// after nothing.
    pub(super) fn reserve(changes: &[Change], reload: &Reload, node: &Node) -> Result<Self, Failure> {
        let (devices, loans, slots) = (Vec::new(), Vec::new(), Vec::new());
        sockets::refuse_own(changes, node)?;
        let (rails, gone) = rails_of(changes, node)?;
        let mut coming = Self { devices, loans, slots, changing: BTreeMap::new(), rails, gone };
        for (at, change) in changes.iter().enumerate() {
            match change {
                Change::DeviceAdded(device) if !reload.is_kept(device) => {
                    coming.open(device, reload, node)?;
                }
                Change::LoanAdded(loan) => {
                    let mut machines = node.free_machines(coming.machines()).into_iter();
                    let wanted = borrow::Wanted::of_preset(loan, &mut machines);
                    coming.bind(wanted, node)?;
                }
                Change::SlotsAdded(domain, slots) => coming.slots(domain, slots, node)?,
                Change::SlotChanged(domain, slots) => {
                    let changing = node.domains.reserve(domain, slots, &node.agent)?;
                    coming.changing.insert(at, changing);
                }
                _ => {}
            }
        }
        coming.refuse_twins(node)?;
        coming.find_places(node)?;
        Ok(coming)
    }

    fn open(&mut self, device: &Device, reload: &Reload, node: &Node) -> Result<(), Failure> {
        if !reload.listens {
            return Err(Failure::refused(format!(
                "device {} needs addresses to listen at, and this node has only borrowed so far: restart the node",
                device.function
            )));
        }
        let ready = lend::Ready::open(device, &node.state, Duration::ZERO)?;
        self.devices.push((device.function.clone(), ready));
        Ok(())
    }

    /// The numbers of machines that are to come.
    fn machines(&self) -> BTreeSet<u32> {
        let named = self.slots.iter().map(|(_, opened)| opened.machine());
        self.loans.iter().map(|(wanted, _)| wanted.machine).chain(named).collect()
    }

    fn slots(&mut self, domain: &Domain, slots: &[Slot], node: &Node) -> Result<(), Failure> {
        let known = node.domains.machine_of(&domain.name);
        let machine = match known {
            Some(machine) => Some(machine),
            None => {
                let free = node.free_machines(self.machines()).into_iter().collect();
                node.state.machine_number(&domain.name, &free)?
            }
        };
        let Some(machine) = machine else {
            let most = node.agent.view().spec().domains.machines();
            return Err(no_domain(most));
        };
        let opened = Opened::open(domain, slots, machine, known.is_none(), &node.state)?;
        opened.check_vacant()?;
        self.slots.push((domain.name.to_string(), opened));
        Ok(())
    }

    fn bind(&mut self, wanted: borrow::Wanted, node: &Node) -> Result<(), Failure> {
        let view = node.agent.view();
        if matches!(wanted.edge, LoanEdge::Vm { .. }) && view.spec().domains.machine(wanted.machine).is_none()
        {
            return Err(no_domain(view.spec().domains.machines()));
        }
        let bound = Bound(Some(borrow::loan(&wanted)?));
        self.loans.push((wanted, bound));
        Ok(())
    }

    /// A function stands once among what a node lends and borrows, what is still leaving included.
    fn refuse_twins(&self, node: &Node) -> Result<(), Failure> {
        let view = node.agent.view();
        let present = view.spec().loans.iter().filter(|loan| !loan.is_vacant());
        let mut seen: BTreeSet<FunctionId> = present.map(|loan| loan.config.function).collect();
        let mut coming = Vec::new();
        for (_, ready) in &self.devices {
            coming.extend(ready.function_ids(&node.state)?);
        }
        coming.extend(self.loans.iter().map(|(wanted, _)| {
            (wanted.line.function().clone(), lend::function_id(wanted.line.secret().reveal()))
        }));
        let attached = self.slots.iter().flat_map(|(_, opened)| opened.loans());
        for loan in attached.filter(|loan| !loan.is_vacant()) {
            coming.push((loan.function.parse().map_err(Failure::usage)?, loan.config.function));
        }
        for changing in self.changing.values() {
            let Some(line) = changing.line() else { continue };
            let function = lend::function_id(line.secret().reveal());
            let is_there = view.loan(changing.loan()).is_some_and(|(it, _)| it.config.function == function);
            if !is_there {
                coming.push((line.function().clone(), function));
            }
        }
        match coming.into_iter().find(|(_, function)| !seen.insert(*function)) {
            Some((function, _)) => Err(Failure::refused(format!(
                "{function} would stand twice among what this node lends and borrows, or the one before has not left \
                 yet"
            ))),
            None => Ok(()),
        }
    }

    /// Finds memory for everything, and with `take` takes it: nothing durable has changed if there is none.
    pub(super) fn find_memory(&self, node: &mut Node, take: bool) -> Result<(), Failure> {
        let functions = self.devices.iter().map(|(_, ready)| ready.functions());
        let lent = functions.flat_map(|count| std::iter::repeat_n(Some(LoanKind::Lend), count));
        let bound = self.loans.iter().filter_map(|(_, loan)| loan.0.as_ref());
        let slots = self.slots.iter().flat_map(|(_, opened)| opened.loans());
        let kinds = lent.chain(bound.chain(slots).map(|loan| loan.config.role.reserved_kind()));
        // In the order in which they get places.
        let kinds = node.free_places().into_iter().zip(kinds);
        let kinds: Vec<_> = kinds.filter_map(|(place, kind)| Some((place, kind?))).collect();
        node.agent.find_memory(self.devices.len(), &kinds, take).map_err(|error| no_memory(&error))
    }

    /// The slot that changes by this change.
    pub(super) fn changing(&self, at: usize) -> Option<&Changing> {
        self.changing.get(&at)
    }

    /// The slots that change, to be changed when everything has come.
    pub(super) fn take_changing(&mut self) -> BTreeMap<usize, Changing> {
        std::mem::take(&mut self.changing)
    }

    fn find_places(&self, node: &Node) -> Result<(), Failure> {
        let functions: usize = self.devices.iter().map(|(_, ready)| ready.functions()).sum();
        let slots: usize = self.slots.iter().map(|(_, opened)| opened.len()).sum();
        let wanted = functions + self.loans.len() + slots;
        let has_drives = node.agent.free_drives().len() >= self.devices.len();
        if has_drives && node.free_places().len() >= wanted {
            return Ok(());
        }
        if !has_drives {
            return Err(Failure::refused(format!(
                "a node has room for {} devices, those included that are still leaving: start another node for the \
                 rest, or reload when they have left",
                node::MAX_DRIVES
            )));
        }
        Err(Failure::refused(format!(
            "a node has room for {} functions, loans and slots together, those included that are still leaving: start \
             another node for the rest, or reload when they have left",
            node::MAX_LOANS
        )))
    }

    /// Gives everything its place. If that is not possible nothing has changed.
    pub(super) fn admit(self, node: &mut Node, observer: &mut dyn Observer) -> Result<Arrived, Failure> {
        let has_rails = !self.rails.is_empty() || !self.gone.is_empty();
        if self.devices.is_empty() && self.loans.is_empty() && self.slots.is_empty() && !has_rails {
            return Ok(Arrived { is_card_replaced: false, lines: Vec::new() });
        }
        let mut places = node.free_places().into_iter();
        let mut arrivals = Arrivals::default();
        let mut seated = Vec::new();
        for ((name, ready), place) in self.devices.into_iter().zip(node.agent.free_drives()) {
            let mut settled =
                ready.settle(place, &node.state, Some(&node.agent.view().spec().last_writes))?;
            let life = node.state.begin_life()?;
            settled.drive.config.life = life;
            let mut loans = settled.loans;
            loans.iter_mut().for_each(|loan| loan.config.life = life);
            // The loans come first: no place is taken for none.
            arrivals.loans.extend(loans.into_iter().zip(places.by_ref()).map(|(loan, place)| (place, loan)));
            seated.push(Seated { place, name, layout: settled.layout, drive: settled.drive });
        }
        let lines = lines(&arrivals, (&self.rails, &self.gone), node)?;
        let mut slots = self.slots;
        slots.iter_mut().try_for_each(|(_, opened)| opened.begin_lives(&node.state))?;
        let held =
            arrivals.loans.iter().map(|(_, loan)| loan.config.tenancy).filter(|tenancy| tenancy.is_held);
        arrivals.holders = node.state.holders(&held.map(|tenancy| tenancy.node).collect())?;
        let mut bound = Vec::new();
        for ((wanted, mut loan), place) in self.loans.into_iter().zip(places.by_ref()) {
            let life = node.state.begin_life()?;
            if let Some(loan) = &mut loan.0 {
                loan.config.life = life;
            }
            bound.push((place, wanted, loan));
        }
        // Nothing but memory can be wanting any more.
        for (place, _, loan) in &mut bound {
            arrivals.loans.extend(loan.0.take().map(|loan| (*place, loan)));
        }
        let mut domains = Vec::new();
        for (domain, opened) in slots {
            let their: Vec<usize> = places.by_ref().take(opened.len()).collect();
            domains.push((domain, their.clone()));
            arrivals.loans.extend(opened.admit(their, &mut node.domains));
        }
        let is_card_replaced = !seat(node, seated, arrivals).inspect_err(|_| {
            domains.iter().flat_map(|(_, places)| places).for_each(|place| node.domains.forget(*place));
        })?;
        if has_rails {
            change_rails(self.rails, &self.gone, node);
        }
        for (domain, places) in domains {
            let names: Vec<String> = places.iter().filter_map(|place| node.domains.slot_of(*place)).collect();
            Event::SlotsAdded { domain, slots: names.join(", ") }.say();
        }
        for (place, wanted, _) in bound {
            let (function, edge) = (wanted.line.function().to_string(), wanted.edge.uri());
            Event::LoanAdded { function, edge }.say();
            node.said.note_come(place);
            observer.comes(place, wanted);
        }
        Ok(Arrived { is_card_replaced, lines })
    }
}

fn no_memory(error: &std::io::Error) -> Failure {
    Failure::io("there is no memory for it", error)
}

/// The rails that come, bound, and those that go.
fn rails_of(changes: &[Change], node: &Node) -> Result<(Vec<agent::Rail>, Vec<RailId>), Failure> {
    let view = node.agent.view();
    let is_gone = |rail: &&agent::Rail| {
        changes.iter().any(|change| matches!(change, Change::RailRemoved(it) if it.name == rail.name))
    };
    let (gone, stay): (Vec<_>, Vec<_>) = view.spec().rails.iter().partition(is_gone);
    let come = changes.iter().filter_map(|change| match change {
        Change::RailAdded(rail) => Some(rail.clone()),
        _ => None,
    });
    let come: Vec<_> = come.collect();
    let bound =
        if come.is_empty() { Vec::new() } else { rails::listen_more(&come, &stay, &gone, &node.state)? };
    for rail in &bound {
        if node.agent.is_too_small(rail) {
            return Err(Failure::refused(format!(
                "rail {} takes smaller frames than those that this node has promised to others over the rails it runs \
                 with: give its interface a larger MTU (8192 or more), or restart the node with it",
                rail.name
            )));
        }
        if let Some(function) = node.agent.too_small_for(rail.id) {
            return Err(Failure::refused(format!(
                "rail {} takes smaller frames to the lender of {function} than the two nodes have agreed on: give it a \
                 larger MTU, or restart the node with it",
                rail.name
            )));
        }
    }
    Ok((bound, gone.into_iter().map(|rail| rail.id).collect()))
}

/// The lines of what is lent from now on; of all that is lent where rails change.
fn lines(
    arrivals: &Arrivals,
    (come, gone): (&[agent::Rail], &[RailId]),
    node: &Node,
) -> Result<Vec<String>, Failure> {
    let view = node.agent.view();
    let stay = view.spec().rails.iter().filter(|rail| !gone.contains(&rail.id));
    let addresses = lend::addresses_of(stay.chain(come));
    let are_other = !come.is_empty() || !gone.is_empty();
    let is_lent = |loan: &&LoanSpec| loan.lent().is_some();
    let present = view.spec().loans.iter().filter(|_| are_other);
    let lent = present.chain(arrivals.loans.iter().map(|(_, loan)| loan)).filter(is_lent);
    lend::lines(view.spec().identity.lends_in(view.spec().domains.node()), lent, addresses)
}

fn change_rails(come: Vec<agent::Rail>, gone: &[RailId], node: &mut Node) {
    let said = |rail: &agent::Rail| (rail.name.clone(), rail.socket.local().to_string());
    let came: Vec<_> = come.iter().map(said).collect();
    let view = node.agent.view();
    let went: Vec<_> = view.spec().rails.iter().filter(|rail| gone.contains(&rail.id)).map(said).collect();
    node.agent.change_rails(come, gone);
    came.into_iter().for_each(|(rail, listen)| Event::RailAdded { rail, listen }.say());
    went.into_iter().for_each(|(rail, listen)| Event::RailRemoved { rail, listen }.say());
}

fn no_domain(most: u32) -> Failure {
    Failure::refused(format!(
        "this node has domains for {most} virtual machines and no more: give it more with `domain_block`, and restart \
         it"
    ))
}

/// From now on cards may write to the images. Whether the card goes on.
fn seat(node: &mut Node, seated: Vec<Seated>, mut arrivals: Arrivals) -> Result<bool, Failure> {
    let mut layouts = Vec::new();
    for Seated { place, name, layout, drive } in seated {
        node.agent.view().spec().last_writes.begin_one(place, lend::written(&drive));
        if drive.config.keeps_state && !node.agent.view().spec().last_writes.is_kept() {
            Event::WritesUnkept {}.say();
        }
        let begun = lend::begin(&drive, &name, &node.state);
        layouts.push((place, (name, layout), drive.source.clone()));
        arrivals.drives.push((place, drive));
        if let Err(error) = begun {
            withdraw(&layouts, node);
            arrivals.loans.iter().for_each(|(_, loan)| remove_socket(loan));
            return Err(error.into());
        }
    }
    let goes_on = node.agent.admit(arrivals).map_err(|error| {
        withdraw(&layouts, node);
        no_memory(&error)
    })?;
    for (place, layout, source) in layouts {
        Event::DeviceAdded { device: layout.0.to_string(), source }.say();
        match node.layouts.get_mut(place) {
            Some(known) => *known = layout,
            None => node.layouts.push(layout),
        }
    }
    Ok(goes_on)
}

fn withdraw(layouts: &[(usize, (FunctionName, u64), String)], node: &Node) {
    let layouts: Vec<_> = layouts.iter().map(|(_, layout, _)| layout.clone()).collect();
    lend::withdraw(&layouts, &node.state);
}
