//! Requests as they are submitted and as they go over the socket, and what comes of them.

use std::fmt;

// NBD §Request types, §Command flags.
const REQUEST_MAGIC: u32 = 0x2560_9513;
const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const CMD_DISC: u16 = 2;
const CMD_FLUSH: u16 = 3;
const CMD_TRIM: u16 = 4;
const CMD_WRITE_ZEROES: u16 = 6;
const CMD_FLAG_FUA: u16 = 1 << 0;
const CMD_FLAG_NO_HOLE: u16 = 1 << 1;

/// A request, as it is submitted. Offsets and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Reads `length` bytes.
    Read {
        /// First byte.
        offset: u64,
        /// At most [`BlockSizes::maximum`](super::BlockSizes::maximum).
        length: u32,
    },
    /// Writes `data`.
    Write {
        /// First byte.
        offset: u64,
        /// At most [`BlockSizes::maximum`](super::BlockSizes::maximum) bytes.
        data: &'a [u8],
        /// Answer only when the data is on stable storage (`NBD_CMD_FLAG_FUA`).
        fua: bool,
    },
    /// Puts everything that was answered before on stable storage.
    Flush,
    /// Says that the content is not needed any more.
    Trim {
        /// First byte.
        offset: u64,
        /// Any length that the export has.
        length: u32,
    },
    /// Writes zeroes without sending them.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Any length that the export has.
        length: u32,
        /// Keep the space allocated (`NBD_CMD_FLAG_NO_HOLE`).
        no_hole: bool,
        /// As for a write.
        fua: bool,
    },
}

/// Names a request in flight; unique on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// A finished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// What [`NbdClient::submit`](super::NbdClient::submit) returned.
    pub handle: Handle,
    /// Done, or the error that the server answered for this request.
    pub result: Result<(), Errno>,
}

/// An error value of a reply (`NBD §Error values`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub u32);

impl Errno {
    /// `NBD_EPERM`.
    pub const EPERM: Self = Self(1);
    /// `NBD_EIO`.
    pub const EIO: Self = Self(5);
    /// `NBD_ENOMEM`.
    pub const ENOMEM: Self = Self(12);
    /// `NBD_EINVAL`.
    pub const EINVAL: Self = Self(22);
    /// `NBD_ENOSPC`.
    pub const ENOSPC: Self = Self(28);
    /// `NBD_EOVERFLOW`.
    pub const EOVERFLOW: Self = Self(75);
    /// `NBD_ENOTSUP`.
    pub const ENOTSUP: Self = Self(95);
    /// `NBD_ESHUTDOWN`.
    pub const ESHUTDOWN: Self = Self(108);

    /// The protocol's name of the value.
    pub fn name(self) -> &'static str {
        match self {
            Self::EPERM => "EPERM",
            Self::EIO => "EIO",
            Self::ENOMEM => "ENOMEM",
            Self::EINVAL => "EINVAL",
            Self::ENOSPC => "ENOSPC",
            Self::EOVERFLOW => "EOVERFLOW",
            Self::ENOTSUP => "ENOTSUP",
            Self::ESHUTDOWN => "ESHUTDOWN",
            _ => "an error number the protocol does not name",
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

impl Request<'_> {
    /// Bytes that go over the socket with it, whichever way.
    pub(super) fn payload(&self) -> usize {
        match self {
            Self::Read { length, .. } => *length as usize,
            Self::Write { data, .. } => data.len(),
            Self::Flush | Self::Trim { .. } | Self::WriteZeroes { .. } => 0,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::Flush => "flush",
            Self::Trim { .. } => "trim",
            Self::WriteZeroes { .. } => "write zeroes",
        }
    }
}

/// `NBD §Request message`.
pub(super) fn encode_request(out: &mut Vec<u8>, handle: u64, request: &Request<'_>) {
    let fua_flag = |fua: bool| if fua { CMD_FLAG_FUA } else { 0 };
    match *request {
        Request::Read { offset, length } => put_header(out, 0, CMD_READ, handle, offset, length),
        Request::Write { offset, data, fua } => {
            // `check` refused anything above DEFAULT_MAXIMUM_LENGTH.
            put_header(out, fua_flag(fua), CMD_WRITE, handle, offset, data.len() as u32);
            out.extend_from_slice(data);
        }
        Request::Flush => put_header(out, 0, CMD_FLUSH, handle, 0, 0),
        Request::Trim { offset, length } => put_header(out, 0, CMD_TRIM, handle, offset, length),
        Request::WriteZeroes { offset, length, no_hole, fua } => {
            let flags = fua_flag(fua) | if no_hole { CMD_FLAG_NO_HOLE } else { 0 };
            put_header(out, flags, CMD_WRITE_ZEROES, handle, offset, length);
        }
    }
}

fn put_header(out: &mut Vec<u8>, flags: u16, command: u16, handle: u64, offset: u64, length: u32) {
    out.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&command.to_be_bytes());
    out.extend_from_slice(&handle.to_be_bytes());
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
}

/// `NBD_CMD_DISC`: a goodbye, which is not answered.
pub(super) fn disconnect_request() -> Vec<u8> {
    let mut out = Vec::with_capacity(28);
    put_header(&mut out, 0, CMD_DISC, 0, 0, 0);
    out
}
