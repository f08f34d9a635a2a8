//! What a drive must contain, byte by byte.
//!
//! A region of it is written to: each block there holds a pattern that follows from the seed, its number and how often
//! it was written, so that a lost, doubled, misplaced or old write shows. What lies before may be a copy of a file
//! that is only ever read; the file itself says what it must contain.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use base::Random;

use crate::nbd_client::{NbdClient, NbdError};

/// The unit of writes, in bytes.
pub const BLOCK: u64 = 4096;
/// Bytes compared at once.
const CHUNK: u64 = 1 << 20;

/// The content of a drive.
#[derive(Debug, Clone)]
pub struct Model {
    seed: u64,
    /// What lies before the region, and its size in bytes.
    source: Option<(Arc<File>, u64)>,
    /// Where the region begins.
    start: u64,
    blocks: Vec<Block>,
    /// A buffer for what is expected, kept to spare allocations.
    expected: Vec<u8>,
}

/// A block of the region, by the versions that were written, 1, 2, 3 ..; 0 is zeroes.
#[derive(Debug, Clone, Copy, Default)]
struct Block {
    /// The newest that was sent.
    issued: u32,
    /// The newest that was answered. What was sent since has failed, or is under way: it may have happened.
    completed: u32,
    /// A request to it is in flight: what it would read is not settled.
    busy: bool,
}

/// What was compared, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compared {
    /// Compared.
    pub bytes: u64,
    /// Different from what they must be.
    pub corrupted: u64,
    /// What is wrong first, for a person.
    pub first: Option<String>,
}

impl Model {
    /// A region that holds zeroes so far. `offset` and `bytes` are multiples of [`BLOCK`].
    pub fn new(offset: u64, bytes: u64, seed: u64) -> Self {
        assert!(offset.is_multiple_of(BLOCK) && bytes.is_multiple_of(BLOCK) && bytes > 0);
        let blocks = vec![Block::default(); (bytes / BLOCK) as usize];
        Self { seed, source: None, start: offset, blocks, expected: Vec::new() }
    }

    /// A copy of `source`, zeroes up to the next whole block, and a region of so many bytes behind.
    pub(crate) fn behind(source: File, bytes: u64, seed: u64) -> io::Result<Self> {
        let source_bytes = source.metadata()?.len();
        let region = Self::new(source_bytes.next_multiple_of(BLOCK), bytes, seed);
        Ok(Self { source: Some((Arc::new(source), source_bytes)), ..region })
    }

    /// Somebody else writes to the region, and knows what must be there.
    pub(crate) fn leave_region(&mut self) {
        self.blocks.clear();
    }

    /// Where the region begins, in bytes.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Blocks of the region.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Where the region ends, in bytes.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.blocks() * BLOCK
    }

    /// Whether a drive of so many bytes can hold this.
    pub(crate) fn fits(&self, size: u64) -> bool {
        if self.source.is_some() { size == self.end() } else { size >= self.end() }
    }

    /// Bytes that are only ever read, from the beginning of the drive on.
    pub(crate) fn source_bytes(&self) -> u64 {
        self.source.as_ref().map_or(0, |_| self.start)
    }

    /// One source of chance for each purpose.
    pub(crate) fn random(&self, purpose: &str) -> Random {
        Random::of(self.seed, purpose)
    }

    /// Takes a range of the region, in blocks from its start, for one request; false if another has some of it.
    pub(crate) fn reserve(&mut self, first: u64, count: u64) -> bool {
        let blocks = &mut self.blocks[range(first, count)];
        let free = !blocks.iter().any(|block| block.busy);
        if free {
            blocks.iter_mut().for_each(|block| block.busy = true);
        }
        free
    }

    /// Gives a reserved range back.
    pub(crate) fn release(&mut self, first: u64, count: u64) {
        self.blocks[range(first, count)].iter_mut().for_each(|block| block.busy = false);
    }

    /// Fills `data` with what the reserved blocks are to contain next, which may happen from now on.
    pub(crate) fn write(&mut self, first: u64, count: u64, data: &mut Vec<u8>) {
        data.resize((count * BLOCK) as usize, 0);
        for (number, part) in (first..).zip(data.chunks_exact_mut(BLOCK as usize)) {
            let block = &mut self.blocks[number as usize];
            block.issued += 1;
            fill(self.seed, number, block.issued, part);
        }
    }

    /// The write of the reserved blocks has succeeded, which settles what earlier failures left open.
    pub(crate) fn written(&mut self, first: u64, count: u64) {
        self.blocks[range(first, count)].iter_mut().for_each(|block| block.completed = block.issued);
    }

    /// Compares what was read at `offset` with what it must be.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub(crate) fn check(&mut self, offset: u64, data: &[u8]) -> io::Result<Compared> {
        let end = offset + data.len() as u64;
        assert!(end <= self.end(), "requests stay within the model");
        let mut compared = Compared { bytes: data.len() as u64, ..Compared::default() };
        let before = self.start.saturating_sub(offset).min(data.len() as u64) as usize;
        self.check_source(offset, &data[..before], &mut compared)?;
        let mut at = offset + before as u64;
        while at < end {
            let (number, within) = ((at - self.start) / BLOCK, ((at - self.start) % BLOCK) as usize);
            let length = (BLOCK as usize - within).min((end - at) as usize);
            let part = &data[(at - offset) as usize..][..length];
            if self.version(number, within, part).is_none() {
                self.expect(number, self.blocks[number as usize].completed);
                let must = &self.expected[within..within + length];
                compared.corrupted += differences(part, must);
                let first = compared.first.is_none().then(|| self.describe(number, within, part));
                compared.first = compared.first.or(first);
            }
            at += length as u64;
        }
        Ok(compared)
    }

    /// Behind the source there are zeroes up to the region.
    fn check_source(&mut self, offset: u64, data: &[u8], compared: &mut Compared) -> io::Result<()> {
        let Some((source, bytes)) = &self.source else { return Ok(()) };
        self.expected.clear();
        self.expected.resize(data.len(), 0);
        let from_source = bytes.saturating_sub(offset).min(data.len() as u64) as usize;
        source.read_exact_at(&mut self.expected[..from_source], offset)?;
        compared.corrupted = differences(data, &self.expected);
        let wrong = data.iter().zip(&self.expected).position(|(is, must)| is != must);
        compared.first =
            wrong.map(|at| format!("the byte at {} is not as in the source", offset + at as u64));
        Ok(())
    }

    /// Which version this part of a block is, if it is one that may be there.
    fn version(&mut self, number: u64, within: usize, part: &[u8]) -> Option<u32> {
        let Block { issued, completed, .. } = self.blocks[number as usize];
        (completed..=issued).find(|version| self.holds(number, *version, within, part))
    }

    fn holds(&mut self, number: u64, version: u32, within: usize, part: &[u8]) -> bool {
        self.expect(number, version);
        self.expected[within..within + part.len()] == *part
    }

    fn expect(&mut self, number: u64, version: u32) {
        self.expected.resize(BLOCK as usize, 0);
        fill(self.seed, number, version, &mut self.expected);
    }

    fn describe(&mut self, number: u64, within: usize, part: &[u8]) -> String {
        let Block { issued, completed, .. } = self.blocks[number as usize];
        let older = (0..completed).rev().find(|version| self.holds(number, *version, within, part));
        let holds = match older {
            Some(version) => format!("version {version}"),
            None => format!("foreign bytes {:02x?}..", &part[..part.len().min(16)]),
        };
        let at = self.start + number * BLOCK;
        format!("the block at {at} holds {holds} in place of version {completed} to {issued}")
    }

    /// Reads the whole region and compares. What was uncertain is known afterwards.
    ///
    /// # Errors
    /// A read that fails, or the block that is wrong first; for a person.
    pub fn verify(&mut self, client: &mut NbdClient) -> Result<(), String> {
        let failed = |error: NbdError| format!("a read to verify: {error}");
        let mut data = Vec::new();
        for number in 0..self.blocks() {
            client.read(self.start + number * BLOCK, BLOCK as u32, &mut data).map_err(failed)?;
            let found = self.version(number, 0, &data).ok_or_else(|| self.describe(number, 0, &data))?;
            self.blocks[number as usize] = Block { issued: found, completed: found, busy: false };
        }
        Ok(())
    }

    /// Compares the file at `path` up to the end of the region, and calls `progress` with the bytes done.
    pub(crate) fn check_file(&mut self, path: &Path, mut progress: impl FnMut(u64)) -> io::Result<Compared> {
        let image = File::open(path)?;
        let mut total = Compared::default();
        let mut data = vec![0; CHUNK as usize];
        let mut offset = 0;
        while offset < self.end() {
            let length = CHUNK.min(self.end() - offset) as usize;
            let data = &mut data[..length];
            image.read_exact_at(data, offset)?;
            let compared = self.check(offset, data)?;
            total.bytes += compared.bytes;
            total.corrupted += compared.corrupted;
            total.first = total.first.or(compared.first);
            offset += length as u64;
            progress(offset);
        }
        Ok(total)
    }
}

fn range(first: u64, count: u64) -> std::ops::Range<usize> {
    first as usize..(first + count) as usize
}

fn differences(is: &[u8], must: &[u8]) -> u64 {
    if is == must { 0 } else { is.iter().zip(must).filter(|(is, must)| is != must).count() as u64 }
}

/// The content of a block of the region; version 0 is zeroes.
pub(crate) fn fill(seed: u64, number: u64, version: u32, block: &mut [u8]) {
    if version == 0 {
        return block.fill(0);
    }
    let of_block = Random::new(seed).next_u64() ^ number;
    let of_version = Random::new(of_block).next_u64() ^ u64::from(version);
    Random::new(of_version).fill(block);
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: u64 = 1 << 20;

    fn model(source_bytes: usize) -> (Model, Vec<u8>) {
        let source: Vec<u8> = (0..source_bytes).map(|at| (at * 7 + at / 251) as u8).collect();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&source, 0).unwrap();
        (Model::behind(file, REGION, 7).unwrap(), source)
    }

    fn corrupted(model: &mut Model, offset: u64, data: &[u8]) -> u64 {
        let compared = model.check(offset, data).unwrap();
        assert_eq!(compared.bytes, data.len() as u64);
        assert_eq!(compared.first.is_some(), compared.corrupted > 0, "{compared:?}");
        compared.corrupted
    }

    #[test]
    fn the_image_is_source_then_zeroes_then_the_region() {
        let (mut model, source) = model(3 * BLOCK as usize + 512);
        assert_eq!((model.start(), model.end()), (4 * BLOCK, 4 * BLOCK + REGION));
        let mut image = source;
        image.resize(6 * BLOCK as usize, 0);
        assert_eq!(corrupted(&mut model, 0, &image), 0);
        for at in [0, 3 * BLOCK as usize + 512] {
            image[at] ^= 1;
            assert_eq!(corrupted(&mut model, 0, &image), 1, "at {at}");
            image[at] ^= 1;
        }
        image[6 * BLOCK as usize - 1] ^= 1;
        assert_eq!(corrupted(&mut model, 0, &image), 1, "in the region");
        assert_eq!(corrupted(&mut model, 100, &image[100..5000]), 0);
    }

    #[test]
    fn an_old_a_misplaced_and_a_lost_write_are_found() {
        let (mut model, _) = model(BLOCK as usize);
        let at = model.start() + 3 * BLOCK;
        let (mut first, mut second, mut other) = (Vec::new(), Vec::new(), Vec::new());
        model.write(3, 2, &mut first);
        model.written(3, 2);
        assert_eq!(corrupted(&mut model, at, &first), 0);
        assert!(corrupted(&mut model, at, &vec![0; 2 * BLOCK as usize]) > 8000, "lost");
        assert!(corrupted(&mut model, at - BLOCK, &first) > 8000, "misplaced");
        model.write(3, 2, &mut second);
        model.write(5, 2, &mut other);
        assert_ne!(first, second);
        assert_ne!(second, other);
        model.written(3, 2);
        let old = model.check(at, &first).unwrap();
        assert!(old.corrupted > 8000, "old");
        assert!(old.first.is_some_and(|what| what.contains("holds version 1 in place of version 2")));
        assert_eq!(corrupted(&mut model, at, &second), 0);
    }

    #[test]
    fn a_failed_write_may_have_happened_until_the_next_succeeds() {
        let (mut model, _) = model(BLOCK as usize);
        let start = model.start();
        let (zeroes, mut failed, mut data) = (vec![0; BLOCK as usize], Vec::new(), Vec::new());
        model.write(0, 1, &mut failed);
        assert_eq!(corrupted(&mut model, start, &zeroes), 0);
        assert_eq!(corrupted(&mut model, start, &failed), 0);
        assert!(corrupted(&mut model, start, &[1; BLOCK as usize]) > 4000, "neither");
        model.write(0, 1, &mut data);
        model.written(0, 1);
        assert!(corrupted(&mut model, start, &zeroes) > 4000);
        assert!(corrupted(&mut model, start, &failed) > 4000);
    }

    #[test]
    fn ranges_are_taken_once() {
        let (mut model, _) = model(BLOCK as usize);
        assert!(model.reserve(4, 4));
        assert!(!model.reserve(7, 1) && !model.reserve(0, 5), "overlap");
        assert!(model.reserve(8, 1) && model.reserve(0, 4), "neighbours");
        model.release(4, 4);
        assert!(model.reserve(7, 1));
    }

    #[test]
    fn a_whole_file_is_compared() {
        let (mut model, mut image) = model(2 * BLOCK as usize);
        image.resize(model.end() as usize, 0);
        let mut data = Vec::new();
        model.write(9, 1, &mut data);
        model.written(9, 1);
        image[11 * BLOCK as usize..12 * BLOCK as usize].copy_from_slice(&data);
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(&image, 0).unwrap();
        let mut done = 0;
        let compared = model.check_file(file.path(), |bytes| done = bytes).unwrap();
        assert_eq!((compared.bytes, compared.corrupted), (model.end(), 0));
        assert_eq!(done, model.end());
        file.as_file().write_all_at(&[0xff; 3], BLOCK).unwrap();
        assert!(model.check_file(file.path(), drop).unwrap().corrupted > 0);
        file.as_file().set_len(BLOCK).unwrap();
        assert!(model.check_file(file.path(), drop).is_err(), "a short image is an error");
    }
}
