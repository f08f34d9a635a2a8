//! A medium that loses what it was given: whoever hears of it, all are told, until an operator has looked.

use spec::nvme::log::CriticalWarning;
use spec::nvme::registers::{CC, ShutdownStatus};
use spec::nvme::{GetLogPage, LogPageId, NSID_ALL, SmartLog};

use super::shared::{drive, start_all};
use super::*;

const OK: Status = Status::SUCCESS;
const FAILED: Result<(), MediaError> = Err(MediaError::Io);
/// CC of an enabled controller that is asked to shut down.
const SHUT_DOWN: u32 = 0x0046_4001;

fn flush(rig: &mut Rig<'_>, index: usize) -> Status {
    rig.select(index);
    let nsid = [1, 2, 3][index];
    rig.run(1, SubmissionEntry::flush(1, nsid)).status().code()
}

fn write(rig: &mut Rig<'_>, index: usize, fua: bool) -> Status {
    rig.select(index);
    let write = SubmissionEntry::write(1, [1, 2, 3][index], 8, 1).with_prps(DATA, 0);
    rig.run(1, if fua { write.with_fua() } else { write }).status().code()
}

fn is_degraded(rig: &mut Rig<'_>) -> bool {
    let log = GetLogPage::new(LogPageId::SMART, NSID_ALL, 128).entry(1).with_prps(DATA, 0);
    assert_eq!(rig.admin(log).status(), Status::SUCCESS);
    let smart = SmartLog::read_from_bytes(&rig.host[DATA as usize..][..512]).unwrap();
    CriticalWarning(smart.critical_warning).reliability()
}

#[test]
fn an_error_that_is_told_once_fails_the_flushes_of_all_functions() {
    for deadly in [false, true] {
        with_rig(drive(), |rig| {
            start_all(rig);
            rig.deadly = deadly;
            assert_eq!((flush(rig, 0), is_degraded(rig)), (OK, false));
            // The write of one function is lost, and another one hears of it.
            assert_eq!(write(rig, 0, false), OK);
            rig.select(1);
            rig.media_result = FAILED;
            assert_eq!(flush(rig, 1), Status::WRITE_FAULT);
            rig.media_result = Ok(());
            for index in [0, 1, 2] {
                assert_eq!(flush(rig, index), Status::WRITE_FAULT);
                assert_eq!(write(rig, index, true), Status::WRITE_FAULT, "a flush belongs to it");
                assert_eq!(write(rig, index, false), OK);
                assert!(is_degraded(rig));
            }
            rig.step(Input::ClearFault(1));
            assert_eq!((flush(rig, 0), write(rig, 1, true)), (OK, OK));
            assert!(!is_degraded(rig));
            // What is lost afterwards is news to whoever repeats the order, until there is another one.
            rig.select(2);
            rig.media_result = FAILED;
            assert_eq!(flush(rig, 2), Status::WRITE_FAULT);
            rig.media_result = Ok(());
            rig.step(Input::ClearFault(1));
            assert_eq!((flush(rig, 0), is_degraded(rig)), (Status::WRITE_FAULT, true));
            rig.step(Input::ClearFault(2));
            assert_eq!((flush(rig, 0), is_degraded(rig)), (OK, false));
            (0..3).for_each(|index| {
                rig.select(index);
                rig.assert_idle();
            });
        });
    }
}

#[test]
fn what_was_lost_outlives_the_node_until_it_is_cleared() {
    let mut kept = None;
    with_rig(drive(), |rig| {
        start_all(rig);
        rig.keeps = false;
        rig.kept = None;
        rig.media_result = FAILED;
        assert_eq!(flush(rig, 0), Status::WRITE_FAULT);
        rig.media_result = Ok(());
        assert_eq!(
            (flush(rig, 2), rig.kept.is_some()),
            (Status::WRITE_FAULT, false),
            "though nobody can keep it"
        );
        // It is offered again with each flush, until it is kept.
        rig.keeps = true;
        assert_eq!((flush(rig, 1), rig.kept.is_some()), (Status::WRITE_FAULT, true));
        kept = rig.kept.take();
    });
    with_rig(Config { saved: kept.take(), ..drive() }, |rig| {
        start_all(rig);
        assert_eq!(flush(rig, 0), Status::WRITE_FAULT);
        rig.step(Input::ClearFault(1));
        assert_eq!(flush(rig, 0), OK);
        kept = rig.kept.take();
    });
    with_rig(Config { saved: kept, ..drive() }, |rig| {
        start_all(rig);
        assert_eq!(flush(rig, 0), OK);
    });
}

#[test]
fn a_flush_is_answered_with_an_error_only_when_that_is_kept() {
    with_rig(drive(), |rig| {
        start_all(rig);
        rig.submit(1, SubmissionEntry::flush(1, 1));
        while rig.answer() {}
        let op = rig.media.pop_front().unwrap();
        rig.controller.handle_media(rig.now, op.id, FAILED);
        rig.ledger.journal.commit();
        assert!(rig.controller.poll_dma(rig.now, MAX_PAYLOAD).is_none());
        let persist = rig.controller.subsystem().poll_persist().unwrap();
        rig.step(Input::Persisted(persist.version, true));
        assert_eq!(rig.reap(1)[0].status().code(), Status::WRITE_FAULT);
    });
}

#[test]
fn a_flush_that_nobody_waits_for_and_a_write_that_tells_of_others_count_too() {
    with_rig(drive(), |rig| {
        start_all(rig);
        rig.submit(1, SubmissionEntry::flush(1, 1));
        while rig.answer() {}
        rig.write32(CC, 0x0046_0000);
        rig.media_result = FAILED;
        rig.settle();
        rig.media_result = Ok(());
        assert_eq!(flush(rig, 2), Status::WRITE_FAULT);
        rig.step(Input::ClearFault(1));
        rig.media_result = FAILED;
        assert_eq!(write(rig, 2, false), Status::WRITE_FAULT);
        rig.media_result = Ok(());
        assert_eq!(flush(rig, 1), OK, "it has failed, and nothing else");
        rig.media_result = Err(MediaError::Lost);
        assert_eq!(write(rig, 2, false), Status::WRITE_FAULT);
        rig.media_result = Ok(());
        assert_eq!(flush(rig, 1), Status::WRITE_FAULT);
    });
}

#[test]
fn a_shutdown_that_has_failed_is_told_only_when_that_is_kept() {
    for resets in [false, true] {
        with_rig(drive(), |rig| {
            start_all(rig);
            rig.write32(CC, SHUT_DOWN);
            while rig.answer() {}
            let op = rig.media.pop_front().unwrap();
            rig.controller.handle_media(rig.now, op.id, FAILED);
            rig.ledger.journal.commit();
            assert!(!rig.csts().cfs() && rig.csts().shst() == ShutdownStatus::OCCURRING.0);
            let persist = rig.controller.subsystem().poll_persist().unwrap();
            if resets {
                rig.write32(CC, 0x0046_0000);
            }
            rig.step(Input::Persisted(persist.version, true));
            rig.settle();
            assert_eq!(rig.csts().cfs(), !resets);
            rig.write32(CC, 0x0046_0000);
            rig.assert_idle();
        });
    }
}

#[test]
fn a_shutdown_whose_flush_has_failed_does_not_complete() {
    with_rig(drive(), |rig| {
        start_all(rig);
        rig.write32(CC, SHUT_DOWN);
        rig.media_result = FAILED;
        rig.settle();
        assert!(rig.csts().cfs() && rig.csts().shst() == ShutdownStatus::OCCURRING.0);
        assert!(rig.controller.failure().is_some());
        rig.media_result = Ok(());
        // And not of another function.
        rig.select(2);
        rig.write32(CC, SHUT_DOWN);
        rig.settle();
        assert!(rig.csts().cfs() && rig.csts().shst() == ShutdownStatus::OCCURRING.0);
        rig.write32(CC, 0x0046_0000);
        assert_eq!(rig.csts().0, 0);
        rig.assert_idle();
        rig.step(Input::ClearFault(1));
        rig.start();
        rig.write32(CC, SHUT_DOWN);
        rig.settle();
        assert_eq!((rig.csts().cfs(), rig.csts().shst()), (false, ShutdownStatus::COMPLETE.0));
    });
}

#[test]
fn what_a_dead_card_may_have_written_half_comes_before_all_else() {
    with_rig(config(), |rig| {
        rig.start();
        rig.submit(1, SubmissionEntry::read(1, 1, 0, 8).with_prps(DATA, 0));
        rig.submit(1, SubmissionEntry::flush(2, 1));
        rig.submit(1, SubmissionEntry::write(3, 1, 0, 8).with_prps(DATA, 0));
        while rig.answer() {}
        assert_eq!(rig.media[0].kind, MediaKind::Read);
        assert!(!rig.controller.must_redo());
        rig.media.clear();
        rig.replace_card();
        assert!(rig.controller.must_redo());
        rig.drain_media();
        let kinds: Vec<_> = rig.media.iter().map(|op| op.kind).collect();
        assert_eq!(kinds, [MediaKind::Write, MediaKind::Read, MediaKind::Flush]);
        assert!(!rig.controller.must_redo());
        rig.settle();
        assert_eq!(rig.reap(1).len(), 3);
    });
}
