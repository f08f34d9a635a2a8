//! A client: asks for one thing after the other, and again for the same until it hears of it.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use base::Random;
use base::ids::Group;

use super::making::{MADE, TOO_LARGE, made_name};
use super::setting::{FUNCTIONS, domain, node_name};
use crate::command::{Asked, Asker, Command};
use crate::machine::{Progress, Reply};
use crate::model::{FunctionName, Groups, Limits, OnSilence, Shape, Storage};
use crate::refusal::Refusal;
use crate::testing::{name, request};

#[derive(Debug)]
pub(super) struct Client {
    random: Random,
    pub(super) number: u64,
    asked: u64,
    pub(super) pending: Option<Pending>,
    /// What it asks for next, and as whom.
    pub(super) queue: VecDeque<(Asker, Command)>,
    /// Whether it asks for nothing else.
    is_quiet: bool,
}

/// A request on its way.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) asked: Asked,
    /// The greatest index that anybody had heard of when it was asked for first.
    pub(super) after: u64,
}

/// What a client hears.
pub(super) type Heard = Result<Reply, Refusal>;

impl Client {
    pub(super) fn new(number: u64, random: Random, is_quiet: bool) -> Self {
        Self { random, number, asked: 0, pending: None, queue: VecDeque::new(), is_quiet }
    }

    /// Something else to ask for. `bases` are the domains of nodes that have joined, by their numbers.
    pub(super) fn ask(&mut self, bases: &[(u64, u32)], after: u64, is_calm: bool) -> Option<Asked> {
        let (who, command) = match self.queue.pop_front() {
            Some(next) => next,
            None if self.is_quiet || is_calm || bases.is_empty() => return None,
            None => (Asker::Api(name("root")), self.command(bases)),
        };
        self.asked += 1;
        let request = request(self.number << 32 | self.asked);
        let asked = Asked { request, who, if_version: None, command };
        self.pending = Some(Pending { asked: asked.clone(), after });
        Some(asked)
    }

    fn command(&mut self, bases: &[(u64, u32)]) -> Command {
        let random = &mut self.random;
        let (node, _) = bases[random.index(bases.len())];
        let (_, base) = bases[random.index(bases.len())];
        let number = random.below(u64::from(FUNCTIONS + MADE)) as u32;
        let function = match number.checked_sub(FUNCTIONS) {
            None => name(&format!("nvme{number}")),
            Some(made) => made_name(made),
        };
        let function = FunctionName { node: node_name(node), function };
        match random.below(100) {
            0..48 => {
                let (domain, slot) = (domain(base, random.below(2)), random.below(2) as u16);
                let on_silence = if random.chance(200) { OnSilence::Remove } else { OnSilence::default() };
                Command::Assign { function, domain, slot, group: None, on_silence }
            }
            48..70 => Command::Unassign { function, force: false },
            70..80 if number >= FUNCTIONS => {
                let bytes = if random.chance(100) { TOO_LARGE } else { 1 << 20 };
                let bytes = NonZeroU64::new(bytes).expect("that is some room");
                let (device, storage) = (name("nvme"), Storage::Own { bytes });
                let shape = Shape { device, storage, group: None, limits: Limits::default() };
                Command::MakeFunction { function, shape }
            }
            80..84 if number >= FUNCTIONS => Command::DeleteFunction { function },
            70..85 => {
                let iops = NonZeroU64::new(random.below(4));
                Command::SetLimits { function, limits: Limits { iops, bytes_per_s: None } }
            }
            85..97 => Command::Unassign { function, force: true },
            _ => {
                let groups = if random.chance(300) { vec![Group(2)] } else { vec![Group(1), Group(2)] };
                let groups = Groups::new(groups).expect("these are groups");
                Command::SetGroups { node: node_name(node), groups }
            }
        }
    }

    /// Whether it is content.
    pub(super) fn hear(&mut self, asked: &Asked, heard: &Heard) -> bool {
        let is_it = self.pending.as_ref().is_some_and(|pending| pending.asked == *asked);
        let is_answer = !matches!(heard, Err(Refusal::Busy));
        if is_it && is_answer {
            self.pending = None;
        }
        is_it && is_answer
    }
}

/// Whether a reply says that the lender has applied it.
pub(super) fn is_done(reply: &Reply) -> bool {
    reply.progress == Progress::Done
}
