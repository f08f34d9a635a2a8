use std::collections::BTreeMap;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Cell, Journal, Layout, LedgerRoot, PAGE_SIZE, RawMemory};

/// Most regions of a ledger. Entries of the table that were never used cost nothing.
pub const REGIONS_MAX: usize = 1 << 13;

/// Whose a region is, as the composer of the ledger counts: a name, and which of all that have had it.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Layout,
)]
#[repr(C)]
pub struct Owner {
    /// What it is called.
    pub name: u64,
    /// The one that has the name has another life than those before it.
    pub life: u64,
}

/// Cells that are there only where somebody needs them: a region of the ledger is made of one such value. It consists
/// of ledger cells and nothing else.
pub trait Region: FromBytes + Layout + Sized {
    /// Tells them from all others of the same ledger. Not 0.
    const KIND: u32;

    /// Makes them what they are in new memory, without a log, as [`Journal::clear`] does.
    fn clear(&self, journal: Journal<'_>) {
        journal.clear(self);
    }
}

/// Bytes that a region takes.
pub const fn region_bytes<C>() -> usize {
    size_of::<C>().next_multiple_of(PAGE_SIZE)
}

/// The table of a ledger's regions: a part of its root. All zeroes: there is none.
///
/// What an entry says of kind and place never changes, so a region that was given back is had again by the next of its
/// kind, and the table only grows.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct RegionTable {
    /// Entries that are in use or have been.
    count: Cell<u64>,
    entries: [EntryCells; REGIONS_MAX],
}

#[derive(FromBytes, Layout)]
#[repr(C)]
struct EntryCells {
    kind: Cell<u32>,
    /// 1 while the region has an owner.
    is_taken: Cell<u32>,
    /// Where it begins in the ledger.
    start: Cell<u64>,
    /// Its bytes, whole pages.
    len: Cell<u64>,
    owner: Cell<Owner>,
}

/// Why a region cannot be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionError {
    /// The ledger is too small: so many bytes would do.
    Full(usize),
    /// There are [`REGIONS_MAX`] already.
    TableFull,
    /// The table is none that a card can have left: it names memory that is none of the ledger's.
    Corrupt,
}

impl core::fmt::Display for RegionError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Full(bytes) => write!(f, "the ledger is full: it would have to have {bytes} bytes"),
            Self::TableFull => write!(f, "the ledger has {REGIONS_MAX} regions, and can have no more"),
            Self::Corrupt => write!(f, "the ledger is corrupt: its table names memory that it does not have"),
        }
    }
}

impl core::error::Error for RegionError {}

/// The allocator of a ledger's regions. The table is journaled like everything else, so a successor finds what the last
/// commit had. Whoever has a region resolves it once, to a reference, and does not come back.
#[derive(Clone, Copy)]
pub struct Regions<'m> {
    memory: RawMemory<'m>,
    journal: Journal<'m>,
    table: &'m RegionTable,
    /// Where the first region begins.
    first: usize,
}

/// The regions of one owner.
pub struct Owned<'m> {
    regions: Regions<'m>,
    entries: Vec<&'m EntryCells>,
}

impl<'m> Owned<'m> {
    /// Its cells of this kind.
    ///
    /// # Errors
    /// As of [`Regions::find`].
    pub fn find<C: Region>(&self) -> Result<Option<&'m C>, RegionError> {
        let entry = self.entries.iter().find(|entry| entry.kind.get() == C::KIND);
        entry.map(|entry| self.regions.cells(entry)).transpose()
    }
}

impl<'m> Regions<'m> {
    /// The regions of the ledger in `memory`, which has root `R` with this table in it.
    pub fn new<R>(memory: RawMemory<'m>, journal: Journal<'m>, table: &'m RegionTable) -> Self {
        Self { memory, journal, table, first: LedgerRoot::<R>::SIZE }
    }

    /// The memory has grown: there is room for more of them.
    pub fn grow(&mut self, memory: RawMemory<'m>) {
        self.memory = memory;
    }

    /// The cells of this kind that `owner` has.
    ///
    /// # Errors
    /// The table is corrupt where it names them: whoever took others instead would lose what is in them.
    pub fn find<C: Region>(&self, owner: Owner) -> Result<Option<&'m C>, RegionError> {
        self.of(owner).find()
    }

    /// All that `owner` has.
    pub fn of(&self, owner: Owner) -> Owned<'m> {
        let entries = self.taken().filter(|entry| entry.owner.get() == owner).collect();
        Owned { regions: *self, entries }
    }

    /// All that anybody has, in one pass over the table.
    pub fn by_owner(&self) -> BTreeMap<Owner, Owned<'m>> {
        let mut owners = BTreeMap::new();
        for entry in self.taken() {
            let nothing = || Owned { regions: *self, entries: Vec::new() };
            owners.entry(entry.owner.get()).or_insert_with(nothing).entries.push(entry);
        }
        owners
    }

    /// All cells of this kind that anybody has, with their owners, as they lie.
    pub fn of_kind<C: Region + 'm>(
        &self,
    ) -> impl Iterator<Item = (Owner, Result<&'m C, RegionError>)> + use<'m, C> {
        let regions = *self;
        let entries = self.taken().filter(|entry| entry.kind.get() == C::KIND);
        entries.map(move |entry| (entry.owner.get(), regions.cells(entry)))
    }

    /// The cells of this kind that `owner` has from now on: all zeroes, unless it has had them before. A step of its
    /// own, so nobody has written there yet if it is taken back.
    ///
    /// # Errors
    /// There is no room for them, or the table is corrupt.
    ///
    /// # Panics
    /// If a step is under way.
    pub fn obtain<C: Region>(&self, owner: Owner) -> Result<&'m C, RegionError> {
        if let Some(cells) = self.find(owner)? {
            return Ok(cells);
        }
        self.between_steps();
        let is_free = |entry: &&EntryCells| entry.is_taken.get() == 0 && entry.kind.get() == C::KIND;
        let cells = match self.entries().iter().find(is_free) {
            Some(entry) => {
                let cells = self.cells::<C>(entry)?;
                // Nothing committed refers to what is in it; if the card dies meanwhile, it still belongs to nobody.
                cells.clear(self.journal);
                self.give(entry, owner);
                cells
            }
            None => self.append(owner)?,
        };
        self.journal.commit();
        Ok(cells)
    }

    /// Takes from their owners all regions that `keeps` does not name by kind and owner: from now on others of their
    /// kind may have them. A step of its own.
    ///
    /// # Panics
    /// If a step is under way.
    pub fn retain(&self, keeps: impl Fn(u32, Owner) -> bool) {
        self.between_steps();
        for entry in self.taken() {
            if !keeps(entry.kind.get(), entry.owner.get()) {
                entry.is_taken.set(self.journal, 0);
            }
        }
        self.journal.commit();
    }

    /// Kind, owner and bytes of each region that has an owner.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Owner, usize)> + use<'m> {
        self.taken().map(|entry| (entry.kind.get(), entry.owner.get(), entry.len.get() as usize))
    }

    /// The kind of each region, with an owner or without.
    pub fn kinds(&self) -> impl Iterator<Item = u32> + use<'m> {
        self.entries().iter().map(|entry| entry.kind.get())
    }

    /// Bytes of the ledger up to the end of its last region, with an owner or without.
    ///
    /// # Errors
    /// The table is corrupt: its regions do not lie one behind the other, inside of the memory that there is.
    pub fn end(&self) -> Result<usize, RegionError> {
        if self.table.count.get() > REGIONS_MAX as u64 {
            return Err(RegionError::Corrupt);
        }
        let behind = |end: usize, entry: &EntryCells| {
            let (start, len) = (entry.start.get(), entry.len.get());
            let is_region = entry.kind.get() != 0 && len != 0 && len.is_multiple_of(PAGE_SIZE as u64);
            let next = start.checked_add(len).filter(|next| *next <= self.memory.len() as u64);
            let next = next.filter(|_| is_region && start == end as u64);
            next.map(|next| next as usize).ok_or(RegionError::Corrupt)
        };
        self.entries().iter().try_fold(self.first, behind)
    }

    fn taken(&self) -> impl Iterator<Item = &'m EntryCells> + use<'m> {
        self.entries().iter().filter(|entry| entry.is_taken.get() != 0)
    }

    fn entries(&self) -> &'m [EntryCells] {
        &self.table.entries[..(self.table.count.get() as usize).min(REGIONS_MAX)]
    }

    /// A new region behind all others, where nobody has written yet.
    fn append<C: Region>(&self, owner: Owner) -> Result<&'m C, RegionError> {
        const { assert!(C::KIND != 0) };
        let (start, count) = (self.end()?, self.entries().len());
        let entry = self.table.entries.get(count).ok_or(RegionError::TableFull)?;
        let end = start.checked_add(region_bytes::<C>()).ok_or(RegionError::Corrupt)?;
        if end > self.memory.len() {
            return Err(RegionError::Full(end));
        }
        entry.kind.set(self.journal, C::KIND);
        entry.start.set(self.journal, start as u64);
        entry.len.set(self.journal, region_bytes::<C>() as u64);
        self.give(entry, owner);
        self.table.count.set(self.journal, count as u64 + 1);
        self.cells(entry)
    }

    /// The first region has another place and length, and there are so many, for tests of a corrupt table.
    #[cfg(test)]
    pub(super) fn misplace(&self, journal: Journal<'_>, (start, len): (u64, u64), count: u64) {
        self.table.entries[0].start.set(journal, start);
        self.table.entries[0].len.set(journal, len);
        self.table.count.set(journal, count);
        journal.commit();
    }

    fn give(&self, entry: &EntryCells, owner: Owner) {
        entry.owner.set(self.journal, owner);
        entry.is_taken.set(self.journal, 1);
    }

    fn between_steps(&self) {
        assert!(self.journal.pending() == 0, "regions change hands in steps of their own");
    }

    fn cells<C: Region>(&self, entry: &EntryCells) -> Result<&'m C, RegionError> {
        let (start, len) = (entry.start.get() as usize, entry.len.get() as usize);
        if start < self.first || len != region_bytes::<C>() {
            return Err(RegionError::Corrupt);
        }
        self.memory.cells(start).ok_or(RegionError::Corrupt)
    }
}
