//! Several controllers of one drive: what they share, and what they do not.

use spec::nvme::feature::AsyncEventConfiguration;
use spec::nvme::{
    AdminOpcode, AsyncEvent, Cns, DatasetManagementRange, FeatureId, FormatNvm, FusedOperation, GetLogPage,
    Identify, IdentifyController, LogPageId, NSID_ALL, NvmOpcode, SetFeatures,
};

use super::conformance::{attach, create, delete};
use super::*;
use crate::nvme::{ConfigError, Limit, NamespaceConfig};

fn namespace(blocks: u64, shared: bool, controllers: &[u16]) -> NamespaceConfig {
    NamespaceConfig { blocks, block_size: 512, read_only: false, shared, controllers: controllers.to_vec() }
}

/// A physical function and two virtual ones: a namespace each, and one that the first two share.
pub(super) fn drive() -> Config {
    Config {
        functions: 2,
        keeps_state: true,
        namespaces: vec![
            namespace(256, false, &[0]),
            namespace(256, false, &[1]),
            namespace(256, false, &[2]),
            namespace(256, true, &[0, 1]),
        ],
        ..config()
    }
}

fn active(rig: &mut Rig<'_>) -> Vec<u32> {
    let list = Identify::new(Cns::ACTIVE_NAMESPACES, 0).entry(1).with_prps(DATA, 0);
    assert_eq!(rig.admin(list).status(), Status::SUCCESS);
    let words = rig.host[DATA as usize..][..64].as_chunks::<4>().0;
    words.iter().map(|word| u32::from_le_bytes(*word)).take_while(|word| *word != 0).collect()
}

pub(super) fn start_all(rig: &mut Rig<'_>) {
    for index in [2, 1, 0] {
        rig.select(index);
        rig.start();
    }
}

/// A request for events, and that changes of namespaces are wanted.
fn watch(rig: &mut Rig<'_>) {
    let wanted = AsyncEventConfiguration(0).with_namespace_attribute(true).0;
    let set = SetFeatures {
        fid: FeatureId::ASYNC_EVENT_CONFIGURATION,
        save: false,
        nsid: 0,
        dw11: wanted,
        dw12: 0,
    };
    assert_eq!(rig.admin(set.entry(1)).status(), Status::SUCCESS);
    rig.submit(0, SubmissionEntry::admin(AdminOpcode::ASYNC_EVENT_REQUEST, 99, 0));
    rig.settle();
}

fn changed(rig: &mut Rig<'_>) -> Vec<u32> {
    let seen = rig.reap(0);
    assert_eq!(
        seen.iter().map(|seen| seen.dw0.get()).collect::<Vec<_>>(),
        [AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED.0]
    );
    let log = GetLogPage::new(LogPageId::CHANGED_NAMESPACE_LIST, NSID_ALL, 1024).entry(1).with_prps(DATA, 0);
    assert_eq!(rig.admin(log).status(), Status::SUCCESS);
    let words = rig.host[DATA as usize..][..64].as_chunks::<4>().0;
    words.iter().map(|word| u32::from_le_bytes(*word)).take_while(|word| *word != 0).collect()
}

#[test]
fn each_function_has_its_own_namespaces_and_some_have_one_together() {
    with_rig(drive(), |rig| {
        start_all(rig);
        for (index, expected) in [(0, vec![1, 4]), (1, vec![2, 4]), (2, vec![3])] {
            rig.select(index);
            assert_eq!(active(rig), expected);
            let controller = Identify::new(Cns::CONTROLLER, 0).entry(1).with_prps(DATA, 0);
            assert_eq!(rig.admin(controller).status(), Status::SUCCESS);
            let data = IdentifyController::read_from_bytes(&rig.host[DATA as usize..][..4096]).unwrap();
            assert_eq!(usize::from(data.cntlid.get()), index);
            assert_eq!(data.cmic, if index == 0 { 2 } else { 6 });
            assert_eq!(data.oacs.get() & 8 != 0, index == 0, "only the physical function manages namespaces");
            let virtual_functions = (0x100..0x1000)
                .step_by(4)
                .find(|register| rig.controller.config_read(*register) & 0xffff == 0x0010);
            assert_eq!(virtual_functions.is_some(), index == 0);
        }
        rig.select(1);
        rig.host[DATA as usize..][..512].fill(0x55);
        assert_eq!(
            rig.run(1, SubmissionEntry::write(1, 4, 9, 1).with_prps(DATA, 0)).status(),
            Status::SUCCESS
        );
        let foreign = rig.run(1, SubmissionEntry::write(1, 3, 9, 1).with_prps(DATA, 0));
        assert_eq!(foreign.status().code(), Status::INVALID_FIELD);
        assert_eq!(rig.admin(delete(2)).status().code(), Status::INVALID_OPCODE);
        let format = |nsid| FormatNvm {
            nsid,
            lba_format: 0,
            extended_metadata: false,
            protection: 0,
            protection_first: false,
            secure_erase: 0,
        };
        assert_eq!(rig.admin(format(4).entry(1)).status().code(), Status::OPERATION_DENIED);
        assert_eq!(rig.admin(format(2).entry(1)).status(), Status::SUCCESS);
        rig.select(0);
        assert_eq!(
            rig.run(1, SubmissionEntry::read(1, 4, 9, 1).with_prps(DATA, 0)).status(),
            Status::SUCCESS
        );
        assert_eq!(rig.host[DATA as usize..][..512], [0x55; 512]);
        assert_eq!(
            rig.run(1, SubmissionEntry::nvm(NvmOpcode::RESERVATION_ACQUIRE, 1, 4)).status().code(),
            Status::INVALID_OPCODE
        );
        for index in 0..3 {
            rig.select(index);
            rig.assert_idle();
        }
    });
}

#[test]
fn changes_are_announced_to_whom_they_concern() {
    with_rig(drive(), |rig| {
        start_all(rig);
        for index in [2, 1] {
            rig.select(index);
            watch(rig);
        }
        rig.select(0);
        assert_eq!(attach(rig, 3, &[2], true), Status::SUCCESS);
        assert_eq!(attach(rig, 4, &[2], false), Status::SUCCESS);
        assert_eq!(attach(rig, 3, &[0, 1], false), Status::NAMESPACE_IS_PRIVATE);
        assert_eq!(attach(rig, 3, &[1], false), Status::SUCCESS);
        rig.select(2);
        assert_eq!(changed(rig), [3, 4]);
        assert_eq!(active(rig), [4]);
        let late = rig.run(1, SubmissionEntry::read(1, 3, 0, 1).with_prps(DATA, 0));
        assert_eq!(late.status().code(), Status::INVALID_FIELD);
        rig.select(1);
        assert_eq!(changed(rig), [3]);
        assert_eq!(active(rig), [2, 3, 4]);
    });
    // A medium that grows: the one namespace of a simple drive with it.
    with_rig(config(), |rig| {
        rig.start();
        watch(rig);
        rig.disk.resize(4096 * 512, 0);
        rig.step(Input::Grow(4096));
        assert_eq!(changed(rig), [1]);
        assert_eq!(rig.run(1, SubmissionEntry::write_zeroes(1, 1, 4095, 1, false)).status(), Status::SUCCESS);
        rig.step(Input::Grow(100));
        assert_eq!(rig.run(1, SubmissionEntry::write_zeroes(1, 1, 4095, 1, false)).status(), Status::SUCCESS);
    });
}

#[test]
fn a_namespace_goes_only_when_nobodys_work_can_touch_what_comes_after() {
    for deadly in [false, true] {
        with_rig(drive(), |rig| {
            start_all(rig);
            rig.deadly = deadly;
            // Controller 1 has a write of the shared namespace at the medium and one that is still loading.
            rig.select(1);
            rig.host[DATA as usize..][..512].fill(0xaa);
            let write = |cid| SubmissionEntry::write(cid, 4, 0, 1).with_prps(DATA, 0);
            rig.submit(1, write(1));
            while rig.answer() {}
            rig.submit(1, write(2));
            rig.answer();
            assert_eq!((rig.media.len(), rig.reads.len()), (1, 1));
            rig.select(0);
            rig.submit(0, delete(4));
            rig.settle();
            assert!(rig.reap(0).is_empty(), "the deletion waits");
            rig.select(1);
            rig.end_media();
            rig.select(0);
            rig.settle();
            assert_eq!(rig.reap(0).iter().map(|seen| seen.status()).collect::<Vec<_>>(), [Status::SUCCESS]);
            assert_eq!(create(rig, 256, 0, false).dw0.get(), 4);
            // Of the same number, place and owner: still another namespace.
            assert_eq!(attach(rig, 4, &[1], false), Status::SUCCESS);
            rig.disk[768 * 512..][..512].fill(0);
            rig.select(1);
            rig.settle();
            let seen: Vec<_> =
                rig.reap(1).iter().map(|seen| (seen.cid.get(), seen.status().code())).collect();
            assert_eq!(seen, [(1, Status::SUCCESS), (2, Status::INVALID_NAMESPACE_OR_FORMAT)]);
            assert!(
                rig.disk[768 * 512..][..512] == [0; 512],
                "the new namespace has nothing of the old writes"
            );
            rig.deadly = false;
            for index in 0..3 {
                rig.select(index);
                rig.assert_idle();
            }
        });
    }
}

/// Two hosts take a lock by compare and write on one block: one of them gets it.
#[test]
fn compare_and_write_is_a_lock_between_controllers() {
    for seed in 0..40_u64 {
        with_rig(drive(), |rig| {
            start_all(rig);
            let pair = |rig: &mut Rig<'_>, mark: u8| {
                rig.host[DATA as usize..][..512].fill(0);
                rig.host[DATA as usize + 0x1000..][..512].fill(mark);
                for (opcode, fused, at) in [
                    (NvmOpcode::COMPARE, FusedOperation::FIRST, DATA),
                    (NvmOpcode::WRITE, FusedOperation::SECOND, DATA + 0x1000),
                ] {
                    let entry = SubmissionEntry::nvm_range(opcode, fused.0.into(), 4, 7, 1);
                    let entry = entry.with_fused(fused).with_prps(at, 0);
                    let queue = &mut rig.queues[1];
                    let place = queue.sq as usize + queue.tail as usize * 64;
                    rig.host[place..place + 64].copy_from_slice(entry.as_bytes());
                    queue.tail += 1;
                }
                rig.write32(doorbell(1, false, 0), 2);
            };
            pair(rig, 1);
            rig.select(1);
            pair(rig, 2);
            let mut random = Random::new(seed);
            for _ in 0..200 {
                rig.select(random.index(2));
                if random.chance(500) {
                    rig.answer()
                } else {
                    rig.end_media()
                };
            }
            let mut won = Vec::new();
            for index in [0, 1] {
                rig.select(index);
                rig.settle();
                let mut seen: Vec<_> = rig.reap(1).iter().map(|seen| seen.status().code()).collect();
                seen.sort_by_key(|status| status.bits());
                if seen == [Status::SUCCESS, Status::SUCCESS] {
                    won.push(index as u8 + 1);
                } else {
                    assert_eq!(seen, [Status::ABORTED_FAILED_FUSED, Status::COMPARE_FAILURE]);
                }
            }
            assert_eq!(won.len(), 1, "seed {seed}");
            assert!(rig.disk[(768 + 7) * 512..][..512] == [won[0]; 512]);
        });
    }
}

/// How many one-block reads a function gets through its queue in `seconds`, in steps of a millisecond.
pub(super) fn reads_in(rig: &mut Rig<'_>, seconds: u64, nlb: u32) -> u64 {
    let (mut done, mut cid) = (0, 0_u16);
    let mut outstanding = 0;
    for _ in 0..seconds * 1000 {
        rig.now += core::time::Duration::from_millis(1);
        rig.wake();
        loop {
            while outstanding < 7 {
                let read = SubmissionEntry::read(cid, 1, 0, nlb);
                let read = prps(rig, read, DATA, nlb as usize * 512, 0x8_0000);
                rig.submit(1, read);
                cid = cid.wrapping_add(1);
                outstanding += 1;
            }
            rig.settle();
            let seen = rig.reap(1).len() as u64;
            done += seen;
            outstanding -= seen as usize;
            if seen == 0 {
                break;
            }
        }
    }
    done
}

#[test]
fn a_limit_holds_and_can_be_changed() {
    let limit = Limit::new(Some(2000), None).unwrap();
    with_rig(Config { limit, ..config() }, |rig| {
        rig.start();
        let done = reads_in(rig, 2, 1);
        assert!((3900..=4030).contains(&done), "{done} of 4000");
        // Admin commands are not held back.
        assert_eq!(active(rig), [1]);
        rig.controller.set_limit(rig.now, Limit::new(Some(500), None).unwrap());
        let done = reads_in(rig, 2, 1);
        assert!((960..=1010).contains(&done), "{done} of 1000");
        rig.replace_card();
        assert_eq!(rig.controller.limit().iops(), Some(500), "a successor knows");
        rig.controller.set_limit(rig.now, Limit::new(None, Some(4 << 20)).unwrap());
        rig.ledger.journal.commit();
        let done = reads_in(rig, 2, 64);
        assert!((250..=262).contains(&done), "{done} of 256");
        rig.controller.set_limit(rig.now, Limit::NONE);
        rig.wake();
    });
}

#[test]
fn configurations_that_make_no_sense_are_refused_by_name() {
    let with = |namespaces: Vec<NamespaceConfig>| Config { namespaces, ..drive() };
    for (config, error, words) in [
        (Config { block_size: 1024, ..drive() }, ConfigError::BlockSize(1024), "512 or 4096"),
        (Config { blocks: 0, ..drive() }, ConfigError::Blocks(0), "1 to 2^51"),
        (Config { functions: 65, ..drive() }, ConfigError::Functions(65), "at most 64 virtual functions"),
        (with(vec![namespace(1, false, &[]); 129]), ConfigError::Namespaces(129), "at most 128 namespaces"),
        (
            with(vec![namespace(2049, false, &[0])]),
            ConfigError::NamespaceTooLarge { nsid: 1, missing: 512 },
            "namespace 1 is too large: the drive lacks 512 bytes",
        ),
        (
            with(vec![namespace(u64::MAX, false, &[0])]),
            ConfigError::NamespaceTooLarge { nsid: 1, missing: u64::MAX - 2048 * 512 },
            "too large",
        ),
        (
            with(vec![namespace(1, false, &[3])]),
            ConfigError::NoSuchController { nsid: 1, controller: 3 },
            "controller 3, which the drive does not have",
        ),
        (with(vec![namespace(1, false, &[0, 1])]), ConfigError::NotShared { nsid: 1 }, "not declared shared"),
        (Config { saved: Some(vec![1; 64]), ..drive() }, ConfigError::Saved, "damaged or of another drive"),
    ] {
        assert_eq!(config.check(), Err(error));
        assert!(error.to_string().contains(words), "{error}");
    }
    assert_eq!(drive().check(), Ok(()));
}

#[test]
fn a_damaged_record_is_recognised() {
    with_rig(drive(), |rig| {
        rig.start();
        assert_eq!(rig.admin(delete(3)).status(), Status::SUCCESS);
        let kept = rig.kept.clone().unwrap();
        assert_eq!(Config { saved: Some(kept.clone()), ..drive() }.check(), Ok(()));
        for at in 0..kept.len() {
            let mut damaged = kept.clone();
            damaged[at] ^= 0x10;
            assert_eq!(
                Config { saved: Some(damaged), ..drive() }.check(),
                Err(ConfigError::Saved),
                "byte {at}"
            );
            assert!(Config { saved: Some(kept[..at].to_vec()), ..drive() }.check().is_err());
        }
        assert!(Config { saved: Some(kept), unique_id: 5, ..drive() }.check().is_err());
    });
}

/// There is no FUA in Dataset Management, and a host cannot do again what another one may have written over.
#[test]
fn trims_of_what_others_have_too_are_durable_before_they_are_answered() {
    with_rig(Config { cache: WriteCache::Hidden, ..drive() }, |rig| {
        start_all(rig);
        rig.select(0);
        rig.write32(registers::HOST_KEEPS, 1);
        let ranges = [DatasetManagementRange::new(0, 4), DatasetManagementRange::new(100, 2)];
        rig.host[DATA as usize..][..32].copy_from_slice(ranges.as_bytes());
        for (nsid, flushes) in [(1, 0), (4, 1)] {
            let deallocate = SubmissionEntry::deallocate(1, nsid, 2).with_prps(DATA, 0);
            assert_eq!(rig.run(1, deallocate).status(), Status::SUCCESS);
            assert_eq!(rig.flushes, flushes, "namespace {nsid}");
        }
        rig.assert_idle();
    });
}
