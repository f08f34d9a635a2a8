//! A function's accesses to the memory of its guest.
//!
//! # Stores, and a card that dies
//!
//! A store into guest memory cannot be taken back and is seen at once, and any of them may be a flag. So it is the last
//! act of what is a step of its own: everything before it is committed first, and only then is it made. What marks it
//! as done, the number of its TLP in the ledger, is committed before the next store. A card that dies leaves at most
//! one store in doubt: not made, half made, or made and not marked.
//!
//! Whoever has a store in doubt has to be able to make it again, with the same bytes. They need not lie in this ledger:
//! until the number of its TLP is committed here, the lender's replay buffer has them, in the lender's ledger, where
//! they outlive the lender's cards as well. The successor says hello, the lender sends everything that is not committed
//! again, and the store in doubt is the first of it, because numbers are handed on in order. In the meantime nothing of
//! the function can reach the guest that came after the store: completions and interrupts are TLPs of the same stream,
//! behind it. What the new card does on its own, signal every vector once, may let the guest look too early: it finds
//! what it would find if the write were still on its way. To make the store twice is the same as to make it once, as
//! the guest gets its memory back only by something that comes behind it: a completion entry, the end of a reset, or an
//! unmap, after which the store is denied. If the lender's ledger is gone as well, the function was reset, and its
//! guest reads no data before it has begun anew; a half-written buffer is then what a device leaves that loses its
//! power.
//!
//! Bytes are stored in ascending order of addresses, so that a half-made store of a completion entry lacks its end,
//! where the phase bit is.
//!
//! What a guest has mapped without a descriptor is reached by messages: [`super::backlog`].

use std::rc::Rc;

use base::ledger::{Journal, Pages};
use fabric::{AccessKind, GrantTable};
use host::vfio_user::{DMA_END, DescriptorId, DmaMapping, MapId, Maps};
use link::Port;
use pcie::{Bdf, MemoryRequest};

use crate::cells::EdgeGauges;
use crate::map::{self, Grant};
use crate::transaction;

/// Where the function's interrupts go: the last page of the aperture, which no guest can map.
pub(crate) const DOORBELL: u64 = DMA_END;

/// The memory of guests, by the descriptors that the agent keeps.
pub trait GuestMemory {
    /// Copies from `offset` of a descriptor to all of `out`. False if that cannot be accessed.
    fn read(&self, loan: usize, descriptor: DescriptorId, offset: u64, out: &mut [u8]) -> bool;

    /// Copies `bytes` to `offset` of a descriptor, in ascending order of addresses. False if that cannot be accessed:
    /// nothing was written then.
    fn write(&self, loan: usize, descriptor: DescriptorId, offset: u64, bytes: &[u8]) -> bool;
}

/// What lies behind a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Memory {
    Doorbell,
    Guest {
        descriptor: DescriptorId,
        /// Where the map begins in it.
        offset: u64,
    },
    /// Its guest's machine reads and writes it.
    ByMessage {
        map: MapId,
        /// DMA address of its first byte.
        start: u64,
    },
}

/// What has become of a request of the function.
pub(super) enum Reached {
    /// It is done, or refused and counted.
    Done,
    /// It is an interrupt: its vector.
    Interrupt(u32),
    /// It can be done by messages only. Nothing has happened.
    ByMessage,
}

/// Memory that is reached by messages.
pub(super) struct GuestAddress {
    pub(super) map: MapId,
    pub(super) address: u64,
}

/// What a function reaches of this node: the memory that its guest has mapped, and the doorbell.
pub(super) struct GuestDma<'m> {
    loan: usize,
    memory: Option<Rc<dyn GuestMemory + 'm>>,
    grants: GrantTable<Memory>,
    /// What the function is called here.
    function: Bdf,
    /// Where the map of each number begins, if it is granted.
    granted: Vec<Option<u64>>,
    /// Nothing is granted for now: see [`GuestDma::follow`].
    closed: bool,
    journal: Journal<'m>,
    pages: Pages<'m>,
    gauges: &'m EdgeGauges,
}

impl<'m> GuestDma<'m> {
    pub(super) fn new(
        loan: usize,
        function: Bdf,
        pages: Pages<'m>,
        journal: Journal<'m>,
        gauges: &'m EdgeGauges,
    ) -> Self {
        let mut grants = GrantTable::default();
        let Grant { start, bytes, rights, .. } = map::granted_to_slot(function);
        grants.grant(function, start, bytes, rights, Memory::Doorbell);
        Self {
            loan,
            function,
            memory: None,
            grants,
            granted: Vec::new(),
            closed: false,
            journal,
            pages,
            gauges,
        }
    }

    /// What the function is called here.
    pub(super) fn function(&self) -> Bdf {
        self.function
    }

    pub(super) fn set_memory(&mut self, memory: Rc<dyn GuestMemory + 'm>) {
        self.memory = Some(memory);
    }

    /// What was set.
    pub(super) fn memory(&self) -> Option<Rc<dyn GuestMemory + 'm>> {
        self.memory.clone()
    }

    /// Whether the memory can be accessed: a new card is told of it when it has been made.
    pub(super) fn has_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Grants what a new card has found mapped, unless the function is `closed` out.
    pub(super) fn rebuild(&mut self, maps: &Maps<'m>, closed: bool) {
        self.closed = closed;
        if !closed {
            maps.iter().for_each(|(map, mapping)| self.grant(map, &mapping));
        }
    }

    /// Follows the changes of the guest's maps. While the function is `closed` out, since what it still does was asked
    /// for by somebody who has gone, none is granted.
    pub(super) fn follow(&mut self, maps: &Maps<'m>, closed: bool) {
        self.follow_changes(maps, closed);
        if self.closed && !closed {
            for (map, mapping) in maps.iter() {
                self.revoke(map);
                self.grant(map, &mapping);
            }
        }
        self.closed = closed;
    }

    fn follow_changes(&mut self, maps: &Maps<'m>, closed: bool) {
        let Some(first) = maps.poll_change() else { return };
        let changes: Vec<_> =
            core::iter::once(first).chain(core::iter::from_fn(|| maps.poll_change())).collect();
        // One that is gone may have made room for one that came.
        changes.iter().for_each(|(map, _)| self.revoke(*map));
        for (map, mapping) in &changes {
            if let Some(mapping) = mapping.as_ref().filter(|_| !closed) {
                self.grant(*map, mapping);
            }
        }
    }

    fn grant(&mut self, id: MapId, mapping: &DmaMapping) {
        // One of the session's table, which is bounded.
        let index = usize::from(id.0);
        if self.granted.len() <= index {
            self.granted.resize(index + 1, None);
        }
        self.granted[index] = Some(mapping.start);
        let Grant { start, bytes, rights, .. } = map::granted_by_guest(self.function, mapping);
        let memory = match mapping.descriptor {
            Some(descriptor) => Memory::Guest { descriptor, offset: mapping.offset },
            None => Memory::ByMessage { map: id, start },
        };
        self.grants.grant(self.function, start, bytes, rights, memory);
    }

    fn revoke(&mut self, map: MapId) {
        if let Some(start) = self.granted.get_mut(usize::from(map.0)).and_then(Option::take) {
            self.grants.revoke(self.function, start);
        }
    }

    /// The function is closed out from now on: it has been told of memory that is not for it any more.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// The function writes.
    pub(super) fn write(&mut self, request: &MemoryRequest, payload: &[u8]) -> Reached {
        let (address, len) = request.byte_range();
        let memory = self.find(request, AccessKind::Write, address, len);
        let bytes = payload.get(request.padding()..request.padding() + len);
        let (Some((memory, into)), Some(bytes)) = (memory, bytes) else {
            self.gauges.deny(request.requester, address, AccessKind::Write);
            return Reached::Done;
        };
        let vector = bytes.try_into().map(u32::from_le_bytes).ok();
        let is_sensible = memory != Memory::Doorbell || vector.is_some();
        if request.poisoned || !request.is_contiguous() || !is_sensible {
            self.gauges.malformed_tlps.add(1);
            return Reached::Done;
        }
        match memory {
            Memory::Doorbell => return vector.map_or(Reached::Done, Reached::Interrupt),
            _ if len == 0 => {}
            Memory::Guest { descriptor, offset } => {
                if !self.store(descriptor, offset + into, bytes) {
                    self.gauges.deny(request.requester, address, AccessKind::Write);
                }
            }
            Memory::ByMessage { .. } => return Reached::ByMessage,
        }
        Reached::Done
    }

    /// Makes a store; false if the memory is not there. See the module for the commit.
    fn store(&self, descriptor: DescriptorId, offset: u64, bytes: &[u8]) -> bool {
        self.journal.commit();
        let memory = self.memory.as_ref();
        memory.is_some_and(|memory| memory.write(self.loan, descriptor, offset, bytes))
    }

    /// The function reads.
    pub(super) fn read(
        &self,
        port: &mut Port<'m>,
        request: &MemoryRequest,
        (completer, max_payload): (Bdf, usize),
    ) -> Reached {
        let (address, len) = request.byte_range();
        let found = self.find(request, AccessKind::Read, address, len);
        if len > 0 && matches!(found, Some((Memory::ByMessage { .. }, _))) {
            return Reached::ByMessage;
        }
        let read = |out: &mut [u8]| match (found, &self.memory) {
            (Some((Memory::Guest { descriptor, offset }, into)), Some(memory)) => {
                out.is_empty() || memory.read(self.loan, descriptor, offset + into, out)
            }
            (Some((Memory::ByMessage { .. }, _)), _) => true,
            _ => false,
        };
        if !transaction::complete_found(port, &self.pages, request, completer, max_payload, read) {
            self.gauges.deny(request.requester, address, AccessKind::Read);
        }
        Reached::Done
    }

    /// Where `len` bytes from byte `offset` of a request on are reached by messages. `None`, and counted, where they
    /// are not any more.
    pub(super) fn place(
        &self,
        request: &MemoryRequest,
        kind: AccessKind,
        (offset, len): (usize, usize),
    ) -> Option<GuestAddress> {
        let (address, _) = request.byte_range();
        match self.find(request, kind, address + offset as u64, len) {
            Some((Memory::ByMessage { map, start }, into)) => {
                Some(GuestAddress { map, address: start + into })
            }
            _ => {
                self.gauges.deny(request.requester, address + offset as u64, kind);
                None
            }
        }
    }

    /// The one place of checks: what lies at an address, and where in that. A function that is closed out reaches no
    /// memory.
    fn find(
        &self,
        request: &MemoryRequest,
        kind: AccessKind,
        address: u64,
        len: usize,
    ) -> Option<(Memory, u64)> {
        let granted = self.grants.check(request.requester, kind, address, len.max(1)).ok()?;
        let is_open = !self.closed || granted.memory == Memory::Doorbell;
        is_open.then_some((granted.memory, granted.offset))
    }
}
