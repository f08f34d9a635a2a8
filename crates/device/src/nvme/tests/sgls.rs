//! SGLs: every shape of list, and every wrong one (T6: loops, unaligned, out of range, in the controller's own memory).

use proptest::prelude::*;
use spec::nvme::{SglDescriptor, SglType};

use super::*;

pub(super) fn with_sgl(mut entry: SubmissionEntry, first: SglDescriptor) -> SubmissionEntry {
    let raw = first.as_bytes();
    entry.flags |= 0x40;
    entry.with_prps(
        u64::from_le_bytes(raw[..8].try_into().unwrap()),
        u64::from_le_bytes(raw[8..].try_into().unwrap()),
    )
}

fn block(address: u64, length: usize) -> SglDescriptor {
    SglDescriptor::new(SglType::DATA_BLOCK, address, length as u32)
}

/// Writes descriptors to host memory and returns the descriptor of that segment.
fn segment(rig: &mut Rig<'_>, kind: SglType, at: u64, descriptors: &[SglDescriptor]) -> SglDescriptor {
    let bytes: Vec<u8> = descriptors.iter().flat_map(|descriptor| descriptor.as_bytes().to_vec()).collect();
    rig.host[at as usize..][..bytes.len()].copy_from_slice(&bytes);
    SglDescriptor::new(kind, at, bytes.len() as u32)
}

/// Cuts data into blocks of these lengths, with gaps between them.
fn scattered(lengths: &[usize]) -> Vec<SglDescriptor> {
    let mut at = DATA + 0x404;
    let blocks = lengths.iter().map(|length| {
        let block = block(at, *length);
        at += *length as u64 + 0x1c;
        block
    });
    blocks.collect()
}

fn gather(rig: &Rig<'_>, blocks: &[SglDescriptor]) -> Vec<u8> {
    let piece = |block: &SglDescriptor| {
        rig.host[block.address.get() as usize..][..block.length.get() as usize].to_vec()
    };
    blocks.iter().flat_map(piece).collect()
}

/// Writes and reads back `blocks`, whose list begins with `first`.
fn there_and_back(rig: &mut Rig<'_>, qid: usize, blocks: &[SglDescriptor], first: SglDescriptor) {
    let len: usize = blocks.iter().map(|block| block.length.get() as usize).sum();
    let data = pattern(len, len);
    let mut rest = &data[..];
    for block in blocks {
        let (now, later) = rest.split_at(block.length.get() as usize);
        rig.host[block.address.get() as usize..][..now.len()].copy_from_slice(now);
        rest = later;
    }
    let nlb = (len / 512) as u32;
    assert_eq!(rig.run(qid, with_sgl(SubmissionEntry::write(1, 1, 8, nlb), first)).status(), Status::SUCCESS);
    assert!(rig.disk[4096..][..len] == data, "written");
    for block in blocks {
        rig.host[block.address.get() as usize..][..block.length.get() as usize].fill(0);
    }
    assert_eq!(rig.run(qid, with_sgl(SubmissionEntry::read(1, 1, 8, nlb), first)).status(), Status::SUCCESS);
    assert!(gather(rig, blocks) == data, "read back");
}

#[test]
fn lists_of_every_shape() {
    for deadly in [false, true] {
        with_rig(config(), |rig| {
            rig.start();
            rig.deadly = deadly;
            let one = [block(DATA + 0x204, 128 << 10)];
            there_and_back(rig, 1, &one, one[0]);
            // Many small blocks in one segment that begins just before a page's end.
            let small = scattered(&[512, 4, 508, 4096, 8192, 12, 500, 4096, 4096, 512, 1536, 4, 4, 504]);
            for at in [0x4_0000, 0x4_0ff8, 0x4_0fe8] {
                let first = segment(rig, SglType::LAST_SEGMENT, at, &small);
                there_and_back(rig, 2, &small, first);
            }
            // Three segments, with blocks of nothing in between.
            let (head, tail) = small.split_at(5);
            let last = segment(rig, SglType::LAST_SEGMENT, 0x4_2000, tail);
            let mut middle = head[2..].to_vec();
            middle.extend([block(DATA, 0), last]);
            let middle = segment(rig, SglType::SEGMENT, 0x4_4008, &middle);
            let mut start = head[..2].to_vec();
            start.push(middle);
            let first = segment(rig, SglType::SEGMENT, 0x4_5000, &start);
            there_and_back(rig, 1, &small, first);
            if !deadly {
                let many = scattered(&[256; 512]);
                let first = segment(rig, SglType::LAST_SEGMENT, 0x4_0000, &many);
                there_and_back(rig, 1, &many, first);
            }
            rig.assert_idle();
        });
    }
}

#[test]
fn segments_may_lie_in_the_controller_memory_buffer_but_data_may_not() {
    with_rig(config(), |rig| {
        rig.start();
        let small = scattered(&[512; 20]);
        let bytes: Vec<u8> = small.iter().flat_map(|block| block.as_bytes().to_vec()).collect();
        rig.step(Input::Write(MEMORY_BUFFER_BAR, 0x1_0000, bytes.clone()));
        let first = SglDescriptor::new(SglType::LAST_SEGMENT, BUFFER + 0x1_0000, 320);
        there_and_back(rig, 2, &small, first);
        there_and_back(rig, 1, &small, first);
        let entry = SubmissionEntry::write(1, 1, 0, 1);
        let seen = rig.run(1, with_sgl(entry, block(BUFFER, 512))).status().code();
        assert_eq!(seen, Status::INVALID_USE_OF_CMB);
        let end = super::super::MEMORY_BUFFER_BYTES as u64;
        let over_the_end = SglDescriptor::new(SglType::LAST_SEGMENT, BUFFER + end - 8, 32);
        let seen = rig.run(1, with_sgl(entry, over_the_end)).status().code();
        assert_eq!(seen, Status::INVALID_SGL_SEGMENT_DESCRIPTOR);
        rig.assert_idle();
    });
}

#[test]
fn wrong_lists_have_their_status() {
    with_rig(config(), |rig| {
        rig.start();
        let circle = SglDescriptor::new(SglType::SEGMENT, 0x4_0000, 16);
        segment(rig, SglType::SEGMENT, 0x4_0000, &[circle]);
        let short = segment(rig, SglType::LAST_SEGMENT, 0x4_1000, &[block(DATA, 508)]);
        let early = segment(rig, SglType::SEGMENT, 0x4_2000, &[circle, block(DATA, 512)]);
        let nested = segment(rig, SglType::LAST_SEGMENT, 0x4_3000, &[circle]);
        let odd = segment(rig, SglType::LAST_SEGMENT, 0x4_4000, &[block(DATA, 2), block(DATA, 510)]);
        let nowhere = segment(rig, SglType::LAST_SEGMENT, 0x4_5000, &[block(1 << 40, 512)]);
        let own_registers = segment(rig, SglType::LAST_SEGMENT, 0x4_6000, &[block(BUFFER + 0x100, 512)]);
        let keyed = SglDescriptor::new(SglType::KEYED_DATA_BLOCK, DATA, 512);
        for (first, expected) in [
            (circle, Status::INVALID_SGL_DESCRIPTOR_COUNT),
            (short, Status::DATA_SGL_LENGTH_INVALID),
            (block(DATA, 508), Status::DATA_SGL_LENGTH_INVALID),
            (block(DATA, 0), Status::DATA_SGL_LENGTH_INVALID),
            (early, Status::INVALID_SGL_DESCRIPTOR_COUNT),
            (nested, Status::INVALID_SGL_SEGMENT_DESCRIPTOR),
            (SglDescriptor::new(SglType::SEGMENT, 0x4_0004, 16), Status::INVALID_SGL_SEGMENT_DESCRIPTOR),
            (SglDescriptor::new(SglType::SEGMENT, 0x4_0000, 8), Status::INVALID_SGL_SEGMENT_DESCRIPTOR),
            (SglDescriptor::new(SglType::SEGMENT, !0xf, 32), Status::INVALID_SGL_SEGMENT_DESCRIPTOR),
            (SglDescriptor::new(SglType::SEGMENT, 1 << 40, 16), Status::DATA_TRANSFER_ERROR),
            (odd, Status::SGL_GRANULARITY_INVALID),
            (nowhere, Status::DATA_TRANSFER_ERROR),
            (own_registers, Status::INVALID_USE_OF_CMB),
            (keyed, Status::SGL_DESCRIPTOR_TYPE_INVALID),
        ] {
            let write = with_sgl(SubmissionEntry::write(1, 1, 0, 1), first);
            assert_eq!(rig.run(1, write).status().code(), expected, "{first:?}");
        }
        // A list may be longer than the data (SGLS).
        let longer = with_sgl(SubmissionEntry::write(1, 1, 0, 1), block(DATA, 8192));
        assert_eq!(rig.run(1, longer).status(), Status::SUCCESS);
        rig.assert_idle();
    });
}

fn descriptor() -> impl Strategy<Value = SglDescriptor> {
    let address = prop_oneof![
        4 => (0..256_u64).prop_map(|n| DATA + n * 0x104),
        4 => (0..64_u64).prop_map(|n| 0x4_0000 + n * 16),
        1 => Just(BUFFER + 0x1000),
        1 => any::<u64>(),
    ];
    let length = prop_oneof![(0..64_u32).prop_map(|n| n * 16), Just(4096), 0..70_000_u32, any::<u32>()];
    let id = prop_oneof![3 => Just(0_u8), 2 => Just(0x20), 2 => Just(0x30), 1 => any::<u8>()];
    (address, length, id)
        .prop_map(|(address, length, id)| SglDescriptor { id, ..block(address, 0).with_length(length) })
}

trait WithLength {
    fn with_length(self, length: u32) -> Self;
}

impl WithLength for SglDescriptor {
    fn with_length(mut self, length: u32) -> Self {
        self.length = length.into();
        self
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    /// Whatever lists a host makes of 64 descriptors that point anywhere, also to each other, the command ends.
    #[test]
    fn any_list_ends(
        list in prop::collection::vec(descriptor(), 64),
        first in descriptor(),
        write: bool,
        nlb in 1..257_u32,
    ) {
        with_rig(config(), |rig| {
            rig.start();
            rig.lenient = true;
            segment(rig, SglType::SEGMENT, 0x4_0000, &list);
            let entry = if write { SubmissionEntry::write(1, 1, 0, nlb) } else { SubmissionEntry::read(1, 1, 0, nlb) };
            rig.run(1, with_sgl(entry, first));
            rig.run(2, with_sgl(entry, first));
            rig.assert_idle();
        });
    }
}
