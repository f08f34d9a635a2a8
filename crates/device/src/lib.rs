//! What can be lent: the [`Function`] trait and the NVMe controller behind it.
//!
//! A function is a core without I/O. It sees register accesses, emits DMA and work for its medium, and is driven by
//! the card that composes it (`node`). Its state lies in the ledger, so a new card goes on where a killed one
//! stopped. It knows nothing of frames, streams, tags or fabric addresses.

mod flash;
pub mod function;
pub mod nvme;

pub use flash::{CHANNELS_MAX, FlashConfig, FlashError, FlashModel, FlashRates};
pub use function::{Dma, DmaError, DmaId, Function, MediaError, MediaFunction, MediaId, MediaKind, MediaOp};
pub use nvme::{DATA_PAGES as MEDIA_PAGES, Limit, LimitError};
