//! What is so, as documents, and the lists of them.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use manager::entry::{Answer, Change, Who};
use manager::model::{self, FunctionName, Loan as Assigned, Membership, Name, Place};
use manager::report::RailCause;
use manager::state::{Record, State};

use super::page::{Filters, Row};
use crate::server::core::View;
use crate::server::problem::Failure;
use crate::server::slots;
use crate::shapes::{
    ApiToken, Audit, Domain, Function, JoinToken, Limits, Loan, Node, Rail, RailVerdict, Slot, Switch,
};
use crate::wire::{DomainSaid, SlotSaid};

/// How far a function is.
pub(in crate::server) fn state_of(loan: &Assigned) -> &'static str {
    match loan {
        Assigned::Free => "free",
        Assigned::Wanted { .. } => "wanted",
        Assigned::Applied { .. } => "applied",
        Assigned::Leaving { .. } => "leaving",
        Assigned::Forced { .. } => "forced",
        Assigned::Ended { .. } => "ended",
    }
}

fn kind(kind: model::Kind) -> &'static str {
    match kind {
        model::Kind::Nvme => "nvme",
        model::Kind::Other => "other",
    }
}

/// A node's document.
pub(super) fn node(view: &View<'_>, node: &model::Node) -> Node {
    let known = view.nodes.get(node.id);
    let is_reachable = view.manager.is_reachable(node.id);
    let (state, since) = match node.membership {
        Membership::Removed { since } => ("removed", since),
        Membership::Joined { since } if is_reachable => ("reachable", since),
        Membership::Joined { since } => ("silent", since),
    };
    let silent_since = known.and_then(|known| known.silent_since).filter(|_| state == "silent");
    let connection = known.and_then(|known| known.connection.as_ref());
    let alarms = view.manager.alarms(node.id).map(ToString::to_string);
    let rival = known.and_then(|known| known.rivals.alarm(tokio::time::Instant::now())).map(str::to_owned);
    let clock = connection.and_then(|it| it.clock.clone());
    let alarms = clock.into_iter().chain(rival).chain(alarms).collect();
    let rails = known.map(|known| &known.about.rails[..]).unwrap_or_default().iter();
    let verdict = |rail| {
        let (verdict, by) = view.manager.dead_rail(node.id, rail)?;
        let cause = match verdict.cause {
            RailCause::Silence => "silence",
            RailCause::Carrier => "carrier",
        };
        let by = by.into_iter().map(|it| node_name(view.state(), it)).collect();
        Some(RailVerdict { cause: cause.to_owned(), since: verdict.since.to_string(), by })
    };
    let rails = rails.map(|rail| Rail {
        rail: rail.rail.get(),
        verdict: verdict(rail.rail),
        name: rail.name.clone(),
        medium: rail.medium.clone(),
        address: rail.address.clone(),
        is_up: rail.is_up,
    });
    Node {
        name: node.name.to_string(),
        node: node.id.to_string(),
        state: state.to_owned(),
        since: since.to_string(),
        silent_since: silent_since.map(|since| since.to_string()),
        domains: format!("{}/{}", node.block.base(), node.block.len()),
        groups: node.groups.iter().map(|group| group.0).collect(),
        functions: view.state().functions_of(node.id).count() as u64,
        rails: rails.collect(),
        program: connection.map(|it| it.program.clone()),
        alarms,
        making: view.state().making(node.id).map(super::making::making).unwrap_or_default(),
    }
}

/// A function's document.
pub(super) fn function(view: &View<'_>, lender: &Name, function: &model::Function) -> Function {
    let slot = function.loan.occupied().map(|of| slots::name(view.state(), view.nodes, of.place));
    let making = view.state().making(function.key.node);
    let made = making.and_then(|making| making.functions.get(&function.name));
    let state = if view.state().is_unwanted(function) { "deleting" } else { state_of(&function.loan) };
    Function {
        name: format!("{lender}/{}", function.name),
        node: lender.to_string(),
        number: function.key.number,
        kind: kind(function.resource.kind).to_owned(),
        bytes: function.resource.bytes,
        read_only: function.resource.read_only,
        generation: function.generation.0,
        state: state.to_owned(),
        made_on: made.map(|made| made.shape.device.to_string()),
        slot,
        since: function.loan.since().map(|since| since.to_string()),
        limits: function.limits.map(|limited| limits(limited.limits)),
        is_limited: function.limits.is_some() && function.is_limited(),
    }
}

fn limits(limits: model::Limits) -> Limits {
    Limits { iops: limits.iops.map(NonZeroU64::get), bytes_per_s: limits.bytes_per_s.map(NonZeroU64::get) }
}

/// A loan's document, if the function is one.
pub(super) fn loan(view: &View<'_>, lender: &Name, function: &model::Function) -> Option<Loan> {
    let of = function.loan.occupied()?;
    let borrower =
        view.state().node(of.borrower).map_or_else(|| of.borrower.to_string(), |it| it.name.to_string());
    Some(Loan {
        name: format!("{lender}/{}", function.name),
        lender: lender.to_string(),
        borrower,
        slot: slots::name(view.state(), view.nodes, of.place),
        group: of.group.0,
        generation: function.generation.0,
        state: state_of(&function.loan).to_owned(),
        since: function.loan.since().unwrap_or_default().to_string(),
        on_silence: of.on_silence.to_string(),
    })
}

/// A domain's document.
pub(super) fn domain(view: &View<'_>, node: &model::Node, said: &DomainSaid) -> Domain {
    let name = format!("{}/{}", node.name, said.name);
    let is_reachable = view.manager.is_reachable(node.id);
    let mut slots: Vec<&SlotSaid> = said.slots.iter().collect();
    slots.sort_unstable_by_key(|slot| slot.slot);
    let slots = slots.into_iter().map(|slot| {
        let there = view.state().in_slot(Place { domain: said.domain, slot: slot.slot });
        Slot {
            name: format!("{name}/{}", slot.name),
            slot: slot.slot,
            function: there.and_then(|it| view.state().name_of(it.key)).map(|name| name.to_string()),
            state: is_reachable.then(|| slot.state.clone()),
            trouble: slot.trouble.clone().filter(|_| is_reachable),
        }
    });
    Domain { node: node.name.to_string(), domain: said.domain.0, slots: slots.collect(), name }
}

fn audit(state: &State, record: &Record) -> Audit {
    let entry = &record.entry;
    let who = match &entry.who {
        Who::Manager => "the manager".to_owned(),
        Who::Api { token } => token.to_string(),
        Who::Joiner { token } => format!("join token {token}"),
        Who::Node { id } => format!("node {}", node_name(state, *id)),
    };
    let result = match entry.request.as_ref().map(|request| &request.answer) {
        Some(Answer::Function { generation, .. }) => format!("done: generation {generation}"),
        Some(Answer::Joined { block, .. }) => format!("done: domains {}/{}", block.base(), block.len()),
        Some(Answer::Done | Answer::Limits { .. } | Answer::Made { .. }) => "done".to_owned(),
        None => match &entry.change {
            Change::Noted { result, count: 0..=1, .. } => result.clone(),
            Change::Noted { result, count, .. } => format!("{result} ({count} times more)"),
            _ => "done".to_owned(),
        },
    };
    Audit {
        index: record.index.to_string(),
        at: entry.at.to_string(),
        who,
        what: what(state, &entry.change),
        result,
    }
}

/// What an entry has changed, by the names that things have now.
fn what(state: &State, change: &Change) -> String {
    let function =
        |key| state.name_of(key).map_or_else(|| "a function that is gone".to_owned(), |it| it.to_string());
    match change {
        Change::EpochBegun { epoch, .. } => format!("begin epoch {epoch}"),
        Change::RestoreEnded => "end the restore".to_owned(),
        Change::ApiTokenSet { name, token } => format!("make {name} {}", token.role.text()),
        Change::ApiTokenRemoved { name } => format!("remove token {name}"),
        Change::JoinTokenMade { token } => format!("make join token {}", token.hash),
        Change::JoinTokenRemoved { hash } => format!("remove join token {hash}"),
        Change::NodeJoined { id, name, .. } => format!("join as {name} ({id})"),
        Change::NodeAdopted { node, .. } => format!("take in {} ({}) by its certificate", node.name, node.id),
        Change::NodeDisplaced { id } => {
            format!("remove node {} again, which was removed before the restore", node_name(state, *id))
        }
        Change::NodeRemoved { id, .. } => format!("remove node {}", node_name(state, *id)),
        Change::GroupsSet { id, groups } => {
            let groups: Vec<String> = groups.iter().map(|group| group.to_string()).collect();
            format!("set groups of {} to {}", node_name(state, *id), groups.join(", "))
        }
        Change::Assigned { key, to, .. } => {
            format!("assign {} to {} of {}", function(*key), to.place, node_name(state, to.borrower))
        }
        Change::Unassigned { key, force: false, .. } => format!("unassign {}", function(*key)),
        Change::Unassigned { key, force: true, .. } => format!("unassign {} by force", function(*key)),
        Change::LimitsSet { key, limits } => {
            let number = |it: Option<NonZeroU64>| it.map_or_else(|| "any".to_owned(), |it| it.to_string());
            let (iops, bytes) = (number(limits.iops), number(limits.bytes_per_s));
            format!("limit {} to {iops} commands and {bytes} bytes a second", function(*key))
        }
        Change::FunctionMade { node, name, shape } => {
            let what = match &shape.storage {
                model::Storage::Own { bytes } => format!("{bytes} bytes"),
                model::Storage::Shared { namespace } => format!("namespace {namespace}"),
            };
            format!("make function {}/{name} with {what} of {}", node_name(state, *node), shape.device)
        }
        Change::FunctionDeleted { node, name } => {
            format!("delete function {}/{name}", node_name(state, *node))
        }
        Change::Reported { id, news, .. } => {
            news.iter().filter_map(|news| news.text(state, *id)).collect::<Vec<_>>().join("; ")
        }
        Change::Noted { what, .. } => what.clone(),
    }
}

/// What a node is called, or was.
pub(in crate::server) fn node_name(state: &State, id: base::ids::NodeId) -> String {
    state.node(id).map_or_else(|| id.to_string(), |node| node.name.to_string())
}

/// Nodes that have joined, in order of names, from this one on, and what of `after` lies in the first one.
fn nodes_from<'v>(
    state: &'v State,
    after: Option<&'v str>,
    only: Option<&'v str>,
) -> impl Iterator<Item = (&'v model::Node, Option<&'v str>)> {
    let (first, rest) = match after {
        Some(after) => after.split_once('/').unwrap_or((after, "")),
        None => ("", ""),
    };
    let names = state.node_names().filter(move |name| name.as_str() >= first);
    let names = names.filter(move |name| only.is_none_or(|only| only == name.as_str()));
    let nodes = names.filter_map(|name| state.node_called(name));
    nodes.map(move |node| (node, (node.name.as_str() == first).then_some(rest)))
}

/// What nodes lend, in order of names.
fn functions_from<'v>(
    state: &'v State,
    after: Option<&'v str>,
    only: Option<&'v str>,
) -> impl Iterator<Item = (&'v Name, &'v model::Function)> {
    nodes_from(state, after, only).flat_map(|(node, rest)| {
        let behind = |it: &&model::Function| rest.is_none_or(|rest| it.name.as_str() > rest);
        let mut functions: Vec<_> = state.functions_of(node.id).filter(behind).collect();
        functions.sort_unstable_by(|one, two| one.name.cmp(&two.name));
        functions.into_iter().map(|function| (&node.name, function))
    })
}

impl Row for Node {
    fn key(&self) -> &str {
        &self.name
    }

    fn rows<'v>(
        view: &'v View<'v>,
        after: Option<&'v str>,
        _: &'v Filters,
    ) -> Box<dyn Iterator<Item = Self> + 'v> {
        let names = view.state().node_names();
        let names = names.filter(move |name| after.is_none_or(|after| name.as_str() > after));
        let nodes = names.filter_map(|name| view.state().node_called(name));
        Box::new(nodes.map(|it| node(view, it)))
    }
}

impl Row for Function {
    fn key(&self) -> &str {
        &self.name
    }

    fn rows<'v>(
        view: &'v View<'v>,
        after: Option<&'v str>,
        filters: &'v Filters,
    ) -> Box<dyn Iterator<Item = Self> + 'v> {
        let functions = functions_from(view.state(), after, filters.get("node"));
        Box::new(functions.map(|(lender, it)| function(view, lender, it)))
    }
}

impl Row for Loan {
    fn key(&self) -> &str {
        &self.name
    }

    fn rows<'v>(
        view: &'v View<'v>,
        after: Option<&'v str>,
        filters: &'v Filters,
    ) -> Box<dyn Iterator<Item = Self> + 'v> {
        let functions = functions_from(view.state(), after, filters.get("lender"));
        Box::new(functions.filter_map(|(lender, it)| loan(view, lender, it)))
    }
}

impl Row for Domain {
    fn key(&self) -> &str {
        &self.name
    }

    fn rows<'v>(
        view: &'v View<'v>,
        after: Option<&'v str>,
        filters: &'v Filters,
    ) -> Box<dyn Iterator<Item = Self> + 'v> {
        Box::new(nodes_from(view.state(), after, filters.get("node")).flat_map(move |(node, rest)| {
            let said = view.nodes.get(node.id).map(|known| &known.about.domains[..]).unwrap_or_default();
            let behind = |it: &&DomainSaid| rest.is_none_or(|rest| it.name.as_str() > rest);
            let mut said: Vec<_> = said.iter().filter(behind).collect();
            said.sort_unstable_by(|one, two| one.name.cmp(&two.name));
            said.into_iter().map(move |said| domain(view, node, said))
        }))
    }
}

impl Row for Switch {
    fn key(&self) -> &str {
        &self.switch
    }

    fn rows<'v>(
        view: &'v View<'v>,
        after: Option<&'v str>,
        _: &'v Filters,
    ) -> Box<dyn Iterator<Item = Self> + 'v> {
        Box::new(
            switches(view)
                .into_values()
                .filter(move |it| after.is_none_or(|after| it.switch.as_str() > after)),
        )
    }
}

/// Switches by their ids, as far as nodes of the fabric have said something of them.
fn switches(view: &View<'_>) -> BTreeMap<String, Switch> {
    let mut switches: BTreeMap<String, Switch> = BTreeMap::new();
    for (id, about) in view.nodes.all() {
        let Some(node) = view.state().joined(id) else { continue };
        let is_reachable = view.manager.is_reachable(id);
        for said in &about.switches {
            let switch = said.node.to_string();
            let known = switches.entry(switch.clone()).or_insert_with(|| Switch {
                name: said.name.clone(),
                switch,
                state: "silent".to_owned(),
                nodes: Vec::new(),
                ports: Vec::new(),
            });
            if said.is_heard && is_reachable {
                "heard".clone_into(&mut known.state);
            }
            known.nodes.extend(said.rails.iter().map(|rail| format!("{}/{rail}", node.name)));
            known.ports.extend(said.ports.iter().cloned());
            // Nodes say the same of it.
            for list in [&mut known.nodes, &mut known.ports] {
                list.sort_unstable();
                list.dedup();
            }
        }
    }
    switches
}

impl Row for JoinToken {
    fn key(&self) -> &str {
        &self.hash
    }

    fn rows<'v>(
        view: &'v View<'v>,
        after: Option<&'v str>,
        _: &'v Filters,
    ) -> Box<dyn Iterator<Item = Self> + 'v> {
        let tokens = view.state().join_tokens().map(|token| JoinToken {
            hash: token.hash.to_string(),
            expires: token.expires.to_string(),
            groups: token.groups.iter().map(|group| group.0).collect(),
            domains: token.domains,
            used_by: token.used.map(|used| node_name(view.state(), used.by)),
        });
        // In order of hashes, of which the text has the same order.
        Box::new(tokens.filter(move |token| after.is_none_or(|after| token.hash.as_str() > after)))
    }
}

impl Row for ApiToken {
    fn key(&self) -> &str {
        &self.name
    }

    fn rows<'v>(
        view: &'v View<'v>,
        after: Option<&'v str>,
        _: &'v Filters,
    ) -> Box<dyn Iterator<Item = Self> + 'v> {
        let tokens = view.state().api_tokens();
        let tokens = tokens.filter(move |(name, _)| after.is_none_or(|after| name.as_str() > after));
        Box::new(tokens.map(|(name, token)| ApiToken {
            name: name.to_string(),
            hash: token.hash.to_string(),
            role: token.role.text().to_owned(),
        }))
    }
}

impl Row for Audit {
    fn key(&self) -> &str {
        &self.index
    }

    fn rows<'v>(
        view: &'v View<'v>,
        after: Option<&'v str>,
        _: &'v Filters,
    ) -> Box<dyn Iterator<Item = Self> + 'v> {
        let after = after.and_then(|after| after.parse::<u64>().ok()).unwrap_or(0);
        let records = view.state().audit(after);
        Box::new(records.map(|record| audit(view.state(), record)))
    }
}

/// A function by the two parts of its path.
pub(super) fn find_function<'v>(
    view: &'v View<'_>,
    name: &FunctionName,
) -> Result<(&'v Name, &'v model::Function), Failure> {
    let node = find_node(view, &name.node)?;
    let found = view.state().functions_of(node.id).find(|it| it.name == name.function);
    let unknown = || {
        let known = view.state().functions_of(node.id).map(|function| &function.name);
        let nearest = model::nearest(&name.function, known);
        manager::refusal::Refusal::NoFunction { name: name.clone(), nearest }
    };
    Ok((&node.name, found.ok_or_else(unknown)?))
}

/// A node by its name.
pub(super) fn find_node<'v>(view: &'v View<'_>, name: &Name) -> Result<&'v model::Node, Failure> {
    let nearest = || model::nearest(name, view.state().node_names());
    let unknown = || manager::refusal::Refusal::NoNode { name: name.clone(), nearest: nearest() };
    Ok(view.state().node_called(name).ok_or_else(unknown)?)
}

/// A name in a document.
pub(super) fn name(text: &str) -> Result<Name, Failure> {
    text.parse().map_err(|error: model::BadName| Failure::malformed(error.to_string()))
}
