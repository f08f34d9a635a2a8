//! How two agents find out that they are on one machine, prove to each other that they are the two ends of a channel,
//! and pass the memory that its cards shall share.
//!
//! ```text
//! agent that calls                                        agent that is called
//!     call: whom, who, a random number              ---->
//!                                                   <---- answer: a random number, proof
//!     proof, with the memory and a bell             ---->
//!                                                   <---- agreed
//! ```
//! The socket is a Unix socket without a file, named by the node id of who is called; so only processes of one network
//! namespace meet. Its messages keep their boundaries. Both proofs are made with what the channel's handshake has
//! agreed, so not even another node that has the same lines can make them. They are over everything that was said,
//! and over the two process ids, each its own as it knows it and the other's as the kernel tells it: somebody in
//! between, who could keep a copy of the memory, would have a third one. Afterwards nothing more is said, and the end
//! of the connection is the end of the agreement.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use base::ids::NodeId;
use node::{PROOF_LEN, is_proof, prove};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Shared, Side};

/// Also the version of the memory's layout.
const MAGIC: [u8; 8] = *b"CWSHARE4";
/// Callers who wait to be accepted.
const BACKLOG: i32 = 16;
/// Longest message in bytes.
const MESSAGE_BYTES: usize = 128;

/// Bytes of a random number.
pub(crate) const NONCE_LEN: usize = 32;

/// The first message of who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Call {
    magic: [u8; 8],
    /// Who is called.
    called: NodeId,
    /// Who calls, in which life.
    node: NodeId,
    incarnation: U64,
    nonce: [u8; NONCE_LEN],
}

/// The answer.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Answer {
    nonce: [u8; NONCE_LEN],
    proof: [u8; PROOF_LEN],
}

/// The proof of who calls: the memory travels with it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Proof {
    proof: [u8; PROOF_LEN],
}

/// The last word of who is called.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Agreed {
    magic: [u8; 8],
}

/// Everything that both sides must see alike.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Transcript {
    call: Call,
    nonce: [u8; NONCE_LEN],
    caller_pid: U32,
    called_pid: U32,
    /// Whose proof it is: one is never the other.
    side: u8,
}

impl Call {
    /// `life` is node and incarnation of who calls.
    pub(crate) fn new(called: NodeId, life: (NodeId, u64), nonce: [u8; NONCE_LEN]) -> Self {
        Self { magic: MAGIC, called, node: life.0, incarnation: life.1.into(), nonce }
    }

    /// Whether it is of our version, and for `node`.
    pub(crate) fn is_for(&self, node: NodeId) -> bool {
        self.magic == MAGIC && self.called == node
    }

    /// Node and incarnation of who calls.
    pub(crate) fn life(&self) -> (NodeId, u64) {
        (self.node, self.incarnation.get())
    }
}

impl Agreed {
    pub(crate) fn new() -> Self {
        Self { magic: MAGIC }
    }
}

/// What a side knows when it proves something, or has something proven.
pub(crate) struct Meeting {
    /// What only the two ends of the channel know.
    pub(crate) secret: [u8; 32],
    pub(crate) call: Call,
    /// Process ids of the agent that calls, and of the one that is called.
    pub(crate) pids: (u32, u32),
}

impl Meeting {
    /// The answer of who is called.
    pub(crate) fn answer(&self, nonce: [u8; NONCE_LEN]) -> Answer {
        Answer { nonce, proof: prove(&self.secret, self.transcript(Side::Called, nonce).as_bytes()) }
    }

    /// Whether an answer is that of who was called.
    pub(crate) fn believes(&self, answer: &Answer) -> bool {
        is_proof(&self.secret, self.transcript(Side::Called, answer.nonce).as_bytes(), &answer.proof)
    }

    /// The proof of who calls in reply to an answer.
    pub(crate) fn proof(&self, answer: &Answer) -> Proof {
        Proof { proof: prove(&self.secret, self.transcript(Side::Caller, answer.nonce).as_bytes()) }
    }

    /// Whether a proof is that of who has called and was answered with `nonce`.
    pub(crate) fn accepts(&self, nonce: [u8; NONCE_LEN], proof: &Proof) -> bool {
        is_proof(&self.secret, self.transcript(Side::Caller, nonce).as_bytes(), &proof.proof)
    }

    fn transcript(&self, side: Side, nonce: [u8; NONCE_LEN]) -> Transcript {
        Transcript {
            call: self.call,
            nonce,
            caller_pid: self.pids.0.into(),
            called_pid: self.pids.1.into(),
            side: side as u8,
        }
    }
}

/// Where the node of this id listens.
pub(crate) fn name_of(node: NodeId) -> String {
    format!("causeway/{node}")
}

fn address_of(node: NodeId) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(name_of(node).as_bytes())?)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Listens for those who call `node`.
///
/// # Errors
/// `AddrInUse`: somebody else has this name.
pub(crate) fn listen(node: NodeId) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &address_of(node)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// The next who calls, if there is one.
///
/// # Errors
/// Want of descriptors or memory.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Connects to `node`.
///
/// # Errors
/// `ConnectionRefused`: it is not here. `WouldBlock`: too many are calling it.
pub(crate) fn connect(node: NodeId) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::connect(&socket, &address_of(node)?)?;
    Ok(socket)
}

/// Sends one message, with the memory if there is one. It never waits.
///
/// # Errors
/// Whatever keeps it from being sent: the peer is gone, or does not read.
pub(crate) fn send(
    to: &OwnedFd,
    message: &(impl IntoBytes + Immutable),
    with: Option<&Shared>,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = with.map(|shared| [shared.memory.as_fd(), shared.bell.as_fd()]);
    if let Some(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(to, &[IoSlice::new(message.as_bytes())], &mut control, flags)?;
    Ok(())
}

/// What came: a message of exactly this kind, with what travelled with it.
pub(crate) struct Received<M> {
    pub(crate) message: M,
    /// Memory and bell, unchecked.
    pub(crate) descriptors: Option<(OwnedFd, OwnedFd)>,
}

/// The next message; `None` while there is none.
///
/// # Errors
/// The peer is gone, or says something else.
pub(crate) fn receive<M: FromBytes>(from: &OwnedFd) -> io::Result<Option<Received<M>>> {
    let mut bytes = [0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = match rustix::net::recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Ok(received) => received.bytes,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    // Whatever came is closed here, unless it is what was expected.
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let message = M::read_from_bytes(&bytes[..received]).map_err(|_| io::ErrorKind::InvalidData)?;
    let descriptors: Option<[OwnedFd; 2]> = descriptors.try_into().ok();
    Ok(Some(Received { message, descriptors: descriptors.map(|[memory, bell]| (memory, bell)) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [4; 32];

    fn meeting(secret: [u8; 32], pids: (u32, u32)) -> Meeting {
        Meeting {
            secret,
            call: Call::new(NodeId::numbered(22), (NodeId::numbered(11), 1), [1; NONCE_LEN]),
            pids,
        }
    }

    #[test]
    fn both_prove_the_key_and_nobody_stands_between() {
        let (caller, called) = (meeting(KEY, (100, 200)), meeting(KEY, (100, 200)));
        let nonce = [2; NONCE_LEN];
        let answer = called.answer(nonce);
        assert!(caller.believes(&answer));
        let proof = caller.proof(&answer);
        assert!(called.accepts(nonce, &proof));
        assert!(!called.accepts([3; NONCE_LEN], &proof), "what was said to somebody else");
        assert!(!called.accepts(nonce, &Proof { proof: answer.proof }), "our own proof");
        for wrong in [meeting([5; 32], (100, 200)), meeting(KEY, (100, 300)), meeting(KEY, (300, 200))] {
            assert!(!wrong.believes(&answer) && !wrong.accepts(nonce, &proof));
        }
        for (of, by, life) in [(22, 12, 1), (23, 11, 1), (22, 11, 2)] {
            let mut other = meeting(KEY, (100, 200));
            other.call = Call::new(NodeId::numbered(of), (NodeId::numbered(by), life), [1; NONCE_LEN]);
            assert!(!other.believes(&answer) && !other.accepts(nonce, &proof), "another node, or life");
        }
        assert!(caller.call.is_for(NodeId::numbered(22)) && !caller.call.is_for(NodeId::numbered(11)));
    }

    #[test]
    fn what_is_said_over_a_socket_arrives_and_rubbish_is_an_error() {
        let node = NodeId::numbered(u64::from(std::process::id()) << 32 | 1);
        let listener = listen(node).unwrap();
        assert_eq!(listen(node).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(accept(&listener).unwrap().is_none());
        let caller = connect(node).unwrap();
        let called = accept(&listener).unwrap().unwrap();
        let us = std::process::id() as i32;
        let pids =
            [&caller, &called].map(|socket| crate::process::peer_pid(socket.as_fd()).unwrap().unwrap());
        assert_eq!(pids, [us, us]);
        let call = Call::new(node, (NodeId::numbered(11), 1), [1; NONCE_LEN]);
        send(&caller, &call, None).unwrap();
        let received = receive::<Call>(&called).unwrap().unwrap();
        assert!(received.message == call && received.descriptors.is_none());
        assert!(receive::<Call>(&called).unwrap().is_none());
        let (ours, _theirs) = Shared::create().unwrap();
        send(&caller, &Proof { proof: [0; PROOF_LEN] }, Some(&ours)).unwrap();
        assert!(receive::<Proof>(&called).unwrap().unwrap().descriptors.is_some());
        for rubbish in [1, 87, 89, 128, 4000] {
            rustix::net::send(&caller, &vec![0; rubbish], SendFlags::DONTWAIT).unwrap();
            assert!(receive::<Call>(&called).is_err(), "{rubbish} bytes");
        }
        drop((caller, listener));
        // A child that another test has just forked may hold them for a moment longer.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while receive::<Call>(&called).is_ok() || connect(node).is_ok() {
            assert!(std::time::Instant::now() < deadline, "who is gone is still there");
            std::thread::yield_now();
        }
        assert_eq!(connect(node).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
