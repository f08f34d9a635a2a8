//! Random sequences of commands on both queues against a plain array (T2).
//!
//! Overlapping commands that are under way at once may have their effect in any order, so a command is begun only when
//! nothing under way overlaps it; everything else is up to chance: the order of the medium's work, what is answered
//! when, and in some runs a card that dies before stores.

use proptest::prelude::*;
use spec::nvme::{CopyRange, DatasetManagementRange, FusedOperation, NvmOpcode, SglDescriptor, SglType};

use super::*;

const BLOCKS: u64 = 128;

#[derive(Clone, Debug)]
enum Action {
    Write { slba: u64, nlb: u32, seed: usize, sgl: bool, fua: bool },
    Read { slba: u64, nlb: u32, sgl: bool },
    Zeroes { slba: u64, nlb: u32 },
    Deallocate { slba: u64, nlb: u32 },
    Compare { slba: u64, nlb: u32, equal: bool },
    Fused { slba: u64, nlb: u32, equal: bool, seed: usize },
    Copy { from: u64, to: u64, nlb: u32 },
    Uncorrectable { slba: u64, nlb: u32 },
    Verify { slba: u64, nlb: u32 },
    Flush,
}

fn action() -> impl Strategy<Value = Action> {
    let range = (0..BLOCKS - 16, 1..17_u32);
    prop_oneof![
        4 => (range.clone(), 0..1000_usize, any::<bool>(), any::<bool>())
            .prop_map(|((slba, nlb), seed, sgl, fua)| Action::Write { slba, nlb, seed, sgl, fua }),
        3 => (range.clone(), any::<bool>()).prop_map(|((slba, nlb), sgl)| Action::Read { slba, nlb, sgl }),
        1 => range.clone().prop_map(|(slba, nlb)| Action::Zeroes { slba, nlb }),
        1 => range.clone().prop_map(|(slba, nlb)| Action::Deallocate { slba, nlb }),
        2 => (range.clone(), any::<bool>()).prop_map(|((slba, nlb), equal)| Action::Compare { slba, nlb, equal }),
        2 => (0..BLOCKS - 8, 1..9_u32, any::<bool>(), 0..1000_usize)
            .prop_map(|(slba, nlb, equal, seed)| Action::Fused { slba, nlb, equal, seed }),
        2 => (range.clone(), 0..BLOCKS - 16).prop_map(|((from, nlb), to)| Action::Copy { from, to, nlb }),
        1 => range.clone().prop_map(|(slba, nlb)| Action::Uncorrectable { slba, nlb }),
        1 => range.prop_map(|(slba, nlb)| Action::Verify { slba, nlb }),
        1 => Just(Action::Flush),
    ]
}

impl Action {
    /// The blocks it reads or writes.
    fn ranges(&self) -> Vec<(u64, u64)> {
        match *self {
            Self::Write { slba, nlb, .. }
            | Self::Read { slba, nlb, .. }
            | Self::Zeroes { slba, nlb }
            | Self::Deallocate { slba, nlb }
            | Self::Compare { slba, nlb, .. }
            | Self::Fused { slba, nlb, .. }
            | Self::Uncorrectable { slba, nlb }
            | Self::Verify { slba, nlb } => vec![(slba, slba + u64::from(nlb))],
            Self::Copy { from, to, nlb } => {
                vec![(from, from + u64::from(nlb)), (to, to + u64::from(nlb))]
            }
            Self::Flush => vec![],
        }
    }
}

struct UnderWay {
    ranges: Vec<(u64, u64)>,
    expected: Vec<Status>,
    /// What a read has to bring, and to where.
    read: Option<(u64, Vec<u8>)>,
}

struct World<'r, 'm> {
    rig: &'r mut Rig<'m>,
    model: Vec<u8>,
    bad: Vec<bool>,
    /// By place: command identifiers 4 × place + (0 to 3).
    under_way: [Option<UnderWay>; 6],
}

impl World<'_, '_> {
    fn begin(&mut self, action: &Action) {
        let ranges = action.ranges();
        let hit = |other: &UnderWay| {
            let touches = |range: &(u64, u64)| ranges.iter().any(|mine| mine.0 < range.1 && range.0 < mine.1);
            other.ranges.iter().any(touches)
        };
        while self.under_way.iter().flatten().any(hit) || self.under_way.iter().all(Option::is_some) {
            self.some_time(true);
        }
        let place = self.under_way.iter().position(Option::is_none).unwrap();
        let at = DATA + place as u64 * 0x1_0000;
        let cid = place as u16 * 4;
        let (entries, expected, read) = self.command(action, at, cid);
        self.under_way[place] = Some(UnderWay { ranges, expected, read });
        let qid = 1 + place % 2;
        for (number, entry) in entries.iter().enumerate() {
            let last = number + 1 == entries.len();
            self.submit(qid, *entry, last);
        }
    }

    /// As [`Rig::submit`], ringing only behind the last half.
    fn submit(&mut self, qid: usize, entry: SubmissionEntry, last: bool) {
        if last {
            return self.rig.submit(qid, entry);
        }
        let queue = &mut self.rig.queues[qid];
        let at = queue.sq + u64::from(queue.tail) * 64;
        queue.tail = (queue.tail + 1) % queue.size;
        if queue.in_buffer {
            self.rig.step(Input::Write(MEMORY_BUFFER_BAR, at, entry.as_bytes().to_vec()));
        } else {
            self.rig.host[at as usize..][..64].copy_from_slice(entry.as_bytes());
        }
    }

    fn bytes(&self, slba: u64, nlb: u32) -> Vec<u8> {
        self.model[slba as usize * 512..][..nlb as usize * 512].to_vec()
    }

    fn is_bad(&self, slba: u64, nlb: u32) -> bool {
        self.bad[slba as usize..][..nlb as usize].contains(&true)
    }

    fn write(&mut self, slba: u64, data: &[u8]) {
        self.model[slba as usize * 512..][..data.len()].copy_from_slice(data);
        self.bad[slba as usize..][..data.len() / 512].fill(false);
    }

    fn data(&mut self, at: u64, data: &[u8]) {
        self.rig.host[at as usize..][..data.len()].copy_from_slice(data);
    }

    /// Two blocks of data at different places, or PRPs.
    fn pointer(&mut self, entry: SubmissionEntry, at: u64, len: usize, sgl: bool) -> SubmissionEntry {
        if !sgl {
            return prps(self.rig, entry, at, len, at + 0x8000);
        }
        let half = len / 8 * 4;
        let parts = [(at, half), (at + half as u64, len - half)];
        let list: Vec<u8> = parts
            .iter()
            .flat_map(|(at, len)| {
                SglDescriptor::new(SglType::DATA_BLOCK, *at, *len as u32).as_bytes().to_vec()
            })
            .collect();
        self.data(at + 0x8ff0, &list);
        let mut entry = entry.with_prps(at + 0x8ff0, 32 | 0x30 << 56);
        entry.flags |= 0x40;
        entry
    }

    fn command(&mut self, action: &Action, at: u64, cid: u16) -> Commands {
        let ok = vec![Status::SUCCESS];
        let read_error = |bad| if bad { Status::UNRECOVERED_READ_ERROR } else { Status::SUCCESS };
        let range = |opcode, slba, nlb| SubmissionEntry::nvm_range(opcode, cid, 1, slba, nlb);
        match *action {
            Action::Write { slba, nlb, seed, sgl, fua } => {
                let data = pattern(seed, nlb as usize * 512);
                self.data(at, &data);
                self.write(slba, &data);
                let entry = self.pointer(range(NvmOpcode::WRITE, slba, nlb), at, data.len(), sgl);
                (vec![if fua { entry.with_fua() } else { entry }], ok, None)
            }
            Action::Read { slba, nlb, sgl } => {
                let (data, bad) = (self.bytes(slba, nlb), self.is_bad(slba, nlb));
                let entry = self.pointer(range(NvmOpcode::READ, slba, nlb), at, data.len(), sgl);
                (vec![entry], vec![read_error(bad)], (!bad).then_some((at, data)))
            }
            Action::Zeroes { slba, nlb } => {
                self.write(slba, &vec![0; nlb as usize * 512]);
                (vec![range(NvmOpcode::WRITE_ZEROES, slba, nlb)], ok, None)
            }
            Action::Deallocate { slba, nlb } => {
                self.write(slba, &vec![0; nlb as usize * 512]);
                self.data(at, DatasetManagementRange::new(slba, nlb).as_bytes());
                (vec![SubmissionEntry::deallocate(cid, 1, 1).with_prps(at, 0)], ok, None)
            }
            Action::Compare { slba, nlb, equal } => {
                let (status, data) = self.compared(slba, nlb, equal);
                self.data(at, &data);
                let entry = self.pointer(range(NvmOpcode::COMPARE, slba, nlb), at, data.len(), false);
                (vec![entry], vec![status], None)
            }
            Action::Fused { slba, nlb, equal, seed } => {
                let (status, data) = self.compared(slba, nlb, equal);
                let new = pattern(seed, nlb as usize * 512);
                self.data(at, &data);
                self.data(at + 0x2000, &new);
                let first = range(NvmOpcode::COMPARE, slba, nlb).with_fused(FusedOperation::FIRST);
                let mut second = range(NvmOpcode::WRITE, slba, nlb).with_fused(FusedOperation::SECOND);
                second.cid = (cid + 1).into();
                let entries = vec![first.with_prps(at, 0), second.with_prps(at + 0x2000, 0)];
                if status == Status::SUCCESS {
                    self.write(slba, &new);
                    return (entries, vec![status; 2], None);
                }
                (entries, vec![status, Status::ABORTED_FAILED_FUSED], None)
            }
            Action::Copy { from, to, nlb } => {
                let (data, bad) = (self.bytes(from, nlb), self.is_bad(from, nlb));
                self.data(at, CopyRange::new(from, nlb).as_bytes());
                if !bad {
                    self.write(to, &data);
                }
                (vec![SubmissionEntry::copy(cid, 1, to, 1).with_prps(at, 0)], vec![read_error(bad)], None)
            }
            Action::Uncorrectable { slba, nlb } => {
                self.bad[slba as usize..][..nlb as usize].fill(true);
                (vec![range(NvmOpcode::WRITE_UNCORRECTABLE, slba, nlb)], ok, None)
            }
            Action::Verify { slba, nlb } => {
                let bad = self.is_bad(slba, nlb);
                (vec![range(NvmOpcode::VERIFY, slba, nlb)], vec![read_error(bad)], None)
            }
            Action::Flush => (vec![SubmissionEntry::flush(cid, 1)], ok, None),
        }
    }

    fn compared(&self, slba: u64, nlb: u32, equal: bool) -> (Status, Vec<u8>) {
        let mut data = self.bytes(slba, nlb);
        // A comparison goes page by page, and ends at the first that is bad or differs.
        let page = |byte: usize| byte / 4096;
        let last = data.len() - 1;
        let bad = self.bad[slba as usize..][..nlb as usize].iter().position(|bad| *bad);
        let bad = bad.map(|block| page(block * 512));
        if !equal {
            data[last] ^= 0xff;
        }
        let status = match (bad, equal) {
            (Some(bad), false) if page(last) < bad => Status::COMPARE_FAILURE,
            (Some(_), _) => Status::UNRECOVERED_READ_ERROR,
            (None, false) => Status::COMPARE_FAILURE,
            (None, true) => Status::SUCCESS,
        };
        (status, data)
    }

    /// Something happens; what is complete is checked.
    fn some_time(&mut self, must: bool) {
        let (answered, ended) = (self.rig.answer(), self.rig.end_media());
        let mut seen: Vec<_> = self.rig.reap(1);
        seen.extend(self.rig.reap(2));
        assert!(!must || answered || ended || !seen.is_empty(), "the controller stands still");
        for entry in seen {
            let (place, half) = (usize::from(entry.cid.get() / 4), usize::from(entry.cid.get() % 4));
            let command = self.under_way[place].as_mut().expect("a completion of what was begun");
            assert_eq!(entry.status().code(), command.expected[half], "{:?}", command.ranges);
            command.expected[half] = Status::VENDOR_DONE;
            if let Some((at, data)) = &command.read {
                assert!(self.rig.host[*at as usize..][..data.len()] == data[..], "what was read");
            }
            if command.expected.iter().all(|status| *status == Status::VENDOR_DONE) {
                self.under_way[place] = None;
            }
        }
    }
}

type Commands = (Vec<SubmissionEntry>, Vec<Status>, Option<(u64, Vec<u8>)>);

trait Done {
    /// A status that no command has: seen.
    const VENDOR_DONE: Status;
}

impl Done for Status {
    const VENDOR_DONE: Status = Status::from_bits(0x7ff);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, ..ProptestConfig::default() })]

    /// The seed of a failure is printed and kept by proptest.
    #[test]
    fn the_disk_is_the_models(
        actions in prop::collection::vec((action(), 0..3_u8), 1..50),
        seed: u64,
        in_order: bool,
        lives in 0..16_u8,
    ) {
        let config = Config { blocks: BLOCKS, keeps_state: true, ..config() };
        with_rig(config, |rig| {
            rig.start();
            rig.deadly = lives == 0;
            rig.shuffle = (!in_order).then(|| Random::new(seed));
            let model = rig.disk.clone();
            let bad = vec![false; BLOCKS as usize];
            let mut world = World { rig, model, bad, under_way: Default::default() };
            for (action, pauses) in &actions {
                world.begin(action);
                (0..*pauses).for_each(|_| world.some_time(false));
            }
            while world.under_way.iter().any(Option::is_some) {
                world.some_time(true);
            }
            assert!(world.rig.disk == world.model);
            world.rig.assert_idle();
        });
    }
}
