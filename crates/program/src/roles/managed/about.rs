//! What the manager is told of a node, beside what it has decided.

use io::agent::{Agent, LoanSpec, Rail, View};
use management::wire::{About, DomainSaid, RailSaid, SlotSaid, SwitchSaid};
use manager::model::{Kind, MadeId, Name, Resource};

use crate::control::SlotState;
use crate::roles::domains::Domains;
use crate::roles::{lend, report};

/// What it lends. A function whose name no manager can know is none of these.
pub(super) fn functions(
    view: &View<'_>,
    made: impl Fn(&LoanSpec) -> Option<MadeId>,
) -> Vec<(u32, Name, Resource)> {
    let lent = view.loans().filter(|(loan, _)| loan.lent().is_some());
    let function = lent.filter_map(|(loan, cells)| {
        let (bytes, read_only) = report::extent(view, loan, cells);
        let name = loan.function.parse().ok()?;
        let made = made(loan);
        // One that is about to go is none of these either.
        if lend::made::is_made(loan) && made.is_none() {
            return None;
        }
        let resource = Resource { kind: Kind::Nvme, bytes, read_only, made };
        Some((loan.config.function.0, name, resource))
    });
    function.collect()
}

/// Its rails, its machines with their slots, and the switches that it hears.
pub(super) fn about(agent: &Agent, domains: &Domains, switches: Vec<SwitchSaid>) -> About {
    let view = agent.view();
    let spec = view.spec();
    let rail = |rail: &Rail| {
        let local = rail.socket.local();
        RailSaid {
            rail: rail.id,
            name: rail.name.clone(),
            medium: report::medium_of(local).to_owned(),
            address: local.to_string(),
            is_up: agent.has_carrier(rail.id),
        }
    };
    let mut machines: Vec<DomainSaid> = Vec::new();
    for slot in domains.slots(spec.domains) {
        let (Ok(machine), Ok(name)) = (slot.machine.parse::<Name>(), slot.slot.parse::<Name>()) else {
            continue;
        };
        let said =
            SlotSaid { name, slot: slot.number, state: word(slot.state).to_owned(), trouble: slot.trouble };
        match machines.iter_mut().find(|known| known.domain == slot.domain) {
            Some(known) => known.slots.push(said),
            None => machines.push(DomainSaid { name: machine, domain: slot.domain, slots: vec![said] }),
        }
    }
    let addresses = lend::addresses_of(&spec.rails).to_string();
    About { addresses, rails: spec.rails.iter().map(rail).collect(), domains: machines, switches }
}

/// As `status` has it.
fn word(state: SlotState) -> &'static str {
    match state {
        SlotState::Vacant => "vacant",
        SlotState::Attaching => "attaching",
        SlotState::Attached => "attached",
        SlotState::Leaving => "leaving",
        SlotState::Returning => "returning",
    }
}
