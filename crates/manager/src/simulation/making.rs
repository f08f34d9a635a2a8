//! Functions that are made at nodes while the world runs: a node's own table of them, and who notices what is wrong.

use std::collections::{BTreeMap, BTreeSet};

use base::ids::NodeId;

use super::checks::Checks;
use super::node::Node;
use super::setting::FUNCTIONS;
use crate::command::Asked;
use crate::entry::{Answer, Change};
use crate::machine::Reply;
use crate::model::{Loan, Made, MadeId, MadeList, Name, Resource, Shape, Storage, Unmade};
use crate::report::Holder;
use crate::testing::{name, reported, resource};

/// Names that clients give.
pub(super) const MADE: u32 = 3;
/// A size for which no lender has room.
pub(super) const TOO_LARGE: u64 = 13 << 20;

/// How often a lender looks before a place is cleared that takes its time.
const CLEARED_AFTER: u64 = 3;

/// What clearing the place of a function is like.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Medium {
    Quick,
    Slow,
    /// It takes as long, and comes to nothing.
    Bad,
}

impl Medium {
    fn of(made: &Made) -> Self {
        match number_of(made) % 16 {
            0 => Self::Bad,
            1..6 => Self::Slow,
            _ => Self::Quick,
        }
    }
}

/// The table of a lender, durable.
pub(super) type Table = BTreeMap<Name, Made>;

/// What has become of it.
#[derive(Clone, Debug)]
pub(super) struct Deleted {
    pub(super) node: NodeId,
    pub(super) made: Made,
    /// Who has it, by the lender's rows.
    pub(super) holder: Holder,
}

pub(super) fn made_name(number: u32) -> Name {
    name(&format!("vf{number}"))
}

/// The number that a lender gives to a function: no other one has it.
fn number_of(made: &Made) -> u32 {
    let text = format!("{} {} {}", made.name, made.id.epoch, made.id.index);
    FUNCTIONS.max(base::hash::fnv1a(text.as_bytes()) as u32)
}

fn resource_of(made: &Made) -> Resource {
    let bytes = match &made.shape.storage {
        Storage::Own { bytes } => bytes.get(),
        Storage::Shared { .. } => resource().bytes,
    };
    Resource { bytes, made: Some(made.id), ..resource() }
}

fn is_too_large(shape: &Shape) -> bool {
    matches!(&shape.storage, Storage::Own { bytes } if bytes.get() == TOO_LARGE)
}

impl Node {
    /// What it lends: of its own configuration, and what was made.
    pub(super) fn lent(&self) -> Vec<(u32, Name, Resource)> {
        let own = (0..FUNCTIONS).map(|number| reported(number, 0, Holder::Nobody));
        let own = own.map(|it| (it.number, it.name, it.resource));
        let made = self.made.values().map(|it| (number_of(it), it.name.clone(), resource_of(it)));
        own.chain(made).collect()
    }

    /// Makes its table what it was told, as far as nobody has what is to go. What was deleted.
    pub(super) fn follow_made(&mut self) -> Vec<Deleted> {
        let Some(list) = self.kept.made.clone().filter(|_| self.makes) else { return Vec::new() };
        let Some(mut member) = self.member.take() else { return Vec::new() };
        let is_same = |made: &Made| list.functions.iter().any(|it| it == made);
        let gone: Vec<Made> = self.made.values().filter(|made| !is_same(made)).cloned().collect();
        let (mut deleted, mut is_late) = (Vec::new(), false);
        for made in gone {
            let number = number_of(&made);
            if member.is_unused(number) {
                self.made.remove(&made.name);
                let holder = self.kept.row(number).holder;
                self.kept.rows.remove(&number);
                self.acts.retain(|(acts, _)| *acts != number);
                member.handle_deleted(number);
                deleted.push(Deleted { node: self.id(), made, holder });
            } else {
                member.give_up(number);
                is_late = true;
            }
        }
        let refused = self.make(&list);
        member.set_functions(self.lent());
        if !is_late {
            self.makes = self.clearing.values().any(|looks| *looks < CLEARED_AFTER);
            member.handle_made(list.id, refused);
        }
        self.member = Some(member);
        deleted
    }

    fn make(&mut self, list: &MadeList) -> Vec<Unmade> {
        let mut refused = Vec::new();
        self.clearing.retain(|number, _| list.functions.iter().any(|made| number_of(made) == *number));
        for made in &list.functions {
            if self.made.contains_key(&made.name) {
                continue;
            }
            let medium = Medium::of(made);
            if medium != Medium::Quick {
                let looks = self.clearing.entry(number_of(made)).or_default();
                *looks += 1;
                if *looks < CLEARED_AFTER {
                    continue;
                }
                self.cleared += 1;
            }
            if is_too_large(&made.shape) || medium == Medium::Bad {
                let (name, why) = (made.name.clone(), "the device lacks room".to_owned());
                refused.push(Unmade { name, why });
            } else {
                self.made.insert(made.name.clone(), made.clone());
            }
        }
        refused
    }

    /// Whether it has this function, by this decision.
    fn has_made(&self, name: &Name, id: MadeId) -> bool {
        self.made.get(name).is_some_and(|made| made.id == id)
    }
}

/// What was to be there no more, by decisions that were durable once.
#[derive(Debug, Default)]
pub(super) struct Unwanted(BTreeSet<(NodeId, Name, MadeId)>);

impl Checks {
    /// Notes what the change, which is durable and not applied yet, takes away.
    pub(super) fn note_deletion(&mut self, change: &Change) {
        let Change::FunctionDeleted { node, name } = change else { return };
        let functions = self.shadow.functions_of(*node).filter(|function| function.name == *name);
        let is_free = functions.into_iter().all(|function| function.loan == Loan::Free);
        self.expect(is_free, || format!("{name} of {node} is deleted, and somebody has it"));
        let known = self.shadow.making(*node).and_then(|making| making.functions.get(name));
        if let Some(wanted) = known {
            self.unwanted.0.insert((*node, name.clone(), wanted.id));
        }
    }

    /// A lender has deleted a function with all that was in it.
    pub(super) fn deleted(&mut self, it: &Deleted) {
        let Deleted { node, made, holder } = it;
        let was_decided = self.unwanted.0.contains(&(*node, made.name.clone(), made.id));
        self.expect(was_decided, || format!("{node} has deleted {made:?}, and nobody has said so"));
        self.expect(*holder == Holder::Nobody, || {
            format!("{node} has deleted {made:?}, which is {holder:?}")
        });
    }

    /// A function that was made is there when its client hears so, and one that was deleted is not.
    pub(super) fn look_at_made(&mut self, asked: &Asked, reply: &Reply, nodes: &[Node]) {
        let Answer::Made { node, name, id, is_wanted } = &reply.answer else { return };
        let Some(node) = nodes.iter().find(|it| it.id() == *node && it.is_member()) else { return };
        // An older copy of its folder knows nothing of it.
        if !super::client::is_done(reply) || node.was_copied {
            return;
        }
        let is_so = match is_wanted {
            true => node.has_made(name, *id),
            false => node.made.get(name).is_none_or(|made| made.id > *id),
        };
        self.expect(is_so, || {
            format!("{:?} is done by {id:?}, and its lender has {:?}", asked.command, node.made)
        });
    }
}
