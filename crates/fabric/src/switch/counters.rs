//! What is counted at a port.

/// Why a frame was dropped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reason {
    /// It is no frame: too short, too long, or of a prefix that cannot be.
    Malformed,
    /// It is of another version than ours.
    Version,
    /// It is of another fabric.
    OtherFabric,
    /// Its group is none of the port's partition.
    ForeignGroup,
    /// Its source does not lie behind the port.
    ForgedSource,
    /// It names no destination: its sender does not know whom it calls.
    Unaddressed,
    /// Its destination lies in nobody's range.
    NoRoute,
    /// Its destination lies where it came from.
    Returning,
    /// It is for everybody, and comes by the port that is not in use toward its source.
    Duplicate,
    /// It is for everybody, or for a multicast group, and such frames come too often.
    TooOften,
    /// It has passed as many switches as it may.
    Hops,
    /// The queue of the port where it was to leave is full.
    QueueFull,
    /// It is larger than what the port where it was to leave carries.
    TooLarge,
    /// The port where it was to leave leads nowhere for now.
    Unreachable,
}

impl Reason {
    /// How many there are.
    pub const COUNT: usize = 14;
    /// All.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Malformed,
        Self::Version,
        Self::OtherFabric,
        Self::ForeignGroup,
        Self::ForgedSource,
        Self::Unaddressed,
        Self::NoRoute,
        Self::Returning,
        Self::Duplicate,
        Self::TooOften,
        Self::Hops,
        Self::QueueFull,
        Self::TooLarge,
        Self::Unreachable,
    ];

    /// Its place in lists by reason.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// As `status` and events name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Version => "version",
            Self::OtherFabric => "other_fabric",
            Self::ForeignGroup => "foreign_group",
            Self::ForgedSource => "forged_source",
            Self::Unaddressed => "unaddressed",
            Self::NoRoute => "no_route",
            Self::Returning => "returning",
            Self::Duplicate => "duplicate",
            Self::TooOften => "too_often",
            Self::Hops => "hops",
            Self::QueueFull => "queue_full",
            Self::TooLarge => "too_large",
            Self::Unreachable => "unreachable",
        }
    }

    /// What it means, after "frames are dropped: ".
    pub const fn words(self) -> &'static str {
        match self {
            Self::Malformed => "they are no frames",
            Self::Version => "they are of another version",
            Self::OtherFabric => "they are of another fabric",
            Self::ForeignGroup => "their group is none of the port's partition",
            Self::ForgedSource => "their source is outside of the port's ranges",
            Self::Unaddressed => "they name no destination",
            Self::NoRoute => "their destination is in no port's range",
            Self::Returning => "their destination lies behind the port that they came in by",
            Self::Duplicate => "they are for everybody, and come by another port as well",
            Self::TooOften => {
                "they are for everybody, or for a multicast group, and more come than are passed on"
            }
            Self::Hops => "they have passed too many switches: do switches lead to each other in a circle?",
            Self::QueueFull => "they come faster than the port sends",
            Self::TooLarge => {
                "they are larger than what the port carries: raise its MTU, or lower that of the nodes"
            }
            Self::Unreachable => "what is behind the port cannot be reached",
        }
    }

    /// Whether it happens in good order, so that nobody need look: each second call of a node that calls again names
    /// no destination, and what is for everybody comes by both ports of a pair.
    pub const fn is_expected(self) -> bool {
        matches!(self, Self::Unaddressed | Self::Duplicate)
    }
}

/// What was counted at a port since the switch was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounters {
    /// Frames that came in.
    pub received: u64,
    /// Bytes of them.
    pub received_bytes: u64,
    /// Frames that have left.
    pub sent: u64,
    /// Bytes of them.
    pub sent_bytes: u64,
    /// Those of them that were marked here for congestion.
    pub marked: u64,
    /// Frames that came in, or were to leave, and were dropped, by reason.
    pub dropped: [u64; Reason::COUNT],
}
