//! Messages between an agent and its card, over a socket pair that keeps their boundaries. Not on the data path. Each
//! begins with the layout of all of them, as a plan does with its own.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, discriminant};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use base::ids::{CardGeneration, Incarnation, LifeId, NodeId, RailId};
use base::ledger::{Layout, LayoutHash};
use node::{
    Address, Applied, Entry, Limit, LoanConfig, MAX_RAILS, Notice, RailConfig, Refusal, Secret, Tenancy,
    Whereabouts,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};

use crate::capture::Wish;
use crate::load::LoadResult;
use crate::memory;
use crate::outbox::Message;
use crate::plan::RailPlan;

/// Longest message in bytes: what is to be kept of a drive, twice as long in hexadecimal.
const MESSAGE_BYTES: usize = 64 << 10;
/// The first bytes of every message; then the layout of all messages, then the text.
const MAGIC: [u8; 8] = *b"cwtold\0\0";
const HEADER_BYTES: usize = 16;
/// What stands for the layout of messages in either direction.
pub(crate) const LAYOUT: LayoutHash = ToCard::LAYOUT.number(ToAgent::LAYOUT.0);
/// Most descriptors that travel with one.
pub(crate) const DESCRIPTORS: usize = 16;

/// A loan: its place, and the life of that. Who gets a message of one that is gone, or has not come to it yet, drops
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) struct LoanId {
    pub(crate) place: usize,
    pub(crate) life: u64,
}

/// What an agent tells its card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) enum ToCard {
    /// First of all: whoever it is said to is the card of its node from now on.
    TakeOver(TakeOver),
    /// Right behind it, as often as it takes: comes with the rails of the plan, and then with the images, in its order.
    Given,
    /// Of a loan.
    Loan(LoanId, ToLoan),
    /// Of a drive that is lent, by its place.
    Drive(usize, ToDrive),
    /// Of the node in this place.
    Peer(usize, ToPeer),
    /// Of the rail of this id.
    Rail(RailId, ToRail),
    /// Rails without a carrier, as bits.
    Carriers(u8),
    /// Where this node says that it is today, by rail.
    Heard(NodeId, [Option<Address>; MAX_RAILS]),
    /// On which rails of this node, as bits, another one hears notices to all.
    Member(NodeId, u8),
    /// What the node knows of its fabric: comes with [that](node::Members).
    Fabric,
    /// One of those who do has told all that a rail seems to have failed.
    Notice(Notice),
    /// The machine may go on somewhere else, too: new keys, from these random bytes, and another life to call itself by
    /// if it was restored from a snapshot.
    RenewKeys { seed: Secret, life: Option<LifeId> },
    /// Give everything back, in order.
    ShutDown,
    /// Every descriptor that a predecessor knew was told: a card with slots begins after this.
    Begin,
    /// A connection that a dead card has parked. Comes with its socket.
    Parked { number: u64 },
    /// Every connection that a predecessor knew was told, with and without a slot.
    AllParked,
    /// Somebody captures frames, or goes on with it: comes with the memory for them.
    Capture { place: usize, wish: Wish },
}

/// What no two cards have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) struct TakeOver {
    /// As [`CardConfig::generation`](node::CardConfig::generation),
    pub(crate) generation: CardGeneration,
    /// [`CardConfig::seed`](node::CardConfig::seed),
    pub(crate) seed: Secret,
    /// and [`CardConfig::restored_as`](node::CardConfig::restored_as).
    pub(crate) restored_as: Option<LifeId>,
    /// The machine may go on somewhere else with the keys in the ledger.
    pub(crate) renews_keys: bool,
}

/// What a card is told of a loan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) enum ToLoan {
    /// The place has it from now on.
    Attach(Box<LoanConfig>),
    /// A client's connection, new or kept for the successor of a dead card. Comes with its descriptor.
    Connection { slot: usize },
    /// What its function may do from now on.
    Limit(Limit),
    /// It is durable who has what it lends.
    Tenancy(Tenancy),
    /// To its lender the node calls itself by this incarnation, which is greater than before.
    Incarnation(Incarnation),
    /// The node's table has this of what it lends.
    Entry(Entry),
    /// Give back what it has borrowed.
    GiveBack,
    /// End it without its lender, who does not answer.
    Forget,
    /// A virtual machine takes a function out, or puts it in: whether it answers.
    Present(bool),
    /// Of the client of its slot.
    Slot(ToSlot),
}

/// What a card is told of the client of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) enum ToSlot {
    /// It is there, new or kept for the successor of a dead card. Comes with its socket.
    Client,
    /// It, perhaps one that let go of the slot, has connected once more: if its device is not in use, it is to be
    /// parked.
    Park,
    /// What the agent keeps for it, by these ids: comes with as many descriptors.
    Descriptors { ids: Vec<u32> },
    /// A message of it, which came with these descriptors, as the card has asked; or again, for a successor.
    Taken { number: u64, bytes: Hex, ids: Vec<u32> },
    /// The message that the card has asked for cannot be had: the client is to be closed.
    Lost,
    /// The descriptors that the card has given back are closed.
    Closed { ids: Vec<u32> },
}

/// What a card is told of a drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) enum ToDrive {
    /// It is lent from now on: comes with its image and a [`crate::plan::DriveComing`].
    Lend,
    /// It is lent no more.
    Withdraw,
    /// Other nodes may have what it lends: comes with their [list](crate::plan::Allowed).
    Allow,
    /// Its medium has grown to so many blocks.
    Grow { blocks: u64 },
    /// Its medium was cut off at so many bytes.
    Cut { bytes: u64 },
    /// An operator has seen to its medium: how often so far.
    ClearFault { order: u64 },
    /// Its medium may have lost something.
    Fault,
    /// What was to be kept of it is, or could not be.
    Persisted { version: u64, kept: bool },
}

/// What a card is told of a node that it has a channel with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) enum ToPeer {
    /// Memory is shared with it, if it is this node: comes with that and the bell. `calls`: this node is the one that
    /// has called the other.
    Shared { node: NodeId, calls: bool },
    /// None is shared with it any more.
    Parted,
}

/// What a card is told of a rail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) enum ToRail {
    /// The node has it from now on, perhaps in place of one of the same id: comes with its socket.
    Come { config: RailConfig, plan: RailPlan },
    /// The node has it no more.
    Go,
}

/// What a card tells its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) enum ToAgent {
    /// Of a loan.
    Loan(LoanId, FromLoan),
    /// Of a drive that is lent, by its place.
    Drive(usize, FromDrive),
    /// Of the node in this place.
    Peer(usize, FromPeer),
    /// The roll-back is done and the rails are being served. So much of the shared memory is had as soon as it is
    /// there.
    Running { reach: usize },
    /// A node that has something of this one has proven to be there.
    Located(Whereabouts),
    /// The client of a parked connection is gone. The kernel's number for its socket.
    Unparked { number: u64 },
    /// An information frame has come on this rail, from a switch.
    Heard(RailId, Hex),
    /// A rail seems to have failed: those who hear notices to all are to be told, and the fabric's manager.
    Notice(Notice),
    /// Another node has said so.
    Doubted(Notice),
}

/// What a card says of a loan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) enum FromLoan {
    /// Its drive is usable.
    Ready,
    /// The lender refuses it.
    Refused(Refusal),
    /// Who has what it lends has changed: to be made durable.
    Tenant(Tenancy),
    /// How far what it lends is with the node's table.
    Applied(Applied),
    /// Another node has used the borrowed drive meanwhile.
    Overtaken,
    /// It has ended in order; `has_lost`: but writes that were answered are lost, and no flush has said so.
    GivenBack { has_lost: bool },
    /// The lent function cannot be used.
    Unusable { why: String },
    /// The connection is closed; its slot is free.
    Disconnected { slot: usize },
    /// Its load has ended.
    LoadEnded(LoadResult),
    /// Of the client of its slot.
    Slot(FromSlot),
}

/// What a card says of the client of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) enum FromSlot {
    /// Its next bytes are a message of this length, which may have descriptors: to be received by the agent as its
    /// message of this number. The one before it is committed.
    Take { number: u64, len: usize },
    /// The slot needs these descriptors no more.
    Release { ids: Vec<u32> },
    /// The connection to it is closed.
    Vacant,
    /// It has lost the slot, and is only answered from now on.
    Parked,
    /// Its device is in use: it keeps it.
    Kept,
    /// What it has given is of little use; so often since that was said last.
    Trouble { what: SlotTrouble, others: u64 },
}

/// What is wrong with what the client of a slot has given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) enum SlotTrouble {
    /// Memory that lies in a file on a disk, which is not reached.
    OnDisk,
    /// Memory that has become shorter while it was in use.
    Short,
    /// More memory than there are addresses for.
    Large,
    /// Events, for which the kernel has no io_uring, for this reason (errno): who makes one block makes the card wait.
    Blocking(i32),
}

/// What a card says of a drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) enum FromDrive {
    /// It was to go, and has gone: its image is not used any more.
    Withdrawn,
    /// Its medium has lost something.
    MediaFault,
    /// This is to be kept of it, in place of all before.
    Persist { version: u64, record: Hex },
    /// The image behind it makes trouble.
    Medium(MediumTrouble),
}

/// What a card says of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) enum FromPeer {
    /// There is a channel with this incarnation of this node, which has this place.
    Joined { node: NodeId, incarnation: Incarnation },
    /// The channel with whoever had this place is given up.
    Left,
    /// The memory that is shared with it is of no use: it is gone, or makes no sense.
    Invalid,
}

impl From<ToSlot> for ToLoan {
    fn from(what: ToSlot) -> Self {
        Self::Slot(what)
    }
}

impl From<FromSlot> for FromLoan {
    fn from(what: FromSlot) -> Self {
        Self::Slot(what)
    }
}

impl Message for ToCard {
    type OfLoan = ToLoan;

    fn of_loan(loan: LoanId, what: ToLoan) -> Self {
        Self::Loan(loan, what)
    }

    fn loan(&self) -> Option<LoanId> {
        if let Self::Loan(loan, _) = self { Some(*loan) } else { None }
    }

    /// What waits is at most one message for each place of a client, one for each loan's coming, tenant, incarnation,
    /// limit, entry, return, end without its lender and presence, one for each peer's memory, one for each rail, eight
    /// for each drive, of which the last says all, the one of the fabric, the one to renew keys, and the one to shut
    /// down. Of a slot it is one message of each kind, and that only when the card has asked for it or another client
    /// has come. Of captures it is one for each place. To a successor, whose outbox is a new one, come all descriptors
    /// of slots, [`DESCRIPTORS`] in a message, and all parked connections, one in a message and at most 1024 of them
    /// (`MOST` of `agent::slots`), and behind either one message that these were all.
    fn supersedes(&self, earlier: &Self) -> bool {
        match (self, earlier) {
            (Self::Loan(loan, what), Self::Loan(of, before)) => {
                let part = |what: &ToLoan| match what {
                    ToLoan::Connection { slot } => (discriminant(what), None, *slot),
                    ToLoan::Slot(of) => {
                        let first = if let ToSlot::Descriptors { ids } = of { ids.first() } else { None };
                        (discriminant(what), Some(discriminant(of)), first.map_or(0, |id| *id as usize))
                    }
                    _ => (discriminant(what), None, 0),
                };
                loan.place == of.place && part(what) == part(before)
            }
            (Self::Drive(drive, what), Self::Drive(of, before)) => {
                drive == of && discriminant(what) == discriminant(before)
            }
            (Self::Peer(peer, _), Self::Peer(of, _)) => peer == of,
            (Self::Rail(rail, _), Self::Rail(of, _)) => rail == of,
            (Self::Heard(node, _), Self::Heard(of, _)) => node == of,
            (Self::Member(node, _), Self::Member(of, _)) => node == of,
            (Self::Notice(notice), Self::Notice(before)) => notice == before,
            (Self::Parked { number }, Self::Parked { number: before }) => number == before,
            (Self::Capture { place, .. }, Self::Capture { place: of, .. }) => place == of,
            _ => discriminant(self) == discriminant(earlier),
        }
    }

    /// A card cannot be without a rail. Where several reloads wait, what was said of a rail in between is dropped, and
    /// then one could go that the next one to come was to replace. Of what waits, all rails come first, so that each
    /// step leaves those that are there in the end.
    fn goes_before(&self, earlier: &Self) -> bool {
        matches!((self, earlier), (Self::Rail(_, ToRail::Come { .. }), Self::Rail(_, ToRail::Go)))
    }
}

impl Message for ToAgent {
    type OfLoan = FromLoan;

    fn of_loan(loan: LoanId, what: FromLoan) -> Self {
        Self::Loan(loan, what)
    }

    fn loan(&self) -> Option<LoanId> {
        if let Self::Loan(loan, _) = self { Some(*loan) } else { None }
    }

    /// What waits is at most one message of each kind for each loan, peer or drive, and one for each place of a client,
    /// who is followed by another one only when the agent has heard that the place is free. So it is with parked
    /// connections: one message for each, and nobody takes its place before the agent has heard of it. A tenant that
    /// was overtaken has not been let in.
    fn supersedes(&self, earlier: &Self) -> bool {
        match (self, earlier) {
            (Self::Loan(loan, what), Self::Loan(of, before)) => {
                let part = |what: &FromLoan| match what {
                    FromLoan::Disconnected { slot } => (discriminant(what), None, *slot),
                    FromLoan::Slot(of) => {
                        let kind = if let FromSlot::Trouble { what, .. } = of { what.kind() } else { 0 };
                        (discriminant(what), Some(discriminant(of)), kind)
                    }
                    _ => (discriminant(what), None, 0),
                };
                loan.place == of.place && part(what) == part(before)
            }
            (Self::Drive(drive, what), Self::Drive(of, before)) => {
                let kind = |what: &FromDrive| match what {
                    FromDrive::Medium(trouble) => (discriminant(what), trouble.kind()),
                    _ => (discriminant(what), 0),
                };
                drive == of && kind(what) == kind(before)
            }
            (Self::Peer(peer, what), Self::Peer(of, before)) => {
                peer == of && discriminant(what) == discriminant(before)
            }
            (Self::Located(holder), Self::Located(before)) => holder.key == before.key,
            (Self::Unparked { number }, Self::Unparked { number: before }) => number == before,
            (Self::Notice(notice), Self::Notice(before)) | (Self::Doubted(notice), Self::Doubted(before)) => {
                notice == before
            }
            _ => discriminant(self) == discriminant(earlier),
        }
    }
}

/// What is wrong with an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) enum MediumTrouble {
    /// There is no space left for what is written.
    Full,
    /// It refuses to be written.
    ReadOnly,
    /// It has failed a request.
    Failed,
    /// It has become shorter, and has so many bytes.
    Cut(u64),
    /// It lies in memory and cannot be mapped, for this reason (errno).
    Unmapped(i32),
}

impl SlotTrouble {
    fn kind(self) -> usize {
        match self {
            Self::OnDisk => 0,
            Self::Short => 1,
            Self::Blocking(_) => 2,
            Self::Large => 3,
        }
    }
}

impl MediumTrouble {
    /// How many kinds there are.
    pub(crate) const KINDS: usize = 5;

    pub(crate) fn kind(self) -> usize {
        match self {
            Self::Full => 0,
            Self::ReadOnly => 1,
            Self::Failed => 2,
            Self::Cut(_) => 3,
            Self::Unmapped(_) => 4,
        }
    }
}

/// Bytes, in hexadecimal where they are text.
#[derive(Clone, Debug, PartialEq, Eq, Layout)]
pub(crate) struct Hex(pub(crate) Vec<u8>);

impl Serialize for Hex {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom("not hexadecimal");
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
        let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return Err(wrong()) };
        let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
        bytes.collect::<Option<_>>().map(Self).ok_or_else(wrong)
    }
}

/// A connected pair: one end for each.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Sends a message, with its descriptors if there are any. `WouldBlock` when the other end does not read.
pub(crate) fn send<M: Serialize>(to: BorrowedFd<'_>, message: &M, with: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut bytes = encode(message)?;
    assert!(bytes.len() <= MESSAGE_BYTES, "messages are short");
    assert!(with.len() <= DESCRIPTORS, "few descriptors travel with a message");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !with.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(with));
    }
    let sent = rustix::net::sendmsg(to, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
    // Some have secrets of loans and seeds of keys.
    memory::wipe(&mut bytes);
    sent?;
    Ok(())
}

/// The next message, with its descriptors. `None`: nothing now. An error of kind `UnexpectedEof`: the other end is
/// gone.
pub(crate) fn receive<M: for<'de> Deserialize<'de>>(
    from: impl AsFd,
) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [IoSliceMut::new(&mut bytes)];
    let received = match rustix::net::recvmsg(from, &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC) {
        Ok(received) => received.bytes,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(Errno::CONNRESET) => 0,
        Err(errno) => return Err(errno.into()),
    };
    if received == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let message = parse(&bytes[..received]);
    memory::wipe(&mut bytes[..received]);
    Ok(Some((message?, descriptors)))
}

/// What stands in a message.
pub(crate) fn parse<M: for<'de> Deserialize<'de>>(message: &[u8]) -> io::Result<M> {
    Ok(serde_json::from_slice(text(message)?)?)
}

/// A message in bytes.
pub(crate) fn encode<M: Serialize>(message: &M) -> io::Result<Vec<u8>> {
    let mut bytes = [MAGIC, LAYOUT.0.to_le_bytes()].concat();
    serde_json::to_writer(&mut bytes, message)?;
    Ok(bytes)
}

/// The text of a message that this very program could have sent.
fn text(message: &[u8]) -> Result<&[u8], MessageError> {
    let (header, text) = message.split_first_chunk::<HEADER_BYTES>().ok_or(MessageError::NoMessage)?;
    match header.as_chunks::<8>().0 {
        [MAGIC, layout] if u64::from_le_bytes(*layout) == LAYOUT.0 => Ok(text),
        [MAGIC, layout] => Err(MessageError::OtherLayout(LayoutHash(u64::from_le_bytes(*layout)))),
        _ => Err(MessageError::NoMessage),
    }
}

/// Why a message is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
enum MessageError {
    #[error("what came between agent and card is no message")]
    NoMessage,
    #[error(
        "the message has layout {:016x}, and this program's is {:016x}: agent and card are of two versions of the \
         program, so start the node again as a whole", .0.0, LAYOUT.0
    )]
    OtherLayout(LayoutHash),
}

impl From<MessageError> for io::Error {
    fn from(error: MessageError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// Messages out of any bytes, for the fuzz target of them.
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use super::*;

    /// Reads bytes as a message in either direction, whole and without its header. What is one comes back when it is
    /// written and read again, and takes its own place where it waits.
    pub fn read(bytes: &[u8]) {
        let whole = [&MAGIC[..], &LAYOUT.0.to_le_bytes(), bytes].concat();
        for bytes in [bytes, &whole] {
            again::<ToCard>(bytes);
            again::<ToAgent>(bytes);
        }
    }

    fn again<M: Message + Serialize + for<'de> Deserialize<'de> + PartialEq + core::fmt::Debug>(
        bytes: &[u8],
    ) {
        match parse::<M>(bytes) {
            Ok(message) => {
                let written = encode(&message).expect("a message can be written");
                assert_eq!(parse::<M>(&written).expect("and read"), message);
                assert!(message.supersedes(&message));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::ids::LoanGeneration;
    use node::{Holder, NoticeCause};

    use super::*;

    const LOAN: LoanId = LoanId { place: 1, life: u64::MAX };
    const ENTRY: Entry = Entry { generation: LoanGeneration(1), holder: Holder::Nobody };

    #[test]
    fn the_largest_record_of_a_drive_is_a_message() {
        let (agent, card) = pair().unwrap();
        let record = Hex((0..24 << 10).map(|at| (at % 251) as u8).collect());
        let message = ToAgent::Drive(79, FromDrive::Persist { version: u64::MAX, record });
        send(card.as_fd(), &message, &[]).unwrap();
        assert_eq!(receive::<ToAgent>(&agent).unwrap().unwrap().0, message);
    }

    #[test]
    fn no_message_takes_the_place_of_one_of_another_kind() {
        let of_loan = [
            ToLoan::Connection { slot: 0 },
            ToLoan::Connection { slot: 1 },
            ToLoan::Limit(Limit::NONE),
            ToLoan::Tenancy(Tenancy::default()),
            ToLoan::Incarnation(Incarnation(1)),
            ToLoan::Entry(ENTRY),
            ToLoan::GiveBack,
            ToLoan::Forget,
            ToLoan::Present(true),
            ToLoan::Slot(ToSlot::Descriptors { ids: vec![0] }),
            ToLoan::Slot(ToSlot::Descriptors { ids: vec![1] }),
            ToLoan::Slot(ToSlot::Taken { number: 0, bytes: Hex(Vec::new()), ids: Vec::new() }),
            ToLoan::Slot(ToSlot::Client),
            ToLoan::Slot(ToSlot::Park),
            ToLoan::Slot(ToSlot::Lost),
            ToLoan::Slot(ToSlot::Closed { ids: Vec::new() }),
        ];
        let of_drive = [
            ToDrive::Grow { blocks: 1 },
            ToDrive::Cut { bytes: 1 },
            ToDrive::ClearFault { order: 1 },
            ToDrive::Fault,
            ToDrive::Persisted { version: 1, kept: true },
            ToDrive::Lend,
            ToDrive::Withdraw,
            ToDrive::Allow,
        ];
        let (node, rail, cause) = (NodeId::numbered(1), RailId::ALL[0], NoticeCause::Silence);
        let notice = Notice { node, rail, cause };
        let others = [
            ToCard::Peer(0, ToPeer::Parted),
            ToCard::Peer(1, ToPeer::Parted),
            ToCard::Rail(RailId::ALL[0], ToRail::Go),
            ToCard::Rail(RailId::ALL[1], ToRail::Go),
            ToCard::RenewKeys { seed: Secret([0; 32]), life: None },
            ToCard::Carriers(1),
            ToCard::Fabric,
            ToCard::Heard(NodeId::numbered(1), [None; MAX_RAILS]),
            ToCard::Heard(NodeId::numbered(2), [None; MAX_RAILS]),
            ToCard::Member(NodeId::numbered(1), 1),
            ToCard::Member(NodeId::numbered(2), 1),
            ToCard::Notice(notice),
            ToCard::Notice(Notice { rail: RailId::ALL[1], ..notice }),
            ToCard::ShutDown,
            ToCard::Begin,
            ToCard::Parked { number: 0 },
            ToCard::Parked { number: 1 },
            ToCard::AllParked,
            ToCard::Capture { place: 0, wish: Wish { link: Some(1), opened: false } },
            ToCard::Capture { place: 1, wish: Wish { link: Some(1), opened: false } },
        ];
        let loans = [LoanId { place: 0, life: 0 }, LOAN];
        let of_loans =
            loans.iter().flat_map(|loan| of_loan.iter().map(|what| ToCard::Loan(*loan, what.clone())));
        let of_drives =
            (0..2).flat_map(|drive| of_drive.iter().map(move |what| ToCard::Drive(drive, what.clone())));
        let messages: Vec<ToCard> = of_loans.chain(of_drives).chain(others).collect();
        for (index, message) in messages.iter().enumerate() {
            let superseded = messages.iter().enumerate().filter(|(_, earlier)| message.supersedes(earlier));
            assert!(superseded.map(|(at, _)| at).eq([index]), "{message:?}");
        }
        let shared = ToCard::Peer(0, ToPeer::Shared { node: NodeId::default(), calls: true });
        assert!(shared.supersedes(&ToCard::Peer(0, ToPeer::Parted)), "of a peer's memory the last says all");
    }

    #[test]
    fn a_descriptor_travels_with_its_message() {
        let (agent, card) = pair().unwrap();
        assert!(receive::<ToCard>(&card).unwrap().is_none());
        let message = ToCard::Loan(LOAN, ToLoan::Connection { slot: 2 });
        send(agent.as_fd(), &message, &[agent.as_fd()]).unwrap();
        let (received, descriptors) = receive::<ToCard>(&card).unwrap().unwrap();
        assert_eq!(received, message);
        assert_eq!(descriptors.len(), 1);
        let message = ToCard::Peer(1, ToPeer::Shared { node: NodeId::numbered(2), calls: false });
        send(agent.as_fd(), &message, &[agent.as_fd(), agent.as_fd()]).unwrap();
        assert_eq!(receive::<ToCard>(&card).unwrap().unwrap().1.len(), 2);
        drop((agent, descriptors));
        assert_eq!(receive::<ToCard>(&card).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_message_of_another_layout_is_refused_by_name() {
        let (agent, card) = pair().unwrap();
        let refused = |bytes: &[u8]| {
            rustix::net::send(&agent, bytes, SendFlags::empty()).unwrap();
            receive::<ToCard>(&card).unwrap_err().to_string()
        };
        let shut_down =
            |magic: [u8; 8], layout: u64| [&magic[..], &layout.to_le_bytes(), b"\"ShutDown\""].concat();
        let other = refused(&shut_down(MAGIC, 7));
        assert!(other.contains("0000000000000007") && other.contains("two versions"), "{other}");
        assert!(refused(&shut_down(*b"cwplan\0\0", LAYOUT.0)).contains("no message"));
        assert!(refused(&MAGIC).contains("no message"));
        let right = shut_down(MAGIC, LAYOUT.0);
        rustix::net::send(&agent, &right, SendFlags::empty()).unwrap();
        assert_eq!(receive::<ToCard>(&card).unwrap().unwrap().0, ToCard::ShutDown);
    }
}
