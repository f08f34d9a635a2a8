//! What works, line by line: commands with their arguments, the expected status, and the effect. One test a line of the
//! table in docs/nvme.md, named after it.

use spec::nvme::feature::{AsyncEventConfiguration, FeatureCapabilities};
use spec::nvme::identify::{Flbas, NamespaceIdType, Oacs, Oncs};
use spec::nvme::registers::{CC, ShutdownStatus};
use spec::nvme::{
    Abort, AdminOpcode, AsyncEvent, Cns, CommandsSupportedAndEffects, ControllerList, CopyRange,
    DatasetManagementRange, ErrorLogEntry, FeatureId, FeatureSelect, FirmwareSlotLog, FormatNvm,
    FusedOperation, GetFeatures, GetLogPage, Identify, IdentifyController, IdentifyNamespace, LogPageId,
    NSID_ALL, NamespaceAttachment, NamespaceAttachmentSelect, NamespaceIdentifiers, NamespaceManagement,
    NamespaceManagementSelect, NvmOpcode, SelfTestLog, SetFeatures, SmartLog,
};
use zerocopy::FromZeros;

use super::*;

/// A drive whose owner keeps its state: nothing is left out.
fn complete() -> Config {
    Config { keeps_state: true, ..config() }
}

fn status(completion: CompletionEntry) -> Status {
    completion.status().code()
}

fn expect(rig: &mut Rig<'_>, qid: usize, rows: &[(SubmissionEntry, Status)]) {
    for (entry, expected) in rows {
        let seen = status(rig.run(qid, *entry));
        assert_eq!(seen, *expected, "{entry:?}");
    }
}

pub(super) fn answer<T: FromBytes>(rig: &Rig<'_>) -> T {
    T::read_from_bytes(&rig.host[DATA as usize..][..size_of::<T>()]).unwrap()
}

fn words(rig: &Rig<'_>) -> Vec<u32> {
    let words = rig.host[DATA as usize..][..4096].as_chunks::<4>().0;
    words.iter().map(|word| u32::from_le_bytes(*word)).take_while(|word| *word != 0).collect()
}

fn controllers(rig: &Rig<'_>) -> Vec<u16> {
    ControllerList::new(rig.host[DATA as usize..][..4096].try_into().unwrap()).iter().collect()
}

pub(super) fn identify(cns: Cns, nsid: u32) -> SubmissionEntry {
    Identify::new(cns, nsid).entry(7).with_prps(DATA, 0)
}

pub(super) fn create(rig: &mut Rig<'_>, blocks: u64, format: u8, shared: bool) -> CompletionEntry {
    let mut wanted = IdentifyNamespace::new_zeroed();
    (wanted.nsze, wanted.ncap) = (blocks.into(), blocks.into());
    wanted.flbas = Flbas(0).with_index_low(format).0;
    wanted.nmic = u8::from(shared);
    rig.host[DATA as usize..][..4096].copy_from_slice(wanted.as_bytes());
    let select = NamespaceManagementSelect::CREATE;
    let command = NamespaceManagement { select, nsid: 0, csi: spec::nvme::CommandSetId::NVM };
    rig.admin(command.entry(3).with_prps(DATA, 0))
}

pub(super) fn delete(nsid: u32) -> SubmissionEntry {
    let select = NamespaceManagementSelect::DELETE;
    NamespaceManagement { select, nsid, csi: spec::nvme::CommandSetId::NVM }.entry(4)
}

pub(super) fn attach(rig: &mut Rig<'_>, nsid: u32, to: &[u16], detach: bool) -> Status {
    let list = ControllerList::encode(to.iter().copied());
    rig.host[DATA as usize..][..4096].copy_from_slice(&list);
    let select = if detach { NamespaceAttachmentSelect::DETACH } else { NamespaceAttachmentSelect::ATTACH };
    status(rig.admin(NamespaceAttachment { select, nsid }.entry(5).with_prps(DATA, 0)))
}

fn format(nsid: u32, lba_format: u8, secure_erase: u8) -> FormatNvm {
    FormatNvm {
        nsid,
        lba_format,
        extended_metadata: false,
        protection: 0,
        protection_first: false,
        secure_erase,
    }
}

#[test]
fn identify_structures_and_lists() {
    with_rig(complete(), |rig| {
        rig.start();
        expect(rig, 0, &[(identify(Cns::CONTROLLER, 0), Status::SUCCESS)]);
        let data: IdentifyController = answer(rig);
        assert_eq!((data.cntlid.get(), data.nn.get(), data.cntrltype, data.fuses.get()), (0, 128, 1, 1));
        let oacs = Oacs(data.oacs.get());
        assert!(oacs.format() && oacs.namespace_management() && oacs.doorbell_buffer() && oacs.self_test());
        assert!(!oacs.firmware() && !oacs.security() && data.sanicap.get() == 0);
        let oncs = Oncs(data.oncs.get());
        assert!(
            oncs.compare() && oncs.write_uncorrectable() && oncs.verify() && oncs.copy() && oncs.timestamp()
        );
        assert!(oncs.save_features() && !oncs.reservations());
        assert_eq!((data.tnvmcap.get(), data.unvmcap.get()), (2048 * 512, 0));
        expect(rig, 0, &[(identify(Cns::NAMESPACE, 1), Status::SUCCESS)]);
        let data: IdentifyNamespace = answer(rig);
        assert_eq!((data.nsze.get(), data.nlbaf, data.mssrl.get(), data.msrc), (2048, 1, 256, 127));
        assert_eq!((data.nacwu.get(), data.nmic, data.eui64), (7, 0, rig.config.unique_id.to_be_bytes()));
        expect(rig, 0, &[(identify(Cns::NAMESPACE, NSID_ALL), Status::SUCCESS)]);
        assert_eq!(answer::<IdentifyNamespace>(rig).lbaf[1].lbads, 12);
        for (cns, nsid, numbers) in [
            (Cns::ACTIVE_NAMESPACES, 0, vec![1]),
            (Cns::ACTIVE_NAMESPACES, 1, vec![]),
            (Cns::IO_ACTIVE_NAMESPACES, 0, vec![1]),
            (Cns::ALLOCATED_NAMESPACES, 0, vec![1]),
            (Cns::IO_ALLOCATED_NAMESPACES, 0, vec![1]),
        ] {
            expect(rig, 0, &[(identify(cns, nsid), Status::SUCCESS)]);
            assert_eq!(words(rig), numbers, "{cns:?} above {nsid}");
        }
        for (cns, nsid) in [(Cns::NAMESPACE_CONTROLLERS, 1), (Cns::SUBSYSTEM_CONTROLLERS, 0)] {
            expect(rig, 0, &[(identify(cns, nsid), Status::SUCCESS)]);
            assert_eq!(controllers(rig), [0], "{cns:?}");
        }
        let zoned = Identify { csi: spec::nvme::CommandSetId::ZONED, ..Identify::new(Cns::IO_NAMESPACE, 1) };
        expect(
            rig,
            0,
            &[
                (identify(Cns::ALLOCATED_NAMESPACE, 1), Status::SUCCESS),
                (identify(Cns::IO_ALLOCATED_NAMESPACE, 1), Status::SUCCESS),
                (identify(Cns::NAMESPACE_DESCRIPTORS, 1), Status::SUCCESS),
                (identify(Cns::INDEPENDENT_NAMESPACE, 1), Status::SUCCESS),
                (identify(Cns::IO_CONTROLLER, 0), Status::SUCCESS),
                (identify(Cns::IO_NAMESPACE, 1), Status::SUCCESS),
                (identify(Cns::NAMESPACE, 2), Status::SUCCESS),
                (identify(Cns::NAMESPACE, 0), Status::INVALID_NAMESPACE_OR_FORMAT),
                (identify(Cns::NAMESPACE, 129), Status::INVALID_NAMESPACE_OR_FORMAT),
                (identify(Cns::ALLOCATED_NAMESPACES, NSID_ALL), Status::INVALID_NAMESPACE_OR_FORMAT),
                (zoned.entry(1).with_prps(DATA, 0), Status::INVALID_FIELD),
                (identify(Cns::SECONDARY_CONTROLLERS, 0), Status::INVALID_FIELD),
                (identify(Cns(0xee), 0), Status::INVALID_FIELD),
                // The last of all: what it answers is looked at.
                (identify(Cns::IO_COMMAND_SETS, 0), Status::SUCCESS),
            ],
        );
        assert_eq!(rig.host[DATA as usize], 1);
        rig.assert_idle();
    });
}

#[test]
fn the_number_of_queues_is_agreed_upon_before_there_are_any() {
    with_rig(complete(), |rig| {
        rig.enable();
        let set = |dw11| {
            let fid = FeatureId::NUMBER_OF_QUEUES;
            SetFeatures { fid, save: false, nsid: 0, dw11, dw12: 0 }.entry(1)
        };
        expect(rig, 0, &[(set(0xffff), Status::INVALID_FIELD), (set(0x3_0003), Status::SUCCESS)]);
        rig.create(1, false);
        expect(
            rig,
            0,
            &[(set(0x3_0003), Status::COMMAND_SEQUENCE_ERROR), (set(0xffff), Status::COMMAND_SEQUENCE_ERROR)],
        );
        rig.write32(CC, 0);
        rig.enable();
        expect(rig, 0, &[(set(0x3_0003), Status::SUCCESS)]);
    });
}

#[test]
fn error_recovery_is_a_namespaces_own() {
    with_rig(complete(), |rig| {
        rig.start();
        let fid = FeatureId::ERROR_RECOVERY;
        let get = |nsid| GetFeatures { fid, select: FeatureSelect::CURRENT, nsid, dw11: 0 }.entry(1);
        let set = |nsid| SetFeatures { fid, save: false, nsid, dw11: 7, dw12: 0 }.entry(1);
        expect(
            rig,
            0,
            &[
                (set(0), Status::INVALID_NAMESPACE_OR_FORMAT),
                (set(NSID_ALL), Status::SUCCESS),
                (get(0), Status::INVALID_NAMESPACE_OR_FORMAT),
                (get(NSID_ALL), Status::INVALID_NAMESPACE_OR_FORMAT),
                (get(1), Status::SUCCESS),
            ],
        );
    });
}

/// No format has protection information: what a command says of it means nothing.
#[test]
fn protection_information_is_passed_over() {
    with_rig(complete(), |rig| {
        rig.start();
        for prinfo in 0..16_u8 {
            let mut entry = SubmissionEntry::read(1, 1, 0, 8).with_prps(DATA, 0);
            entry.cdw12 = entry.io_control().with_prinfo(prinfo).0.into();
            expect(rig, 1, &[(entry, Status::SUCCESS)]);
        }
    });
}

#[test]
fn a_namespace_has_a_uuid() {
    with_rig(complete(), |rig| {
        rig.start();
        expect(rig, 0, &[(identify(Cns::NAMESPACE_DESCRIPTORS, 1), Status::SUCCESS)]);
        let data: [u8; 4096] = rig.host[DATA as usize..][..4096].try_into().unwrap();
        let found: Vec<_> = NamespaceIdentifiers::new(&data).collect();
        let find = |kind| found.iter().find(|(nid, _)| *nid == kind).map(|(_, id)| id.to_vec()).unwrap();
        let (uuid, nguid) = (find(NamespaceIdType::UUID), find(NamespaceIdType::NGUID));
        // Version 8 and the variant of RFC 9562; nothing of the NGUID is lost.
        assert_eq!((uuid[6] >> 4, uuid[8] >> 6), (8, 2));
        assert_eq!(
            (uuid[9] << 4 | uuid[6] & 0xf, &uuid[..6], &uuid[10..]),
            (nguid[6], &nguid[..6], &nguid[10..])
        );
    });
}

#[test]
fn features_are_set_saved_and_reset() {
    with_rig(complete(), |rig| {
        rig.start();
        let of = |fid| if fid == FeatureId::ERROR_RECOVERY { 1 } else { 0 };
        let set = |fid, dw11, save| SetFeatures { fid, save, nsid: of(fid), dw11, dw12: 0 }.entry(1);
        let get = |fid, dw11, select| GetFeatures { fid, select, nsid: of(fid), dw11 }.entry(1);
        for (fid, value, default) in [
            (FeatureId::ARBITRATION, 0x0102_0303, 0),
            (FeatureId::POWER_MANAGEMENT, 0x20, 0),
            (FeatureId::TEMPERATURE_THRESHOLD, 0x150, 343),
            (FeatureId::ERROR_RECOVERY, 0x10, 0),
            (FeatureId::VOLATILE_WRITE_CACHE, 0, 1),
            (FeatureId::INTERRUPT_COALESCING, 0x0205, 0),
            (FeatureId::WRITE_ATOMICITY, 1, 0),
            (FeatureId::ASYNC_EVENT_CONFIGURATION, 0x11f, 0),
        ] {
            let capabilities =
                FeatureCapabilities(rig.admin(get(fid, 0, FeatureSelect::SUPPORTED_CAPABILITIES)).dw0.get());
            assert!(capabilities.saveable() && capabilities.changeable(), "{fid:?}");
            assert_eq!(capabilities.namespace_specific(), fid == FeatureId::ERROR_RECOVERY);
            assert_eq!(status(rig.admin(set(fid, value, false))), Status::SUCCESS);
            let values = |rig: &mut Rig<'_>| {
                [FeatureSelect::CURRENT, FeatureSelect::DEFAULT, FeatureSelect::SAVED]
                    .map(|select| rig.admin(get(fid, 0, select)).dw0.get())
            };
            assert_eq!(values(rig), [value, default, default], "{fid:?}");
            assert_eq!(status(rig.admin(set(fid, value, true))), Status::SUCCESS);
            assert_eq!(values(rig), [value, default, value], "{fid:?}");
        }
        let vector = rig.admin(set(FeatureId::INTERRUPT_VECTOR_CONFIGURATION, 0x1_003f, true));
        assert_eq!(status(vector), Status::SUCCESS);
        expect(
            rig,
            0,
            &[
                (set(FeatureId::NUMBER_OF_QUEUES, 0, true), Status::FEATURE_NOT_SAVEABLE),
                (set(FeatureId::TIMESTAMP, 0, true), Status::FEATURE_NOT_SAVEABLE),
                // There are queues already.
                (set(FeatureId::NUMBER_OF_QUEUES, 0, false), Status::COMMAND_SEQUENCE_ERROR),
                (set(FeatureId::INTERRUPT_VECTOR_CONFIGURATION, 64, false), Status::INVALID_FIELD),
                (set(FeatureId::POWER_MANAGEMENT, 1, false), Status::INVALID_FIELD),
                (set(FeatureId::HOST_MEMORY_BUFFER, 1, false), Status::INVALID_FIELD),
                (
                    SetFeatures { fid: FeatureId::ARBITRATION, save: false, nsid: 1, dw11: 0, dw12: 0 }
                        .entry(1),
                    Status::FEATURE_NOT_NAMESPACE_SPECIFIC,
                ),
                (get(FeatureId::ARBITRATION, 0, FeatureSelect(5)), Status::INVALID_FIELD),
            ],
        );
        // A reset brings back what was saved; so does a new life from what the owner has kept.
        assert_eq!(status(rig.admin(set(FeatureId::INTERRUPT_COALESCING, 0x0707, false))), Status::SUCCESS);
        rig.write32(CC, 0);
        rig.start();
        let coalescing = get(FeatureId::INTERRUPT_COALESCING, 0, FeatureSelect::CURRENT);
        assert_eq!(rig.admin(coalescing).dw0.get(), 0x0205);
        let saved = rig.kept.clone();
        with_rig(Config { saved, ..complete() }, |rig| {
            rig.start();
            assert_eq!(rig.admin(coalescing).dw0.get(), 0x0205);
            let vector = get(FeatureId::INTERRUPT_VECTOR_CONFIGURATION, 63, FeatureSelect::CURRENT);
            assert_eq!(rig.admin(vector).dw0.get(), 0x1_003f);
        });
    });
    // Who keeps nothing can save nothing.
    with_rig(config(), |rig| {
        rig.start();
        let save = SetFeatures { fid: FeatureId::ARBITRATION, save: true, nsid: 0, dw11: 0, dw12: 0 };
        expect(rig, 0, &[(save.entry(1), Status::FEATURE_NOT_SAVEABLE)]);
    });
}

#[test]
fn features_with_data() {
    with_rig(complete(), |rig| {
        rig.start();
        let set =
            |fid, dw11| SetFeatures { fid, save: false, nsid: 0, dw11, dw12: 0 }.entry(1).with_prps(DATA, 0);
        let get = |fid, dw11| {
            GetFeatures { fid, select: FeatureSelect::CURRENT, nsid: 0, dw11 }.entry(1).with_prps(DATA, 0)
        };
        rig.host[DATA as usize..][..16].copy_from_slice(&[7; 16]);
        expect(rig, 0, &[(set(FeatureId::HOST_IDENTIFIER, 1), Status::SUCCESS)]);
        rig.host[DATA as usize..][..16].fill(0);
        expect(rig, 0, &[(get(FeatureId::HOST_IDENTIFIER, 1), Status::SUCCESS)]);
        assert_eq!(rig.host[DATA as usize..][..16], [7; 16]);
        rig.host[DATA as usize..][..8].copy_from_slice(&1_700_000_000_000_u64.to_le_bytes());
        expect(rig, 0, &[(set(FeatureId::TIMESTAMP, 0), Status::SUCCESS)]);
        rig.now = Instant::from_nanos(2_500_000_000);
        expect(rig, 0, &[(get(FeatureId::TIMESTAMP, 0), Status::SUCCESS)]);
        let value: u64 = answer::<zerocopy::little_endian::U64>(rig).get();
        assert_eq!((value & ((1 << 48) - 1), value >> 49), (1_700_000_002_500, 1));
        rig.host[DATA as usize..][..512].fill(0);
        rig.host[DATA as usize] = 1;
        expect(rig, 0, &[(set(FeatureId::HOST_BEHAVIOR_SUPPORT, 0), Status::SUCCESS)]);
        rig.host[DATA as usize] = 2;
        expect(
            rig,
            0,
            &[
                (set(FeatureId::HOST_BEHAVIOR_SUPPORT, 0), Status::INVALID_FIELD),
                (get(FeatureId::HOST_BEHAVIOR_SUPPORT, 0), Status::SUCCESS),
            ],
        );
        assert_eq!(rig.host[DATA as usize], 1);
        rig.assert_idle();
    });
}

#[test]
fn log_pages() {
    with_rig(complete(), |rig| {
        rig.start();
        let log = |lid, bytes: u64| {
            GetLogPage::new(lid, NSID_ALL, bytes / 4).entry(1).with_prps(DATA, DATA + 0x1000)
        };
        expect(
            rig,
            1,
            &[(SubmissionEntry::read(9, 1, 5000, 1).with_prps(DATA, 0), Status::LBA_OUT_OF_RANGE)],
        );
        expect(rig, 0, &[(log(LogPageId::ERROR_INFORMATION, 1024), Status::SUCCESS)]);
        let entry: ErrorLogEntry = answer(rig);
        assert_eq!(
            (entry.error_count.get(), entry.sq_id.get(), entry.cid.get(), entry.lba.get()),
            (1, 1, 9, 5000)
        );
        assert_eq!(Status::from_bits(entry.status_and_phase.get() >> 1).code(), Status::LBA_OUT_OF_RANGE);
        expect(rig, 0, &[(log(LogPageId::SMART, 512), Status::SUCCESS)]);
        let smart: SmartLog = answer(rig);
        assert_eq!((smart.error_log_entries.get(), smart.critical_warning), (1, 0));
        expect(rig, 0, &[(log(LogPageId::FIRMWARE_SLOT, 512), Status::SUCCESS)]);
        assert_eq!(answer::<FirmwareSlotLog>(rig).active, 1);
        expect(rig, 0, &[(log(LogPageId::CHANGED_NAMESPACE_LIST, 4096), Status::SUCCESS)]);
        assert_eq!(words(rig), [0_u32; 0]);
        expect(rig, 0, &[(log(LogPageId::COMMANDS_SUPPORTED_AND_EFFECTS, 4096), Status::SUCCESS)]);
        let effects: CommandsSupportedAndEffects = answer(rig);
        assert_eq!(effects.io.iter().filter(|effect| effect.get() & 1 == 1).count(), 9);
        assert_eq!(effects.admin[usize::from(AdminOpcode::SANITIZE.0)].get(), 0);
        let test = |code: u32| SubmissionEntry {
            cdw10: code.into(),
            ..SubmissionEntry::admin(AdminOpcode::DEVICE_SELF_TEST, 1, NSID_ALL)
        };
        expect(
            rig,
            0,
            &[(test(1), Status::SUCCESS), (test(0xf), Status::SUCCESS), (test(3), Status::INVALID_FIELD)],
        );
        rig.media_result = Err(MediaError::Io);
        expect(rig, 0, &[(test(2), Status::SUCCESS)]);
        rig.media_result = Ok(());
        expect(rig, 0, &[(log(LogPageId::DEVICE_SELF_TEST, 564), Status::SUCCESS)]);
        let tests: SelfTestLog = answer(rig);
        assert_eq!(tests.results.map(|result| result.status)[..3], [0x27, 0x10, 0xf]);
        expect(
            rig,
            0,
            &[
                (log(LogPageId::TELEMETRY_HOST_INITIATED, 512), Status::INVALID_LOG_PAGE),
                (
                    GetLogPage::new(LogPageId::SMART, 1, 128).entry(1).with_prps(DATA, 0),
                    Status::INVALID_FIELD,
                ),
                (log(LogPageId::FEATURES_SUPPORTED_AND_EFFECTS, 1024), Status::SUCCESS),
                (log(LogPageId::SUPPORTED_LOG_PAGES, 1024), Status::SUCCESS),
            ],
        );
        assert_eq!(rig.host[DATA as usize..][..4 * 7].iter().filter(|byte| **byte == 1).count(), 7);
        rig.assert_idle();
    });
}

#[test]
fn admin_abort_events_and_keep_alive() {
    with_rig(complete(), |rig| {
        rig.start();
        assert_eq!(rig.admin(Abort { sqid: 1, command: 77 }.entry(1)).dw0.get(), Abort::NOT_ABORTED);
        let request = |cid| SubmissionEntry::admin(AdminOpcode::ASYNC_EVENT_REQUEST, cid, 0);
        (90..94).for_each(|cid| rig.submit(0, request(cid)));
        rig.settle();
        expect(rig, 0, &[(request(94), Status::ASYNC_EVENT_LIMIT_EXCEEDED)]);
        // Temperature: only when asked for, once until the log page is read.
        let set = |fid, dw11| SetFeatures { fid, save: false, nsid: 0, dw11, dw12: 0 }.entry(1);
        expect(rig, 0, &[(set(FeatureId::TEMPERATURE_THRESHOLD, 300), Status::SUCCESS)]);
        let smart = AsyncEventConfiguration(0).with_smart(2).0;
        rig.submit(0, set(FeatureId::ASYNC_EVENT_CONFIGURATION, smart));
        rig.settle();
        let seen = rig.reap(0);
        let event = seen.iter().find(|entry| entry.cid.get() == 90).unwrap();
        assert_eq!(event.dw0.get(), AsyncEvent::TEMPERATURE_THRESHOLD.0);
        assert_eq!(seen.len(), 2);
        let log = GetLogPage::new(LogPageId::SMART, NSID_ALL, 128).entry(1).with_prps(DATA, 0);
        expect(
            rig,
            0,
            &[(log, Status::SUCCESS), (set(FeatureId::TEMPERATURE_THRESHOLD, 343), Status::SUCCESS)],
        );
        // An abort ends a request that is held.
        rig.submit(0, Abort { sqid: 0, command: 91 }.entry(1));
        rig.settle();
        let seen = rig.reap(0);
        assert!(seen.iter().any(|entry| entry.cid.get() == 91 && status(*entry) == Status::ABORT_REQUESTED));
        // A host that says nothing for too long is left alone.
        rig.now = Instant::from_nanos(1_000_000_000);
        let alive = SubmissionEntry::admin(AdminOpcode::KEEP_ALIVE, 1, 0);
        expect(
            rig,
            0,
            &[(set(FeatureId::KEEP_ALIVE_TIMER, 5000), Status::SUCCESS), (alive, Status::SUCCESS)],
        );
        assert_eq!(rig.controller.poll_timeout(), Some(Instant::from_nanos(6_000_000_000)));
        rig.now = Instant::from_nanos(5_900_000_000);
        expect(rig, 0, &[(alive, Status::SUCCESS)]);
        rig.now = Instant::from_nanos(10_800_000_000);
        rig.wake();
        assert!(!rig.csts().cfs());
        rig.now = Instant::from_nanos(10_900_000_000);
        rig.wake();
        assert!(rig.csts().cfs());
        assert_eq!(rig.controller.failure(), Some("no keep alive in time"));
    });
}

#[test]
fn admin_what_is_refused_by_name() {
    with_rig(complete(), |rig| {
        rig.start();
        for opcode in [
            AdminOpcode::SANITIZE,
            AdminOpcode::FIRMWARE_COMMIT,
            AdminOpcode::FIRMWARE_IMAGE_DOWNLOAD,
            AdminOpcode::SECURITY_SEND,
            AdminOpcode::DIRECTIVE_SEND,
            AdminOpcode::VIRTUALIZATION_MANAGEMENT,
            AdminOpcode::LOCKDOWN,
            AdminOpcode::FABRICS,
            AdminOpcode(0xff),
        ] {
            expect(rig, 0, &[(SubmissionEntry::admin(opcode, 1, 0), Status::INVALID_OPCODE)]);
        }
        let fused = SubmissionEntry::admin(AdminOpcode::KEEP_ALIVE, 1, 0).with_fused(FusedOperation::FIRST);
        let sgl = SubmissionEntry { flags: 0x40, ..SubmissionEntry::admin(AdminOpcode::KEEP_ALIVE, 1, 0) };
        expect(rig, 0, &[(fused, Status::INVALID_FIELD), (sgl, Status::INVALID_FIELD)]);
        for opcode in [
            NvmOpcode::RESERVATION_REGISTER,
            NvmOpcode::RESERVATION_REPORT,
            NvmOpcode::RESERVATION_ACQUIRE,
            NvmOpcode::RESERVATION_RELEASE,
            NvmOpcode(0x7f),
        ] {
            expect(rig, 1, &[(SubmissionEntry::nvm(opcode, 1, 1), Status::INVALID_OPCODE)]);
        }
        rig.assert_idle();
    });
    // Where the owner keeps nothing, nothing can be changed for good.
    with_rig(Config { doorbell_buffer: false, ..config() }, |rig| {
        rig.start();
        for opcode in [
            AdminOpcode::NAMESPACE_MANAGEMENT,
            AdminOpcode::NAMESPACE_ATTACHMENT,
            AdminOpcode::FORMAT_NVM,
            AdminOpcode::DOORBELL_BUFFER_CONFIG,
        ] {
            expect(rig, 0, &[(SubmissionEntry::admin(opcode, 1, 1), Status::INVALID_OPCODE)]);
        }
        let mark = SubmissionEntry::nvm_range(NvmOpcode::WRITE_UNCORRECTABLE, 1, 1, 0, 1);
        expect(rig, 1, &[(mark, Status::INVALID_OPCODE)]);
    });
}

#[test]
fn admin_namespace_management_and_attachment() {
    with_rig(complete(), |rig| {
        rig.start();
        let unallocated = |rig: &mut Rig<'_>| {
            expect(rig, 0, &[(identify(Cns::CONTROLLER, 0), Status::SUCCESS)]);
            answer::<IdentifyController>(rig).unvmcap.get()
        };
        assert_eq!(status(create(rig, 8, 0, false)), Status::NAMESPACE_INSUFFICIENT_CAPACITY);
        expect(rig, 0, &[(delete(1), Status::SUCCESS), (delete(1), Status::INVALID_FIELD)]);
        expect(rig, 1, &[(SubmissionEntry::read(1, 1, 0, 1).with_prps(DATA, 0), Status::INVALID_FIELD)]);
        assert_eq!(unallocated(rig), 2048 * 512);
        let (first, second) = (create(rig, 1000, 0, false), create(rig, 128, 1, true));
        assert_eq!((first.dw0.get(), second.dw0.get()), (1, 2));
        // The second begins at a whole page behind the first.
        assert_eq!(unallocated(rig), (2048 - 1000 - 1024) * 512);
        for (blocks, format, shared, expected) in [
            (8, 2, false, Status::INVALID_FORMAT),
            (0, 0, false, Status::INVALID_FIELD),
            (u64::MAX, 1, false, Status::NAMESPACE_INSUFFICIENT_CAPACITY),
            (25, 0, false, Status::NAMESPACE_INSUFFICIENT_CAPACITY),
        ] {
            assert_eq!(status(create(rig, blocks, format, shared)), expected, "{blocks} {format}");
        }
        assert_eq!(attach(rig, 1, &[], false), Status::CONTROLLER_LIST_INVALID);
        assert_eq!(attach(rig, 1, &[1], false), Status::CONTROLLER_LIST_INVALID);
        assert_eq!(attach(rig, 1, &[0], false), Status::SUCCESS);
        assert_eq!(attach(rig, 1, &[0], false), Status::NAMESPACE_ALREADY_ATTACHED);
        assert_eq!(attach(rig, 2, &[0], true), Status::NAMESPACE_NOT_ATTACHED);
        assert_eq!(attach(rig, 2, &[0], false), Status::SUCCESS);
        assert_eq!(attach(rig, 3, &[0], false), Status::INVALID_FIELD);
        assert_eq!(attach(rig, 0, &[0], false), Status::INVALID_NAMESPACE_OR_FORMAT);
        expect(rig, 0, &[(identify(Cns::ACTIVE_NAMESPACES, 0), Status::SUCCESS)]);
        assert_eq!(words(rig), [1, 2]);
        // Each has its own blocks, of its own size.
        let data = pattern(3, 4096);
        rig.host[DATA as usize..][..4096].copy_from_slice(&data);
        expect(
            rig,
            1,
            &[
                (SubmissionEntry::write(1, 2, 127, 1).with_prps(DATA, 0), Status::SUCCESS),
                (SubmissionEntry::write(1, 2, 128, 1).with_prps(DATA, 0), Status::LBA_OUT_OF_RANGE),
                (SubmissionEntry::write(1, 1, 999, 1).with_prps(DATA, 0), Status::SUCCESS),
                (SubmissionEntry::write(1, 1, 1000, 1).with_prps(DATA, 0), Status::LBA_OUT_OF_RANGE),
            ],
        );
        assert!(rig.disk[1000 * 512 + 127 * 4096..][..4096] == data[..]);
        assert!(rig.disk[999 * 512..][..512] == data[..512]);
        // What the owner has kept is the same drive in its next life, with other identifiers for other namespaces.
        let saved = rig.kept.clone();
        with_rig(Config { saved, ..complete() }, |rig| {
            rig.start();
            expect(rig, 0, &[(identify(Cns::NAMESPACE, 2), Status::SUCCESS)]);
            let data: IdentifyNamespace = answer(rig);
            assert_eq!(
                (data.nsze.get(), data.current_format().block_size(), data.nmic),
                (128, Some(4096), 1)
            );
            assert_eq!((data.eui64, data.nguid[15]), ([0; 8], 3));
            expect(rig, 0, &[(delete(NSID_ALL), Status::SUCCESS)]);
            expect(rig, 0, &[(identify(Cns::ALLOCATED_NAMESPACES, 0), Status::SUCCESS)]);
            assert_eq!(words(rig), [0_u32; 0]);
            assert_eq!(create(rig, 2048, 0, false).dw0.get(), 1);
            rig.assert_idle();
        });
    });
    // A change that cannot be kept is an error, and the next one keeps it too.
    with_rig(complete(), |rig| {
        rig.start();
        rig.keeps = false;
        expect(rig, 0, &[(delete(1), Status::INTERNAL_ERROR)]);
        rig.keeps = true;
        assert_eq!(create(rig, 100, 0, false).dw0.get(), 1);
        assert!(rig.kept.is_some());
    });
}

#[test]
fn admin_format() {
    with_rig(complete(), |rig| {
        rig.start();
        rig.disk.fill(0xee);
        // Commands with lists were in the slots before.
        for cid in 0..4 {
            let read = SubmissionEntry::read(cid, 1, 0, 24);
            let read = prps(rig, read, DATA, 24 * 512, 0x8_0000);
            rig.submit(1, read);
        }
        rig.settle();
        assert!(rig.reap(1).iter().all(|seen| status(*seen) == Status::SUCCESS));
        expect(
            rig,
            0,
            &[
                (format(1, 2, 0).entry(1), Status::INVALID_FORMAT),
                (format(1, 0, 2).entry(1), Status::INVALID_FIELD),
                (FormatNvm { protection: 1, ..format(1, 0, 0) }.entry(1), Status::INVALID_FORMAT),
                (format(NSID_ALL, 0, 0).entry(1), Status::INVALID_NAMESPACE_OR_FORMAT),
                (format(2, 0, 0).entry(1), Status::INVALID_FIELD),
            ],
        );
        assert!(rig.disk.iter().all(|byte| *byte == 0xee));
        // Under load: what was before ends, what comes meanwhile is told to come again.
        let write = SubmissionEntry::write(1, 1, 0, 8).with_prps(DATA, 0);
        rig.submit(1, write);
        rig.answer();
        rig.answer();
        assert_eq!(rig.media.len(), 1);
        rig.submit(0, format(1, 1, 1).entry(5));
        rig.answer();
        assert_eq!(rig.media.len(), 1, "the format waits for the write");
        rig.submit(1, SubmissionEntry::read(2, 1, 0, 1).with_prps(DATA, 0));
        rig.settle();
        assert_eq!(status(rig.reap(0)[0]), Status::SUCCESS);
        let seen = rig.reap(1);
        assert_eq!(
            seen.iter().map(|seen| (seen.cid.get(), status(*seen))).collect::<Vec<_>>(),
            [(2, Status::FORMAT_IN_PROGRESS), (1, Status::SUCCESS),]
        );
        assert!(rig.disk.iter().all(|byte| *byte == 0));
        expect(rig, 0, &[(identify(Cns::NAMESPACE, 1), Status::SUCCESS)]);
        assert_eq!(answer::<IdentifyNamespace>(rig).nsze.get(), 256);
        expect(rig, 1, &[(SubmissionEntry::read(2, 1, 256, 1).with_prps(DATA, 0), Status::LBA_OUT_OF_RANGE)]);
        rig.assert_idle();
    });
}

#[test]
fn io_compare_verify_and_write_uncorrectable() {
    with_rig(complete(), |rig| {
        rig.start();
        let data = pattern(1, 20 << 10);
        rig.disk[..20 << 10].copy_from_slice(&data);
        rig.host[DATA as usize..][..20 << 10].copy_from_slice(&data);
        let range = |opcode, slba, nlb| SubmissionEntry::nvm_range(opcode, 1, 1, slba, nlb);
        let compare = range(NvmOpcode::COMPARE, 0, 40);
        let compare = prps(rig, compare, DATA, 20 << 10, 0x8_0000);
        let verify = |slba, nlb| range(NvmOpcode::VERIFY, slba, nlb);
        expect(rig, 1, &[(compare, Status::SUCCESS), (verify(0, 2048), Status::SUCCESS)]);
        rig.disk[19 << 10] ^= 1;
        expect(
            rig,
            1,
            &[
                (compare, Status::COMPARE_FAILURE),
                (verify(2047, 2), Status::LBA_OUT_OF_RANGE),
                (range(NvmOpcode::COMPARE, 0, 257).with_prps(DATA, 0), Status::INVALID_FIELD),
                (range(NvmOpcode::WRITE_UNCORRECTABLE, 10, 20), Status::SUCCESS),
                (range(NvmOpcode::WRITE_UNCORRECTABLE, 2040, 20), Status::LBA_OUT_OF_RANGE),
                (range(NvmOpcode::READ, 29, 1).with_prps(DATA + 0x8000, 0), Status::UNRECOVERED_READ_ERROR),
                (range(NvmOpcode::READ, 30, 1).with_prps(DATA + 0x8000, 0), Status::SUCCESS),
                (compare, Status::UNRECOVERED_READ_ERROR),
                (verify(0, 2048), Status::UNRECOVERED_READ_ERROR),
            ],
        );
        // Marks outlast the drive's life, and end where it is written.
        let saved = rig.kept.clone();
        with_rig(Config { saved, ..complete() }, |rig| {
            rig.start();
            let trim = [DatasetManagementRange::new(28, 2)];
            rig.host[0x9_0000..][..16].copy_from_slice(trim.as_bytes());
            expect(
                rig,
                1,
                &[
                    (range(NvmOpcode::READ, 10, 1).with_prps(DATA, 0), Status::UNRECOVERED_READ_ERROR),
                    (range(NvmOpcode::WRITE, 10, 8).with_prps(DATA, 0), Status::SUCCESS),
                    (range(NvmOpcode::READ, 10, 8).with_prps(DATA, 0), Status::SUCCESS),
                    (range(NvmOpcode::READ, 18, 1).with_prps(DATA, 0), Status::UNRECOVERED_READ_ERROR),
                    (range(NvmOpcode::WRITE_ZEROES, 18, 10), Status::SUCCESS),
                    (SubmissionEntry::deallocate(1, 1, 1).with_prps(0x9_0000, 0), Status::SUCCESS),
                    (verify(0, 2048), Status::SUCCESS),
                ],
            );
            rig.assert_idle();
        });
        let read_only = Config { read_only: true, ..complete() };
        with_rig(read_only, |rig| {
            rig.start();
            for opcode in [NvmOpcode::WRITE_UNCORRECTABLE, NvmOpcode::WRITE, NvmOpcode::WRITE_ZEROES] {
                expect(
                    rig,
                    1,
                    &[(range(opcode, 0, 1).with_prps(DATA, 0), Status::NAMESPACE_WRITE_PROTECTED)],
                );
            }
            expect(
                rig,
                1,
                &[
                    (verify(0, 1), Status::SUCCESS),
                    (SubmissionEntry::copy(1, 1, 0, 1).with_prps(DATA, 0), Status::NAMESPACE_WRITE_PROTECTED),
                ],
            );
        });
    });
}

#[test]
fn io_copy() {
    for block_size in [512_u32, 4096] {
        let blocks = 8 << 20 >> block_size.trailing_zeros();
        with_rig(Config { blocks, block_size, ..complete() }, |rig| {
            rig.start();
            let bytes = block_size as usize;
            let content = pattern(5, rig.disk.len());
            rig.disk.copy_from_slice(&content);
            let copy = |rig: &mut Rig<'_>, to: u64, ranges: &[(u64, u32)]| {
                let list: Vec<u8> = ranges
                    .iter()
                    .flat_map(|(slba, nlb)| CopyRange::new(*slba, *nlb).as_bytes().to_vec())
                    .collect();
                rig.host[DATA as usize..][..list.len()].copy_from_slice(&list);
                let entry = SubmissionEntry::copy(1, 1, to, ranges.len() as u32);
                let entry = prps(rig, entry, DATA, list.len(), 0x8_0000);
                status(rig.run(1, entry))
            };
            // Overlapping, as through a buffer.
            let mut model = content.clone();
            for (to, ranges) in [
                (100, vec![(0, 32)]),
                (1, vec![(0, 31)]),
                (50, vec![(60, 3), (49, 1), (51, 5), (1000, 1), (3, 19)]),
                (7, (0..24).map(|n| (n * 3, 1)).collect()),
            ] {
                let gathered: Vec<u8> = ranges
                    .iter()
                    .flat_map(|(slba, nlb)| model[*slba as usize * bytes..][..*nlb as usize * bytes].to_vec())
                    .collect();
                model[to as usize * bytes..][..gathered.len()].copy_from_slice(&gathered);
                assert_eq!(copy(rig, to, &ranges), Status::SUCCESS);
                assert!(rig.disk == model, "to {to}");
            }
            let most = (128 << 10) / block_size;
            for (to, ranges, expected) in [
                (0, vec![(0, most)], Status::SUCCESS),
                (0, vec![(0, most), (0, 1)], Status::COMMAND_SIZE_LIMIT_EXCEEDED),
                (blocks - 1, vec![(0, 2)], Status::LBA_OUT_OF_RANGE),
                (0, vec![(blocks, 1)], Status::LBA_OUT_OF_RANGE),
                (0, vec![(0, 1); 129], Status::COMMAND_SIZE_LIMIT_EXCEEDED),
            ] {
                assert_eq!(copy(rig, to, &ranges), expected, "{to} {}", ranges.len());
            }
            assert!(rig.disk == model);
            let mut other_format = SubmissionEntry::copy(1, 1, 0, 1).with_prps(DATA, 0);
            other_format.cdw12 = 0x100.into();
            expect(rig, 1, &[(other_format, Status::INVALID_FIELD)]);
            let flushes = rig.flushes;
            rig.host[DATA as usize..][..32].copy_from_slice(CopyRange::new(0, 1).as_bytes());
            expect(
                rig,
                1,
                &[(SubmissionEntry::copy(1, 1, 0, 1).with_prps(DATA, 0).with_fua(), Status::SUCCESS)],
            );
            assert_eq!(rig.flushes, flushes + 1);
            rig.assert_idle();
        });
    }
}

#[test]
fn io_read_write_flush_zeroes_and_deallocate_in_both_block_sizes() {
    for block_size in [512_u32, 4096] {
        let blocks = 1 << 20 >> block_size.trailing_zeros();
        with_rig(Config { blocks, block_size, ..config() }, |rig| {
            rig.start();
            let bytes = block_size as usize;
            let data = pattern(9, 2 * bytes);
            rig.host[DATA as usize..][..data.len()].copy_from_slice(&data);
            let write = prps(rig, SubmissionEntry::write(1, 1, blocks - 2, 2), DATA, data.len(), 0x8_0000);
            let read =
                prps(rig, SubmissionEntry::read(1, 1, blocks - 2, 2), DATA + 0x8000, data.len(), 0x8_0000);
            rig.host[0x9_0000..][..16].copy_from_slice(DatasetManagementRange::new(blocks - 1, 1).as_bytes());
            expect(
                rig,
                2,
                &[
                    (write, Status::SUCCESS),
                    (write.with_fua(), Status::SUCCESS),
                    (read, Status::SUCCESS),
                    (SubmissionEntry::flush(1, 1), Status::SUCCESS),
                    (SubmissionEntry::flush(1, NSID_ALL), Status::SUCCESS),
                    (SubmissionEntry::write_zeroes(1, 1, blocks - 2, 1, false), Status::SUCCESS),
                    (SubmissionEntry::deallocate(1, 1, 1).with_prps(0x9_0000, 0), Status::SUCCESS),
                    (
                        SubmissionEntry::write(1, 1, blocks - 1, 2).with_prps(DATA, DATA + 0x1000),
                        Status::LBA_OUT_OF_RANGE,
                    ),
                ],
            );
            assert!(rig.host[DATA as usize + 0x8000..][..data.len()] == data);
            assert_eq!(rig.flushes, 3);
            assert!(rig.disk.iter().all(|byte| *byte == 0));
            rig.assert_idle();
        });
    }
}

#[test]
fn control_enable_disable_reset_shutdown_and_fatal_status() {
    with_rig(complete(), |rig| {
        rig.start();
        assert!(rig.csts().rdy());
        rig.write32(CC, 0);
        assert!(!rig.csts().rdy(), "disable");
        rig.start();
        rig.step(Input::Reset);
        assert_eq!((rig.read32(CC), rig.csts().0), (0, 0), "reset");
        // Both kinds of shutdown end completely, with everything durable.
        for (flushes, shn) in [(1, 0x4000), (2, 0x8000)] {
            rig.start();
            rig.write32(CC, 0x0046_0001 | shn);
            assert_eq!(rig.csts().shst(), ShutdownStatus::OCCURRING.0);
            rig.settle();
            assert_eq!((rig.csts().shst(), rig.flushes), (ShutdownStatus::COMPLETE.0, flushes));
            rig.write32(CC, 0);
        }
        rig.start();
        rig.lenient = true;
        rig.write64(registers::ASQ, 0);
        rig.write32(CC, 0);
        rig.write64(registers::ASQ, 1 << 40);
        rig.write32(CC, 0x0046_0001);
        rig.write32(registers::DOORBELLS, 1);
        rig.settle();
        assert!(rig.csts().cfs(), "fatal");
        let cap = registers::Cap(u64::from(rig.read32(4)) << 32 | u64::from(rig.read32(0)));
        assert_eq!(u64::from(cap.to()) * 500, base::times::CONTROLLER_READY.as_millis() as u64, "time-outs");
        rig.write32(CC, 0);
        rig.start();
        rig.assert_idle();
    });
}
