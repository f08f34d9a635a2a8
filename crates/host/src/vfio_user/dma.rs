//! The slot's DMA address space: which memory of the client the function may reach.
//!
//! Living maps are sorted by address and do not overlap. One that is unmapped is dead for every lookup at once; while
//! copies that have found it still run it keeps its place and its descriptor, and the client waits for its reply.

use base::coded;
use base::ledger::{Cell, Code, Journal, Layout, PAGE_SIZE, SlotCells, Slots};
use spec::vfio_user::{DmaMap, DmaMapFlags, DmaUnmap, Errno};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::bits::NumberSet;
use super::cells::{MAP_PLACES, MAPS};
use super::descriptors::Descriptors;
use super::{DMA_END, DescriptorId, SessionCells, SessionCounters};

const WORDS: usize = MAP_PLACES / 64;

/// The DMA address space. All zeroes: nothing is mapped.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct MapCells {
    slots: SlotCells<WORDS>,
    maps: [Cell<Map>; MAP_PLACES],
    uses: [Cell<u32>; MAP_PLACES],
    /// Places of the living ones, by address.
    order: [Cell<u16>; MAPS],
    /// Places that changed.
    changed: NumberSet<WORDS>,
    count: Cell<u64>,
}

impl MapCells {
    pub(super) fn count(&self) -> usize {
        (self.count.get() as usize).min(MAPS)
    }

    /// One of the living ones, in the order of addresses, for who looks while a card works.
    pub(super) fn map(&self, position: usize) -> Option<DmaMapping> {
        let place = self.order.get(position)?.get();
        let map = self.maps.get(usize::from(place))?.get();
        (map.state == Code::from(MapState::Live)).then(|| map.mapping())
    }
}

/// One map.
#[derive(Clone, Copy, PartialEq, Default, Debug, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
struct Map {
    /// First DMA address.
    start: u64,
    /// Bytes.
    len: u64,
    /// Where it begins in the descriptor.
    offset: u64,
    /// One more than the descriptor; 0 for none.
    descriptor: u32,
    /// One more than the number of the unmap that waits for its copies; 0 for none.
    waiter: u32,
    /// Bits as in the protocol.
    rights: u32,
    state: Code<MapState>,
    reserved: [u8; 3],
}

/// What a [`Map`] is.
#[derive(Clone, Copy, PartialEq)]
enum MapState {
    Free,
    Live,
    /// Unmapped, but copies run.
    Dying,
}
coded!(MapState: Free, Live, Dying);

/// Names a map while it lives, and until its last copy has ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MapId(pub u16);

/// Memory of the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DmaMapping {
    /// First DMA address; page aligned.
    pub start: u64,
    /// Bytes; whole pages.
    pub len: u64,
    /// Where it begins in the descriptor; page aligned.
    pub offset: u64,
    /// What it is part of. `None`: it can be reached by messages only.
    pub descriptor: Option<DescriptorId>,
    /// The function may read it.
    pub readable: bool,
    /// The function may write it.
    pub writable: bool,
}

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DmaAccessKind {
    /// The function reads.
    Read,
    /// The function writes.
    Write,
}

/// A part of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DmaPiece {
    /// The map: raise its use count while a copy runs that is not over with the step.
    pub map: MapId,
    /// `None`: reach it by [`Transfers::read`](super::Transfers::read) and
    /// [`Transfers::write`](super::Transfers::write).
    pub descriptor: Option<DescriptorId>,
    /// First byte in the descriptor.
    pub offset: u64,
    /// Bytes: at least 1, and less than was asked for where the map ends.
    pub len: u64,
}

/// Why an access is denied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DmaError {
    /// Nothing is mapped there.
    NotMapped,
    /// What is mapped there may not be accessed so.
    Denied,
}

impl Map {
    fn end(&self) -> u64 {
        // Checked when it was mapped.
        self.start + self.len
    }

    fn descriptor(&self) -> Option<DescriptorId> {
        self.descriptor.checked_sub(1).map(DescriptorId)
    }

    fn mapping(&self) -> DmaMapping {
        let rights = DmaMapFlags(self.rights);
        DmaMapping {
            start: self.start,
            len: self.len,
            offset: self.offset,
            descriptor: self.descriptor(),
            readable: rights.readable(),
            writable: rights.writeable(),
        }
    }
}

/// The memory of one client.
pub struct Maps<'m> {
    cells: &'m MapCells,
    slots: Slots<'m, WORDS>,
    descriptors: Descriptors<'m>,
    counters: &'m SessionCounters,
    journal: Journal<'m>,
}

impl<'m> Maps<'m> {
    pub(super) fn new(cells: &'m SessionCells, descriptors: Descriptors<'m>, journal: Journal<'m>) -> Self {
        let slots = Slots::new(&cells.maps.slots, journal);
        Self { cells: &cells.maps, slots, descriptors, counters: &cells.counters, journal }
    }

    /// The memory at `address`, as far as it is in one map and at most `len` bytes, which are not 0. Counts what it
    /// denies.
    pub fn lookup(&self, address: u64, len: u64, kind: DmaAccessKind) -> Result<DmaPiece, DmaError> {
        let found = self.find_map(address);
        let denied = |error| {
            self.counters.denied_accesses.add(1);
            Err(error)
        };
        let Some((id, map)) = found else { return denied(DmaError::NotMapped) };
        let mapping = map.mapping();
        let allowed = match kind {
            DmaAccessKind::Read => mapping.readable,
            DmaAccessKind::Write => mapping.writable,
        };
        if !allowed {
            return denied(DmaError::Denied);
        }
        let into = address - map.start;
        Ok(DmaPiece {
            map: id,
            descriptor: mapping.descriptor,
            offset: map.offset + into,
            len: len.min(map.len - into),
        })
    }

    /// A map that came or went, and what it is now; `None` if it is no more. Each change once. Its descriptor stays
    /// open until the last copy has ended.
    pub fn poll_change(&self) -> Option<(MapId, Option<DmaMapping>)> {
        let place = self.cells.changed.take(self.journal)?;
        Some((MapId(place), self.mapping(MapId(place))))
    }

    /// The living maps, by address: what a new card has to know.
    pub fn iter(&self) -> impl Iterator<Item = (MapId, DmaMapping)> + '_ {
        (0..self.cells.count()).map(|position| {
            let place = self.cells.order[position].get();
            (MapId(place), self.map_at(place).mapping())
        })
    }

    /// What a map is, if it lives.
    pub fn mapping(&self, id: MapId) -> Option<DmaMapping> {
        let map = self.cells.maps.get(usize::from(id.0))?.get();
        (map.state == MapState::Live).then(|| map.mapping())
    }

    /// A copy begins that uses a map, which [`lookup`](Self::lookup) has found in this step.
    pub fn begin_use(&self, id: MapId) {
        self.cells.uses[usize::from(id.0)].update(self.journal, |uses| uses + 1);
    }

    /// A copy has ended that used a map. The last one ends an unmap: returns the number of the command that waits for
    /// it, if it was.
    ///
    /// # Panics
    /// If no copy uses the map.
    pub(super) fn end_use(&self, id: MapId) -> Option<u32> {
        let uses = &self.cells.uses[usize::from(id.0)];
        // Nobody outside ends one: the card does, for each copy or message that it began with `begin_use`.
        let left = uses.get().checked_sub(1).expect("a use ends once");
        uses.set(self.journal, left);
        let map = self.map_at(id.0);
        if left > 0 || map.state != MapState::Dying {
            return None;
        }
        self.free_map(id.0, &map);
        map.waiter.checked_sub(1)
    }

    /// DMA_MAP. On success the descriptor is the session's.
    pub(super) fn map(&self, payload: &[u8], descriptors: &[DescriptorId]) -> Result<(), Errno> {
        let result = self.check_map(payload, descriptors).and_then(|map| self.insert_map(map));
        if result.is_err() {
            self.counters.refused_maps.add(1);
        }
        result.map(|place| {
            if let Some(descriptor) = descriptors.first() {
                let descriptor = self.descriptors.hold(*descriptor);
                self.set_map(place, Map { descriptor, ..self.map_at(place) });
            }
        })
    }

    /// What a DMA_MAP wants, if it makes sense by itself.
    fn check_map(&self, payload: &[u8], descriptors: &[DescriptorId]) -> Result<Map, Errno> {
        let asked = DmaMap::read_from_bytes(payload).map_err(|_| Errno::EINVAL)?;
        let (start, len, offset) = (asked.address.get(), asked.size.get(), asked.offset.get());
        let aligned = [start, len, offset].iter().all(|value| value.is_multiple_of(PAGE_SIZE as u64));
        let rights = asked.flags();
        let inside_descriptor = offset.checked_add(len).is_some_and(|end| end <= i64::MAX as u64);
        if !aligned || len == 0 || rights.reserved_bits() != 0 || rights.0 == 0 || descriptors.len() > 1 {
            return Err(Errno::EINVAL);
        }
        if start.checked_add(len).is_none_or(|end| end > DMA_END) || !inside_descriptor {
            return Err(Errno::ERANGE);
        }
        Ok(Map {
            start,
            len,
            offset,
            descriptor: 0,
            waiter: 0,
            rights: rights.0,
            state: MapState::Live.into(),
            reserved: [0; 3],
        })
    }

    fn insert_map(&self, map: Map) -> Result<u16, Errno> {
        let (maps, journal) = (self.cells, self.journal);
        let count = self.cells.count();
        let position = self.first_map_from(map.start);
        let before = position.checked_sub(1).map(|before| self.ordered(before));
        let behind = (position < count).then(|| self.ordered(position));
        let overlaps = before.is_some_and(|before| before.end() > map.start)
            || behind.is_some_and(|behind| behind.start < map.end());
        if overlaps {
            return Err(Errno::EEXIST);
        }
        if count == MAPS {
            return Err(Errno::ENOSPC);
        }
        let place = self.slots.alloc().ok_or(Errno::ENOSPC)?;
        for at in (position..count).rev() {
            maps.order[at + 1].set(journal, maps.order[at].get());
        }
        maps.order[position].set(journal, place);
        maps.count.set(journal, count as u64 + 1);
        self.set_map(place, map);
        Ok(place)
    }

    /// DMA_UNMAP by the command with this number. Returns for how many maps it has to wait.
    pub(super) fn unmap(&self, asked: &DmaUnmap, number: u32) -> Result<u32, Errno> {
        let flags = asked.flags();
        if flags.dirty_bitmap() {
            return Err(Errno::EOPNOTSUPP);
        }
        let (start, size) = (asked.address.get(), asked.size.get());
        let count = self.cells.count();
        if flags.reserved_bits() != 0 || flags.all() != (size == 0) || (flags.all() && start != 0) {
            return Err(Errno::EINVAL);
        }
        if flags.all() {
            return Ok(self.remove_maps(0, count, number));
        }
        // The protocol wants the range of one map; clients with a virtual IOMMU give one that covers several.
        let end = start.saturating_add(size);
        let (first, last) = (self.first_map_from(start), self.first_map_from(end));
        let cut_before = first > 0 && self.ordered(first - 1).end() > start;
        let cut_behind = last > first && self.ordered(last - 1).end() > end;
        if cut_before || cut_behind {
            return Err(Errno::EINVAL);
        }
        if first == last {
            return Err(Errno::ENOENT);
        }
        Ok(self.remove_maps(first, last, number))
    }

    /// The client has gone.
    pub(super) fn unmap_everything(&self) {
        let count = self.cells.count();
        self.remove_maps(0, count, u32::MAX);
    }

    /// Removes the maps at these positions of the order; the number is that of the command that waits for their copies.
    /// Returns how many have some.
    fn remove_maps(&self, first: usize, last: usize, number: u32) -> u32 {
        let (maps, journal) = (self.cells, self.journal);
        let mut waiting = 0;
        for position in first..last {
            let place = maps.order[position].get();
            let map = self.map_at(place);
            if maps.uses[usize::from(place)].get() == 0 {
                self.free_map(place, &map);
            } else {
                waiting += 1;
                self.set_map(
                    place,
                    Map { state: MapState::Dying.into(), waiter: number.wrapping_add(1), ..map },
                );
            }
        }
        let count = self.cells.count();
        for position in last..count {
            maps.order[position - (last - first)].set(journal, maps.order[position].get());
        }
        maps.count.set(journal, (count - (last - first)) as u64);
        waiting
    }

    fn free_map(&self, place: u16, map: &Map) {
        self.descriptors.release(map.descriptor);
        self.set_map(place, Map { state: MapState::Free.into(), ..Map::default() });
        self.slots.free(place);
    }

    fn set_map(&self, place: u16, map: Map) {
        self.cells.maps[usize::from(place)].set(self.journal, map);
        self.cells.changed.insert(self.journal, place);
    }

    fn find_map(&self, address: u64) -> Option<(MapId, Map)> {
        let position = self.first_map_from(address.checked_add(1)?).checked_sub(1)?;
        let place = self.cells.order[position].get();
        let map = self.map_at(place);
        (address < map.end()).then_some((MapId(place), map))
    }

    /// The position of the first map that begins at `address` or behind.
    fn first_map_from(&self, address: u64) -> usize {
        let (mut low, mut high) = (0, self.cells.count());
        while low < high {
            let middle = low.midpoint(high);
            if self.ordered(middle).start < address {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn ordered(&self, position: usize) -> Map {
        self.map_at(self.cells.order[position].get())
    }

    fn map_at(&self, place: u16) -> Map {
        self.cells.maps[usize::from(place)].get()
    }
}
