//! A host and its device in one address space, without a fabric between them: the yardstick for everything that has
//! one.
//!
//! ```text
//!  NativeHost: nvme::Driver  -- ToDevice -->  NativeDevice: nvme::Controller <-> medium
//!        |  pages            <-- ToHost --        |
//!        +------------- DMA of data --------------+
//! ```
//!
//! Each half has a ledger of its own and is driven by a thread of its own; a verb of a half is one step with one
//! commit, as in a card. Register accesses, completions and interrupts travel as messages, in order, over two bounded
//! queues that whoever drives the halves supplies. Data takes the way it takes in a machine: the device reads and
//! writes the host's pages ([`HostMemory`]), once for each byte, and no IOMMU checks it.
//!
//! Left out: recovery. The halves live and die together, so an access to the host's pages may come before the commit.

mod device_half;
mod host_half;
#[cfg(test)]
mod tests;

use base::InlineBytes;
use base::ledger::Span;
use device::DmaId;
use host::{Access, AccessError, AccessId};

pub use self::device_half::{NativeDevice, NativeDeviceCells};
pub use self::host_half::{NativeHost, NativeHostCells};

/// The pages of the host as its device reaches them: a stretch of bytes from 0 on.
///
/// A device that names bytes which are not there gets nothing: it reads zeroes and writes nowhere.
pub trait HostMemory {
    /// Copies a span of the device to `offset`.
    fn write(&self, offset: u64, bytes: Span<'_>);

    /// Gives `len` bytes from `offset` on to `take`.
    fn read(&self, offset: u64, len: usize, take: &mut dyn FnMut(&[u8]));
}

/// What a host tells its device. Order matters.
#[derive(Clone, Copy, Debug)]
pub enum ToDevice {
    /// An access to its registers, its configuration space or its memory buffer.
    Access(Access),
    /// A part of what it has read of the driver's queue memory.
    Data {
        /// Which read.
        id: DmaId,
        /// Where in what was read the part begins.
        offset: u16,
        /// The part.
        bytes: InlineBytes,
        /// Nothing follows.
        last: bool,
    },
}

/// What a device tells its host. Order matters.
#[derive(Clone, Copy, Debug)]
pub enum ToHost {
    /// It writes to the driver's queue memory: completions.
    Write {
        /// First byte.
        offset: u64,
        /// What.
        bytes: InlineBytes,
    },
    /// It reads the driver's queue memory.
    Read {
        /// Comes back with the data.
        id: DmaId,
        /// First byte.
        offset: u64,
        /// Bytes, at most 4096.
        len: u16,
    },
    /// It signals a vector.
    Interrupt(u32),
    /// An access has ended, with its data if it was a read.
    Answer(AccessId, Result<InlineBytes, AccessError>),
}
