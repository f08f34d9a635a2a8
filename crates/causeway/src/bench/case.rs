//! The cases: what is measured, against what, and what is known about each.

use crate::exit::Failure;

/// A case.
#[derive(Debug)]
pub(super) struct Case {
    /// Its name, which stays.
    pub(super) id: &'static str,
    /// How it is measured.
    pub(super) kind: Kind,
    /// Unit of all its values.
    pub(super) unit: &'static str,
    /// Which values are better.
    pub(super) better: Better,
    /// The bound on the median of ours.
    pub(super) target: Option<f64>,
    /// Rounds, unless somebody chose.
    pub(super) rounds: u32,
    /// Where each byte is copied between medium and reader, both ends and the kernel together.
    pub(super) copies: &'static [&'static str],
}

/// How a case is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// From the death of a card to the next I/O.
    Recovery(Medium),
    /// 4 KiB random reads.
    Read { reader: Reader, sealed: bool, depth: u16 },
    /// Processor time of nodes that do nothing.
    IdleCpu,
    /// Memory of nodes that do nothing.
    IdleMemory,
}

/// Where the lent image lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Medium {
    /// Memory of the lending node.
    Memory,
    /// A file on a disk, read past the page cache.
    Disk,
}

/// Who reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// The card's own NVMe driver.
    Native,
    /// fio, through our NBD socket.
    Nbd,
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
    /// Whether there is a peer to compare with.
    pub(super) fn has_peer(&self) -> bool {
        matches!(self.kind, Kind::Read { .. })
    }

    /// The command that measures it again.
    pub(super) fn command(&self, rounds: u32) -> String {
        format!("causeway bench {} --rounds {rounds}", self.id)
    }
}

/// The cases with these names, in their order here; all for none.
pub(super) fn select(names: &[String]) -> Result<Vec<&'static Case>, Failure> {
    if let Some(unknown) = names.iter().find(|name| !CASES.iter().any(|case| case.id == **name)) {
        let known: Vec<_> = CASES.iter().map(|case| case.id).collect();
        return Err(Failure::usage(format_args!(
            "there is no case `{unknown}`; there are {}",
            known.join(", ")
        )));
    }
    let is_chosen = |case: &&Case| names.is_empty() || names.iter().any(|name| name == case.id);
    Ok(CASES.iter().filter(is_chosen).collect())
}

/// The copies of a byte that the card's own driver reads, from a medium in memory, in their order. They were found by
/// reading the code along its way, not measured; sealing and opening work in place and are none.
const NATIVE_COPIES: &[&str] = &[
    "medium to the lender's page: preadv (io::card::media)",
    "page to frame (link::record)",
    "frame to socket buffer: sendmmsg (io::udp::send)",
    "socket buffer to receive buffer: recvmmsg (io::udp::receive)",
    "receive buffer to the borrower's page (base::ledger::pages)",
];

/// The same for a client of the NBD socket.
const NBD_COPIES: &[&str] = &[
    NATIVE_COPIES[0],
    NATIVE_COPIES[1],
    NATIVE_COPIES[2],
    NATIVE_COPIES[3],
    NATIVE_COPIES[4],
    "page to the NBD socket: sendmsg (io::stream_socket)",
    "NBD socket to the client's memory: recv in the client",
];

const fn read(id: &'static str, reader: Reader, sealed: bool, depth: u16) -> Case {
    let copies = match reader {
        Reader::Native => NATIVE_COPIES,
        Reader::Nbd => NBD_COPIES,
    };
    Case {
        id,
        kind: Kind::Read { reader, sealed, depth },
        unit: "IOPS",
        better: Better::Higher,
        target: None,
        rounds: 5,
        copies,
    }
}

const fn recovery(id: &'static str, medium: Medium, target_ms: f64) -> Case {
    Case {
        id,
        kind: Kind::Recovery(medium),
        unit: "ms",
        better: Better::Lower,
        target: Some(target_ms),
        rounds: 100,
        copies: &[],
    }
}

const fn idle(id: &'static str, kind: Kind, unit: &'static str, target: f64) -> Case {
    Case { id, kind, unit, better: Better::Lower, target: Some(target), rounds: 3, copies: &[] }
}

/// All cases.
pub(super) const CASES: &[Case] = &[
    recovery("recovery-memory", Medium::Memory, 5.0),
    recovery("recovery-disk", Medium::Disk, 20.0),
    read("native-udp-sealed-4k-read-qd1", Reader::Native, true, 1),
    read("native-udp-sealed-4k-read-qd32", Reader::Native, true, 32),
    read("native-udp-insecure-4k-read-qd1", Reader::Native, false, 1),
    read("native-udp-insecure-4k-read-qd32", Reader::Native, false, 32),
    read("nbd-sealed-4k-read-qd1", Reader::Nbd, true, 1),
    read("nbd-sealed-4k-read-qd32", Reader::Nbd, true, 32),
    read("nbd-insecure-4k-read-qd1", Reader::Nbd, false, 1),
    read("nbd-insecure-4k-read-qd32", Reader::Nbd, false, 32),
    idle("idle-cpu", Kind::IdleCpu, "% of a core", 1.0),
    idle("idle-memory", Kind::IdleMemory, "MiB", 64.0),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_kebab_case() {
        let is_plain =
            |id: &str| id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        for (index, case) in CASES.iter().enumerate() {
            assert!(is_plain(case.id), "{}", case.id);
            assert!(CASES[..index].iter().all(|other| other.id != case.id), "{}", case.id);
        }
    }

    #[test]
    fn chosen_cases_are_found_and_others_refused() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(select(&[]).unwrap().len(), CASES.len());
        let two = select(&names(&["idle-cpu", "recovery-disk"])).unwrap();
        assert_eq!(two.iter().map(|case| case.id).collect::<Vec<_>>(), ["recovery-disk", "idle-cpu"]);
        let failure = select(&names(&["idle"])).unwrap_err();
        assert_eq!(failure.exit(), crate::exit::Exit::Usage);
        assert!(failure.message().contains("idle-memory"));
    }

    #[test]
    fn a_ratio_above_one_is_better_either_way() {
        assert_eq!(Better::Higher.ratio(20.0, 10.0), 2.0);
        assert_eq!(Better::Lower.ratio(5.0, 10.0), 2.0);
        assert!(Better::Lower.keeps(5.0, 5.0) && !Better::Higher.keeps(4.9, 5.0));
    }
}
