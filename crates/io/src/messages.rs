//! Messages between an agent and its card, over a socket pair that keeps their boundaries. Not on the data path.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, discriminant};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};

use crate::load::LoadResult;
use crate::outbox::Message;

/// Longest message in bytes.
const MESSAGE_BYTES: usize = 1024;

/// What an agent tells its card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToCard {
    /// A client's connection, new or kept for the successor of a dead card. Comes with its descriptor.
    Connection { loan: usize, slot: usize },
    /// It is durable that `node` uses what the loan lends; `number` counts the changes.
    Tenancy { loan: usize, number: u64, node: u64 },
    /// Give everything back, in order.
    ShutDown,
}

/// What a card tells its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToAgent {
    /// The roll-back is done and the rails are being served.
    Running,
    /// The drive of a loan is usable.
    Ready { loan: usize },
    /// The lender refuses the loan.
    Refused { loan: usize, in_use_by: Option<String>, since_s: u64 },
    /// Another node than before has taken what the loan lends: to be made durable.
    Tenant { loan: usize, node: u64 },
    /// Another node has used the borrowed drive meanwhile.
    Overtaken { loan: usize },
    /// The loan has ended in order; `has_lost`: but writes that were answered are lost, and no flush has said so.
    GivenBack { loan: usize, has_lost: bool },
    /// The connection is closed; its slot is free.
    Disconnected { loan: usize, slot: usize },
    /// The load of a loan has ended.
    LoadEnded { loan: usize, result: LoadResult },
}

impl Message for ToCard {
    /// What waits is at most one message for each place of a client, one for each tenant, and the one to shut down.
    fn supersedes(&self, earlier: &Self) -> bool {
        let about = |message: &Self| match *message {
            Self::Connection { loan, slot } => (loan, slot),
            Self::Tenancy { loan, .. } => (loan, 0),
            Self::ShutDown => (0, 0),
        };
        discriminant(self) == discriminant(earlier) && about(self) == about(earlier)
    }
}

impl Message for ToAgent {
    /// What waits is at most one message of each kind for each loan, and one for each place of a client, who is followed by
    /// another one only when the agent has heard that the place is free. A tenant that was overtaken has not been let in.
    fn supersedes(&self, earlier: &Self) -> bool {
        let about = |message: &Self| match *message {
            Self::Running => (0, 0),
            Self::Disconnected { loan, slot } => (loan, slot),
            Self::Ready { loan }
            | Self::Refused { loan, .. }
            | Self::Tenant { loan, .. }
            | Self::Overtaken { loan }
            | Self::GivenBack { loan, .. }
            | Self::LoadEnded { loan, .. } => (loan, 0),
        };
        discriminant(self) == discriminant(earlier) && about(self) == about(earlier)
    }
}

/// A connected pair: one end for each.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Sends a message, with a descriptor if there is one. `WouldBlock` when the other end does not read.
pub(crate) fn send<M: Serialize>(
    to: BorrowedFd<'_>,
    message: &M,
    with: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    assert!(bytes.len() <= MESSAGE_BYTES, "messages are short");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = with.as_slice();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    rustix::net::sendmsg(to, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next message, with its descriptor. `None`: nothing now. An error of kind `UnexpectedEof`: the other end is gone.
pub(crate) fn receive<M: for<'de> Deserialize<'de>>(
    from: impl AsFd,
) -> io::Result<Option<(M, Option<OwnedFd>)>> {
    let mut bytes = [0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
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
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.last();
        }
    }
    Ok(Some((serde_json::from_slice(&bytes[..received])?, descriptor)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_travels_with_its_message() {
        let (agent, card) = pair().unwrap();
        assert!(receive::<ToCard>(&card).unwrap().is_none());
        let message = ToCard::Connection { loan: 1, slot: 2 };
        send(agent.as_fd(), &message, Some(agent.as_fd())).unwrap();
        let (received, descriptor) = receive::<ToCard>(&card).unwrap().unwrap();
        assert_eq!(received, message);
        assert!(descriptor.is_some());
        drop((agent, descriptor));
        assert_eq!(receive::<ToCard>(&card).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
