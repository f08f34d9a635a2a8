use spec::nvme::registers::CC;
use spec::nvme::{
    Abort, AdminOpcode, Cns, CopyRange, DatasetManagementRange, DeleteIoQueue, FeatureId, FormatNvm,
    Identify, NvmOpcode, SetFeatures,
};

use super::*;

const BACK: u64 = 0x18_0000;

/// Several commands on both queues at once; every one completes once.
fn storm(rig: &mut Rig<'_>, round: u64) {
    let mut expected = [vec![], vec![]];
    for number in 0..6_u64 {
        let len = [512, 4096, 9 * 512, 24 << 10, 512, 1024][number as usize];
        let (address, slba) = (DATA + number * 0x8000 + 0x204 * (number % 2), 100 * number + round);
        let data = pattern((round * 7 + number) as usize, len);
        rig.host[address as usize..][..len].copy_from_slice(&data);
        let mut write = SubmissionEntry::write(number as u16, 1, slba, (len / 512) as u32);
        if number == 2 {
            write = write.with_fua();
        }
        let write = prps(rig, write, address, len, 0x8_0000 + number * 0x1000 + 0xff0);
        rig.submit(1 + (number % 2) as usize, write);
        expected[(number % 2) as usize].push(number as u16);
        if number == 3 {
            rig.answer();
            rig.end_media();
        }
    }
    rig.settle();
    for qid in 1..3 {
        let mut cids: Vec<_> = rig.reap(qid).iter().map(|seen| (seen.cid.get(), seen.status())).collect();
        cids.sort_by_key(|(cid, _)| *cid);
        assert_eq!(cids, expected[qid - 1].iter().map(|cid| (*cid, Status::SUCCESS)).collect::<Vec<_>>());
    }
}

fn read_back(rig: &mut Rig<'_>, qid: usize, slba: u64, len: usize) {
    let read = SubmissionEntry::read(50, 1, slba, (len / 512) as u32);
    let read = prps(rig, read, BACK + 0xe00, len, 0x9_0000);
    assert_eq!(rig.run(qid, read).status(), Status::SUCCESS);
    assert!(rig.host[BACK as usize + 0xe00..][..len] == rig.disk[slba as usize * 512..][..len]);
}

/// What a driver may do in its life.
fn life(rig: &mut Rig<'_>) {
    rig.start();
    let identify = Identify::new(Cns::CONTROLLER, 0).entry(7).with_prps(BACK, 0);
    assert_eq!(rig.admin(identify).status(), Status::SUCCESS);
    rig.submit(0, SubmissionEntry::admin(AdminOpcode::ASYNC_EVENT_REQUEST, 99, 0));
    storm(rig, 0);
    read_back(rig, 1, 90, 40 * 512);
    read_back(rig, 2, 300, 512);
    let ranges = [(0, 2), (100, 1)].map(|(slba, nlb)| DatasetManagementRange::new(slba, nlb));
    rig.host[DATA as usize..][..32].copy_from_slice(ranges.as_bytes());
    let deallocate = SubmissionEntry::deallocate(1, 1, 2).with_prps(DATA, 0);
    assert_eq!(rig.run(1, deallocate).status(), Status::SUCCESS);
    assert_eq!(rig.run(2, SubmissionEntry::write_zeroes(1, 1, 103, 3, false)).status(), Status::SUCCESS);
    assert_eq!(rig.run(2, SubmissionEntry::flush(2, 1)).status(), Status::SUCCESS);
    assert_eq!(rig.admin(Abort { sqid: 1, command: 3 }.entry(3)).dw0.get(), 1);
    // A queue deleted and a controller reset under load.
    rig.submit(2, SubmissionEntry::write(1, 1, 8, 8).with_prps(DATA, 0));
    rig.answer();
    rig.submit(0, DeleteIoQueue { qid: 2, is_cq: false }.entry(4));
    rig.settle();
    assert_eq!(rig.reap(0).len(), 1);
    rig.submit(1, SubmissionEntry::write(1, 1, 16, 8).with_prps(DATA, 0));
    rig.answer();
    rig.answer();
    rig.write32(CC, 0x0046_0000);
    rig.reads.clear();
    rig.settle();
    assert!(!rig.csts().rdy());
    rig.start();
    storm(rig, 1);
    rig.write32(CC, 0x0046_4001);
    rig.settle();
    assert_eq!(rig.csts().shst(), 2);
    rig.assert_idle();
}

/// What an administrator may do, and the rarer commands, in the middle of which a card may die just as well.
fn second_life(rig: &mut Rig<'_>) {
    rig.start();
    rig.disk[..64 << 10].copy_from_slice(&pattern(4, 64 << 10));
    let range = |opcode, slba, nlb| SubmissionEntry::nvm_range(opcode, 1, 1, slba, nlb);
    // Overlapping, from a range that is no whole page, with its end at a page of its own.
    let ranges = [(3, 13), (40, 1), (5, 20)].map(|(slba, nlb)| CopyRange::new(slba, nlb));
    rig.host[DATA as usize..][..96].copy_from_slice(ranges.as_bytes());
    let copy = SubmissionEntry::copy(1, 1, 9, 3).with_prps(DATA, 0).with_fua();
    assert_eq!(rig.run(1, copy).status(), Status::SUCCESS);
    read_back(rig, 2, 0, 60 * 512);
    let compare = range(NvmOpcode::COMPARE, 0, 60);
    let compare = prps(rig, compare, BACK + 0xe00, 60 * 512, 0x9_0000);
    assert_eq!(rig.run(1, compare).status(), Status::SUCCESS);
    assert_eq!(rig.run(1, range(NvmOpcode::VERIFY, 0, 2048)).status(), Status::SUCCESS);
    assert_eq!(rig.run(1, range(NvmOpcode::WRITE_UNCORRECTABLE, 2, 40)).status(), Status::SUCCESS);
    let unreadable = rig.run(2, range(NvmOpcode::READ, 2, 1).with_prps(DATA, 0)).status().code();
    assert_eq!(unreadable, Status::UNRECOVERED_READ_ERROR);
    assert_eq!(rig.run(1, SubmissionEntry::write_zeroes(1, 1, 10, 2, false)).status(), Status::SUCCESS);
    let save = SetFeatures { fid: FeatureId::ARBITRATION, save: true, nsid: 0, dw11: 3, dw12: 0 };
    assert_eq!(rig.admin(save.entry(1)).status(), Status::SUCCESS);
    let format = FormatNvm {
        nsid: 1,
        lba_format: 1,
        extended_metadata: false,
        protection: 0,
        protection_first: false,
        secure_erase: 1,
    };
    rig.submit(1, SubmissionEntry::write(1, 1, 0, 1).with_prps(DATA, 0));
    rig.submit(0, format.entry(1));
    rig.settle();
    assert_eq!((rig.reap(0).len(), rig.reap(1).len()), (1, 1));
    assert_eq!(rig.admin(conformance::delete(1)).status(), Status::SUCCESS);
    assert_eq!(conformance::create(rig, 100, 1, true).dw0.get(), 1);
    assert_eq!(conformance::attach(rig, 1, &[0], false), Status::SUCCESS);
    assert_eq!(rig.run(1, range(NvmOpcode::WRITE, 99, 1).with_prps(DATA, 0)).status(), Status::SUCCESS);
    // A format and a comparison that a reset ends.
    for entry in [range(NvmOpcode::COMPARE, 0, 1).with_prps(DATA, 0), SubmissionEntry::flush(2, 1)] {
        rig.submit(1, entry);
    }
    rig.submit(0, format.entry(1));
    rig.answer();
    rig.write32(CC, 0);
    rig.reads.clear();
    rig.settle();
    rig.start();
    assert_eq!(rig.run(1, range(NvmOpcode::READ, 99, 1).with_prps(BACK, 0)).status(), Status::SUCCESS);
    rig.assert_idle();
}

/// A card that dies before every single store it ever makes does what one does that never dies.
#[test]
fn a_card_may_die_before_any_store() {
    for life in [life, second_life] {
        let mut disks = Vec::new();
        for deadly in [false, true] {
            with_rig(Config { keeps_state: true, ..config() }, |rig| {
                rig.deadly = deadly;
                life(rig);
                assert_eq!(rig.deaths > 5_000, deadly, "{} deaths", rig.deaths);
                disks.push((
                    rig.disk.clone(),
                    rig.host[BACK as usize..][..0x8000].to_vec(),
                    rig.kept.clone(),
                ));
            });
        }
        assert!(disks[0] == disks[1]);
    }
}

/// The same life with stores that are not logged must go wrong, or this file proves nothing.
#[test]
fn the_killer_finds_stores_that_are_not_logged() {
    silence_kills();
    let hook = KillAt { left: StdCell::new(u64::MAX) };
    let arena = Arena::default();
    let rules = RuleSet::ALL.without(base::Rule::LogStores);
    let rig = &mut Rig::new(&arena, &hook, config(), rules);
    rig.deadly = true;
    assert!(catch_unwind(AssertUnwindSafe(|| life(rig))).is_err());
}
