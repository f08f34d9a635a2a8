use proptest::prelude::*;
use spec::nvme::feature::NumberOfQueues;
use spec::nvme::{
    Abort, AdminOpcode, AsyncEvent, Cns, DatasetManagementRange, DeleteIoQueue, FeatureId, FeatureSelect,
    FormatNvm, FusedOperation, GetFeatures, GetLogPage, Identify, IdentifyController, IdentifyNamespace,
    LogPageId, NSID_ALL, NamespaceIdentifiers, NvmOpcode, SetFeatures, SmartLog,
};

use super::*;

const LIST: u64 = 0x8_0000;

fn status(completion: CompletionEntry) -> Status {
    completion.status().code()
}

#[test]
fn a_host_finds_what_linux_looks_for() {
    with_rig(config(), |rig| {
        assert_eq!(rig.controller.config_read(0x08) >> 8, 0x01_0802);
        let cap = registers::Cap(u64::from(rig.read32(4)) << 32 | u64::from(rig.read32(0)));
        assert_eq!((cap.mqes(), cap.cqr(), cap.dstrd(), cap.mpsmin(), cap.mpsmax()), (1023, false, 0, 0, 0));
        assert!(cap.css_nvm() && cap.crwms() && cap.cmbs() && cap.to() == 20);
        assert_eq!(rig.read32(registers::VS), 0x0002_0000);
        assert_eq!(rig.read32(registers::CMBSZ), 0);
        rig.start();
        let size = registers::CmbSz(rig.read32(registers::CMBSZ));
        assert_eq!(size.bytes(), Some(super::super::MEMORY_BUFFER_BYTES as u64));
        assert!(size.sqs() && size.lists() && !size.cqs() && !size.rds() && !size.wds());
        let identify = |cns, nsid| Identify::new(cns, nsid).entry(7).with_prps(DATA, 0);
        assert_eq!(status(rig.admin(identify(Cns::CONTROLLER, 0))), Status::SUCCESS);
        let data = IdentifyController::read_from_bytes(&rig.host[DATA as usize..][..4096]).unwrap();
        assert_eq!((data.mdts, data.sqes, data.cqes, data.nn.get()), (5, 0x66, 0x44, 1));
        assert_eq!(spec::nvme::identify::ascii(&data.mn), Some("Causeway NVMe"));
        assert_eq!(status(rig.admin(identify(Cns::NAMESPACE, 1))), Status::SUCCESS);
        let data = IdentifyNamespace::read_from_bytes(&rig.host[DATA as usize..][..4096]).unwrap();
        assert_eq!((data.nsze.get(), data.current_format().block_size()), (2048, Some(512)));
        assert_eq!(status(rig.admin(identify(Cns::ACTIVE_NAMESPACES, 0))), Status::SUCCESS);
        assert_eq!(rig.host[DATA as usize..][..8], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(status(rig.admin(identify(Cns::NAMESPACE_DESCRIPTORS, 1))), Status::SUCCESS);
        assert_eq!(NamespaceIdentifiers::new(&rig.host[DATA as usize..][..4096]).count(), 4);
        for (cns, nsid, expected) in [
            (Cns::IO_NAMESPACE, 1, Status::SUCCESS),
            (Cns::IO_CONTROLLER, 0, Status::SUCCESS),
            (Cns::INDEPENDENT_NAMESPACE, 1, Status::SUCCESS),
            (Cns::NAMESPACE, 2, Status::INVALID_NAMESPACE_OR_FORMAT),
            (Cns::NAMESPACE, NSID_ALL, Status::INVALID_NAMESPACE_OR_FORMAT),
            (Cns::ACTIVE_NAMESPACES, NSID_ALL, Status::INVALID_NAMESPACE_OR_FORMAT),
            (Cns::SUBSYSTEM_CONTROLLERS, 0, Status::INVALID_FIELD),
        ] {
            assert_eq!(status(rig.admin(identify(cns, nsid))), expected, "{cns:?}");
        }
        rig.assert_idle();
    });
}

#[test]
fn data_arrive_at_any_offset_and_through_any_list() {
    with_rig(config(), |rig| {
        rig.start();
        for (qid, offset, len, list) in [
            (1, 0, 512, LIST),
            (2, 0x204, 4096, LIST),
            (1, 0xffc, 8192, LIST + 0xff0),
            (2, 0, 128 << 10, LIST),
            (1, 0xe04, 128 << 10, LIST + 0xff8),
            (2, 0x800, 64 << 10, LIST + 0xfc8),
        ] {
            let data = pattern(offset + len, len);
            let address = DATA + offset as u64;
            rig.host[address as usize..][..len].copy_from_slice(&data);
            let write = SubmissionEntry::write(1, 1, 16, (len / 512) as u32);
            let write = prps(rig, write, address, len, list);
            assert_eq!(status(rig.run(qid, write)), Status::SUCCESS, "{offset:#x} {len}");
            assert_eq!(rig.disk[16 * 512..][..len], data);
            rig.host[DATA as usize..][..(len + 8192)].fill(0xee);
            let read = SubmissionEntry::read(2, 1, 16, (len / 512) as u32);
            let read = prps(rig, read, address, len, list);
            assert_eq!(status(rig.run(qid, read)), Status::SUCCESS);
            assert!(rig.host[address as usize..][..len] == data);
            assert!(rig.host[DATA as usize..address as usize].iter().all(|byte| *byte == 0xee));
            assert!(rig.host[address as usize + len..][..64].iter().all(|byte| *byte == 0xee));
        }
        rig.assert_idle();
    });
}

#[test]
fn lists_may_lie_in_the_controller_memory_buffer_but_data_may_not() {
    with_rig(config(), |rig| {
        rig.start();
        let list = 0x1_0000_u64;
        let pages: Vec<u8> = (1..4_u64).flat_map(|page| (DATA + page * 4096).to_le_bytes()).collect();
        rig.step(Input::Write(MEMORY_BUFFER_BAR, list, pages));
        let write = SubmissionEntry::write(1, 1, 0, 32);
        rig.host[DATA as usize..][..16384].copy_from_slice(&pattern(1, 16384));
        assert_eq!(status(rig.run(2, write.with_prps(DATA, BUFFER + list))), Status::SUCCESS);
        assert!(rig.disk[..16384] == pattern(1, 16384));
        assert_eq!(status(rig.run(2, write.with_prps(BUFFER, BUFFER + list))), Status::INVALID_USE_OF_CMB);
        rig.assert_idle();
    });
}

#[test]
fn wrong_arguments_have_their_status() {
    with_rig(config(), |rig| {
        rig.start();
        let read = |slba, nlb| SubmissionEntry::read(3, 1, slba, nlb).with_prps(DATA, DATA + 0x1000);
        let reserved = SubmissionEntry { flags: 0xc0, ..read(0, 1) };
        let chained = SubmissionEntry::read(3, 1, 0, 64).with_prps(DATA, LIST + 0xff8);
        rig.host[LIST as usize + 0xff8..][..8].copy_from_slice(&(LIST + 0x2008).to_le_bytes());
        for (entry, expected) in [
            (read(2048, 1), Status::LBA_OUT_OF_RANGE),
            (read(2047, 2), Status::LBA_OUT_OF_RANGE),
            (read(u64::MAX, 1), Status::LBA_OUT_OF_RANGE),
            (read(0, 257), Status::INVALID_FIELD),
            (read(0, 1).with_prps(DATA + 2, 0), Status::PRP_OFFSET_INVALID),
            (read(0, 16).with_prps(DATA, DATA + 0x1004), Status::PRP_OFFSET_INVALID),
            (read(0, 64).with_prps(DATA, LIST + 4), Status::PRP_OFFSET_INVALID),
            (chained, Status::PRP_OFFSET_INVALID),
            (read(0, 64).with_prps(DATA, !7), Status::DATA_TRANSFER_ERROR),
            (reserved, Status::INVALID_FIELD),
            (read(0, 1).with_fused(FusedOperation::FIRST), Status::ABORTED_MISSING_FUSED),
            (SubmissionEntry::read(3, 2, 0, 1), Status::INVALID_NAMESPACE_OR_FORMAT),
            (SubmissionEntry::read(3, NSID_ALL, 0, 1), Status::INVALID_NAMESPACE_OR_FORMAT),
            (SubmissionEntry::nvm(NvmOpcode::RESERVATION_ACQUIRE, 3, 1), Status::INVALID_OPCODE),
            (SubmissionEntry::write(3, 1, 0, 1).with_prps(1 << 40, 0), Status::DATA_TRANSFER_ERROR),
            (SubmissionEntry::write_zeroes(3, 1, 2000, 100, false), Status::LBA_OUT_OF_RANGE),
        ] {
            let completion = rig.run(1, entry);
            assert_eq!(status(completion), expected, "{entry:?}");
            assert_eq!(completion.status().dnr(), expected != Status::DATA_TRANSFER_ERROR);
        }
        assert_eq!(
            status(rig.admin(SubmissionEntry::admin(AdminOpcode::FORMAT_NVM, 1, 1))),
            Status::INVALID_OPCODE
        );
        rig.assert_idle();
    });
}

#[test]
fn queues_are_created_and_deleted_only_where_that_makes_sense() {
    with_rig(config(), |rig| {
        rig.start();
        let cq = CreateIoCompletionQueue {
            qid: 3,
            entries: 8,
            vector: 0,
            interrupts: true,
            contiguous: true,
            base: 0x20_0000,
        };
        let sq = CreateIoSubmissionQueue {
            qid: 3,
            entries: 8,
            cqid: 1,
            priority: QueuePriority::URGENT,
            contiguous: true,
            nvm_set: 0,
            base: 0x21_0000,
        };
        for (entry, expected) in [
            (CreateIoCompletionQueue { qid: 0, ..cq }.entry(1), Status::INVALID_QUEUE_ID),
            (CreateIoCompletionQueue { qid: 1, ..cq }.entry(1), Status::INVALID_QUEUE_ID),
            (CreateIoCompletionQueue { qid: 65, ..cq }.entry(1), Status::INVALID_QUEUE_ID),
            (CreateIoCompletionQueue { entries: 1, ..cq }.entry(1), Status::INVALID_QUEUE_SIZE),
            (CreateIoCompletionQueue { entries: 1025, ..cq }.entry(1), Status::INVALID_QUEUE_SIZE),
            (CreateIoCompletionQueue { vector: 64, ..cq }.entry(1), Status::INVALID_INTERRUPT_VECTOR),
            (CreateIoCompletionQueue { base: 0x20_0010, ..cq }.entry(1), Status::PRP_OFFSET_INVALID),
            (CreateIoCompletionQueue { base: BUFFER, ..cq }.entry(1), Status::INVALID_USE_OF_CMB),
            (CreateIoSubmissionQueue { qid: 2, ..sq }.entry(1), Status::INVALID_QUEUE_ID),
            (CreateIoSubmissionQueue { cqid: 0, ..sq }.entry(1), Status::INVALID_QUEUE_ID),
            (CreateIoSubmissionQueue { cqid: 5, ..sq }.entry(1), Status::COMPLETION_QUEUE_INVALID),
            (
                CreateIoSubmissionQueue { base: BUFFER - 0x1000, entries: 128, ..sq }.entry(1),
                Status::INVALID_USE_OF_CMB,
            ),
            (CreateIoSubmissionQueue { base: !0xfff, entries: 1024, ..sq }.entry(1), Status::INVALID_FIELD),
            (DeleteIoQueue { qid: 1, is_cq: true }.entry(1), Status::INVALID_QUEUE_DELETION),
            (DeleteIoQueue { qid: 4, is_cq: true }.entry(1), Status::INVALID_QUEUE_ID),
            (DeleteIoQueue { qid: 0, is_cq: false }.entry(1), Status::INVALID_QUEUE_ID),
            (DeleteIoQueue { qid: 1, is_cq: false }.entry(1), Status::SUCCESS),
            (DeleteIoQueue { qid: 1, is_cq: true }.entry(1), Status::SUCCESS),
            (cq.entry(1), Status::SUCCESS),
        ] {
            assert_eq!(status(rig.admin(entry)), expected, "{entry:?}");
        }
        rig.assert_idle();
    });
}

#[test]
fn the_queues_wrap_and_hold_what_does_not_fit() {
    with_rig(config(), |rig| {
        rig.start();
        for round in 0..5_u16 {
            for cid in 0..7 {
                rig.submit(1, SubmissionEntry::flush(round * 8 + cid, NSID_ALL));
            }
            rig.settle();
            // The completion queue is full, and the submission queue empty again: seven more go in, and wait.
            let head = |seen: &[CompletionEntry]| seen.last().unwrap().sq_head.get();
            for cid in 0..7 {
                rig.submit(1, SubmissionEntry::flush(100 + round * 8 + cid, 1));
            }
            rig.settle();
            let first = rig.reap(1);
            assert_eq!(first.len(), 7);
            let second = rig.reap(1);
            assert_eq!(second.len(), 7, "round {round}");
            assert_eq!(u32::from(head(&second)), rig.queues[1].tail);
        }
        assert_eq!(rig.flushes, 70);
        rig.assert_idle();
    });
}

#[test]
fn fua_and_a_cache_turned_off_flush_behind_the_write() {
    with_rig(config(), |rig| {
        rig.start();
        let write = SubmissionEntry::write(1, 1, 0, 1).with_prps(DATA, 0);
        rig.run(1, write);
        assert_eq!(rig.flushes, 0);
        rig.run(1, write.with_fua());
        assert_eq!(rig.flushes, 1);
        let cache =
            SetFeatures { fid: FeatureId::VOLATILE_WRITE_CACHE, save: false, nsid: 0, dw11: 0, dw12: 0 };
        assert_eq!(status(rig.admin(cache.entry(1))), Status::SUCCESS);
        rig.run(1, SubmissionEntry::write_zeroes(1, 1, 0, 1, false));
        assert_eq!(rig.flushes, 2);
        rig.assert_idle();
    });
}

#[test]
fn a_host_that_keeps_nothing_sees_no_cache_and_has_each_write_flushed() {
    let config = Config { cache: WriteCache::Hidden, ..config() };
    with_rig(config, |rig| {
        rig.start();
        let write = SubmissionEntry::write(1, 1, 0, 1).with_prps(DATA, 0);
        let zeroes = SubmissionEntry::write_zeroes(1, 1, 0, 1, false);
        let ranges = [DatasetManagementRange::new(0, 4), DatasetManagementRange::new(100, 2)];
        rig.host[DATA as usize..][..32].copy_from_slice(ranges.as_bytes());
        let deallocate = SubmissionEntry::deallocate(1, 1, 2).with_prps(DATA, 0);
        for (entry, flushes) in [(write, 1), (zeroes, 2), (deallocate, 3), (write.with_fua(), 4)] {
            assert_eq!(status(rig.run(1, entry)), Status::SUCCESS);
            assert_eq!(rig.flushes, flushes, "once behind all ranges");
        }
        let vwc = |rig: &mut Rig<'_>| {
            let identify = Identify::new(Cns::CONTROLLER, 0).entry(7).with_prps(LIST, 0);
            assert_eq!(status(rig.admin(identify)), Status::SUCCESS);
            IdentifyController::read_from_bytes(&rig.host[LIST as usize..][..4096]).unwrap().vwc & 1
        };
        assert_eq!(vwc(rig), 0);
        // It cannot turn on what it does not have.
        let cache =
            |dw11| SetFeatures { fid: FeatureId::VOLATILE_WRITE_CACHE, save: false, nsid: 0, dw11, dw12: 0 };
        for dw11 in [0, 1] {
            assert_eq!(status(rig.admin(cache(dw11).entry(1))), Status::INVALID_FIELD);
        }
        rig.write32(registers::HOST_KEEPS, 1);
        assert_eq!(vwc(rig), 1);
        rig.run(1, write);
        assert_eq!(rig.flushes, 4, "its host keeps it");
        assert_eq!(status(rig.admin(cache(0).entry(1))), Status::SUCCESS);
        rig.run(1, write);
        assert_eq!(rig.flushes, 5);
        rig.write32(registers::CC, 0);
        rig.start();
        rig.run(1, write);
        assert_eq!((rig.flushes, vwc(rig)), (6, 0), "the next host may keep nothing");
        rig.assert_idle();
    });
}

/// Everything that a host may know a drive by.
#[test]
fn a_drive_whose_cache_was_lost_is_another_one() {
    let names = |cache| {
        let mut names = Vec::new();
        with_rig(Config { cache, ..config() }, |rig| {
            rig.start();
            let identify = |rig: &mut Rig<'_>, cns, nsid| {
                let entry = Identify::new(cns, nsid).entry(7).with_prps(LIST, 0);
                assert_eq!(status(rig.admin(entry)), Status::SUCCESS);
                rig.host[LIST as usize..][..4096].to_vec()
            };
            let controller = identify(rig, Cns::CONTROLLER, 0);
            names.push(controller[4..24].to_vec());
            names.push(controller[768..1024].to_vec());
            let namespace = identify(rig, Cns::NAMESPACE, 1);
            names.push(namespace[104..120].to_vec());
            names.push(namespace[120..128].to_vec());
            names.push(identify(rig, Cns::NAMESPACE_DESCRIPTORS, 1));
            let capability = pcie::capability::find_extended(
                |at| rig.controller.layout().initial(at),
                pcie::spec::capability::EXTENDED_SERIAL_NUMBER,
            );
            let at = capability.unwrap();
            names.push([4, 8].map(|dword| rig.controller.config_read(at + dword).to_le_bytes()).concat());
        });
        names
    };
    let own = names(WriteCache::Hidden);
    assert_eq!(names(WriteCache::Absent), own);
    let [one, other] = [0x1234_5678_9abc_def0, 2].map(|keeper| names(WriteCache::Shown { keeper }));
    assert_eq!(names(WriteCache::Shown { keeper: 2 }), other);
    for (name, (one, other)) in own.iter().zip(one.iter().zip(&other)) {
        assert!(one != other && one != name && other != name, "{one:x?} {other:x?}");
    }
}

#[test]
fn a_format_is_durable_before_its_new_blocks_are() {
    let config = Config { cache: WriteCache::Hidden, keeps_state: true, ..config() };
    with_rig(config, |rig| {
        rig.start();
        rig.run(1, SubmissionEntry::write(1, 1, 0, 1).with_prps(DATA, 0));
        let flushes = rig.flushes;
        let (extended_metadata, protection_first) = (false, false);
        let format = FormatNvm {
            nsid: 1,
            lba_format: 1,
            extended_metadata,
            protection: 0,
            protection_first,
            secure_erase: 0,
        };
        assert_eq!(status(rig.admin(format.entry(1))), Status::SUCCESS);
        assert_eq!(rig.flushes, flushes + 1);
        rig.assert_idle();
    });
}

#[test]
fn deallocation_and_zeroes_reach_the_medium() {
    with_rig(config(), |rig| {
        rig.start();
        rig.disk.fill(0xff);
        let ranges = [(0, 4), (100, 0), (200, 8)].map(|(slba, nlb)| DatasetManagementRange::new(slba, nlb));
        rig.host[DATA as usize..][..48].copy_from_slice(ranges.as_bytes());
        assert_eq!(
            status(rig.run(2, SubmissionEntry::deallocate(1, 1, 3).with_prps(DATA, 0))),
            Status::SUCCESS
        );
        assert_eq!(
            status(rig.run(2, SubmissionEntry::write_zeroes(1, 1, 1000, 1048, true))),
            Status::SUCCESS
        );
        let zeroes = rig.disk.iter().filter(|byte| **byte == 0).count();
        assert_eq!(zeroes, (4 + 8 + 1048) * 512);
        let bad = [DatasetManagementRange::new(2047, 2)];
        rig.host[DATA as usize..][..16].copy_from_slice(bad.as_bytes());
        let bad = SubmissionEntry::deallocate(1, 1, 1).with_prps(DATA, 0);
        assert_eq!(status(rig.run(2, bad)), Status::LBA_OUT_OF_RANGE);
        rig.assert_idle();
    });
}

#[test]
fn what_the_medium_refuses_is_told() {
    with_rig(config(), |rig| {
        rig.start();
        for (result, on_read, on_write) in [
            (MediaError::NoSpace, Status::CAPACITY_EXCEEDED, Status::CAPACITY_EXCEEDED),
            (MediaError::ReadOnly, Status::NAMESPACE_WRITE_PROTECTED, Status::NAMESPACE_WRITE_PROTECTED),
            (MediaError::Io, Status::UNRECOVERED_READ_ERROR, Status::WRITE_FAULT),
        ] {
            rig.media_result = Err(result);
            assert_eq!(status(rig.run(1, SubmissionEntry::read(1, 1, 0, 1).with_prps(DATA, 0))), on_read);
            assert_eq!(status(rig.run(1, SubmissionEntry::write(1, 1, 0, 1).with_prps(DATA, 0))), on_write);
        }
        rig.assert_idle();
    });
    with_rig(Config { read_only: true, ..config() }, |rig| {
        rig.start();
        for entry in [
            SubmissionEntry::write(1, 1, 0, 1),
            SubmissionEntry::write_zeroes(1, 1, 0, 1, false),
            SubmissionEntry::deallocate(1, 1, 1),
        ] {
            assert_eq!(status(rig.run(1, entry.with_prps(DATA, 0))), Status::NAMESPACE_WRITE_PROTECTED);
        }
    });
}

#[test]
fn features_and_log_pages() {
    with_rig(config(), |rig| {
        rig.enable();
        let set = |fid, dw11| SetFeatures { fid, save: false, nsid: 0, dw11, dw12: 0 }.entry(1);
        let get = |fid, dw11| GetFeatures { fid, select: FeatureSelect::CURRENT, nsid: 0, dw11 }.entry(1);
        let queues = rig.admin(set(FeatureId::NUMBER_OF_QUEUES, 0x003f_003f));
        assert_eq!(NumberOfQueues(queues.dw0.get()), NumberOfQueues::from_counts(64, 64));
        rig.create(1, false);
        for (fid, dw11, value) in [
            (FeatureId::ARBITRATION, 0x0102_0303, 0x0102_0303),
            (FeatureId::TEMPERATURE_THRESHOLD, 0x150, 0x150),
            (FeatureId::INTERRUPT_COALESCING, 0x0205, 0x0205),
            (FeatureId::INTERRUPT_VECTOR_CONFIGURATION, 0x1_0003, 0x1_0003),
            (FeatureId::ASYNC_EVENT_CONFIGURATION, 0x1f, 0x1f),
        ] {
            assert_eq!(status(rig.admin(set(fid, dw11))), Status::SUCCESS, "{fid:?}");
            assert_eq!(rig.admin(get(fid, dw11)).dw0.get(), value, "{fid:?}");
        }
        assert_eq!(status(rig.admin(set(FeatureId::HOST_MEMORY_BUFFER, 0))), Status::INVALID_FIELD);
        rig.run(1, SubmissionEntry::read(1, 1, 0, 1).with_prps(DATA, 0));
        let log =
            |lid, dwords| GetLogPage::new(lid, NSID_ALL, dwords).entry(1).with_prps(DATA, DATA + 0x1000);
        assert_eq!(status(rig.admin(log(LogPageId::SMART, 128))), Status::SUCCESS);
        let smart = SmartLog::read_from_bytes(&rig.host[DATA as usize..][..512]).unwrap();
        assert_eq!((smart.host_read_commands.get(), smart.data_units_read.get()), (1, 1));
        for lid in [LogPageId::ERROR_INFORMATION, LogPageId::FIRMWARE_SLOT, LogPageId::SUPPORTED_LOG_PAGES] {
            assert_eq!(status(rig.admin(log(lid, 2048))), Status::SUCCESS);
        }
        assert_eq!(status(rig.admin(log(LogPageId::SANITIZE_STATUS, 1))), Status::INVALID_LOG_PAGE);
        assert_eq!(status(rig.admin(log(LogPageId::SMART, 1 << 20))), Status::INVALID_FIELD);
        rig.assert_idle();
    });
}

#[test]
fn events_are_held_reported_once_and_rearmed() {
    with_rig(config(), |rig| {
        rig.start();
        let request = |cid| SubmissionEntry::admin(AdminOpcode::ASYNC_EVENT_REQUEST, cid, 0);
        (0..4).for_each(|cid| rig.submit(0, request(cid)));
        rig.settle();
        assert!(rig.reap(0).is_empty());
        assert_eq!(status(rig.admin(request(9))), Status::ASYNC_EVENT_LIMIT_EXCEEDED);
        rig.write32(doorbell(1, false, 0), 8);
        let seen = rig.reap(0);
        assert_eq!((seen.len(), seen[0].dw0.get()), (1, AsyncEvent::INVALID_DOORBELL_VALUE.0));
        rig.write32(doorbell(9, false, 0), 1);
        assert!(rig.reap(0).is_empty(), "reported only when the log page has been read");
        rig.submit(0, GetLogPage::new(LogPageId::ERROR_INFORMATION, 0, 16).entry(8).with_prps(DATA, 0));
        rig.settle();
        assert_eq!(rig.reap(0).len(), 2);
        let abort = rig_abort(rig, 0, 3);
        assert_eq!(abort, (0, vec![(3, Status::ABORT_REQUESTED)]));
    });
}

/// Aborts a command; returns the result and the other completions seen.
fn rig_abort(rig: &mut Rig<'_>, sqid: u16, command: u16) -> (u32, Vec<(u16, Status)>) {
    rig.submit(0, Abort { sqid, command }.entry(77));
    while rig.answer() {}
    let mut others = Vec::new();
    let mut result = None;
    for entry in rig.reap(0) {
        if entry.cid.get() == 77 {
            result = Some(entry.dw0.get());
        } else {
            others.push((entry.cid.get(), status(entry)));
        }
    }
    (result.unwrap(), others)
}

#[test]
fn abort_ends_what_waits_and_leaves_what_works() {
    with_rig(config(), |rig| {
        rig.start();
        let read = SubmissionEntry::read(5, 1, 0, 1).with_prps(DATA, 0);
        rig.submit(1, read);
        rig.answer();
        assert_eq!(rig_abort(rig, 1, 5), (Abort::NOT_ABORTED, vec![]));
        rig.settle();
        assert_eq!(rig.reap(1).len(), 1);
        let write = SubmissionEntry::write(6, 1, 0, 1).with_prps(DATA, 0);
        rig.submit(2, write);
        let late = rig.reads.pop_front().unwrap();
        assert_eq!(rig_abort(rig, 2, 6).0, 0);
        assert_eq!(
            rig.reap(2).iter().map(|seen| status(*seen)).collect::<Vec<_>>(),
            [Status::ABORT_REQUESTED]
        );
        rig.submit(2, SubmissionEntry::write(7, 1, 1, 1).with_prps(DATA + 512, 0));
        rig.step(Input::Data(late.0, 0, vec![0xdd; 512], true));
        rig.settle();
        assert_eq!(rig.reap(2).len(), 1);
        assert!(rig.disk.iter().all(|byte| *byte == 0), "late data went nowhere");
        rig.assert_idle();
    });
}

#[test]
fn interrupts_respect_both_masks() {
    with_rig(config(), |rig| {
        rig.start();
        rig.messages.clear();
        rig.run(1, SubmissionEntry::flush(1, 1));
        assert_eq!(rig.messages, [(MESSAGES + 4, 0x41)]);
        let entry = VECTORS_OFFSET + 16;
        rig.write32(entry + 12, 1);
        rig.run(1, SubmissionEntry::flush(1, 1));
        rig.run(1, SubmissionEntry::flush(1, 1));
        assert_eq!((rig.messages.len(), rig.read32(super::super::PENDING_OFFSET)), (1, 2));
        rig.write32(entry + 12, 0);
        assert_eq!((rig.messages.len(), rig.read32(super::super::PENDING_OFFSET)), (2, 0));
        let msix = rig.capability(0x11);
        rig.step(Input::Config(msix, 3 << 30));
        rig.run(1, SubmissionEntry::flush(1, 1));
        assert_eq!(rig.messages.len(), 2);
        rig.step(Input::Config(msix, 1 << 31));
        assert_eq!(rig.messages.len(), 3);
    });
}

#[test]
fn large_commands_wait_for_pages_in_order() {
    with_rig(config(), |rig| {
        rig.start();
        let pages = rig.pages();
        let hoard: Vec<_> = std::iter::from_fn(|| pages.alloc()).collect();
        rig.ledger.journal.commit();
        let big = SubmissionEntry::read(1, 1, 0, 256);
        let big = prps(rig, big, DATA, 128 << 10, LIST);
        rig.submit(1, big);
        rig.settle();
        rig.submit(2, SubmissionEntry::read(2, 1, 0, 1).with_prps(DATA, 0));
        rig.settle();
        rig.step(Input::Release(hoard[..20].to_vec()));
        rig.settle();
        assert!(rig.reap(1).is_empty() && rig.reap(2).is_empty(), "the small one does not overtake");
        rig.step(Input::Release(hoard[20..33].to_vec()));
        rig.settle();
        assert_eq!((rig.reap(1).len(), rig.reap(2).len()), (1, 1));
        rig.step(Input::Release(hoard[33..].to_vec()));
        rig.assert_idle();
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Whatever a host writes where, and even if each card dies before each of its stores, the controller lives and,
    /// after a reset, serves.
    #[test]
    fn nothing_a_host_does_panics(actions in proptest::collection::vec(action(), 1..60), lives in 0..8_u8) {
        with_rig(config(), |rig| {
            rig.start();
            rig.lenient = true;
            rig.deadly = lives == 0;
            for action in actions {
                match action {
                    Action::Entry(qid, entry) if rig.queues.len() > qid => rig.submit(qid, entry),
                    Action::Entry(..) => {}
                    Action::Register(offset, value) => rig.write32(offset, value),
                    Action::Config(register, value) => rig.step(Input::Config(register, value)),
                    Action::Answer => drop(rig.answer()),
                    Action::Media => drop(rig.end_media()),
                    Action::Data(id, offset, len, last) => {
                        rig.step(Input::Data(DmaId(id), offset, vec![1; len], last));
                    }
                }
            }
            rig.settle();
            rig.step(Input::Reset);
            rig.settle();
            rig.assert_idle();
            rig.start();
            assert_eq!(status(rig.run(2, SubmissionEntry::flush(1, 1))), Status::SUCCESS);
        });
    }
}

#[derive(Clone, Debug)]
enum Action {
    Entry(usize, SubmissionEntry),
    Register(u64, u32),
    Config(u16, u32),
    Answer,
    Media,
    Data(u32, usize, usize, bool),
}

fn entry() -> impl Strategy<Value = SubmissionEntry> {
    let small = prop_oneof![Just(0_u32), Just(1), Just(7), 0..300_u32, any::<u32>()];
    let address = prop_oneof![
        (0..512_u64).prop_map(|page| DATA + page * 0x400),
        Just(BUFFER + 0x2000),
        Just(LIST + 0xff8),
        any::<u64>(),
    ];
    let opcode = prop_oneof![0..13_u8, any::<u8>()];
    let flags = prop_oneof![9 => Just(0_u8), 1 => any::<u8>()];
    (opcode, flags, small.clone(), address.clone(), address, [small.clone(), small.clone(), small]).prop_map(
        |(opcode, flags, nsid, prp1, prp2, [dw10, dw11, dw12])| SubmissionEntry {
            opcode,
            flags,
            nsid: nsid.into(),
            prp1: prp1.into(),
            prp2: prp2.into(),
            cdw10: dw10.into(),
            cdw11: (dw11 & !0xffff).into(),
            cdw12: dw12.into(),
            ..SubmissionEntry::default()
        },
    )
}

fn action() -> impl Strategy<Value = Action> {
    let offset = prop_oneof![0..0x80_u64, 0x1000..0x10a0_u64, 0x8000..0x8120_u64, 0..0x1_0000_u64];
    prop_oneof![
        6 => (0..3_usize, entry()).prop_map(|(qid, entry)| Action::Entry(qid, entry)),
        2 => (offset, any::<u32>()).prop_map(|(offset, value)| Action::Register(offset & !3, value)),
        1 => (0..64_u16, any::<u32>()).prop_map(|(dword, value)| Action::Config(dword * 4, value)),
        5 => Just(Action::Answer),
        3 => Just(Action::Media),
        1 => (any::<u32>(), 0..5000_usize, 0..5000_usize, any::<bool>())
            .prop_map(|(id, offset, len, last)| Action::Data(id, offset, len, last)),
        1 => (0..0x4000_u32, 0..64_usize, 0..70_usize, any::<bool>())
            .prop_map(|(id, offset, len, last)| Action::Data(id << 9 & !0x7fff | id & 7, offset, len, last)),
    ]
}
