//! The fused operation Compare and Write: the pair, what is no pair, and nobody in between.

use spec::nvme::{FusedOperation, NvmOpcode, SglDescriptor, SglType};

use super::sgls::with_sgl;
use super::*;

const NEW: u64 = DATA + 0x1_0000;

fn halves(slba: u64, nlb: u32) -> [SubmissionEntry; 2] {
    let half = |opcode, cid| SubmissionEntry::nvm_range(opcode, cid, 1, slba, nlb);
    [
        half(NvmOpcode::COMPARE, 1).with_fused(FusedOperation::FIRST).with_prps(DATA, DATA + 0x1000),
        half(NvmOpcode::WRITE, 2).with_fused(FusedOperation::SECOND).with_prps(NEW, NEW + 0x1000),
    ]
}

/// Puts entries into a queue and rings once.
fn submit_all(rig: &mut Rig<'_>, qid: usize, entries: &[SubmissionEntry]) {
    let queue = &mut rig.queues[qid];
    for entry in entries {
        let at = queue.sq as usize + queue.tail as usize * 64;
        rig.host[at..at + 64].copy_from_slice(entry.as_bytes());
        queue.tail = (queue.tail + 1) % queue.size;
    }
    let tail = queue.tail;
    rig.write32(doorbell(qid as u16, false, 0), tail);
}

fn outcome(rig: &mut Rig<'_>, qid: usize) -> Vec<(u16, Status)> {
    rig.settle();
    let mut seen: Vec<_> =
        rig.reap(qid).iter().map(|entry| (entry.cid.get(), entry.status().code())).collect();
    seen.sort_by_key(|(cid, _)| *cid);
    seen
}

#[test]
fn a_pair_writes_only_what_compared_equal() {
    for deadly in [false, true] {
        with_rig(config(), |rig| {
            rig.start();
            rig.deadly = deadly;
            let (old, new) = (pattern(1, 4096), pattern(2, 4096));
            rig.disk[4096..8192].copy_from_slice(&old);
            rig.host[DATA as usize..][..4096].copy_from_slice(&old);
            rig.host[NEW as usize..][..4096].copy_from_slice(&new);
            submit_all(rig, 1, &halves(8, 8));
            assert_eq!(outcome(rig, 1), [(1, Status::SUCCESS), (2, Status::SUCCESS)]);
            assert!(rig.disk[4096..8192] == new);
            submit_all(rig, 1, &halves(8, 8));
            assert_eq!(outcome(rig, 1), [(1, Status::COMPARE_FAILURE), (2, Status::ABORTED_FAILED_FUSED)]);
            assert!(rig.disk[4096..8192] == new);
            rig.assert_idle();
        });
    }
}

#[test]
fn what_is_no_pair_has_its_status() {
    with_rig(config(), |rig| {
        rig.start();
        let [first, second] = halves(0, 1);
        let flush = SubmissionEntry::flush(3, 1);
        let [_, elsewhere] = halves(1, 1);
        let failed = Status::ABORTED_FAILED_FUSED;
        let missing = Status::ABORTED_MISSING_FUSED;
        for (entries, expected) in [
            (vec![first], vec![(1, missing)]),
            (vec![second], vec![(2, missing)]),
            (vec![first, flush], vec![(1, missing), (3, Status::SUCCESS)]),
            (vec![first, elsewhere], vec![(1, failed), (2, Status::INVALID_FIELD)]),
            (
                vec![first, flush.with_fused(FusedOperation::SECOND)],
                vec![(1, failed), (3, Status::INVALID_FIELD)],
            ),
            (halves(0, 9).to_vec(), vec![(1, failed), (2, Status::ATOMIC_WRITE_UNIT_EXCEEDED)]),
            (halves(5000, 1).to_vec(), vec![(1, Status::LBA_OUT_OF_RANGE), (2, failed)]),
            (vec![first.with_prps(1 << 40, 0), second], vec![(1, Status::DATA_TRANSFER_ERROR), (2, failed)]),
            (vec![first, second.with_prps(1 << 40, 0)], vec![(1, failed), (2, Status::DATA_TRANSFER_ERROR)]),
            (vec![flush.with_fused(FusedOperation(3))], vec![(3, Status::INVALID_FIELD)]),
        ] {
            submit_all(rig, 1, &entries);
            assert_eq!(outcome(rig, 1), expected, "{entries:?}");
        }
        rig.assert_idle();
    });
}

/// A list in the controller memory buffer is read at once: the second half has ended before it was looked at.
#[test]
fn a_first_half_that_fails_at_once_takes_the_second_with_it() {
    with_rig(config(), |rig| {
        rig.start();
        let [first, second] = halves(0, 1);
        let too_short = SglDescriptor::new(SglType::LAST_SEGMENT, BUFFER + 0x4_0000, 16);
        submit_all(rig, 1, &[with_sgl(first, too_short), second]);
        let expected = [(1, Status::DATA_SGL_LENGTH_INVALID), (2, Status::ABORTED_FAILED_FUSED)];
        assert_eq!(outcome(rig, 1), expected);
        rig.assert_idle();
    });
}

/// Entries may arrive in another order than that of the queue.
#[test]
fn the_halves_are_found_whatever_arrives_first() {
    with_rig(config(), |rig| {
        rig.start();
        rig.host[NEW as usize..][..512].fill(7);
        let [first, second] = halves(0, 1);
        submit_all(rig, 1, &[first, second, SubmissionEntry::flush(3, 1), SubmissionEntry::flush(4, 1)]);
        assert_eq!(rig.reads.len(), 4);
        rig.reads.make_contiguous().reverse();
        let expected = [1, 2, 3, 4].map(|cid| (cid, Status::SUCCESS));
        assert_eq!(outcome(rig, 1), expected);
        assert!(rig.disk[..512] == [7; 512]);
        rig.assert_idle();
    });
}

#[test]
fn nobody_writes_between_the_halves() {
    with_rig(config(), |rig| {
        rig.start();
        rig.host[NEW as usize..][..512].fill(7);
        rig.host[0x9_0000..][..512].fill(9);
        let other = |cid| SubmissionEntry::write(cid, 1, 0, 1).with_prps(0x9_0000, 0);
        // One write is at the medium already; one comes when the comparison is under way.
        rig.submit(2, other(10));
        while rig.answer() {}
        assert_eq!(rig.media.len(), 1);
        submit_all(rig, 1, &halves(0, 1));
        while rig.answer() {}
        assert_eq!(rig.media.len(), 1, "the comparison waits for the write");
        rig.submit(2, other(11));
        while rig.answer() {}
        assert_eq!(rig.media.len(), 1, "and the later write for the pair");
        rig.host[DATA as usize..][..512].fill(9);
        rig.end_media();
        assert_eq!((rig.media.len(), rig.media[0].kind), (1, MediaKind::Read));
        // The data of the comparison were loaded as zeroes.
        rig.end_media();
        assert_eq!(rig.media.iter().map(|op| op.kind).collect::<Vec<_>>(), [MediaKind::Write]);
        assert_eq!(outcome(rig, 1), [(1, Status::COMPARE_FAILURE), (2, Status::ABORTED_FAILED_FUSED)]);
        assert_eq!(outcome(rig, 2), [(10, Status::SUCCESS), (11, Status::SUCCESS)]);
        // A reset in the middle of a pair frees the namespace.
        submit_all(rig, 1, &halves(0, 1));
        while rig.answer() {}
        assert_eq!(rig.media.len(), 1);
        rig.step(Input::Reset);
        rig.settle();
        rig.assert_idle();
        rig.start();
        assert_eq!(rig.run(1, other(12)).status(), Status::SUCCESS);
        rig.assert_idle();
    });
}
