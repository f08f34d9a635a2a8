//! Memory that two nodes of one machine share: a ring of frames each way, and a bell to wake who sleeps.
//!
//! The agents agree on it ([`meeting`]) and keep its descriptors, so that it outlives their cards; the cards write and
//! read frames in it ([`ring`]), without a system call while both are awake. It is one more path of the channel of two
//! nodes: whatever a killed card had in it comes again, as on any rail. Neither side trusts the other's half: positions
//! and lengths are checked at each use, frames are copied out before they are looked at, and the bell is a socket,
//! since the flags of an eventfd belong to both.

pub(crate) mod bell;
pub(crate) mod meeting;
pub(crate) mod ring;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::SealFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use self::bell::Bell;
use self::ring::{RING_BYTES, Reader, Writer};
use crate::memory::{self, Mapping};

/// Bytes of the memory: the ring of who calls, then that of who is called.
const BYTES: usize = 2 * RING_BYTES;

/// Which end of the memory this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// It has called the other one.
    Caller,
    /// It was called.
    Called,
}

/// What an agent keeps of a memory that it shares, and gives to each of its cards.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) memory: OwnedFd,
    pub(crate) bell: OwnedFd,
}

impl Shared {
    /// New memory: our half, and the peer's.
    pub(crate) fn create() -> io::Result<(Self, Self)> {
        let memory = memory::create("causeway-shared", BYTES)?;
        // Nobody waits for pages later, least of all a new card.
        Mapping::shared(memory.as_fd())?.populate()?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let copy = memory.try_clone()?;
        Ok((Self { memory, bell: ours }, Self { memory: copy, bell: theirs }))
    }

    /// What a peer has made, if it cannot hurt: of the right size, for good, and a socket that is connected.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn check(memory: OwnedFd, bell: OwnedFd) -> io::Result<Self> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        // Memory whose size can change faults whoever touches it.
        let seals = rustix::fs::fcntl_get_seals(&memory)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(wrong("the peer could change the size of the memory"));
        }
        if rustix::fs::fstat(&memory)?.st_size != BYTES as i64 {
            return Err(wrong("the memory has another size than this version's"));
        }
        let is_stream = rustix::net::sockopt::socket_type(&bell)? == SocketType::STREAM;
        if !is_stream || rustix::net::sockopt::socket_domain(&bell)? != AddressFamily::UNIX {
            return Err(wrong("the bell is no socket of this machine"));
        }
        Ok(Self { memory, bell })
    }
}

/// A card's end of a memory.
pub(crate) struct ShmPath {
    pub(crate) writer: Writer,
    pub(crate) reader: Reader,
    pub(crate) bell: Bell,
}

impl ShmPath {
    /// Goes on where the card before has ended.
    pub(crate) fn attach(side: Side, shared: Shared) -> io::Result<Self> {
        let memory = Arc::new(Mapping::shared(shared.memory.as_fd())?);
        if memory.len() != BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let (ours, theirs) = match side {
            Side::Caller => (0, RING_BYTES),
            Side::Called => (RING_BYTES, 0),
        };
        Ok(Self {
            writer: Writer::new(Arc::clone(&memory), ours),
            reader: Reader::new(memory, theirs),
            bell: Bell::new(shared.bell),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bells() -> (OwnedFd, OwnedFd) {
        let (ours, theirs) = Shared::create().unwrap();
        (ours.bell, theirs.bell)
    }

    #[test]
    fn what_one_end_writes_the_other_reads() {
        let (caller, called) = Shared::create().unwrap();
        let called = Shared::check(called.memory, called.bell).unwrap();
        let mut caller = ShmPath::attach(Side::Caller, caller).unwrap();
        let mut called = ShmPath::attach(Side::Called, called).unwrap();
        for (from, to) in [(&mut caller.writer, &mut called.reader), (&mut called.writer, &mut caller.reader)]
        {
            from.room().unwrap()[..3].copy_from_slice(b"one");
            from.publish(3);
            let mut seen = Vec::new();
            assert_eq!(to.read(9, |frame| seen.push(frame.to_vec())), Ok(1));
            assert_eq!(seen, [b"one"]);
        }
    }

    #[test]
    fn memory_that_could_hurt_is_refused() {
        let make = |bytes: usize, seals: SealFlags| {
            let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
            let fd = rustix::fs::memfd_create("test", flags).unwrap();
            rustix::fs::ftruncate(&fd, bytes as u64).unwrap();
            rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
            fd
        };
        let both = SealFlags::SHRINK | SealFlags::GROW;
        for (bytes, seals) in [
            (BYTES, SealFlags::empty()),
            (BYTES, SealFlags::SHRINK),
            (BYTES, SealFlags::GROW),
            (BYTES - 1, both),
        ] {
            assert!(Shared::check(make(bytes, seals), bells().0).is_err(), "{bytes} {seals:?}");
        }
        assert!(Shared::check(make(BYTES, both), make(BYTES, both)).is_err(), "a bell that is no socket");
        let file = tempfile();
        assert!(Shared::check(file, bells().0).is_err(), "a file");
        assert!(Shared::check(make(BYTES, both), bells().0).is_ok());
    }

    fn tempfile() -> OwnedFd {
        let path = std::env::temp_dir().join(format!("causeway-shm-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(BYTES as u64).unwrap();
        file.into()
    }
}
