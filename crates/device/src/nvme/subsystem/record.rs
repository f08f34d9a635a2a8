//! What is kept of a drive for good, as bytes: namespaces, saved features, marked blocks.
//!
//! All numbers are little-endian. A header of 32 bytes: magic, version and three counts (16 bits each), namespaces ever
//! made (32), identity (64), flags (64). Then the namespaces, the controllers with saved features, the marked ranges,
//! and a checksum (FNV-1a, 64 bits) of all before: against damage, not against intent.

use base::Rule;
use base::hash::fnv1a;

use super::cells::{BAD_RANGES, BadRange, CONTROLLERS, NAMESPACES, flag};
use super::{NewNamespace, Subsystem};
use crate::nvme::Config;
use crate::nvme::admin::features;

const MAGIC: [u8; 4] = *b"CWNV";
const VERSION: u16 = 1;
const HEADER: usize = 32;
const NAMESPACE: usize = 48;
const CONTROLLER: usize = 4 + features::COUNT * 4;
const RANGE: usize = 16;
const CHECKSUM: usize = 8;
/// Flag: the medium has lost something.
const FAULT: u64 = 1;

/// A namespace in a record.
struct Kept {
    nsid: u32,
    serial: u32,
    new: NewNamespace,
    attached: [u64; 2],
}

pub(crate) fn encode(subsystem: &Subsystem<'_>) -> Vec<u8> {
    let cells = subsystem.cells;
    let with_features: Vec<u16> = (0..subsystem.controllers())
        .filter(|index| subsystem.controller(*index).saved.iter().any(|word| word.get() != 0))
        .collect();
    let mut out = Vec::new();
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend((subsystem.allocated().count() as u16).to_le_bytes());
    out.extend((with_features.len() as u16).to_le_bytes());
    out.extend((cells.bad_count.get() as u16).to_le_bytes());
    out.extend(cells.serials.get().to_le_bytes());
    out.extend(subsystem.config.unique_id.to_le_bytes());
    let is_kept = subsystem.has_fault() && subsystem.journal.rule(Rule::KeepLosses);
    let fault = if is_kept { FAULT } else { 0 };
    out.extend(fault.to_le_bytes());
    for namespace in subsystem.allocated() {
        let own = subsystem.namespace_cells(namespace.nsid);
        out.extend(namespace.nsid.to_le_bytes());
        out.extend(namespace.serial.to_le_bytes());
        out.extend(namespace.start.to_le_bytes());
        out.extend(namespace.bytes.to_le_bytes());
        own.attached.iter().for_each(|word| out.extend(word.get().to_le_bytes()));
        out.extend([own.shift.get(), own.flags.get() & !flag::FORMATTING, 0, 0, 0, 0, 0, 0]);
    }
    for index in with_features {
        out.extend(u32::from(index).to_le_bytes());
        let saved = &subsystem.controller(index).saved;
        saved.iter().for_each(|word| out.extend(word.get().to_le_bytes()));
    }
    for range in subsystem.bad() {
        out.extend(range.start.to_le_bytes());
        out.extend(range.end.to_le_bytes());
    }
    out.extend(fnv1a(&out).to_le_bytes());
    out
}

/// Whether a record can be restored to a drive of this configuration.
pub(crate) fn is_valid(bytes: &[u8], config: &Config) -> bool {
    check(bytes, config).is_some()
}

/// Fills a new drive from a record that was checked.
pub(super) fn restore(subsystem: &Subsystem<'_>, bytes: &[u8]) {
    let journal = subsystem.journal;
    let Some(record) = check(bytes, &subsystem.config) else { return };
    for kept in record.namespaces() {
        subsystem.place_again(kept.nsid, kept.new, kept.serial);
        let cells = subsystem.namespace_cells(kept.nsid);
        cells.attached.iter().zip(kept.attached).for_each(|(cell, word)| cell.set(journal, word));
    }
    for entry in record.controllers.chunks_exact(CONTROLLER) {
        let saved = &subsystem.controller(u32_at(entry, 0) as u16).saved;
        saved.iter().enumerate().for_each(|(word, cell)| cell.set(journal, u32_at(entry, 4 + word * 4)));
    }
    for (cell, range) in subsystem.cells.bad.iter().zip(record.ranges.chunks_exact(RANGE)) {
        cell.set(journal, BadRange { start: u64_at(range, 0), end: u64_at(range, 8) });
    }
    subsystem.cells.bad_count.set(journal, (record.ranges.len() / RANGE) as u32);
    subsystem.cells.serials.set(journal, record.serials);
    if record.flags & FAULT != 0 {
        let version = subsystem.note_fault();
        subsystem.handle_persisted(version, true);
    }
}

struct Record<'a> {
    serials: u32,
    flags: u64,
    namespaces: &'a [u8],
    controllers: &'a [u8],
    ranges: &'a [u8],
}

impl Record<'_> {
    fn namespaces(&self) -> impl Iterator<Item = Kept> + '_ {
        self.namespaces.chunks_exact(NAMESPACE).map(|entry| Kept {
            nsid: u32_at(entry, 0),
            serial: u32_at(entry, 4),
            new: NewNamespace {
                start: u64_at(entry, 8),
                bytes: u64_at(entry, 16),
                shift: entry[40],
                flags: entry[41],
            },
            attached: [u64_at(entry, 24), u64_at(entry, 32)],
        })
    }
}

fn check<'a>(bytes: &'a [u8], config: &Config) -> Option<Record<'a>> {
    let (content, sum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM)?)?;
    let (header, rest) = content.split_at_checked(HEADER)?;
    let [version, namespaces, controllers, ranges] = [4, 6, 8, 10].map(|at| u16_at(header, at));
    let intact = fnv1a(content) == u64_at(sum, 0) && header[..4] == MAGIC && version == VERSION;
    let ours = u64_at(header, 16) == config.unique_id && usize::from(ranges) <= BAD_RANGES;
    if !intact || !ours {
        return None;
    }
    let (namespaces, rest) = rest.split_at_checked(usize::from(namespaces) * NAMESPACE)?;
    let (controllers, ranges_bytes) = rest.split_at_checked(usize::from(controllers) * CONTROLLER)?;
    if ranges_bytes.len() != usize::from(ranges) * RANGE {
        return None;
    }
    let (serials, flags) = (u32_at(header, 12), u64_at(header, 24));
    let record = Record { serials, flags, namespaces, controllers, ranges: ranges_bytes };
    let valid = flags & !FAULT == 0
        && record.namespaces().all(|kept| {
            let new = kept.new;
            let inside = new.start.checked_add(new.bytes).is_some_and(|end| end <= config.bytes());
            let shift = u32::from(new.shift);
            inside
                && new.bytes != 0
                && (1..=NAMESPACES as u32).contains(&kept.nsid)
                && matches!(shift, 9 | 12)
                && shift >= config.block_size.trailing_zeros()
                && new.bytes.is_multiple_of(1 << shift)
                && new.flags & !(flag::SHARED | flag::READ_ONLY) == 0
        });
    let known =
        record.controllers.chunks_exact(CONTROLLER).all(|entry| (u32_at(entry, 0) as usize) < CONTROLLERS);
    (valid && known).then_some(record)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at + 2)) << 16 | u32::from(u16_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at + 4)) << 32 | u64::from(u32_at(bytes, at))
}
