use spec::nvme::DeleteIoQueue;
use spec::nvme::registers::{CC, ShutdownStatus};

use super::*;

/// One command in each kind of trouble: fetched, loading, at the medium.
fn load(rig: &mut Rig<'_>) {
    let write = SubmissionEntry::write(1, 1, 0, 8).with_prps(DATA, 0);
    rig.submit(2, write);
    while rig.answer() {}
    rig.submit(2, SubmissionEntry::write(2, 1, 8, 8).with_prps(DATA, 0));
    rig.submit(1, SubmissionEntry::read(3, 1, 0, 8).with_prps(DATA, 0));
    assert_eq!((rig.media.len(), rig.reads.len()), (1, 2));
}

#[test]
fn ready_falls_only_when_the_medium_is_done() {
    with_rig(config(), |rig| {
        rig.start();
        load(rig);
        let late: Vec<_> = rig.reads.drain(..).collect();
        rig.write32(CC, 0x0046_0000);
        assert!(rig.csts().rdy() && !rig.controller.is_quiescent());
        assert_eq!(rig.pages().used(), 1, "the medium still reads its page");
        rig.end_media();
        assert!(!rig.csts().rdy());
        rig.assert_idle();
        late.iter().for_each(|(id, _, len, _)| rig.step(Input::Data(*id, 0, vec![0; *len], true)));
        rig.assert_idle();
        rig.start();
        assert_eq!(rig.run(1, SubmissionEntry::flush(1, 1)).status(), Status::SUCCESS);
    });
}

#[test]
fn a_host_that_does_not_wait_for_ready_to_fall_is_served_later() {
    with_rig(config(), |rig| {
        rig.start();
        load(rig);
        rig.reads.clear();
        rig.write32(CC, 0x0046_0000);
        rig.host[0x1000..0x3000].fill(0);
        rig.write32(CC, 0x0046_0001);
        assert!(!rig.csts().rdy());
        rig.settle();
        assert!(rig.csts().rdy());
        rig.queues = vec![queue(0x1000, 0x2000, false)];
        rig.create(1, false);
        rig.assert_idle();
    });
}

#[test]
fn after_a_reset_of_the_function_nothing_is_served_before_the_old_work_has_ended() {
    for flr in [false, true] {
        with_rig(config(), |rig| {
            rig.start();
            load(rig);
            rig.reads.clear();
            if flr {
                let express = rig.capability(0x10);
                rig.step(Input::Config(express + 8, 1 << 15));
            } else {
                rig.step(Input::Reset);
            }
            assert_eq!(rig.read32(CC), 0);
            assert_eq!(
                (rig.csts().0, rig.read32(registers::ASQ), rig.read32(VECTORS_OFFSET + 12)),
                (0, 0, 1)
            );
            assert_eq!(rig.controller.config_read(4) & 0x7, 0);
            rig.enable();
            assert!(!rig.csts().rdy());
            rig.end_media();
            assert!(rig.csts().rdy());
            rig.settle();
            rig.assert_idle();
        });
    }
}

#[test]
fn without_the_rule_old_work_keeps_nobody_waiting() {
    silence_kills();
    let hook = KillAt { left: StdCell::new(u64::MAX) };
    let arena = Arena::default();
    let rules = RuleSet::ALL.without(base::Rule::EndOldIncarnation);
    let rig = &mut Rig::new(&arena, &hook, config(), rules);
    rig.start();
    load(rig);
    rig.write32(CC, 0x0046_0000);
    assert!(!rig.csts().rdy() && rig.controller.is_quiescent());
}

#[test]
fn without_the_rule_a_flush_does_not_wait() {
    silence_kills();
    let hook = KillAt { left: StdCell::new(u64::MAX) };
    let arena = Arena::default();
    let rig = &mut Rig::new(&arena, &hook, config(), RuleSet::ALL.without(base::Rule::FlushWaits));
    rig.start();
    rig.run(1, SubmissionEntry::flush(1, 1));
    assert_eq!(rig.flushes, 0);
    rig.assert_idle();
}

#[test]
fn a_shutdown_flushes_and_says_when() {
    with_rig(config(), |rig| {
        rig.start();
        rig.write32(CC, 0x0046_4001);
        assert_eq!(rig.csts().shst(), ShutdownStatus::OCCURRING.0);
        rig.submit(1, SubmissionEntry::flush(1, 1));
        rig.settle();
        assert_eq!((rig.csts().shst(), rig.flushes), (ShutdownStatus::COMPLETE.0, 1));
        assert!(rig.reap(1).is_empty(), "a controller that was shut down serves nothing");
        rig.write32(CC, 0x0046_0000);
        assert_eq!(rig.csts().0, 0);
        rig.start();
        // A reset in the middle of one: the next waits for the first flush.
        rig.write32(CC, 0x0046_4001);
        rig.write32(CC, 0x0046_0000);
        rig.write32(CC, 0x0046_8000);
        assert_eq!(rig.csts().shst(), ShutdownStatus::OCCURRING.0);
        rig.settle();
        assert_eq!((rig.csts().0, rig.flushes), (8, 3));
        rig.assert_idle();
    });
}

/// Its driver leaves it unsent while there is no credit.
#[test]
fn a_shutdown_is_over_when_nothing_is_left_to_send() {
    with_rig(config(), |rig| {
        rig.start();
        rig.submit(1, SubmissionEntry::read(1, 1, 0, 8).with_prps(DATA, 0));
        while rig.answer() {}
        rig.write32(CC, 0x0046_4001);
        // The read and the flush of the shutdown end, and nobody asks for what is to be sent.
        let ended: Vec<_> = rig.media.drain(..).collect();
        assert_eq!(ended.len(), 2);
        for op in ended {
            rig.execute(&op);
            rig.controller.handle_media(rig.now, op.id, Ok(()));
        }
        rig.ledger.journal.commit();
        assert_eq!(rig.csts().shst(), ShutdownStatus::OCCURRING.0);
        rig.step(Input::Timeout);
        assert_eq!(rig.csts().shst(), ShutdownStatus::COMPLETE.0);
        assert_eq!(rig.reap(1).len(), 1);
        rig.assert_idle();
    });
}

#[test]
fn what_makes_no_sense_is_fatal_until_a_reset() {
    with_rig(config(), |rig| {
        rig.enable();
        rig.write32(CC, 0);
        rig.write32(registers::AQA, 0);
        rig.write32(CC, 0x0046_0001);
        assert!(rig.csts().cfs() && !rig.csts().rdy());
        rig.write32(CC, 0);
        assert_eq!(rig.csts().0, 0);
        rig.write32(registers::AQA, 0x0007_0007);
        rig.write64(registers::ASQ, 1 << 40);
        rig.write32(CC, 0x0046_0001);
        assert!(rig.csts().rdy());
        rig.write32(registers::DOORBELLS, 1);
        rig.settle();
        assert!(rig.csts().cfs() && rig.controller.failure().is_some());
        rig.write32(CC, 0);
        assert_eq!(rig.csts().0, 0);
        rig.start();
        rig.assert_idle();
    });
}

#[test]
fn a_submission_queue_is_deleted_when_nothing_of_it_can_have_an_effect() {
    with_rig(config(), |rig| {
        rig.start();
        load(rig);
        rig.reads.clear();
        rig.submit(0, DeleteIoQueue { qid: 2, is_cq: false }.entry(9));
        while rig.answer() {}
        assert!(rig.reap(0).is_empty());
        rig.end_media();
        assert_eq!(rig.reap(0).len(), 1);
        rig.settle();
        assert!(rig.reap(2).is_empty());
    });
}

#[test]
fn nothing_leaves_before_bus_mastering_is_enabled() {
    with_rig(config(), |rig| {
        rig.start();
        rig.step(Input::Config(4, 2));
        rig.submit(1, SubmissionEntry::flush(1, 1));
        rig.settle();
        assert!(rig.reap(1).is_empty());
        rig.step(Input::Config(4, 6));
        rig.settle();
        assert_eq!(rig.reap(1).len(), 1);
    });
}
