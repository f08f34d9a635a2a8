use super::bytes::seal;
use super::{END_MAGIC, LOG_MAGIC, RECORD_HEAD_LEN, RECORD_MAGIC, VERSION, chain};
use crate::entry::Entry;
use crate::model::FabricId;

/// Bytes of a log's header.
pub const HEADER_LEN: usize = 56;

/// Makes the bytes of records. It goes on where a log ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Writer {
    fabric: FabricId,
    index: u64,
    chain: u64,
}

impl Writer {
    /// For a log that begins behind this entry, with this chain; both are zero for the first one.
    pub fn new(fabric: FabricId, index: u64, chain: u64) -> Self {
        Self { fabric, index, chain }
    }

    /// The last entry that was written.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// A number that stands for all records up to here: a snapshot keeps it, and so does the header of the log that
    /// goes on from there.
    pub fn chain(&self) -> u64 {
        self.chain
    }

    /// The header of a log that goes on from here. It is to be made durable before the file has its name.
    pub fn header(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_LEN);
        bytes.extend(LOG_MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(self.fabric.0);
        bytes.extend(self.index.to_le_bytes());
        bytes.extend(self.chain.to_le_bytes());
        bytes.extend([0; 4]);
        seal(&mut bytes);
        bytes
    }

    /// The next record, to be appended and made durable before another one is asked for.
    pub fn record(&mut self, entries: &[Entry]) -> Vec<u8> {
        // Types of this crate have string keys only and no errors of their own.
        let mut body = serde_json::to_vec(entries).expect("entries can be written as JSON");
        let len = RECORD_HEAD_LEN + body.len() + END_MAGIC.len();
        body.resize(body.len() + len.next_multiple_of(8) - len, b' ');
        let mut bytes = Vec::with_capacity(RECORD_HEAD_LEN + body.len() + END_MAGIC.len());
        bytes.extend(RECORD_MAGIC);
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend((self.index + 1).to_le_bytes());
        bytes.extend((entries.len() as u32).to_le_bytes());
        bytes.extend(crc32c::crc32c(&body).to_le_bytes());
        bytes.extend(self.chain.to_le_bytes());
        seal(&mut bytes);
        self.chain = chain(&bytes);
        self.index += entries.len() as u64;
        bytes.extend(body);
        bytes.extend(END_MAGIC);
        bytes
    }
}
