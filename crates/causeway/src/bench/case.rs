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
    /// How often each byte is copied between medium and reader, both ends and the kernel together.
    pub(super) copies_per_byte: Option<f64>,
    /// What limits ours.
    pub(super) bound_by: &'static str,
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

const fn read(id: &'static str, reader: Reader, sealed: bool, depth: u16, bound_by: &'static str) -> Case {
    // Medium to ledger page, page to frame, frame to socket buffer and back, frame to page; NBD adds a socket buffer.
    let copies = match reader {
        Reader::Native => 5.0,
        Reader::Nbd => 7.0,
    };
    Case {
        id,
        kind: Kind::Read { reader, sealed, depth },
        unit: "IOPS",
        better: Better::Higher,
        target: None,
        rounds: 5,
        copies_per_byte: Some(copies),
        bound_by,
    }
}

const fn recovery(id: &'static str, medium: Medium, target_ms: f64, bound_by: &'static str) -> Case {
    Case {
        id,
        kind: Kind::Recovery(medium),
        unit: "ms",
        better: Better::Lower,
        target: Some(target_ms),
        rounds: 100,
        copies_per_byte: None,
        bound_by,
    }
}

const fn idle(id: &'static str, kind: Kind, unit: &'static str, target: f64, bound_by: &'static str) -> Case {
    Case {
        id,
        kind,
        unit,
        better: Better::Lower,
        target: Some(target),
        rounds: 3,
        copies_per_byte: None,
        bound_by,
    }
}

/// All cases.
pub(super) const CASES: &[Case] = &[
    recovery("recovery-memory", Medium::Memory, 5.0, RECOVERY),
    recovery("recovery-disk", Medium::Disk, 20.0, RECOVERY),
    read("native-udp-sealed-4k-read-qd1", Reader::Native, true, 1, NATIVE_QD1),
    read("native-udp-sealed-4k-read-qd32", Reader::Native, true, 32, NATIVE_QD32),
    read("native-udp-insecure-4k-read-qd1", Reader::Native, false, 1, NATIVE_QD1),
    read("native-udp-insecure-4k-read-qd32", Reader::Native, false, 32, NATIVE_QD32),
    read("nbd-sealed-4k-read-qd1", Reader::Nbd, true, 1, NBD),
    read("nbd-sealed-4k-read-qd32", Reader::Nbd, true, 32, NBD),
    read("nbd-insecure-4k-read-qd1", Reader::Nbd, false, 1, NBD),
    read("nbd-insecure-4k-read-qd32", Reader::Nbd, false, 32, NBD),
    idle("idle-cpu", Kind::IdleCpu, "% of a core", 1.0, "timers of the cards: probes and acknowledgements"),
    idle("idle-memory", Kind::IdleMemory, "MiB", 64.0, "pages of the ledger that were used once"),
];

// Found with perf and by counting system calls on two cores; see each constant for the numbers.

/// Most of it passes between the death and the moment the successor serves; the first I/O then takes microseconds.
const RECOVERY: &str = "reaping the dead process and starting its successor";
/// A frame each way a read. Each side: one sendmmsg, one recvmmsg, 2.2 epoll_pwait2, 1.3 sched_yield; the lender a preadv.
const NATIVE_QD1: &str = "system calls and the UDP stack, evenly on both sides";
/// 11 TLPs a frame and 6 frames a sendmmsg; 1.7 us of the borrower's core and 3 us of the lender's a read.
const NATIVE_QD32: &str = "the lender's core: a preadv a page, copies into frames and sockets, sealing";
/// The client, the borrower's card and the lender's card; each hand-over costs a wake-up or a turn of the scheduler.
const NBD: &str = "three busy threads on two cores";

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
