//! What a case is: what is measured, against what, and what is known about it.

use crate::local::NETWORK_ONLY;

/// A case.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    /// Its name, which stays.
    pub(super) id: &'static str,
    /// How it is measured.
    pub(super) kind: Kind,
    /// Unit of all its values.
    pub(super) unit: &'static str,
    /// Which values are better.
    pub(super) better: Better,
    /// What is to be kept to.
    pub(super) target: Option<Target>,
    /// Rounds, unless somebody chose.
    pub(super) rounds: u32,
    /// Where each byte is copied between medium and reader, both ends and the kernel together.
    pub(super) copies: &'static [&'static str],
    /// What a paper has measured in its place.
    pub(super) paper: Option<Paper>,
    /// Measured only where somebody asks for it, or for the papers.
    pub(super) only_asked: bool,
}

/// What is to be kept to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Target {
    /// The median of ours.
    Median(f64),
    /// The ratio to the peer, among rounds in which the cores were near, and among those in which they were far.
    Ratio {
        near: f64,
        /// `None` where far rounds prove nothing.
        far: Option<f64>,
    },
}

impl Target {
    /// The number that is shown.
    pub(super) fn number(self) -> f64 {
        match self {
            Self::Median(number) | Self::Ratio { near: number, .. } => number,
        }
    }
}

/// What a paper says: facts and figures.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(super) struct Paper {
    /// Which table or figure.
    pub(super) place: &'static str,
    /// Which of its rows.
    pub(super) row: &'static str,
    /// Its result, relative to the same without a fabric.
    pub(super) result: &'static str,
}

/// How a case is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// From the death of a card to the next I/O.
    Recovery(Medium),
    /// Reads and writes, two ways.
    Traffic(Traffic),
    /// A file is copied from the drive, or to it.
    Copy { write: bool },
    /// Processor time of nodes that do nothing.
    IdleCpu,
    /// Memory of nodes that do nothing.
    IdleMemory,
    /// What a virtual machine has of a borrowed drive.
    Guest(GuestCase),
    /// Many loans between two nodes over this transport, beside one.
    Loans(LoansCase, Transport),
    /// The longest gap of a busy loan over this transport while another one comes and goes, beside that without.
    AttachGap(Transport),
    /// The longest gap of a busy loan over two rails when one of them is cut, beside that without.
    CutGap,
    /// From the start of `causeway assign` to the first register that a driver reads.
    Assign,
    /// The longest gap of a busy loan over this transport while the manager is killed and comes back, beside that while
    /// one is killed that its nodes know nothing of.
    ManagerKill(Transport),
    /// What a switch forwards, beside a loop that only copies.
    Forwarding(super::forwarding::Between, super::forwarding::Measure),
}

impl Kind {
    /// Whether it is the time from the death of a card to the next I/O.
    pub(super) fn is_recovery(self) -> bool {
        matches!(self, Self::Recovery(_) | Self::Loans(LoansCase::Recovery, _))
    }
}

/// What is measured of many loans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoansCase {
    /// Processor time of nodes whose loans do nothing.
    IdleCpu,
    /// Memory that each takes.
    IdleMemory,
    /// From the death of a card to the next I/O of one of those that are busy.
    Recovery,
}

/// What is measured with a virtual machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GuestCase {
    /// Reads and writes on a drive that is borrowed over this transport, beside QEMU's own drive.
    Traffic(Transport, Work),
    /// Reads of a register, beside a local vfio-user device.
    Registers,
    /// The longest request when a card is killed, beside the longest when none is.
    Recovery,
    /// Memory of the nodes of a large machine, beside those of a small one.
    Memory,
    /// How long a large machine takes to have its memory mapped, beside a small one.
    MapTime,
}

/// How machines borrow where nothing else is said.
pub(super) const GUEST_TRANSPORT: Transport = Transport::Udp { sealed: true };

impl GuestCase {
    /// How the machine's drive is borrowed.
    pub(super) fn transport(self) -> Transport {
        if let Self::Traffic(transport, _) = self { transport } else { GUEST_TRANSPORT }
    }

    /// What it is compared with, as the report names it.
    pub(super) fn peer(self) -> &'static str {
        match self {
            Self::Traffic(..) => "QEMU's nvme on the same image",
            Self::Registers => "a local vfio-user device",
            Self::Recovery => "the same without a kill",
            Self::Memory | Self::MapTime => "a machine of 512 MiB",
        }
    }
}

/// Reads and writes, two ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Traffic {
    pub(super) ours: Setup,
    pub(super) peer: Setup,
    pub(super) work: Work,
    /// What its values are: how many in a second, or the time that half of them take at most.
    pub(super) measure: Measure,
}

/// What the values of a case of traffic are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measure {
    /// How many in a second.
    Rate,
    /// How long half of them take at most, in us.
    Latency,
}

/// What is read and written, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setup {
    pub(super) transport: Transport,
    pub(super) drives: Drives,
}

/// How a drive is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// Driver and drive in one process, without a fabric.
    Native,
    /// Lent over UDP, and the borrowing card's own driver.
    Udp { sealed: bool },
    /// Lent through memory that both nodes share, and the borrowing card's own driver.
    Shm,
    /// The same, and fio through our NBD socket.
    Nbd { sealed: bool },
    /// One thread's preadv and pwritev.
    SystemCalls,
    /// nbdkit over TCP, and fio.
    Nbdkit { tls: bool },
}

impl Transport {
    /// What nodes are told that use it.
    pub(super) fn options(self) -> &'static [&'static str] {
        match self {
            Self::Udp { sealed: false } | Self::Nbd { sealed: false } => &[NETWORK_ONLY, "--insecure"],
            Self::Udp { sealed: true } | Self::Nbd { sealed: true } => &[NETWORK_ONLY],
            Self::Shm | Self::Native | Self::SystemCalls | Self::Nbdkit { .. } => &[],
        }
    }

    /// As the report names it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Native => "native: no fabric",
            Self::Shm => "shared memory",
            Self::Udp { sealed: true } => "sealed UDP",
            Self::Udp { sealed: false } => "insecure UDP",
            Self::Nbd { sealed: true } => "fio, NBD, sealed UDP",
            Self::Nbd { sealed: false } => "fio, NBD, insecure UDP",
            Self::SystemCalls => "one thread's preadv and pwritev",
            Self::Nbdkit { tls: true } => "nbdkit file, TCP, TLS",
            Self::Nbdkit { tls: false } => "nbdkit file, TCP",
        }
    }
}

/// The drives of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drives {
    /// One, an image in memory.
    Image,
    /// Modules of flash cards, shared out evenly among hosts. A card has two, each with half of its rates.
    Flash {
        /// How many there are.
        modules: usize,
        /// Who uses them: nodes that borrow, or processes.
        hosts: usize,
        /// What the rates of a card are divided by.
        scale: u64,
    },
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Work {
    /// Bytes of a request.
    pub(super) bytes: u32,
    pub(super) write_percent: u8,
    pub(super) sequential: bool,
    /// Requests under way, of each drive.
    pub(super) depth: u16,
}

/// Where the lent image lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Medium {
    /// Memory of the lending node.
    Memory,
    /// A file on a disk, read past the page cache.
    Disk,
}

/// Which values are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Better {
    /// Rates.
    Higher,
    /// Times and costs.
    Lower,
}

impl Better {
    /// How much better ours is: above 1 it is.
    pub(super) fn ratio(self, ours: f64, peer: f64) -> f64 {
        match self {
            Self::Higher => ours / peer,
            Self::Lower => peer / ours,
        }
    }

    /// Whether a value keeps to a target.
    pub(super) fn keeps(self, value: f64, target: f64) -> bool {
        match self {
            Self::Higher => value >= target,
            Self::Lower => value <= target,
        }
    }
}

impl Case {
    /// The command that measures it again.
    pub(super) fn command(&self, rounds: u32) -> String {
        format!("causeway bench {} --rounds {rounds}", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_above_one_is_better_either_way() {
        assert_eq!(Better::Higher.ratio(20.0, 10.0), 2.0);
        assert_eq!(Better::Lower.ratio(5.0, 10.0), 2.0);
        assert!(Better::Lower.keeps(5.0, 5.0) && !Better::Higher.keeps(4.9, 5.0));
    }
}
