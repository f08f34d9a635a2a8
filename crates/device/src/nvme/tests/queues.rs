//! Queues: sixty-four pairs, lists of pages, shadow doorbells, deletion under load.

use spec::nvme::{AdminOpcode, DeleteIoQueue};

use super::*;

fn completion_queue(qid: u16, entries: u32, contiguous: bool, base: u64) -> SubmissionEntry {
    CreateIoCompletionQueue { qid, entries, vector: qid % 64, interrupts: true, contiguous, base }.entry(0)
}

fn submission_queue(qid: u16, entries: u32, contiguous: bool, base: u64) -> SubmissionEntry {
    let priority = QueuePriority(qid as u8 % 4);
    CreateIoSubmissionQueue { qid, entries, cqid: qid, priority, contiguous, nvm_set: 0, base }.entry(0)
}

#[test]
fn sixty_four_pairs_are_served_in_turn() {
    with_rig(config(), |rig| {
        rig.enable();
        for qid in 1..=64 {
            rig.create(qid, false);
        }
        let seen = rig.admin(completion_queue(65, 8, true, 0x30_0000)).status().code();
        assert_eq!(seen, Status::INVALID_QUEUE_ID);
        // Each has something to do; all are fetched before any is fetched twice.
        for qid in 1..=64_usize {
            (0..2).for_each(|cid| rig.submit(qid, SubmissionEntry::flush(cid, 1)));
        }
        rig.settle();
        for qid in 1..=64 {
            assert_eq!(rig.reap(qid).len(), 2, "queue {qid}");
        }
        // Half of them go under load, in both orders.
        (1..=64).for_each(|qid| rig.submit(qid, SubmissionEntry::flush(3, 1)));
        for qid in (1..=64_u16).step_by(2) {
            rig.submit(0, DeleteIoQueue { qid, is_cq: false }.entry(qid));
            rig.settle();
            rig.submit(0, DeleteIoQueue { qid, is_cq: true }.entry(qid + 100));
            rig.settle();
            assert!(rig.reap(0).iter().all(|entry| entry.status().is_success()));
        }
        for qid in (2..=64).step_by(2) {
            assert_eq!(rig.reap(qid).len(), 1);
        }
        rig.assert_idle();
    });
}

#[test]
fn a_queue_may_lie_in_scattered_pages() {
    for deadly in [false, true] {
        with_rig(config(), |rig| {
            rig.enable();
            rig.deadly = deadly;
            // 256 entries: four pages for submission, one for completion; none of them neighbours.
            let pages = [0x3f_0000_u64, 0x30_4000, 0x31_2000, 0x30_0000];
            let list: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
            rig.host[0x4_0000..][..32].copy_from_slice(&list);
            rig.host[0x4_1000..][..8].copy_from_slice(&0x32_0000_u64.to_le_bytes());
            let unaligned = [0x3f_0008_u64, 0x30_4000, 0x31_2000, 0x30_0000];
            let list: Vec<u8> = unaligned.iter().flat_map(|page| page.to_le_bytes()).collect();
            rig.host[0x4_2000..][..32].copy_from_slice(&list);
            for (entry, expected) in [
                (completion_queue(1, 256, false, 0x4_1008), Status::PRP_OFFSET_INVALID),
                (completion_queue(1, 256, false, 0x4_1000), Status::SUCCESS),
                (submission_queue(1, 256, false, 0x4_2000), Status::PRP_OFFSET_INVALID),
                (submission_queue(1, 256, false, !0xfff), Status::DATA_TRANSFER_ERROR),
                (submission_queue(1, 256, false, 0x4_0000), Status::SUCCESS),
                (submission_queue(1, 256, false, 0x4_0000), Status::INVALID_QUEUE_ID),
            ] {
                assert_eq!(rig.admin(entry).status().code(), expected, "{entry:?}");
            }
            rig.deadly = false;
            let (mut head, mut phase) = (0_usize, true);
            for number in 0..600_u64 {
                let at = pages[number as usize % 256 / 64] as usize + number as usize % 64 * 64;
                let write = SubmissionEntry::write_zeroes(number as u16, 1, number, 1, false);
                rig.host[at..at + 64].copy_from_slice(write.as_bytes());
                rig.write32(doorbell(1, false, 0), (number as u32 + 1) % 256);
                rig.settle();
                let at = 0x32_0000 + head * 16;
                let entry = CompletionEntry::read_from_bytes(&rig.host[at..at + 16]).unwrap();
                assert_eq!(
                    (entry.phase(), entry.cid.get(), entry.status()),
                    (phase, number as u16, Status::SUCCESS)
                );
                head = (head + 1) % 256;
                phase ^= head == 0;
                rig.write32(doorbell(1, true, 0), head as u32);
            }
            rig.assert_idle();
        });
    }
}

const SHADOW: usize = 0x5_0000;
const EVENTS: usize = 0x5_1000;

/// What a driver with shadow doorbells does; returns what it has to ring, if anything.
fn store(rig: &mut Rig<'_>, qid: usize, is_cq: bool, old: u32, new: u32) -> Option<(u64, u32)> {
    let at = (qid * 2 + usize::from(is_cq)) * 4;
    rig.host[SHADOW + at..][..4].copy_from_slice(&new.to_le_bytes());
    let event = u32::from_le_bytes(rig.host[EVENTS + at..][..4].try_into().unwrap());
    let passed =
        (new as u16).wrapping_sub(event as u16).wrapping_sub(1) < (new as u16).wrapping_sub(old as u16);
    passed.then(|| (doorbell(qid as u16, is_cq, 0), new))
}

#[test]
fn shadow_doorbells_lose_nothing() {
    for (deadly, seed) in [(false, 1_u64), (false, 99), (true, 5)] {
        with_rig(config(), |rig| {
            rig.start();
            let buffers = |shadow, events| {
                SubmissionEntry::admin(AdminOpcode::DOORBELL_BUFFER_CONFIG, 1, 0).with_prps(shadow, events)
            };
            for (entry, expected) in [
                (buffers(SHADOW as u64 + 4, EVENTS as u64), Status::INVALID_FIELD),
                (buffers(SHADOW as u64, 0), Status::INVALID_FIELD),
                (buffers(SHADOW as u64, EVENTS as u64), Status::SUCCESS),
            ] {
                assert_eq!(rig.admin(entry).status().code(), expected);
            }
            rig.deadly = deadly;
            let (mut tail, mut head, mut phase, mut random) = (0_u32, 0_u32, true, Random::new(seed));
            let (mut rings, mut sent, mut seen) = (0, 0_u16, 0_u16);
            // Doorbells on their way: in order, but later than what is stored after them.
            let mut bells = VecDeque::new();
            let count = if deadly { 60 } else { 400 };
            let mut turns = 0;
            while seen < count {
                turns += 1;
                assert!(turns < 100_000, "a doorbell was lost: {seen} of {sent}");
                let full = sent - seen >= 7;
                match random.below(16) {
                    0..6 if !full && sent < count => {
                        let at = rig.queues[1].sq as usize + tail as usize * 64;
                        rig.host[at..at + 64].copy_from_slice(SubmissionEntry::flush(sent, 1).as_bytes());
                        let next = (tail + 1) % QUEUE_ENTRIES;
                        let bell = store(rig, 1, false, tail, next);
                        rings += u32::from(bell.is_some());
                        bells.extend(bell);
                        (tail, sent) = (next, sent + 1);
                    }
                    6..9 => drop(rig.answer()),
                    9..12 => drop(rig.end_media()),
                    12 => rig.settle(),
                    13 => {
                        if let Some((register, value)) = bells.pop_front() {
                            rig.write32(register, value);
                        }
                    }
                    _ => {
                        let at = rig.queues[1].cq as usize + head as usize * 16;
                        let entry = CompletionEntry::read_from_bytes(&rig.host[at..at + 16]).unwrap();
                        if entry.phase() == phase {
                            let next = (head + 1) % QUEUE_ENTRIES;
                            phase ^= next == 0;
                            bells.extend(store(rig, 1, true, head, next));
                            (head, seen) = (next, seen + 1);
                        }
                    }
                }
            }
            assert!(rings < u32::from(count), "some doorbells need not ring");
            rig.deadly = false;
            bells.into_iter().for_each(|(register, value)| rig.write32(register, value));
            rig.settle();
            rig.assert_idle();
        });
    }
}
