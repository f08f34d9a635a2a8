//! A ledger that a card has left, in memory whose words can be made others.

use core::ptr::NonNull;

use base::ledger::{Arena, PAGE_SIZE, RawMemory};
use node::Card;
use zerocopy::IntoBytes;

use crate::cards::{End, config};

/// Entries of the undo log that are made here.
pub const ENTRIES: usize = 64;
/// Bytes of the header, behind which lie the number of entries, that of commits, and the entries.
const HEADER: usize = 64;
const WORDS: usize = HEADER / 8 + 2 + 2 * ENTRIES;

/// Memory of a ledger, page aligned.
pub struct Left {
    pages: Vec<Page>,
}

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u64; PAGE_SIZE / 8]);

/// What the first card of a node left, in order.
pub fn left(end: End) -> Left {
    let arena = Arena::default();
    let memory = config(end).new_memory(&arena);
    drop(Card::new(memory, None, config(end), crate::START).expect("the memory was made for it"));
    let mut pages = vec![Page([0; PAGE_SIZE / 8]); memory.len().div_ceil(PAGE_SIZE)];
    for (at, page) in pages.iter_mut().enumerate() {
        memory.read(at * PAGE_SIZE, page.0.as_mut_bytes());
    }
    Left { pages }
}

impl Left {
    /// One of its first words becomes this.
    pub fn word(&mut self, at: usize, word: u64) {
        let at = at % WORDS;
        self.pages[at * 8 / PAGE_SIZE].0[at % (PAGE_SIZE / 8)] = word;
    }

    /// The undo log says that it has so many entries.
    pub fn count(&mut self, count: u64) {
        self.word(HEADER / 8, count);
    }

    /// An entry of it: so many bytes at this offset were `old`.
    pub fn save(&mut self, at: usize, offset: u32, len: u8, old: u64) {
        let first = HEADER / 8 + 2 + 2 * at;
        self.word(first, u64::from(offset) << 4 | u64::from(len % 16));
        self.word(first + 1, old);
    }

    /// Another card comes.
    pub fn succeed(&mut self, end: End) {
        let Self { pages } = self;
        let len = pages.len() * PAGE_SIZE;
        // Behind it nothing may be written: a guard, which is looked at afterwards.
        pages.push(Page([u64::MAX; PAGE_SIZE / 8]));
        let base = NonNull::new(pages.as_mut_ptr().cast()).expect("a vector lies somewhere");
        // SAFETY: so many initialised bytes, page aligned, which nobody else touches while the card has them.
        let memory = unsafe { RawMemory::new(base, len) };
        match Card::new(memory, None, config(end), crate::START) {
            Ok(card) => assert_eq!(card.uncommitted(), 0, "what was begun is taken back"),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        assert!(
            self.pages.pop().is_some_and(|guard| guard.0 == [u64::MAX; PAGE_SIZE / 8]),
            "it stays inside"
        );
    }
}
