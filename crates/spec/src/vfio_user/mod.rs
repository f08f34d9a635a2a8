//! The vfio-user protocol: how a virtual machine monitor (the client) uses a PCI device that another process (the
//! server) has, over a Unix stream socket.
//!
//! Every message begins with a [`MessageHeader`] and is a command or the reply to one. Descriptors travel beside the
//! bytes (`SCM_RIGHTS`), with the first byte of their message. Numbers are in the byte order of the machine, which is
//! little-endian wherever this crate is used.
//!
//! The document calls itself 0.1, and the version on the wire is 0.0: [`VERSION_MAJOR`], [`VERSION_MINOR`]. Where
//! QEMU's client differs from the document, the item concerned says so.

pub mod access;
pub mod device;
pub mod dma;
pub mod interrupt;
pub mod version;

pub use access::{DmaAccess, RegionAccess, WriteMultiEntry, WriteMultiHeader};
pub use device::{DeviceFlags, DeviceInfo, RegionFlags, RegionIndex, RegionInfo, RegionIoFds};
pub use dma::{DmaMap, DmaMapFlags, DmaUnmap, DmaUnmapFlags};
pub use interrupt::{IrqFlags, IrqIndex, IrqInfo, IrqSet, IrqSetFlags};
pub use version::{Capabilities, VersionError, VersionHeader};

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::fields::{bitfields, open_values};

/// The major version that QEMU proposes, and the only one it takes.
pub const VERSION_MAJOR: u16 = 0;
/// The minor version that QEMU proposes, and the greatest one it takes.
pub const VERSION_MINOR: u16 = 0;
/// Bytes of a [`MessageHeader`].
pub const HEADER_BYTES: usize = size_of::<MessageHeader>();

/// Begins every message (vfio-user 0.1 §Header), 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MessageHeader {
    /// The sender's number for the command; the reply repeats it. Nothing may be assumed about its uniqueness.
    pub id: U16,
    /// [`Command`]; the same in the reply.
    pub command: U16,
    /// Bytes of the whole message, header included. Unchecked.
    pub size: U32,
    /// [`MessageFlags`].
    pub flags: U32,
    /// [`Errno`] of a reply with the error flag, else reserved.
    pub error: U32,
}

const _: () = assert!(size_of::<MessageHeader>() == 16);

impl MessageHeader {
    /// A command with `payload` bytes behind the header.
    #[must_use]
    pub fn request(id: u16, command: Command, payload: u32) -> Self {
        Self {
            id: id.into(),
            command: command.0.into(),
            size: (HEADER_BYTES as u32 + payload).into(),
            flags: MessageFlags(0).0.into(),
            error: 0.into(),
        }
    }

    /// The reply to a command, with `payload` bytes behind the header.
    #[must_use]
    pub fn reply(id: u16, command: Command, payload: u32) -> Self {
        let flags = MessageFlags(0).with_kind(MessageFlags::REPLY);
        Self { flags: flags.0.into(), ..Self::request(id, command, payload) }
    }

    /// The reply to a command that failed: nothing follows it.
    #[must_use]
    pub fn error_reply(id: u16, command: Command, error: Errno) -> Self {
        let flags = MessageFlags(0).with_kind(MessageFlags::REPLY).with_error(true);
        Self { flags: flags.0.into(), error: error.0.into(), ..Self::request(id, command, 0) }
    }

    /// The header in its bytes; nothing is checked.
    #[must_use]
    pub fn view(bytes: &[u8; HEADER_BYTES]) -> &Self {
        zerocopy::transmute_ref!(bytes)
    }

    /// What is commanded or answered.
    #[must_use]
    pub fn command(&self) -> Command {
        Command(self.command.get())
    }

    /// What kind of message this is.
    #[must_use]
    pub fn flags(&self) -> MessageFlags {
        MessageFlags(self.flags.get())
    }

    /// Why a command failed; `None` of a reply without the error flag.
    #[must_use]
    pub fn error(&self) -> Option<Errno> {
        self.flags().error().then_some(Errno(self.error.get()))
    }

    /// Bytes behind the header, or `None` if the message claims to be shorter than its header: nothing that follows can
    /// be understood.
    #[must_use]
    pub fn payload_length(&self) -> Option<u32> {
        self.size.get().checked_sub(HEADER_BYTES as u32)
    }
}

bitfields! {
    /// Flags of a message.
    pub struct MessageFlags(u32) {
        /// [`MessageFlags::COMMAND`] or [`MessageFlags::REPLY`].
        kind, with_kind: u8 = 3:0;
        /// Of a command: no reply is wanted.
        no_reply, with_no_reply: bool = 4;
        /// Of a reply: the command failed.
        error, with_error: bool = 5;
    }
}

impl MessageFlags {
    /// Kind of a command.
    pub const COMMAND: u8 = 0;
    /// Kind of a reply.
    pub const REPLY: u8 = 1;
}

open_values! {
    /// Commands (vfio-user 0.1 §Commands).
    pub struct Command(u16) {
        /// Negotiates version and capabilities; the first command of a client.
        VERSION = 1;
        /// Memory that the server may reach; may carry a descriptor.
        DMA_MAP = 2;
        /// Memory that the server may no longer reach.
        DMA_UNMAP = 3;
        /// What the device is.
        DEVICE_GET_INFO = 4;
        /// What a region is.
        DEVICE_GET_REGION_INFO = 5;
        /// Descriptors for parts of a region.
        DEVICE_GET_REGION_IO_FDS = 6;
        /// What a kind of interrupt is.
        DEVICE_GET_IRQ_INFO = 7;
        /// Sets interrupts up; may carry descriptors.
        DEVICE_SET_IRQS = 8;
        /// Reads of a region.
        REGION_READ = 9;
        /// Writes to a region.
        REGION_WRITE = 10;
        /// Server to client: reads its memory.
        DMA_READ = 11;
        /// Server to client: writes its memory.
        DMA_WRITE = 12;
        /// Resets the device.
        DEVICE_RESET = 13;
        /// Of older documents.
        DIRTY_PAGES = 14;
        /// Several small writes to regions at once.
        REGION_WRITE_MULTI = 15;
        /// Features: those of migration.
        DEVICE_FEATURE = 16;
        /// Reads migration data.
        MIG_DATA_READ = 17;
        /// Writes migration data.
        MIG_DATA_WRITE = 18;
    }
}

open_values! {
    /// Errors of replies, as Linux numbers them.
    pub struct Errno(u32) {
        /// Operation not permitted.
        EPERM = 1;
        /// No such thing.
        ENOENT = 2;
        /// Input/output error.
        EIO = 5;
        /// No such device or address.
        ENXIO = 6;
        /// Argument list too long.
        E2BIG = 7;
        /// Bad address.
        EFAULT = 14;
        /// It exists already.
        EEXIST = 17;
        /// No such device.
        ENODEV = 19;
        /// Invalid argument.
        EINVAL = 22;
        /// No space left.
        ENOSPC = 28;
        /// Out of range.
        ERANGE = 34;
        /// Not implemented.
        ENOSYS = 38;
        /// Not supported.
        EOPNOTSUPP = 95;
        /// Timed out.
        ETIMEDOUT = 110;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_headers() {
        let request = MessageHeader::request(0x0201, Command::REGION_READ, 16);
        assert_eq!(request.as_bytes(), b"\x01\x02\x09\0\x20\0\0\0\0\0\0\0\0\0\0\0");
        let reply = MessageHeader::reply(0x0201, Command::REGION_READ, 20);
        assert_eq!(reply.as_bytes(), b"\x01\x02\x09\0\x24\0\0\0\x01\0\0\0\0\0\0\0");
        let error = MessageHeader::error_reply(7, Command::DMA_MAP, Errno::EEXIST);
        assert_eq!(error.as_bytes(), b"\x07\0\x02\0\x10\0\0\0\x21\0\0\0\x11\0\0\0");
        assert_eq!((error.error(), reply.error()), (Some(Errno::EEXIST), None));
        assert_eq!(reply.payload_length(), Some(20));
    }

    #[test]
    fn flags_lie_where_the_document_has_them() {
        let seen = MessageHeader::view(b"\0\0\x0f\0\x08\0\0\0\x10\0\0\0\0\0\0\0");
        assert!(seen.flags().no_reply() && !seen.flags().error());
        assert_eq!(
            (seen.command(), seen.flags().kind()),
            (Command::REGION_WRITE_MULTI, MessageFlags::COMMAND)
        );
        assert_eq!(seen.payload_length(), None);
        assert_eq!(MessageFlags(u32::MAX).reserved_bits(), 0xffff_ffc0);
    }

    proptest! {
        #[test]
        fn any_header_is_viewed_and_kept(bytes: [u8; 16]) {
            let header = MessageHeader::view(&bytes);
            let _ = (header.command().name(), header.flags(), header.error(), header.payload_length());
            prop_assert_eq!(header.as_bytes(), &bytes);
        }
    }
}
