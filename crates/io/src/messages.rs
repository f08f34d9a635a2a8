//! Messages between an agent and its card, over a socket pair that keeps their boundaries. Not on the data path.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, discriminant};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use base::ids::{Incarnation, LifeId, NodeId};
use node::{Limit, LoanConfig, Refusal, Tenancy, Whereabouts};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};

use crate::load::LoadResult;
use crate::outbox::Message;

/// Longest message in bytes: what is to be kept of a drive, twice as long in hexadecimal.
const MESSAGE_BYTES: usize = 64 << 10;
/// Most descriptors that travel with one.
pub(crate) const DESCRIPTORS: usize = 16;

/// A message, and the life of the loan that it is about: with the place in it that names a loan. Who gets one of a loan
/// that is gone, or has not come to it yet, drops it. 0 where it is about none.
pub(crate) type Dated<M> = (u32, M);

/// What an agent tells its card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToCard {
    /// A client's connection, new or kept for the successor of a dead card. Comes with its descriptor.
    Connection { loan: usize, slot: usize },
    /// A place has this loan from now on.
    Attach { loan: usize, config: Box<LoanConfig> },
    /// A drive is lent from now on: comes with its image and a [`crate::plan::DriveComing`].
    Lend { drive: usize },
    /// It is lent no more.
    Withdraw { drive: usize },
    /// Other nodes may have what it lends: comes with their [list](crate::plan::Allowed).
    Allow { drive: usize },
    /// Memory is shared with the peer in this place, if it is this node: comes with that and the bell. `calls`: this node
    /// is the one that has called the other.
    Shared { peer: usize, node: NodeId, calls: bool },
    /// None is shared with it any more.
    Parted { peer: usize },
    /// What the function of a lent loan may do from now on.
    Limit { loan: usize, limit: Limit },
    /// The medium of a drive has grown to so many blocks.
    Grow { drive: usize, blocks: u64 },
    /// The medium of a drive was cut off at so many bytes.
    Cut { drive: usize, bytes: u64 },
    /// An operator has seen to the medium of a drive: how often so far.
    ClearFault { drive: usize, order: u64 },
    /// The medium of a drive may have lost something.
    Fault { drive: usize },
    /// What was to be kept of a drive is, or could not be.
    Persisted { drive: usize, version: u64, kept: bool },
    /// It is durable who has what the loan lends.
    Tenancy { loan: usize, tenancy: Tenancy },
    /// To the lender of this loan the node calls itself by this incarnation, which is greater than before.
    Incarnation { loan: usize, incarnation: Incarnation },
    /// The machine may go on somewhere else, too: new keys, from these random bytes, and another life to call itself by
    /// if it was restored from a snapshot.
    RenewKeys { seed: [u8; 32], life: Option<LifeId> },
    /// Give everything back, in order.
    ShutDown,
    /// Give back what this loan has borrowed.
    GiveBack { loan: usize },
    /// A virtual machine takes a function out, or puts it in: whether it answers.
    Present { loan: usize, is_present: bool },
    /// What the agent keeps for a slot, by these ids: comes with as many descriptors.
    Descriptors { loan: usize, ids: Vec<u32> },
    /// Every descriptor that a predecessor knew was told: a card with slots begins after this.
    Begin,
    /// A message of a slot's client, which came with these descriptors, as the card has asked; or again, for a
    /// successor.
    Taken { loan: usize, number: u64, bytes: Hex, ids: Vec<u32> },
    /// The client of a slot, new or kept for the successor of a dead card. Comes with its socket.
    Slot { loan: usize },
    /// The client of a slot, perhaps one that let go of it, has connected once more: if its device is not in use, it is
    /// to be parked.
    Park { loan: usize },
    /// A connection that a dead card has parked. Comes with its socket.
    Parked { number: u64 },
    /// Every connection that a predecessor knew was told, with and without a slot.
    AllParked,
    /// The message that the card has asked for cannot be had: the client is to be closed.
    Lost { loan: usize },
    /// The descriptors that the card has given back are closed.
    Closed { loan: usize, ids: Vec<u32> },
}

/// What a card tells its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToAgent {
    /// The roll-back is done and the rails are being served. So much of the shared memory is had as soon as it is there.
    Running { reach: usize },
    /// A drive that was to go has gone: its image is not used any more.
    Withdrawn { drive: usize },
    /// The drive of a loan is usable.
    Ready { loan: usize },
    /// The lender refuses the loan.
    Refused { loan: usize, refusal: Refusal },
    /// There is a channel with this incarnation of this node, which has this place.
    Joined { peer: usize, node: NodeId, incarnation: Incarnation },
    /// The channel with whoever had this place is given up.
    Left { peer: usize },
    /// The memory that is shared with this peer is of no use: the peer is gone, or makes no sense.
    Nonsense { peer: usize },
    /// Who has what the loan lends has changed: to be made durable.
    Tenant { loan: usize, tenancy: Tenancy },
    /// A node that has something of this one has proven to be there.
    Located { holder: Whereabouts },
    /// Another node has used the borrowed drive meanwhile.
    Overtaken { loan: usize },
    /// The loan has ended in order; `has_lost`: but writes that were answered are lost, and no flush has said so.
    GivenBack { loan: usize, has_lost: bool },
    /// The connection is closed; its slot is free.
    Disconnected { loan: usize, slot: usize },
    /// The load of a loan has ended.
    LoadEnded { loan: usize, result: LoadResult },
    /// The medium of a drive has lost something.
    MediaFault { drive: usize },
    /// This is to be kept of a drive, in place of all before.
    Persist { drive: usize, version: u64, record: Hex },
    /// The next bytes of a slot's client are a message of this length, which may have descriptors: to be received by
    /// the agent as its message of this number. The one before it is committed.
    Take { loan: usize, number: u64, len: usize },
    /// A slot needs these descriptors no more.
    Release { loan: usize, ids: Vec<u32> },
    /// The lent function cannot be used.
    Unusable { loan: usize, why: String },
    /// The connection to a slot's client is closed.
    Vacant { loan: usize },
    /// The client of a slot has lost it, and is only answered from now on.
    Parked { loan: usize },
    /// The device of a slot's client is in use: the client keeps it.
    Kept { loan: usize },
    /// The image behind a drive makes trouble.
    Medium { drive: usize, trouble: MediumTrouble },
    /// The client of a parked connection is gone. The kernel's number for its socket.
    Unparked { number: u64 },
}

impl Message for ToCard {
    fn loan(&self) -> Option<usize> {
        match *self {
            Self::Grow { .. } | Self::Cut { .. } | Self::ClearFault { .. } | Self::Fault { .. } => None,
            Self::Persisted { .. } | Self::RenewKeys { .. } | Self::ShutDown => None,
            Self::Begin | Self::Parked { .. } | Self::AllParked => None,
            Self::Shared { .. } | Self::Parted { .. } => None,
            Self::Lend { .. } | Self::Withdraw { .. } | Self::Allow { .. } => None,
            Self::Connection { loan, .. }
            | Self::Attach { loan, .. }
            | Self::Limit { loan, .. }
            | Self::Tenancy { loan, .. }
            | Self::Incarnation { loan, .. }
            | Self::GiveBack { loan }
            | Self::Present { loan, .. }
            | Self::Descriptors { loan, .. }
            | Self::Taken { loan, .. }
            | Self::Slot { loan }
            | Self::Park { loan }
            | Self::Lost { loan }
            | Self::Closed { loan, .. } => Some(loan),
        }
    }

    /// What waits is at most one message for each place of a client, one for each loan's coming, tenant, incarnation, limit,
    /// return and presence, one for each peer's memory, eight for each drive, of which the last says all, the one to renew keys, and the one
    /// to shut down. Of a slot it is one message of each kind, and that only when the card has asked for it or another
    /// client has come. To a successor, whose outbox is a new one, come all descriptors of slots, [`DESCRIPTORS`] in a
    /// message, and all parked connections, one in a message and at most 1024 of them (`MOST` of `agent::slots`), and
    /// behind either one message that these were all.
    fn supersedes(&self, earlier: &Self) -> bool {
        let about = |message: &Self| match message {
            Self::Connection { loan, slot } => (0, *loan, *slot),
            Self::Shared { peer, .. } | Self::Parted { peer } => (1, *peer, 0),
            Self::Tenancy { loan, .. } => (2, *loan, 0),
            Self::Limit { loan, .. } => (3, *loan, 0),
            Self::Grow { drive, .. } => (4, *drive, 0),
            Self::Persisted { drive, .. } => (5, *drive, 0),
            Self::Cut { drive, .. } => (18, *drive, 0),
            Self::RenewKeys { .. } => (19, 0, 0),
            Self::ShutDown => (6, 0, 0),
            Self::GiveBack { loan } => (13, *loan, 0),
            Self::Present { loan, .. } => (14, *loan, 0),
            Self::Descriptors { loan, ids } => (7, *loan, ids.first().map_or(0, |id| *id as usize)),
            Self::Begin => (8, 0, 0),
            Self::Taken { loan, .. } => (9, *loan, 0),
            Self::Slot { loan } => (10, *loan, 0),
            Self::Lost { loan } => (11, *loan, 0),
            Self::Closed { loan, .. } => (12, *loan, 0),
            Self::Park { loan } => (15, *loan, 0),
            Self::Parked { number } => (16, 0, *number as usize),
            Self::AllParked => (17, 0, 0),
            Self::ClearFault { drive, .. } => (20, *drive, 0),
            Self::Incarnation { loan, .. } => (21, *loan, 0),
            Self::Fault { drive } => (22, *drive, 0),
            Self::Attach { loan, .. } => (23, *loan, 0),
            Self::Lend { drive } => (24, *drive, 0),
            Self::Withdraw { drive } => (25, *drive, 0),
            Self::Allow { drive } => (26, *drive, 0),
        };
        about(self) == about(earlier)
    }
}

impl Message for ToAgent {
    fn loan(&self) -> Option<usize> {
        match *self {
            Self::Running { .. } | Self::Persist { .. } | Self::Unparked { .. } | Self::Located { .. } => {
                None
            }
            Self::Withdrawn { .. } | Self::Medium { .. } | Self::MediaFault { .. } => None,
            Self::Joined { .. } | Self::Left { .. } | Self::Nonsense { .. } => None,
            Self::Ready { loan }
            | Self::Refused { loan, .. }
            | Self::Tenant { loan, .. }
            | Self::Overtaken { loan }
            | Self::GivenBack { loan, .. }
            | Self::Disconnected { loan, .. }
            | Self::LoadEnded { loan, .. }
            | Self::Take { loan, .. }
            | Self::Release { loan, .. }
            | Self::Unusable { loan, .. }
            | Self::Vacant { loan }
            | Self::Parked { loan }
            | Self::Kept { loan } => Some(loan),
        }
    }

    /// What waits is at most one message of each kind for each loan, peer or drive, and one for each place of a client, who
    /// is followed by another one only when the agent has heard that the place is free. So it is with parked
    /// connections: one message for each, and nobody takes its place before the agent has heard of it. A tenant that
    /// was overtaken has not been let in.
    fn supersedes(&self, earlier: &Self) -> bool {
        if let (Self::Located { holder }, Self::Located { holder: before }) = (self, earlier) {
            return holder.key == before.key;
        }
        let about = |message: &Self| match *message {
            Self::Disconnected { loan, slot } => (loan, slot),
            Self::Persist { drive, .. } | Self::MediaFault { drive } => (drive, 0),
            Self::Withdrawn { drive } => (drive, 0),
            Self::Medium { drive, trouble } => (drive, trouble.kind()),
            Self::Unparked { number } => (number as usize, 0),
            Self::Joined { peer, .. } | Self::Left { peer } | Self::Nonsense { peer } => (peer, 0),
            _ => (message.loan().unwrap_or_default(), 0),
        };
        discriminant(self) == discriminant(earlier) && about(self) == about(earlier)
    }
}

/// What is wrong with an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MediumTrouble {
    /// There is no space left for what is written.
    Full,
    /// It refuses to be written.
    ReadOnly,
    /// It has failed a request.
    Failed,
    /// It has become shorter, and has so many bytes.
    Cut(u64),
}

impl MediumTrouble {
    /// How many kinds there are.
    pub(crate) const KINDS: usize = 4;

    pub(crate) fn kind(self) -> usize {
        match self {
            Self::Full => 0,
            Self::ReadOnly => 1,
            Self::Failed => 2,
            Self::Cut(_) => 3,
        }
    }
}

/// Bytes, in hexadecimal where they are text.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    let bytes = serde_json::to_vec(message)?;
    assert!(bytes.len() <= MESSAGE_BYTES, "messages are short");
    assert!(with.len() <= DESCRIPTORS, "few descriptors travel with a message");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !with.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(with));
    }
    rustix::net::sendmsg(to, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
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
    Ok(Some((serde_json::from_slice(&bytes[..received])?, descriptors)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_record_of_a_drive_is_a_message() {
        let (agent, card) = pair().unwrap();
        let record = Hex((0..24 << 10).map(|at| (at % 251) as u8).collect());
        let message = ToAgent::Persist { drive: 79, version: u64::MAX, record };
        send(card.as_fd(), &message, &[]).unwrap();
        assert_eq!(receive::<ToAgent>(&agent).unwrap().unwrap().0, message);
    }

    #[test]
    fn no_message_takes_the_place_of_one_of_another_kind() {
        let tenancy = Tenancy::default();
        let limit = Limit::NONE;
        let messages = [
            ToCard::Connection { loan: 0, slot: 0 },
            ToCard::Shared { peer: 0, node: NodeId::default(), calls: true },
            ToCard::Limit { loan: 0, limit },
            ToCard::Grow { drive: 0, blocks: 1 },
            ToCard::Cut { drive: 0, bytes: 1 },
            ToCard::ClearFault { drive: 0, order: 1 },
            ToCard::Fault { drive: 0 },
            ToCard::Persisted { drive: 0, version: 1, kept: true },
            ToCard::Tenancy { loan: 0, tenancy },
            ToCard::Incarnation { loan: 0, incarnation: Incarnation(1) },
            ToCard::RenewKeys { seed: [0; 32], life: None },
            ToCard::Lend { drive: 0 },
            ToCard::Withdraw { drive: 0 },
            ToCard::Allow { drive: 0 },
            ToCard::ShutDown,
            ToCard::GiveBack { loan: 0 },
            ToCard::Present { loan: 0, is_present: true },
            ToCard::Descriptors { loan: 0, ids: vec![0] },
            ToCard::Begin,
            ToCard::Taken { loan: 0, number: 0, bytes: Hex(Vec::new()), ids: Vec::new() },
            ToCard::Slot { loan: 0 },
            ToCard::Park { loan: 0 },
            ToCard::Parked { number: 0 },
            ToCard::AllParked,
            ToCard::Lost { loan: 0 },
            ToCard::Closed { loan: 0, ids: Vec::new() },
        ];
        for (index, message) in messages.iter().enumerate() {
            let superseded = messages.iter().enumerate().filter(|(_, earlier)| message.supersedes(earlier));
            assert!(superseded.map(|(at, _)| at).eq([index]), "{message:?}");
        }
    }

    #[test]
    fn a_descriptor_travels_with_its_message() {
        let (agent, card) = pair().unwrap();
        assert!(receive::<ToCard>(&card).unwrap().is_none());
        let message = ToCard::Connection { loan: 1, slot: 2 };
        send(agent.as_fd(), &message, &[agent.as_fd()]).unwrap();
        let (received, descriptors) = receive::<ToCard>(&card).unwrap().unwrap();
        assert_eq!(received, message);
        assert_eq!(descriptors.len(), 1);
        let message = ToCard::Shared { peer: 1, node: NodeId::numbered(2), calls: false };
        send(agent.as_fd(), &message, &[agent.as_fd(), agent.as_fd()]).unwrap();
        assert_eq!(receive::<ToCard>(&card).unwrap().unwrap().1.len(), 2);
        drop((agent, descriptors));
        assert_eq!(receive::<ToCard>(&card).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
