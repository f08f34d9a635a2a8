//! Transaction layer packets, configuration space and capabilities of PCI Express.
//!
//! Everything a Causeway fabric carries is a TLP, and everything it lends has a configuration space; this crate
//! knows both formats and nothing else. It stands at the bottom of the workspace: links carry the bytes it
//! encodes, windows rewrite the headers it decodes, devices and hosts build requests and completions with it.
//!
//! - [`tlp`]: [`Header`] is the owned form of every supported packet, [`TlpView`] the checked view over received
//!   bytes. Headers are those of non-flit mode with 10-bit tags (PCIe 6.0 §2.2).
//! - [`Completion::split`] and [`Outstanding`]: the two ends of a read that is answered in pieces.
//! - [`config`]: [`ConfigLayout`] describes a type 0 configuration space, [`ConfigState`] holds the few registers
//!   that change, and may be stored anywhere.
//! - [`capability`] and [`msix`]: the structures found in that space and in the memory it points to.
//! - [`spec`]: the constants, each with the section it comes from.
//!
//! Left out: I/O and locked requests, AtomicOps, deferrable writes, prefixes, processing hints and flit
//! mode (a packet that uses one is [`ParseError::Unsupported`]); digests are read and neither made nor checked;
//! sequence numbers, LCRC and flow control, which
//! belong to the link; type 1 headers and SR-IOV. There is no I/O, and encoding and decoding never allocate.
//!
//! Key constants: headers take 12 or 16 bytes, a payload at most [`spec::PAYLOAD_BYTES_MAX`] (4096), a data
//! credit is [`spec::DATA_CREDIT_BYTES`] (16).

pub mod capability;
pub mod config;
mod id;
pub mod msix;
pub mod spec;
pub mod tlp;

pub use config::{ConfigBuilder, ConfigEffect, ConfigLayout, ConfigSpace, ConfigState};
pub use id::{Bdf, BdfParseError, Tag};
pub use tlp::{
    AddressType, Attributes, Completion, CompletionPart, CompletionStatus, ConfigKind, ConfigRequest,
    EncodedHeader, FlowClass, Header, Malformed, MemoryRequest, Message, MessageCode, MessageRouting,
    Outstanding, ParseError, Progress, ReadCompletionBoundary, RequestError, TlpView, Unexpected, Unparsed,
    replace_address,
};
