//! Records of stream 0: the beginning and the end of streams.
//!
//! Each is idempotent and says everything anew; who waits for an answer repeats it. So none of them needs an order, and
//! a lost one costs a while.

use base::ids::{DomainId, LoanGeneration, NodeId, StreamId};
use base::ledger::Layout;
use core::time::Duration;
use pcie::Bdf;
use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::name::Name;
use crate::proof::PROOF_LEN;
use crate::record::Information;

/// What somebody lends, as its line names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Layout, Serialize, Deserialize)]
pub struct FunctionId(pub u32);

/// What a node asks for when it opens a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    /// Which function.
    pub function: FunctionId,
    /// By which entry of the lender's table; 0: by the secret of its line.
    pub generation: LoanGeneration,
    /// The domain in which it shall be: of a virtual machine, or of the node.
    pub domain: DomainId,
    /// Its slot there, by which an entry of the lender's table knows it.
    pub slot: u16,
    /// What its requests bear there: the borrower tells its functions apart by that.
    pub host: Bdf,
}

/// Why a stream is not opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenRefusal {
    /// There is no such function, or its secret is another one.
    Unknown,
    /// Another node has it.
    InUse {
        /// Its name.
        by: Name,
        /// Its id.
        node: NodeId,
        /// For how long it has had it; `None`: since before the lender was started.
        since: Option<Duration>,
        /// It is not heard at present: if it does not come back, the function is kept for it for so long.
        hold: Option<Duration>,
    },
    /// The function is for others only.
    NotAllowed,
    /// It was assigned anew, or taken back: this is not the present generation.
    Generation,
    /// A manager says who has it, so a line opens it no more.
    Managed,
    /// The stream has a number that cannot be: another one may open.
    Number,
    /// There are as many streams as the lender takes, or it has no memory for another one.
    NoRoom,
    /// For a reason that a later version knows.
    Other {
        /// Its number.
        verdict: u8,
    },
}

/// One record. All of one stream, whose frame this is not: they go in frames of stream 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Control {
    /// Which stream.
    pub(crate) stream: StreamId,
    pub(crate) what: What,
}

/// What is said of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// The borrower wants it. Proven with the function's secret, but for what is wanted by an entry: that proves
    /// nothing, since the node is proven.
    Open { wish: Wish, proof: [u8; PROOF_LEN] },
    /// It is open: the function is this tenant's. Requests to it bear this id, and lead to where the function lies: so
    /// far into the aperture of its domain.
    Opened { tenancy: u64, requester: Bdf, base: u64 },
    /// It is not opened.
    Refused(OpenRefusal),
    /// The borrower gives the function back.
    Close,
    /// The stream is not there, or not any more.
    Closed,
    /// About the function.
    Inform(Information),
    /// This was heard.
    Informed,
}

mod kind {
    const CRITICAL: u8 = 0x80;
    pub(super) const OPEN: u8 = CRITICAL | 13;
    pub(super) const OPENED: u8 = CRITICAL | 14;
    pub(super) const REFUSED: u8 = CRITICAL | 15;
    pub(super) const CLOSE: u8 = CRITICAL | 16;
    pub(super) const CLOSED: u8 = CRITICAL | 17;
    pub(super) const INFORM: u8 = 18;
    pub(super) const INFORMED: u8 = 19;
    pub(super) const ALL: [u8; 7] = [OPEN, OPENED, REFUSED, CLOSE, CLOSED, INFORM, INFORMED];
}

mod verdict {
    pub(super) const UNKNOWN: u8 = 1;
    pub(super) const IN_USE: u8 = 2;
    pub(super) const NOT_ALLOWED: u8 = 3;
    pub(super) const GENERATION: u8 = 4;
    pub(super) const NUMBER: u8 = 5;
    pub(super) const NO_ROOM: u8 = 6;
    pub(super) const MANAGED: u8 = 7;
}

/// No duration: it is not known.
const NO_SECONDS: u64 = u64::MAX;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawOpen {
    function: U32,
    generation: U64,
    domain: U32,
    slot: U16,
    host: U16,
    proof: [u8; PROOF_LEN],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawOpened {
    tenancy: U64,
    requester: U16,
    base: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRefused {
    verdict: u8,
    holder: NodeId,
    name: [u8; 32],
    since: U64,
    hold: U64,
}

impl Wish {
    /// Whether it is wanted by an entry of the lender's table, and not by a line.
    pub fn is_by_entry(&self) -> bool {
        self.generation != LoanGeneration(0)
    }

    /// What is proven when it is opened as `stream` under the keys of the handshake `hash`.
    pub fn proven(&self, hash: &[u8; 32], stream: StreamId) -> Vec<u8> {
        let Self { function, generation, domain, slot, host } = self;
        let numbers = [stream.0, function.0, domain.0].map(u32::to_le_bytes);
        let (generation, ids) = (generation.0.to_le_bytes(), [slot, &host.0].map(|id| id.to_le_bytes()));
        [b"open", &hash[..], numbers.as_flattened(), &generation, ids.as_flattened()].concat()
    }
}

impl Control {
    /// Whether a record of this kind is one of these.
    pub(crate) fn is_kind(kind: u8) -> bool {
        kind::ALL.contains(&kind)
    }

    /// Reads what follows the kind and length of a record. `None` where it is malformed.
    pub(crate) fn parse(kind: u8, rest: &[u8]) -> Option<Self> {
        let (stream, rest) = U32::read_from_prefix(rest).ok()?;
        let what = match kind {
            kind::OPEN => What::open(take(rest)?)?,
            kind::OPENED => {
                let raw: RawOpened = take(rest)?;
                let (tenancy, requester) = (raw.tenancy.get(), Bdf(raw.requester.get()));
                What::Opened { tenancy, requester, base: raw.base.get() }
            }
            kind::REFUSED => What::Refused(OpenRefusal::decode(&take(rest)?)),
            kind::CLOSE => What::Close,
            kind::CLOSED => What::Closed,
            kind::INFORM => What::Inform(take(rest)?),
            kind::INFORMED => What::Informed,
            _ => return None,
        };
        Some(Self { stream: StreamId(stream.get()), what })
    }

    /// Gives what follows the kind and length of a record to `put`; returns the kind.
    pub(crate) fn encode(&self, put: &mut dyn FnMut(&[u8])) -> u8 {
        put(U32::new(self.stream.0).as_bytes());
        match &self.what {
            What::Open { wish, proof } => {
                put(wish.encode(proof).as_bytes());
                kind::OPEN
            }
            What::Opened { tenancy, requester, base } => {
                let (tenancy, base) = ((*tenancy).into(), (*base).into());
                put(RawOpened { tenancy, requester: requester.0.into(), base }.as_bytes());
                kind::OPENED
            }
            What::Refused(refusal) => {
                put(refusal.encode().as_bytes());
                kind::REFUSED
            }
            What::Close => kind::CLOSE,
            What::Closed => kind::CLOSED,
            What::Inform(information) => {
                put(information.as_bytes());
                kind::INFORM
            }
            What::Informed => kind::INFORMED,
        }
    }
}

impl What {
    fn open(raw: RawOpen) -> Option<Self> {
        // A domain has so many bits.
        let domain = Some(raw.domain.get()).filter(|domain| domain >> DomainId::BITS == 0)?;
        let wish = Wish {
            function: FunctionId(raw.function.get()),
            generation: LoanGeneration(raw.generation.get()),
            domain: DomainId(domain),
            slot: raw.slot.get(),
            host: Bdf(raw.host.get()),
        };
        Some(Self::Open { wish, proof: raw.proof })
    }
}

impl Wish {
    fn encode(&self, proof: &[u8; PROOF_LEN]) -> RawOpen {
        RawOpen {
            function: self.function.0.into(),
            generation: self.generation.0.into(),
            domain: self.domain.0.into(),
            slot: self.slot.into(),
            host: self.host.0.into(),
            proof: *proof,
        }
    }
}

impl OpenRefusal {
    fn decode(raw: &RawRefused) -> Self {
        let seconds = |seconds: U64| {
            Some(seconds.get()).filter(|seconds| *seconds != NO_SECONDS).map(Duration::from_secs)
        };
        match raw.verdict {
            verdict::UNKNOWN => Self::Unknown,
            verdict::IN_USE => Self::InUse {
                by: Name::from_bytes(raw.name),
                node: raw.holder,
                since: seconds(raw.since),
                hold: seconds(raw.hold),
            },
            verdict::NOT_ALLOWED => Self::NotAllowed,
            verdict::GENERATION => Self::Generation,
            verdict::NUMBER => Self::Number,
            verdict::NO_ROOM => Self::NoRoom,
            verdict::MANAGED => Self::Managed,
            verdict => Self::Other { verdict },
        }
    }

    fn encode(&self) -> RawRefused {
        let plain = |verdict| RawRefused {
            verdict,
            holder: NodeId::default(),
            name: [0; 32],
            since: NO_SECONDS.into(),
            hold: NO_SECONDS.into(),
        };
        let seconds = |time: &Option<Duration>| time.map_or(NO_SECONDS, |time| time.as_secs()).into();
        match self {
            Self::Unknown => plain(verdict::UNKNOWN),
            Self::InUse { by, node, since, hold } => RawRefused {
                verdict: verdict::IN_USE,
                holder: *node,
                name: by.to_bytes(),
                since: seconds(since),
                hold: seconds(hold),
            },
            Self::NotAllowed => plain(verdict::NOT_ALLOWED),
            Self::Generation => plain(verdict::GENERATION),
            Self::Number => plain(verdict::NUMBER),
            Self::NoRoom => plain(verdict::NO_ROOM),
            Self::Managed => plain(verdict::MANAGED),
            Self::Other { verdict } => plain(*verdict),
        }
    }
}

fn take<T: FromBytes>(rest: &[u8]) -> Option<T> {
    T::read_from_prefix(rest).ok().map(|(value, _)| value)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::{Record, Writer, parse_control};

    pub(crate) fn wish() -> Wish {
        Wish {
            function: FunctionId(7),
            generation: LoanGeneration(3),
            domain: DomainId((1 << 18) - 1),
            slot: 0x1234,
            host: Bdf(0x0107),
        }
    }

    fn all() -> Vec<What> {
        let in_use = OpenRefusal::InUse {
            by: Name::new("somebody"),
            node: NodeId::numbered(9),
            since: None,
            hold: Some(Duration::from_secs(7)),
        };
        let refusals = [
            OpenRefusal::Unknown,
            in_use,
            OpenRefusal::NotAllowed,
            OpenRefusal::Generation,
            OpenRefusal::Number,
            OpenRefusal::NoRoom,
            OpenRefusal::Managed,
            OpenRefusal::Other { verdict: 99 },
        ];
        let information =
            Information { bytes: 1.into(), kind: 2, flags: 3, name: Name::new("drive").to_bytes() };
        let rest = [
            What::Open { wish: wish(), proof: [9; PROOF_LEN] },
            What::Opened { tenancy: 1 << 40, requester: Bdf(0x4321), base: 5 << 34 },
            What::Close,
            What::Closed,
            What::Inform(information),
            What::Informed,
        ];
        refusals.map(What::Refused).into_iter().chain(rest).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        for what in all() {
            let control = Control { stream: StreamId(5), what };
            let mut buffer = [0; 200];
            let mut writer = Writer::of_control(&mut buffer);
            assert!(writer.record(&Record::Control(control)));
            let len = writer.len();
            let Some(Ok(Record::Control(read))) = parse_control(&buffer[..len]).next() else { panic!() };
            assert_eq!(read, control);
            // What is cut off is malformed.
            for short in 1..len {
                assert!(!matches!(parse_control(&buffer[..short]).next(), Some(Ok(_))), "{control:?}");
            }
        }
    }

    #[test]
    fn each_part_of_a_wish_is_proven() {
        let before = wish().proven(&[1; 32], StreamId(2));
        let others = [
            wish().proven(&[2; 32], StreamId(2)),
            wish().proven(&[1; 32], StreamId(3)),
            Wish { function: FunctionId(8), ..wish() }.proven(&[1; 32], StreamId(2)),
            Wish { generation: LoanGeneration(4), ..wish() }.proven(&[1; 32], StreamId(2)),
            Wish { domain: DomainId(1), ..wish() }.proven(&[1; 32], StreamId(2)),
            Wish { slot: 1, ..wish() }.proven(&[1; 32], StreamId(2)),
            Wish { host: Bdf(1), ..wish() }.proven(&[1; 32], StreamId(2)),
        ];
        assert!(others.iter().all(|other| *other != before));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_none(
            kind in any::<u8>(),
            bytes in proptest::collection::vec(any::<u8>(), 0..120),
        ) {
            if let Some(read) = Control::parse(kind, &bytes) {
                let mut again = Vec::new();
                let written = read.encode(&mut |bytes| again.extend(bytes));
                prop_assert_eq!(written, kind);
                prop_assert_eq!(Control::parse(kind, &again), Some(read));
            }
        }
    }
}
