//! What the lent image must contain, byte by byte.
//!
//! The image has two parts. The first is a copy of the source file and is only ever read; the source itself says what
//! it must contain. The second, behind it, is written to: each block holds a pattern that follows from the seed, its
//! number and how often it was written, so that a lost, doubled, misplaced or old write shows.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::random::mix;

/// The unit of writes, in bytes.
pub(super) const BLOCK: u64 = 4096;
/// Bytes behind the source that are written to.
pub(super) const WRITE_AREA: u64 = 32 << 20;
/// Bytes compared at once.
const CHUNK: u64 = 1 << 20;

/// The content of the lent image.
#[derive(Debug)]
pub(super) struct Model {
    seed: u64,
    source: File,
    source_bytes: u64,
    blocks: Vec<Block>,
    /// A buffer for what is expected, kept to spare allocations.
    expected: Vec<u8>,
}

/// A block of the write area.
#[derive(Debug, Clone, Copy)]
struct Block {
    /// How often it was written; 0 is zeroes.
    version: u32,
    /// A request to it is in flight: what it would read is not settled.
    busy: bool,
    /// False after a write that failed: it may have happened.
    known: bool,
}

/// What was compared, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Compared {
    /// Compared.
    pub bytes: u64,
    /// Different from what they must be.
    pub corrupted: u64,
}

impl Model {
    /// The model of an image whose first part is `source`. The write area is zeroes.
    pub(super) fn new(seed: u64, source: File) -> io::Result<Self> {
        let source_bytes = source.metadata()?.len();
        let block = Block { version: 0, busy: false, known: true };
        let blocks = vec![block; (WRITE_AREA / BLOCK) as usize];
        Ok(Self { seed, source, source_bytes, blocks, expected: Vec::new() })
    }

    /// Somebody else writes to the write area, and knows what must be there.
    pub(super) fn leave_write_area(&mut self) {
        self.blocks.iter_mut().for_each(|block| block.known = false);
    }

    /// Size of the image for a source of that size, in bytes.
    pub(super) fn image_bytes(source_bytes: u64) -> u64 {
        source_bytes.next_multiple_of(BLOCK) + WRITE_AREA
    }

    /// Where the write area begins: at the next whole block behind the source.
    pub(super) fn write_start(&self) -> u64 {
        self.source_bytes.next_multiple_of(BLOCK)
    }

    /// Size of the image in bytes.
    pub(super) fn bytes(&self) -> u64 {
        Self::image_bytes(self.source_bytes)
    }

    /// Takes a range of the write area, in blocks from its start, for one request; false if another has some of it.
    pub(super) fn reserve(&mut self, first: u64, count: u64) -> bool {
        let blocks = &mut self.blocks[range(first, count)];
        let free = !blocks.iter().any(|block| block.busy);
        if free {
            blocks.iter_mut().for_each(|block| block.busy = true);
        }
        free
    }

    /// Gives a reserved range back.
    pub(super) fn release(&mut self, first: u64, count: u64) {
        self.blocks[range(first, count)].iter_mut().for_each(|block| block.busy = false);
    }

    /// Fills `data` with what the reserved blocks are to contain next.
    pub(super) fn next_content(&self, first: u64, count: u64, data: &mut Vec<u8>) {
        data.resize((count * BLOCK) as usize, 0);
        for (number, part) in (first..).zip(data.chunks_exact_mut(BLOCK as usize)) {
            let version = self.blocks[number as usize].version + 1;
            fill(self.seed, number, version, part);
        }
    }

    /// Notes how the write of [`next_content`](Self::next_content) ended.
    pub(super) fn written(&mut self, first: u64, count: u64, succeeded: bool) {
        for block in &mut self.blocks[range(first, count)] {
            block.version += 1;
            // A write that succeeds settles what an earlier failure left open.
            block.known = succeeded;
        }
    }

    /// Compares what was read at `offset` of the image with what it must be.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub(super) fn check(&mut self, offset: u64, data: &[u8]) -> io::Result<Compared> {
        assert!(offset + data.len() as u64 <= self.bytes(), "requests stay within the image");
        let mut expected = std::mem::take(&mut self.expected);
        expected.clear();
        expected.resize(data.len(), 0);
        let result =
            self.fill_expected(offset, &mut expected).map(|()| self.differences(offset, data, &expected));
        self.expected = expected;
        result
    }

    /// Compares the whole image at `path`, and calls `progress` with the bytes done.
    pub(super) fn check_file(&mut self, path: &Path, mut progress: impl FnMut(u64)) -> io::Result<Compared> {
        let image = File::open(path)?;
        let mut total = Compared::default();
        let mut data = vec![0; CHUNK as usize];
        let mut offset = 0;
        while offset < self.bytes() {
            let length = CHUNK.min(self.bytes() - offset) as usize;
            let data = &mut data[..length];
            image.read_exact_at(data, offset)?;
            let compared = self.check(offset, data)?;
            total.bytes += compared.bytes;
            total.corrupted += compared.corrupted;
            offset += length as u64;
            progress(offset);
        }
        Ok(total)
    }

    /// `expected` is zeroed by the caller, which is what lies between the source and the write area.
    fn fill_expected(&self, offset: u64, expected: &mut [u8]) -> io::Result<()> {
        let from_source = self.source_bytes.saturating_sub(offset).min(expected.len() as u64) as usize;
        self.source.read_exact_at(&mut expected[..from_source], offset)?;
        let end = offset + expected.len() as u64;
        let mut at = offset.max(self.write_start());
        while at < end {
            let in_area = at - self.write_start();
            let (number, within) = (in_area / BLOCK, (in_area % BLOCK) as usize);
            let length = (BLOCK as usize - within).min((end - at) as usize);
            let mut block = [0; BLOCK as usize];
            fill(self.seed, number, self.blocks[number as usize].version, &mut block);
            let start = (at - offset) as usize;
            expected[start..start + length].copy_from_slice(&block[within..within + length]);
            at += length as u64;
        }
        Ok(())
    }

    fn differences(&self, offset: u64, data: &[u8], expected: &[u8]) -> Compared {
        if data == expected {
            return Compared { bytes: data.len() as u64, corrupted: 0 };
        }
        let mut compared = Compared::default();
        for (at, (is, must)) in (offset..).zip(data.iter().zip(expected)) {
            if self.is_known(at) {
                compared.bytes += 1;
                compared.corrupted += u64::from(is != must);
            }
        }
        compared
    }

    fn is_known(&self, at: u64) -> bool {
        let in_area = at.checked_sub(self.write_start());
        in_area.is_none_or(|in_area| self.blocks[(in_area / BLOCK) as usize].known)
    }
}

fn range(first: u64, count: u64) -> std::ops::Range<usize> {
    first as usize..(first + count) as usize
}

/// The content of a block of the write area; version 0 is zeroes.
pub(super) fn fill(seed: u64, number: u64, version: u32, block: &mut [u8]) {
    if version == 0 {
        return block.fill(0);
    }
    let mut state = mix(mix(seed ^ mix(number)) ^ u64::from(version));
    let (words, rest) = block.as_chunks_mut::<8>();
    for word in words {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        *word = mix(state).to_le_bytes();
    }
    rest.fill(state as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(source_bytes: usize) -> (Model, Vec<u8>) {
        let source: Vec<u8> = (0..source_bytes).map(|at| (at * 7 + at / 251) as u8).collect();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&source, 0).unwrap();
        (Model::new(7, file).unwrap(), source)
    }

    #[test]
    fn the_image_is_source_then_zeroes_then_the_write_area() {
        let (mut model, source) = model(3 * BLOCK as usize + 512);
        assert_eq!(model.write_start(), 4 * BLOCK);
        assert_eq!(model.bytes(), 4 * BLOCK + WRITE_AREA);
        let mut image = source;
        image.resize(6 * BLOCK as usize, 0);
        let all = Compared { bytes: 6 * BLOCK, corrupted: 0 };
        assert_eq!(model.check(0, &image).unwrap(), all);
        for at in [0, 3 * BLOCK as usize + 512, 6 * BLOCK as usize - 1] {
            image[at] ^= 1;
            assert_eq!(model.check(0, &image).unwrap().corrupted, 1, "at {at}");
            image[at] ^= 1;
        }
        assert_eq!(model.check(100, &image[100..5000]).unwrap(), Compared { bytes: 4900, corrupted: 0 });
    }

    #[test]
    fn an_old_a_misplaced_and_a_lost_write_are_found() {
        let (mut model, _) = model(BLOCK as usize);
        let start = model.write_start();
        let (mut first, mut second, mut other) = (Vec::new(), Vec::new(), Vec::new());
        model.next_content(3, 2, &mut first);
        model.written(3, 2, true);
        assert_eq!(model.check(start + 3 * BLOCK, &first).unwrap().corrupted, 0);
        assert!(
            model.check(start + 3 * BLOCK, &vec![0; 2 * BLOCK as usize]).unwrap().corrupted > 8000,
            "lost"
        );
        assert!(model.check(start + 2 * BLOCK, &first).unwrap().corrupted > 8000, "misplaced");
        model.next_content(3, 2, &mut second);
        model.next_content(5, 2, &mut other);
        assert_ne!(first, second);
        assert_ne!(second, other);
        model.written(3, 2, true);
        assert!(model.check(start + 3 * BLOCK, &first).unwrap().corrupted > 8000, "old");
        assert_eq!(model.check(start + 3 * BLOCK, &second).unwrap().corrupted, 0);
    }

    #[test]
    fn a_failed_write_leaves_its_blocks_open_until_the_next_succeeds() {
        let (mut model, _) = model(BLOCK as usize);
        let start = model.write_start();
        let mut data = Vec::new();
        model.next_content(0, 1, &mut data);
        model.written(0, 1, false);
        let zeroes = vec![0; 2 * BLOCK as usize];
        assert_eq!(model.check(start, &zeroes).unwrap(), Compared { bytes: BLOCK, corrupted: 0 });
        model.next_content(0, 1, &mut data);
        model.written(0, 1, true);
        assert!(model.check(start, &zeroes).unwrap().corrupted > 4000);
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
        image.resize(model.bytes() as usize, 0);
        let mut data = Vec::new();
        model.next_content(9, 1, &mut data);
        model.written(9, 1, true);
        image[11 * BLOCK as usize..12 * BLOCK as usize].copy_from_slice(&data);
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(&image, 0).unwrap();
        let mut done = 0;
        let compared = model.check_file(file.path(), |bytes| done = bytes).unwrap();
        assert_eq!(compared, Compared { bytes: model.bytes(), corrupted: 0 });
        assert_eq!(done, model.bytes());
        file.as_file().write_all_at(&[0xff; 3], BLOCK).unwrap();
        assert!(model.check_file(file.path(), drop).unwrap().corrupted > 0);
        file.as_file().set_len(BLOCK).unwrap();
        assert!(model.check_file(file.path(), drop).is_err(), "a short image is an error");
    }
}
