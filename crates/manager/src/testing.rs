//! A fabric for tests, and short words for what is done in it.

use base::ids::{DomainId, Group, NodeId};

use crate::command::{Asked, Asker, Command};
use crate::decide::{Decision, decide, found};
use crate::model::{
    FabricId, FunctionKey, FunctionName, Groups, Kind, Limits, MadeId, Name, OnSilence, PublicKey, RequestId,
    Resource, Role, Shape, Storage, TokenHash, WallTime,
};
use crate::refusal::Refusal;
use crate::report::{Holder, Identity, MadeSaid, Reported};
use crate::state::State;

pub(crate) const FABRIC: FabricId = FabricId([7; 16]);
pub(crate) const T0: WallTime = WallTime(1_700_000_000_000);

pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub(crate) fn function_name(text: &str) -> FunctionName {
    text.parse().unwrap()
}

pub(crate) fn hash(number: u8) -> TokenHash {
    TokenHash([number; 32])
}

pub(crate) fn request(number: u64) -> RequestId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    RequestId(bytes)
}

pub(crate) fn node_id(number: u64) -> NodeId {
    NodeId::numbered(number)
}

pub(crate) fn key(node: u64, number: u32) -> FunctionKey {
    FunctionKey { node: node_id(node), number }
}

pub(crate) fn by(who: &str, number: u64, command: Command) -> Asked {
    Asked { request: request(number), who: Asker::Api(name(who)), if_version: None, command }
}

pub(crate) fn resource() -> Resource {
    Resource { kind: Kind::Nvme, bytes: 1 << 20, read_only: false, made: None }
}

pub(crate) fn assign(function: &str, domain: u32, slot: u16) -> Command {
    let (group, on_silence) = (Some(Group::DEFAULT), OnSilence::default());
    Command::Assign { function: function_name(function), domain: DomainId(domain), slot, group, on_silence }
}

pub(crate) fn unassign(function: &str, force: bool) -> Command {
    Command::Unassign { function: function_name(function), force }
}

/// A function with a namespace of so many MiB.
pub(crate) fn make(function: &str, mib: u64) -> Command {
    let bytes = core::num::NonZeroU64::new(mib << 20).unwrap();
    let (device, storage) = (name("data"), Storage::Own { bytes });
    let shape = Shape { device, storage, group: None, limits: Limits::default() };
    Command::MakeFunction { function: function_name(function), shape }
}

pub(crate) fn delete(function: &str) -> Command {
    Command::DeleteFunction { function: function_name(function) }
}

/// A function that was made by this decision, as its lender reports it.
pub(crate) fn reported_made(number: u32, called: &str, made: MadeId) -> Reported {
    let it = reported(number, 0, Holder::Nobody);
    Reported { name: name(called), resource: Resource { made: Some(made), ..it.resource }, ..it }
}

pub(crate) fn reported(number: u32, generation: u64, holder: Holder) -> Reported {
    let generation = base::ids::LoanGeneration(generation);
    Reported {
        number,
        name: name(&format!("nvme{number}")),
        resource: resource(),
        generation,
        holder,
        limits: None,
    }
}

/// A state with an administrator `root`, an operator `op` and a reader `eye`.
pub(crate) fn founded() -> State {
    let mut state = State::new(FABRIC);
    state.apply(1, &found(T0, name("root"), hash(1))).unwrap();
    let set = |name_of: &str, number: u8, role| Command::SetApiToken {
        name: name(name_of),
        hash: hash(number),
        role,
        replace: false,
    };
    run(&mut state, by("root", 1, set("op", 2, Role::Operator)));
    run(&mut state, by("root", 2, set("eye", 3, Role::ReadOnly)));
    state
}

/// Decides and applies.
pub(crate) fn try_run(state: &mut State, now: WallTime, asked: &Asked) -> Result<Decision, Refusal> {
    let decision = decide(state, now, asked)?;
    if let Some(entry) = &decision.entry {
        state.apply(state.index() + 1, entry).unwrap();
    }
    Ok(decision)
}

pub(crate) fn run(state: &mut State, asked: Asked) -> Decision {
    try_run(state, T0, &asked).unwrap()
}

pub(crate) fn join_token(number: u8, domains: u32) -> Command {
    Command::MakeJoinToken {
        hash: hash(number),
        expires: T0.plus_s(3600),
        groups: Groups::default(),
        domains,
    }
}

pub(crate) fn joining(token: u8, request_of: u64, node: u64, called: &str) -> Asked {
    let command = Command::Join { id: node_id(node), name: name(called), key: PublicKey([node as u8; 32]) };
    Asked { request: request(request_of), who: Asker::Joiner(hash(token)), if_version: None, command }
}

/// Nodes `store` (1) and `desk` (2), of 16 domains each: from 16 and from 32 on. The store lends `nvme0` and `nvme1`.
pub(crate) fn fabric() -> State {
    let mut state = founded();
    for (node, called) in [(1, "store"), (2, "desk")] {
        run(&mut state, by("root", 10 + node, join_token(10 + node as u8, 16)));
        run(&mut state, joining(10 + node as u8, 20 + node, node, called));
    }
    let all = [reported(0, 0, Holder::Nobody), reported(1, 0, Holder::Nobody)];
    learn(&mut state, 1, &all);
    state
}

/// What an inventory of a node comes to.
pub(crate) fn learn(state: &mut State, node: u64, functions: &[Reported]) -> crate::reconcile::Verdict {
    learn_all(state, node, functions, None)
}

/// The same, with what it says of functions that were made.
pub(crate) fn learn_all(
    state: &mut State,
    node: u64,
    functions: &[Reported],
    made: Option<&MadeSaid>,
) -> crate::reconcile::Verdict {
    use crate::entry::{Change, Entry, Who};
    let id = node_id(node);
    let verdict = crate::reconcile::Judge::new(state, id, state.at()).inventory(functions, made);
    if !verdict.news.is_empty() {
        let change = Change::Reported { id, news: verdict.news.clone(), is_again: false };
        let entry = Entry { at: state.at(), who: Who::Node { id }, request: None, change };
        state.apply(state.index() + 1, &entry).unwrap();
    }
    verdict
}

pub(crate) fn identity(state: &State, node: u64) -> Identity {
    let node = state.joined(node_id(node)).unwrap().clone();
    let issued = WallTime::default();
    Identity { name: node.name, key: node.key, block: node.block, groups: node.groups, issued }
}
