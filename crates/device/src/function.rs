//! The seam between a lent function and the card that drives it.

use base::Instant;
use base::Payload;
use base::ledger::PageIndex;

use crate::Limit;

/// Names a DMA read of a function until its completion. Chosen by the function, opaque to everyone else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DmaId(pub u32);

/// Names a piece of work for the medium. Chosen by the function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MediaId(pub u32);

/// An access of the function to its host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dma {
    /// Read `len` bytes (at most 4096, inside of one 4 KiB page) at the host's bus address `address`.
    Read {
        /// Comes back with the data.
        id: DmaId,
        /// Bus address in the host's domain.
        address: u64,
        /// Bytes.
        len: u16,
    },
    /// Write `payload` (inside of one 4 KiB page of the host, not longer than the maximum payload) to `address`.
    /// MSI-X is such a write. The function keeps its own reference on a page of the payload.
    Write {
        /// Bus address in the host's domain.
        address: u64,
        /// The bytes.
        payload: Payload,
    },
}

/// Why a DMA read brought no data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DmaError {
    /// Completed with Unsupported Request: not granted, or nothing there (PCIe 6.0 §2.2.9).
    UnsupportedRequest,
    /// Completed with Completer Abort or a poisoned payload.
    Aborted,
    /// No completion in time (PCIe 6.0 §2.8).
    Timeout,
}

/// What the medium shall do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MediaKind {
    /// Read into the pages.
    Read,
    /// Write the pages.
    Write,
    /// Make every completed write durable.
    Flush,
    /// The range may lose its content.
    Trim,
    /// The range reads as zeroes afterwards.
    Zero {
        /// It need not keep its space; else what is written there later finds space as surely as before.
        deallocate: bool,
    },
}

/// One piece of work for the medium. Executing it twice in a row is the same as executing it once.
#[derive(Clone, Copy, Debug)]
pub struct MediaOp<'a> {
    /// Comes back with the result.
    pub id: MediaId,
    /// What to do.
    pub kind: MediaKind,
    /// First byte of the medium.
    pub offset: u64,
    /// Bytes; a multiple of the block size.
    pub len: u32,
    /// The pages of a read or a write, each full but the last: `len` bytes in all.
    pub pages: &'a [PageIndex],
}

/// Why the medium failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MediaError {
    /// The medium is full.
    NoSpace,
    /// The medium is read-only.
    ReadOnly,
    /// Earlier writes may be lost, which were answered and not flushed.
    Lost,
    /// Anything else.
    Io,
}

/// A PCIe function that can be lent.
///
/// The drain contract: after any verb the driver calls `poll_dma` and `poll_media` until they return `None` (or it has
/// no room), and `handle_timeout` when `poll_timeout` is due. All verbs of one step are committed together by
/// the driver, which acts on what was polled only after the commit.
pub trait Function {
    /// A posted memory write to a BAR. Accesses outside of what the BAR decodes are ignored.
    fn write(&mut self, now: Instant, bar: u8, offset: u64, bytes: &[u8]);

    /// A memory read of a BAR: fills `out`; what decodes nothing reads as zeroes.
    fn read(&mut self, now: Instant, bar: u8, offset: u64, out: &mut [u8]);

    /// A configuration read of the dword at `register` (a byte offset below 4096, dword aligned).
    fn config_read(&mut self, register: u16) -> u32;

    /// A configuration write of the dword at `register` with byte enables.
    fn config_write(&mut self, now: Instant, register: u16, value: u32, byte_enables: u8);

    /// The next access to the host's memory, or `None`. Asked only while the stream has room for one of each kind and
    /// credit for a write, so what registers say may overtake what is still here: none says that the function has ended
    /// before that is sent. Writes carry at most `max_payload` bytes.
    fn poll_dma(&mut self, now: Instant, max_payload: usize) -> Option<Dma>;

    /// A part of the data of DMA read `id`, starting `offset` bytes into it; parts arrive in order. `last` ends the
    /// read.
    fn handle_dma_data(&mut self, now: Instant, id: DmaId, offset: usize, data: &[u8], last: bool);

    /// DMA read `id` has failed and brings nothing more.
    fn handle_dma_error(&mut self, now: Instant, id: DmaId, error: DmaError);

    /// The next work for the medium, in order, each once a card: a new card is given everything again that has had no
    /// `handle_media`, in the old order, because it cannot be known whether it was done.
    fn poll_media(&mut self) -> Option<MediaOp<'_>>;

    /// The medium has ended work `id`.
    fn handle_media(&mut self, now: Instant, id: MediaId, result: Result<(), MediaError>);

    /// When `handle_timeout` is to be called, if at all.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Time has come.
    fn handle_timeout(&mut self, now: Instant);

    /// A fundamental reset, at any moment: the host is gone or new. Work of the medium that is under way still ends
    /// with `handle_media`, but nothing comes of it; DMA reads under way are forgotten (their results must not be
    /// given).
    fn reset(&mut self, now: Instant);

    /// Whether no work of the medium is under way: from then on nothing of the time before a reset can have an effect.
    fn is_quiescent(&self) -> bool;
}

/// A function in front of a medium that it may share with other functions, whose turns the driver arranges.
pub trait MediaFunction: Function {
    /// Bytes of the next work that [`Function::poll_media`] gives out, 0 if it moves none; `None` if there is no work.
    fn peek_media(&mut self) -> Option<u32>;

    /// Whether the next work writes something that a dead card may have written half: nothing is to be read from the
    /// medium before, for any function that shares it.
    fn must_redo(&self) -> bool;

    /// How many accesses to the host's memory wait for [`Function::poll_dma`]. Asking for work of the medium can only
    /// add to them: where it did, `poll_dma` is to be asked again.
    fn sending(&self) -> usize;

    /// Whether what happens elsewhere, at another function or at the owner of the medium, can give this one something
    /// to do.
    fn depends_on_others(&self) -> bool;

    /// Whether its host has enabled it, and it serves that.
    fn is_ready(&self) -> bool;

    /// Bytes that its host reaches of the medium, and whether it can write none of them.
    fn capacity(&self) -> (u64, bool);

    /// Whether each flush fails because the medium has lost something.
    fn has_fault(&self) -> bool;

    /// What the function may do.
    fn limit(&self) -> Limit;

    /// What it may do from now on.
    fn set_limit(&mut self, now: Instant, limit: Limit);

    /// Everything that the host has asked for ends, and it finds a function that has failed. To be said of one that was
    /// made anew in place of one that has failed in this very card: work of the medium of which `is_given` holds was
    /// given out by that one, and is not given out again; its results come here.
    fn give_up(&mut self, now: Instant, is_given: &dyn Fn(MediaId) -> bool);
}
