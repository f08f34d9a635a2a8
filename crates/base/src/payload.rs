use crate::ledger::PageIndex;

/// Most bytes a [`Payload::Inline`] holds: a submission queue entry, the largest thing written without a page.
pub const INLINE_MAX: usize = 64;

/// What a TLP carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing.
    None,
    /// A few bytes, by value.
    Inline(InlineBytes),
    /// A part of a page of the loan's pool; whoever queues it takes a reference on the page.
    Page(PageSlice),
}

impl Payload {
    /// A payload by value; `bytes` are at most [`INLINE_MAX`].
    pub fn inline(bytes: &[u8]) -> Self {
        Self::Inline(InlineBytes::new(bytes))
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Inline(bytes) => bytes.as_slice().len(),
            Self::Page(slice) => slice.len as usize,
        }
    }

    /// Whether it carries nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Up to [`INLINE_MAX`] bytes by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineBytes {
    len: u8,
    bytes: [u8; INLINE_MAX],
}

impl InlineBytes {
    /// A copy of `bytes`, which are at most [`INLINE_MAX`].
    pub fn new(bytes: &[u8]) -> Self {
        assert!(bytes.len() <= INLINE_MAX, "an inline payload holds at most {INLINE_MAX} bytes");
        let mut copy = [0; INLINE_MAX];
        copy[..bytes.len()].copy_from_slice(bytes);
        Self { len: bytes.len() as u8, bytes: copy }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

/// A part of a page: `offset + len` is at most the page's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSlice {
    /// The page.
    pub page: PageIndex,
    /// First byte.
    pub offset: u16,
    /// Bytes.
    pub len: u16,
}
