//! Many loans between two nodes, beside one: what those cost that do nothing, and how fast those go on that work when a
//! card dies.

use std::path::PathBuf;

use program::exit::Failure;

use super::case::{LoansCase, Transport};
use super::core_to_core::round_trip_ns;
use super::idle::{Before, Idle, NAMES};
use super::recovery::Recovery;
use super::report::{Held, Round};
use crate::local::{Halt, Interrupt, Node, Scratch};

/// So many loans,
pub(super) const MANY: usize = 256;
/// of which so many are busy when a card dies.
const BUSY: usize = 16;
/// Requests under way on each of those.
const DEPTH: usize = 4;
/// What each loan has done before it is idle.
const BEFORE: Before = Before { bytes: 64 << 10, piece: 4096 };
/// A drive has at most so many functions.
const OF_A_DRIVE: usize = 64;
/// Memory of each function.
const MIB_EACH: usize = 1;

/// Two nodes, one of which has all that the other one lends, in a folder of their own.
pub(super) struct Pair {
    pub(super) nodes: Nodes,
    /// It is there as long as they are.
    pub(super) scratch: Scratch,
}

impl Pair {
    /// As [`Nodes::start`].
    pub(super) fn start(
        counts: (usize, usize),
        transport: Transport,
        domains: &str,
        scratch: &Scratch,
        interrupt: &Interrupt,
    ) -> Result<Self, Halt> {
        let scratch = Scratch::create_in(scratch.path(), "loans")?;
        let nodes = Nodes::start(counts, transport, domains, &scratch, interrupt)?;
        Ok(Self { nodes, scratch })
    }
}

/// Two nodes, one of which has all that the other one lends.
pub(super) struct Nodes {
    pub(super) lender: Node,
    pub(super) borrower: Node,
    /// The lines of functions that are lent and not borrowed from the start.
    pub(super) spare: Vec<String>,
    /// By loan.
    pub(super) sockets: Vec<PathBuf>,
}

impl Nodes {
    /// With so many loans on one rail, and so many functions that nobody has, in this folder. `domains` stands in the
    /// borrower's file.
    pub(super) fn start(
        (count, spare): (usize, usize),
        transport: Transport,
        domains: &str,
        scratch: &Scratch,
        interrupt: &Interrupt,
    ) -> Result<Self, Halt> {
        let settings = match transport {
            Transport::Shm => "",
            Transport::Udp { sealed: false } => "shm = false\ninsecure = true\n",
            _ => "shm = false\n",
        };
        let all = count + spare;
        let devices = (0..all.div_ceil(OF_A_DRIVE)).map(|drive| {
            let functions = (all - drive * OF_A_DRIVE).min(OF_A_DRIVE);
            let source = format!("ram:{}M", functions * MIB_EACH);
            format!("[[devices]]\nfunction = 'd{drive}'\nsource = '{source}'\nfunctions = {functions}\n")
        });
        let rail = "[[rails]]\nname = 'rail'\nlisten = '127.0.0.1'\n";
        let text = [settings, rail].into_iter().map(str::to_owned).chain(devices).collect::<String>();
        let (lender, mut lines) =
            Node::start_node(scratch, "lender", &text, ("causeway://", all), interrupt)?;
        let spare = lines.split_off(count);
        let sockets: Vec<PathBuf> = (0..count).map(|loan| scratch.join(&format!("{loan}.nbd"))).collect();
        let loans = lines
            .iter()
            .zip(&sockets)
            .map(|(line, socket)| format!("[[loans]]\nline = '{line}'\nnbd = '{}'\n", socket.display()));
        let text = format!("{settings}{}{domains}", loans.collect::<String>());
        let (borrower, _) = Node::start_node(scratch, "borrower", &text, ("nbd+unix://", count), interrupt)?;
        Ok(Self { lender, borrower, spare, sockets })
    }
}

/// Many loans, and one, each between two nodes of their own.
pub(super) struct Loans<'a> {
    many: Measured<'a>,
    one: Measured<'a>,
    rounds: u32,
}

enum Measured<'a> {
    Idle(Idle<'a>, Scratch),
    Memory(Idle<'a>, Scratch),
    Recovery(Box<Recovery<'a>>, Scratch),
}

impl<'a> Loans<'a> {
    /// Starts both pairs of nodes.
    pub(super) fn start(
        case: LoansCase,
        transport: Transport,
        scratch: &Scratch,
        interrupt: &'a Interrupt,
    ) -> Result<Self, Halt> {
        let many = Measured::start(case, (MANY, transport), scratch, interrupt)?;
        let one = Measured::start(case, (1, transport), scratch, interrupt)?;
        Ok(Self { many, one, rounds: 0 })
    }

    /// One measurement of many, and of one; many are first every other time.
    pub(super) fn round(&mut self) -> Result<(Round, Round), Halt> {
        let round = self.rounds;
        self.rounds += 1;
        if let (Measured::Memory(many, _), Measured::Memory(one, _)) = (&self.many, &self.one) {
            return Ok(memory_each(many.memory()?, one.memory()?));
        }
        super::in_turns(round, self, |loans| loans.many.round(), |loans| loans.one.round())
    }

    /// Ends all nodes in order.
    pub(super) fn stop(self) -> Result<(), Failure> {
        self.many.stop().and(self.one.stop())
    }
}

impl<'a> Measured<'a> {
    fn start(
        case: LoansCase,
        (count, transport): (usize, Transport),
        scratch: &Scratch,
        interrupt: &'a Interrupt,
    ) -> Result<Self, Halt> {
        let pair = Pair::start((count, 0), transport, "", scratch, interrupt)?;
        Ok(match case {
            LoansCase::IdleCpu => {
                let (idle, scratch) = Idle::of_pair(pair, BEFORE, interrupt)?;
                Self::Idle(idle, scratch)
            }
            LoansCase::IdleMemory => {
                let (idle, scratch) = Idle::of_pair(pair, BEFORE, interrupt)?;
                Self::Memory(idle, scratch)
            }
            LoansCase::Recovery => {
                let (recovery, scratch) = Recovery::of_pair(pair, BUSY, DEPTH, interrupt)?;
                Self::Recovery(Box::new(recovery), scratch)
            }
        })
    }

    fn round(&mut self) -> Result<Round, Halt> {
        match self {
            Self::Idle(idle, _) | Self::Memory(idle, _) => idle.cpu_round(),
            Self::Recovery(recovery, _) => recovery.round(),
        }
    }

    fn stop(self) -> Result<(), Failure> {
        // The folder goes when its nodes have gone.
        match self {
            Self::Idle(idle, _scratch) | Self::Memory(idle, _scratch) => idle.stop(),
            Self::Recovery(recovery, _scratch) => recovery.stop(),
        }
    }
}

/// KiB that each loan takes more than the first, at the end where that is more; beside what two nodes take for one.
fn memory_each(many: [u64; 4], one: [u64; 4]) -> (Round, Round) {
    let kib = |bytes: u64| bytes as f64 / 1024.0;
    let core_to_core_ns = round_trip_ns();
    let round = |held: [f64; 4]| Round {
        value: held.chunks(2).map(|node| node.iter().sum()).fold(0.0, f64::max),
        core_to_core_ns,
        memory_kib: NAMES.iter().zip(held).map(|(process, kib)| Held { process, kib }).collect(),
        ..Round::default()
    };
    let more = std::array::from_fn(|at| (kib(many[at]) - kib(one[at])) / (MANY - 1) as f64);
    (round(more), round(one.map(kib)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loan_takes_what_all_but_the_first_take_more() {
        let one = [1 << 20, 10 << 20, 1 << 20, 10 << 20];
        let more = |kib: u64| (kib << 10) * (MANY as u64 - 1);
        let many = [one[0] + more(1), one[1] + more(100), one[2] + more(2), one[3] + more(200)];
        let (many, one) = memory_each(many, one);
        assert_eq!((many.value, one.value), (202.0, 11.0 * 1024.0));
        assert_eq!(many.memory_kib[1], Held { process: NAMES[1], kib: 100.0 });
    }
}
