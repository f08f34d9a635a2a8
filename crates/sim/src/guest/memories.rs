//! The memory of guests.

use std::cell::RefCell;
use std::rc::Rc;

use base::ledger::Hook;
use node::{DescriptorId, GuestMemory};

use super::RAM_BYTES;
use crate::death::Switch;

/// In a world with guests, their memory.
pub(crate) type SharedMemories<'w> = Option<Rc<Memories<'w>>>;

/// The memory of all guests of the borrower: by loan, its bytes and the descriptor that is open for them.
pub(crate) struct Memories<'w> {
    switch: &'w Switch<'w>,
    rams: Vec<RefCell<Ram>>,
}

struct Ram {
    bytes: Vec<u8>,
    descriptor: Option<u32>,
    /// Whether the function may write there: the guest has asked it for something since it took its memory back.
    is_lent: bool,
    /// How often the guest has taken its memory back.
    taken: u64,
    /// A card has written where the function may not.
    strayed: Option<String>,
}

impl<'w> Memories<'w> {
    pub(crate) fn new(loans: usize, switch: &'w Switch<'w>) -> Self {
        let ram = || {
            let bytes = vec![0; RAM_BYTES];
            RefCell::new(Ram { bytes, descriptor: None, is_lent: false, taken: 0, strayed: None })
        };
        Self { switch, rams: (0..loans).map(|_| ram()).collect() }
    }

    pub(crate) fn open(&self, loan: usize, descriptor: u32) {
        self.rams[loan].borrow_mut().descriptor = Some(descriptor);
    }

    /// The guest asks its function for something.
    pub(super) fn lend(&self, loan: usize) {
        self.rams[loan].borrow_mut().is_lent = true;
    }

    /// The function has ended whatever it was asked for: nothing of it comes any more.
    pub(super) fn take_back(&self, loan: usize) {
        let ram = &mut *self.rams[loan].borrow_mut();
        ram.is_lent = false;
        ram.taken += 1;
    }

    /// How often the guest has done that.
    pub(super) fn taken(&self, loan: usize) -> u64 {
        self.rams[loan].borrow().taken
    }

    /// Whether the function may write what it has asked for when memory had been taken back `taken` times.
    pub(super) fn is_lent_since(&self, loan: usize, taken: u64) -> bool {
        let ram = self.rams[loan].borrow();
        ram.is_lent && ram.taken == taken
    }

    /// What a card has written into memory that is its guest's, if it has.
    pub(crate) fn strayed(&self, loan: usize) -> Option<String> {
        self.rams[loan].borrow_mut().strayed.take()
    }

    pub(super) fn write(&self, loan: usize, at: usize, bytes: &[u8]) {
        self.rams[loan].borrow_mut().bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn read(&self, loan: usize, at: usize, len: usize) -> Vec<u8> {
        self.rams[loan].borrow().bytes[at..at + len].to_vec()
    }
}

impl GuestMemory for Memories<'_> {
    fn read(&self, loan: usize, descriptor: DescriptorId, offset: u64, out: &mut [u8]) -> bool {
        let ram = self.rams[loan].borrow();
        let found = ram.bytes.get(offset as usize..offset as usize + out.len());
        let Some(bytes) = found.filter(|_| ram.descriptor == Some(descriptor.0)) else { return false };
        out.copy_from_slice(bytes);
        true
    }

    /// Dies before, within or behind the store.
    fn write(&self, loan: usize, descriptor: DescriptorId, offset: u64, bytes: &[u8]) -> bool {
        let start = offset as usize;
        {
            let ram = &mut *self.rams[loan].borrow_mut();
            if ram.descriptor != Some(descriptor.0) || start + bytes.len() > RAM_BYTES {
                return false;
            }
            if !ram.is_lent {
                ram.strayed = Some(format!("{} bytes at {start:#x}", bytes.len()));
            }
        }
        let (first, second) = bytes.split_at(bytes.len() / 2);
        self.switch.before_store();
        Memories::write(self, loan, start, first);
        self.switch.before_store();
        Memories::write(self, loan, start + first.len(), second);
        self.switch.before_store();
        true
    }
}
