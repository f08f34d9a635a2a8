use super::bytes::{Reader, is_whole};
use super::{
    BODY_MAX, Damage, END_MAGIC, HEADER_LEN, LOG_MAGIC, RECORD_HEAD_LEN, RECORD_MAGIC, SECTOR, VERSION,
    Writer, chain,
};
use crate::canary::{self, Rule};
use crate::entry::Entry;
use crate::model::FabricId;
use crate::state::State;

/// What a log holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recovered {
    /// The state after its last entry.
    pub state: State,
    /// Goes on from there.
    pub writer: Writer,
    /// Where the last whole record ends. What lies behind it is torn, was never acknowledged, and is to be cut, and
    /// that made durable, before anything is appended.
    pub len: usize,
    /// Bytes that are to be cut.
    pub torn: usize,
}

/// From where a log goes on: a snapshot, or nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Base {
    /// The state there.
    pub state: State,
    /// Which records led there.
    pub writer: Writer,
}

impl Base {
    /// Nothing.
    pub fn new(fabric: FabricId) -> Self {
        Self { state: State::new(fabric), writer: Writer::new(fabric, 0, 0) }
    }
}

/// Reads a log, the whole file, onto the snapshot that it goes on from, or onto nothing. It may begin earlier than the
/// snapshot is.
///
/// `acknowledged` is an entry that the log is known to have had, 0 if nothing is known.
///
/// # Errors
/// It is damaged; see [`Damage`]. A torn tail is no damage.
pub fn read(bytes: &[u8], base: Base, acknowledged: u64) -> Result<Recovered, Damage> {
    let mut log = Log::open(bytes, base)?;
    while log.next_record()? {}
    let (last, torn) = (log.writer.index(), bytes.len() - log.offset);
    if last < acknowledged {
        return Err(Damage::Missing { last, acknowledged });
    }
    if log.state.index() != last {
        return Err(Damage::Begin { log: last, state: log.state.index() });
    }
    Ok(Recovered { state: log.state, writer: log.writer, len: log.offset, torn })
}

struct Log<'a> {
    bytes: &'a [u8],
    offset: usize,
    state: State,
    writer: Writer,
    /// Chain and index of the record before, and the fabric.
    chain: u64,
    index: u64,
    fabric: FabricId,
    /// Where the snapshot is.
    base: Writer,
}

struct Head {
    body_len: usize,
    first: u64,
    entries: u32,
    sum: u32,
    chain: u64,
}

impl<'a> Log<'a> {
    fn open(bytes: &'a [u8], base: Base) -> Result<Self, Damage> {
        let Base { state, writer: base } = base;
        let Some(header) = bytes.get(..HEADER_LEN) else { return Err(Damage::Short { len: bytes.len() }) };
        let mut reader = Reader(header);
        if reader.take() != LOG_MAGIC {
            return Err(Damage::NotOurs { what: "log" });
        }
        // A newer one may have another header, and another sum.
        let version = reader.u32();
        if version > VERSION {
            return Err(Damage::Newer { version });
        }
        if !is_whole(header) || version != VERSION {
            return Err(Damage::Flipped { offset: 0, what: "the header" });
        }
        let _zero: [u8; 4] = reader.take();
        let fabric = FabricId(reader.take());
        if fabric != state.fabric() {
            return Err(Damage::OtherFabric { found: fabric });
        }
        let (index, chain) = (reader.u64(), reader.u64());
        if index > state.index() {
            return Err(Damage::Begin { log: index, state: state.index() });
        }
        let writer = Writer::new(fabric, index, chain);
        if index == base.index() && writer != base {
            return Err(Damage::Chain { offset: 0, index, next: index });
        }
        Ok(Self { bytes, offset: HEADER_LEN, state, writer, chain, index, fabric, base })
    }

    /// Reads one record. `false`: there is none, or a torn one.
    fn next_record(&mut self) -> Result<bool, Damage> {
        let rest = &self.bytes[self.offset..];
        if rest.is_empty() || rest.iter().all(|byte| *byte == 0) {
            return Ok(false);
        }
        let Some(head) = rest.get(..RECORD_HEAD_LEN) else {
            return self
                .torn_if(RECORD_MAGIC.starts_with(&rest[..rest.len().min(4)]), "the head of a record");
        };
        let mut reader = Reader(head);
        if reader.take() != RECORD_MAGIC || !is_whole(head) {
            return self.torn_if(
                self.has_unwritten(RECORD_HEAD_LEN) && !self.has_record_behind(),
                "the head of a record",
            );
        }
        let parts = Head {
            body_len: reader.u32() as usize,
            first: reader.u64(),
            entries: reader.u32(),
            sum: reader.u32(),
            chain: reader.u64(),
        };
        if parts.chain != self.chain || parts.first != self.index + 1 || parts.body_len > BODY_MAX {
            return Err(Damage::Chain { offset: self.offset, index: parts.first, next: self.index + 1 });
        }
        let len = RECORD_HEAD_LEN + parts.body_len + END_MAGIC.len();
        let Some(record) = rest.get(..len) else { return self.torn_if(true, "a record") };
        let (body, end) = record[RECORD_HEAD_LEN..].split_at(parts.body_len);
        if crc32c::crc32c(body) != parts.sum || end != END_MAGIC {
            return self.torn_if(len == rest.len() && self.has_unwritten(len), "a record");
        }
        self.take_record(&parts, body)?;
        self.chain = chain(head);
        self.index += u64::from(parts.entries);
        let before = core::mem::replace(&mut self.writer, Writer::new(self.fabric, self.index, self.chain));
        // A snapshot is made where a record ends, so this log's has to come by there.
        if before.index() < self.base.index() && self.base.index() <= self.index && self.writer != self.base {
            return Err(Damage::Chain {
                offset: self.offset,
                index: parts.first,
                next: self.base.index() + 1,
            });
        }
        self.offset += len;
        Ok(true)
    }

    fn torn_if(&self, is_torn: bool, what: &'static str) -> Result<bool, Damage> {
        match is_torn && !canary::is_off(Rule::CutTorn) || canary::is_off(Rule::NameDamage) {
            true => Ok(false),
            false => Err(Damage::Flipped { offset: self.offset, what }),
        }
    }

    /// Whether what of these first bytes of the record lies in one sector is zeros: so it never was written.
    fn has_unwritten(&self, len: usize) -> bool {
        let (begin, end) = (self.offset, (self.offset + len).min(self.bytes.len()));
        let sectors = begin / SECTOR..end.div_ceil(SECTOR);
        // All of a sector that is the file's, for the record may go on behind its head.
        let parts =
            sectors.map(|at| &self.bytes[begin.max(at * SECTOR)..((at + 1) * SECTOR).min(self.bytes.len())]);
        parts.into_iter().any(|part| part.iter().all(|byte| *byte == 0))
    }

    /// Whether a record seems to begin somewhere behind: then the damaged one is not the last.
    fn has_record_behind(&self) -> bool {
        let heads = self.bytes[self.offset + 8..].windows(RECORD_HEAD_LEN).step_by(8);
        heads.into_iter().any(|head| head.starts_with(&RECORD_MAGIC) && is_whole(head))
    }

    fn take_record(&mut self, head: &Head, body: &[u8]) -> Result<(), Damage> {
        let offset = self.offset;
        let unreadable = |why: String| Damage::Unreadable { offset, why };
        let entries: Vec<Entry> =
            serde_json::from_slice(body).map_err(|error| unreadable(error.to_string()))?;
        if entries.len() as u64 != u64::from(head.entries) {
            return Err(unreadable(format!("{} entries instead of {}", entries.len(), head.entries)));
        }
        for (index, entry) in (head.first..).zip(&entries) {
            // The snapshot has it already.
            if index <= self.state.index() {
                continue;
            }
            self.state.apply(index, entry).map_err(|why| Damage::Entry { offset, index, why })?;
        }
        Ok(())
    }
}
