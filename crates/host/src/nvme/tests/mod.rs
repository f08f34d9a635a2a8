mod given_up;
mod model;
mod unflushed;

use std::collections::{BTreeMap, VecDeque};

use base::Random;
use base::ledger::Coded;
use base::ledger::{Arena, Ledger, PageCells, PageIndex, RawMemory};
use proptest::prelude::*;
use spec::nvme::{NvmOpcode, Status};
use zerocopy::FromBytes;

use self::model::{BLOCK, Model, Output};
use super::*;
use crate::BlockKind;
use crate::testing::{Killer, run_step};

const CONFIG: DriverConfig = DriverConfig {
    queue_memory: 0x1_0000_0000,
    data_memory: 0x2_0000_0000,
    interrupt: 0xfee0_0000,
    bar_bytes: 1 << 40,
};

#[derive(FromBytes)]
#[repr(C)]
struct Root {
    driver: DriverCells,
    pages: PageCells,
}

fn driver<'m>(ledger: &Ledger<'m, Root>) -> Driver<'m> {
    Driver::new(&ledger.root.driver, Pages::new(&ledger.root.pages, ledger.journal), ledger.journal, CONFIG)
}

/// What happens to the card, one step each.
#[derive(Clone, Debug)]
enum Input {
    Start,
    Reset,
    Forget,
    Abandon(u32),
    Shutdown,
    Tick,
    Submit { id: u32, kind: BlockKind, lba: u64, blocks: u32, fua: bool, fill: u8 },
    Release(Vec<PageIndex>),
    Function(Output),
}

/// A card with a driver, in front of a model.
struct World<'m> {
    memory: RawMemory<'m>,
    killer: &'m Killer,
    model: Model,
    now: Instant,
    inputs: VecDeque<Input>,
    /// Pages of the requests in flight.
    pages: BTreeMap<u32, Vec<PageIndex>>,
    done: Vec<(u32, Result<(), BlockError>)>,
    read: BTreeMap<u32, Vec<u8>>,
    lives: usize,
}

impl<'m> World<'m> {
    fn new(arena: &'m Arena, killer: &'m Killer) -> Self {
        let (memory, model) = (arena.zeroed::<Root>(), Model::new(1024));
        let inputs = VecDeque::from([Input::Start]);
        let (pages, done, read) = Default::default();
        Self { memory, killer, model, now: Instant::from_nanos(1), inputs, pages, done, read, lives: 1 }
    }

    fn calm(&self) -> Ledger<'m, Root> {
        self.memory.ledger(None, base::RuleSet::ALL)
    }

    fn driver(&self) -> Driver<'m> {
        driver(&self.calm())
    }

    fn submit(&mut self, id: u32, kind: BlockKind, lba: u64, blocks: u32, fill: u8) {
        self.inputs.push_back(Input::Submit { id, kind, lba, blocks, fua: false, fill });
    }

    fn submit_fua(&mut self, id: u32, lba: u64, blocks: u32, fill: u8) {
        self.inputs.push_back(Input::Submit { id, kind: BlockKind::Write, lba, blocks, fua: true, fill });
    }

    /// Pages that nobody holds but requests and kept writes.
    fn pages_used(&self) -> usize {
        Pages::new(&self.calm().root.pages, self.calm().journal).used()
    }

    /// The lender's power fails.
    fn lose_power(&mut self) {
        self.reset();
        self.model.lose_power();
    }

    /// Runs until nothing happens but time.
    fn settle(&mut self) {
        while let Some(input) = self.inputs.front().cloned() {
            self.step(input);
        }
    }

    /// Lets time pass from timer to timer, at most so often.
    fn pass(&mut self, timers: usize) {
        self.settle();
        for _ in 0..timers {
            let Some(at) = self.driver().poll_timeout() else { return };
            self.now = at.max(self.now);
            self.inputs.push_back(Input::Tick);
            self.settle();
        }
    }

    fn pass_until(&mut self, what: &str, reached: impl Fn(&Self) -> bool) {
        for _ in 0..2000 {
            self.settle();
            if reached(self) {
                return;
            }
            self.pass(1);
        }
        panic!("never {what}: {:?}", self.driver().state());
    }

    fn step(&mut self, input: Input) {
        let mut accesses = Vec::new();
        let mut done = Vec::new();
        let mut taken = None;
        let pages =
            Pages::new(&self.calm().root.pages, self.calm().journal).has_free(BlockRequest::MAX_PAGES);
        let waits = self.driver().room() == 0 || !pages;
        let (now, busy) = (self.now, matches!(input, Input::Submit { .. }) && waits);
        if busy {
            // The requester waits for room; what the function does comes first.
            let other = self.inputs.iter().position(|input| !matches!(input, Input::Submit { .. }));
            let other = other.and_then(|index| self.inputs.remove(index));
            self.inputs.push_front(other.expect("a full driver has something to wait for"));
            return;
        }
        let (lived, happened) = run_step::<Root>(self.memory, self.killer, |ledger| {
            let mut driver = driver(&ledger);
            taken = deliver(&mut driver, &Pages::new(&ledger.root.pages, ledger.journal), now, &input);
            while let Some(access) = driver.poll_access(now) {
                accesses.push(access);
            }
            while let Some(completion) = driver.poll_completion() {
                done.push(completion);
            }
        });
        self.lives += usize::from(!lived);
        if !happened {
            return;
        }
        self.inputs.pop_front();
        if let Some((id, pages)) = taken {
            self.pages.insert(id, pages);
        }
        for (id, result) in done {
            self.end(id, result);
        }
        self.effects(accesses);
    }

    fn end(&mut self, id: u32, result: Result<(), BlockError>) {
        let pages = self.pages.remove(&id).expect("a request completes once");
        let pool = Pages::new(&self.calm().root.pages, self.calm().journal);
        let mut data = vec![0; pages.len() * 4096];
        for (page, chunk) in pages.iter().zip(data.chunks_mut(4096)) {
            pool.read(*page, 0, chunk);
        }
        self.read.insert(id, data);
        self.done.push((id, result));
        self.inputs.push_back(Input::Release(pages));
    }

    fn effects(&mut self, accesses: Vec<Access>) {
        let ledger = self.calm();
        let (driver, pool) = (self.driver(), Pages::new(&ledger.root.pages, ledger.journal));
        let host = |address: u64, out: &mut [u8]| {
            if address >= CONFIG.data_memory {
                let at = (address - CONFIG.data_memory) as usize;
                assert!(
                    driver.may_read(PageIndex((at / 4096) as u16)),
                    "only pages of running writes are read"
                );
                pool.read(PageIndex((at / 4096) as u16), at % 4096, out);
            } else {
                driver.memory_read(address - CONFIG.queue_memory, out);
            }
        };
        let mut out = Vec::new();
        for access in accesses {
            self.model.access(access, &host, &mut out);
        }
        self.inputs.extend(out.into_iter().map(Input::Function));
    }

    fn reset(&mut self) {
        self.inputs.retain(|input| !matches!(input, Input::Function(_)));
        self.model.reset();
        self.inputs.push_front(Input::Reset);
    }

    fn ready(&mut self) {
        self.pass_until("ready", |world| world.driver().is_ready());
    }

    fn results(&mut self) -> Vec<(u32, Result<(), BlockError>)> {
        let mut done = std::mem::take(&mut self.done);
        done.sort_by_key(|(id, _)| *id);
        done
    }
}

/// One input; returns the pages that a submission took.
fn deliver(
    driver: &mut Driver<'_>,
    pool: &Pages<'_>,
    now: Instant,
    input: &Input,
) -> Option<(u32, Vec<PageIndex>)> {
    match input {
        Input::Start => driver.start(now),
        Input::Reset => driver.handle_reset(now),
        Input::Forget => driver.forget(now),
        Input::Abandon(id) => driver.abandon([*id..=*id].into_iter()),
        Input::Shutdown => driver.shutdown(now),
        Input::Tick => driver.handle_timeout(now),
        Input::Release(pages) => pages.iter().for_each(|page| pool.release(*page)),
        Input::Submit { id, kind, lba, blocks, fua, fill } => {
            let data = matches!(kind, BlockKind::Read | BlockKind::Write);
            let count = if data { (*blocks as usize * BLOCK).div_ceil(4096) } else { 0 };
            let pages: Vec<_> = (0..count).map(|_| pool.alloc().unwrap()).collect();
            for (index, page) in pages.iter().enumerate() {
                pool.write(*page, 0, &[fill.wrapping_add(index as u8); 4096]);
            }
            let request =
                BlockRequest { id: *id, kind: *kind, lba: *lba, blocks: *blocks, fua: *fua, pages: &pages };
            driver.submit(now, request);
            return Some((*id, pages));
        }
        Input::Function(Output::Answer(id, answer)) => {
            driver.handle_access(now, *id, answer.as_deref().map_err(|error| *error));
        }
        Input::Function(Output::Write(address, bytes)) if *address >= CONFIG.data_memory => {
            let at = (address - CONFIG.data_memory) as usize;
            assert!(
                driver.may_write(PageIndex((at / 4096) as u16)),
                "only pages of running reads are written"
            );
            pool.write(PageIndex((at / 4096) as u16), at % 4096, bytes);
        }
        Input::Function(Output::Write(address, bytes)) => {
            driver.memory_write(now, address - CONFIG.queue_memory, bytes);
        }
    }
    None
}

fn with_world(test: impl FnOnce(&mut World<'_>)) {
    let (arena, killer) = (Arena::default(), Killer::new(None));
    test(&mut World::new(&arena, &killer));
}

/// Whatever ends of it later must not be taken for the end of something else.
#[test]
fn a_format_to_another_block_size_leaves_nothing_under_way() {
    with_world(|world| {
        world.model.reports = true;
        world.ready();
        world.model.hang = true;
        (1..4).for_each(|id| world.submit(id, BlockKind::Read, id.into(), 1, 0));
        world.settle();
        world.model.block_shift = 12;
        let (mut told, resets) = (Vec::new(), world.driver().counters().resets.get());
        world.model.report(&mut told);
        world.inputs.extend(told.into_iter().map(Input::Function));
        world.settle();
        assert_eq!(world.results(), [1, 2, 3].map(|id| (id, Err(BlockError::Io))));
        assert_eq!(world.driver().counters().resets.get(), resets + 1, "the controller has them yet");
        world.model.hang = false;
        world.ready();
        assert_eq!(world.driver().geometry().map(|it| it.block_size), Some(4096));
        world.submit(9, BlockKind::Flush, 0, 0, 0);
        world.settle();
        assert_eq!(world.results(), [(9, Ok(()))]);
    });
}

#[test]
fn initialises_and_reports_the_drive() {
    with_world(|world| {
        world.model.slow_polls = 3;
        world.ready();
        let geometry = Geometry { block_size: 512, blocks: 1024, read_only: false, volatile_cache: true };
        assert_eq!(world.driver().geometry(), Some(geometry));
        assert_eq!(world.model.vector, Some((CONFIG.interrupt, 0)));
    });
}

#[test]
fn initialises_without_msix_though_the_chain_loops() {
    with_world(|world| {
        world.model.with_msix = false;
        world.ready();
        assert_eq!(world.model.vector, None);
    });
}

fn every_kind(world: &mut World<'_>) {
    world.ready();
    for (id, blocks) in [(1, 1), (2, 16), (3, 17), (4, 256)] {
        world.submit(id, BlockKind::Write, 256 * u64::from(id - 1), blocks, id as u8 * 16);
    }
    world.settle();
    for (id, blocks) in [(11, 1), (12, 16), (13, 17), (14, 256)] {
        world.submit(id, BlockKind::Read, 256 * u64::from(id - 11), blocks, 0xff);
    }
    world.submit(20, BlockKind::Flush, 0, 0, 0);
    world.settle();
    assert!(world.results().iter().all(|(_, result)| result.is_ok()));
    for (id, blocks) in [(11_u32, 1_usize), (12, 16), (13, 17), (14, 256)] {
        for (index, page) in world.read[&id][..blocks * BLOCK].chunks(4096).enumerate() {
            assert!(
                page.iter().all(|byte| *byte == (id - 10) as u8 * 16 + index as u8),
                "request {id} page {index}"
            );
        }
    }
    world.submit(21, BlockKind::WriteZeroes { deallocate: true }, 768, 256, 0);
    world.submit(22, BlockKind::Trim, 0, 1, 0);
    world.settle();
    assert_eq!(world.results(), [(21, Ok(())), (22, Ok(()))]);
    assert!(world.model.disk[768 * BLOCK..].iter().all(|byte| *byte == 0));
    assert_eq!((world.model.disk[0], world.model.flushes), (0xdd, 1));
    assert_eq!(Pages::new(&world.calm().root.pages, world.calm().journal).used(), 0);
}

#[test]
fn every_kind_of_request_with_a_controller_memory_buffer() {
    with_world(every_kind);
}

#[test]
fn every_kind_of_request_without_a_controller_memory_buffer() {
    with_world(|world| {
        world.model.with_cmb = false;
        every_kind(world);
    });
}

/// Where each event leads from each state, with an answer that the state hopes for. `-` stays.
#[test]
fn the_whole_table_of_transitions() {
    let mut table = String::new();
    for &state in State::ALL {
        let answer = match state {
            State::Class => u64::from(spec::nvme::PCI_CLASS_CODE) << 8,
            State::Command => 0x10 << 16,
            State::Pointer => 0x40,
            State::Capability => 0x11,
            State::Capabilities => 0xff,
            State::Disabling => 0,
            State::ShuttingDown => 8,
            _ => 1,
        };
        let done = spec::nvme::CompletionEntry::new(0, 0, 0, Status::SUCCESS, 0, true);
        let events = [Event::Answer(answer), Event::Failed, Event::Timer, Event::Admin(done)];
        // The last is what happens when nothing is in flight.
        let events = [events.map(Some).as_slice(), &[None]].concat();
        let next = events.into_iter().map(|event| {
            let arena = Arena::default();
            let ledger = arena.zeroed::<Root>().ledger::<Root>(None, base::RuleSet::ALL);
            let mut driver = driver(&ledger);
            driver.init.set_state(state);
            driver.init.close(Instant::ZERO);
            driver.queues.reset(16);
            ledger.root.driver.init.chain_left.set(ledger.journal, 1);
            ledger.root.driver.table.flushed.set(ledger.journal, 1);
            ledger.root.driver.namespace.flags.set(ledger.journal, namespace::flag::VOLATILE_CACHE);
            // Eight blocks of 512 bytes.
            ledger.root.driver.identify.write(ledger.journal, 0, &[8]);
            ledger.root.driver.identify.write(ledger.journal, 130, &[9]);
            match event {
                Some(event) => driver.transition(Instant::from_nanos(1), event),
                None => driver.shut_down_when_idle(Instant::from_nanos(1)),
            }
            if driver.state() == state { "-".into() } else { format!("{:?}", driver.state()) }
        });
        table += &format!("{state:?}: {}\n", next.collect::<Vec<String>>().join(" "));
    }
    assert_eq!(table, TABLE);
}

/// State: answer, failed, timer, admin command done, idle. A shutdown is wanted.
const TABLE: &str = "\
Stopped: - - - - -
Backoff: - - Identity - -
Identity: Class Backoff Backoff Backoff -
Class: Command Backoff Backoff Backoff -
Command: Pointer Backoff Backoff Backoff -
Pointer: Capability Backoff Backoff Backoff -
Capability: Table Backoff Backoff Backoff -
Table: Decode Backoff Backoff Backoff -
Decode: Capabilities Backoff Backoff Backoff -
Vector: Capabilities Backoff Backoff Backoff -
Capabilities: Disabling Backoff Backoff Backoff -
Disabling: Enabling Backoff - Backoff -
CmbLocation: CmbSize Backoff Backoff Backoff -
CmbSize: Enabling Backoff Backoff Backoff -
CmbStatus: Enabling Backoff Backoff Backoff -
Enabling: IdentifyController Backoff - Backoff -
IdentifyController: - Backoff Backoff IdentifyList -
IdentifyList: - Backoff Backoff IdentifyNamespace -
IdentifyNamespace: - Backoff Backoff WriteCache -
WriteCache: - Backoff Backoff QueueCount -
Events: - Backoff Backoff QueueCount -
QueueCount: - Backoff Backoff CreateCq -
CreateCq: - Backoff Backoff CreateSq -
CreateSq: - Backoff Backoff ShuttingDown -
Ready: - Backoff Backoff Backoff ShuttingDown
ShuttingDown: ShutDown Backoff - Backoff -
ShutDown: - - - - -
";

#[test]
fn one_doorbell_for_several_submissions() {
    let arena = Arena::default();
    let ledger = arena.zeroed::<Root>().ledger::<Root>(None, base::RuleSet::ALL);
    with_world(|world| {
        world.ready();
        let (calm, now) = (world.calm(), world.now);
        let mut driver = driver(&calm);
        for id in 0..5 {
            driver.submit(
                now,
                BlockRequest { id, kind: BlockKind::Flush, lba: 0, blocks: 0, fua: false, pages: &[] },
            );
        }
        let accesses: Vec<_> = std::iter::from_fn(|| driver.poll_access(now)).collect();
        assert_eq!(accesses.len(), 6);
        calm.journal.commit();
        (0..5).for_each(|id| drop(world.pages.insert(id, Vec::new())));
        world.effects(accesses);
        world.settle();
        assert_eq!((world.model.doorbells, world.results().len()), (1, 5));
    });
    assert!(!driver(&ledger).is_ready());
}

#[test]
fn the_queue_wraps_many_times_at_full_depth() {
    with_world(|world| {
        world.ready();
        for id in 0..1500 {
            world.submit(id, BlockKind::Flush, 0, 0, 0);
        }
        world.settle();
        assert_eq!(world.results().len(), 1500);
        assert_eq!(world.driver().room(), Driver::IN_FLIGHT);
    });
}

#[test]
fn statuses_are_mapped_and_transient_ones_tried_again() {
    with_world(|world| {
        world.ready();
        let cases = [
            (Status::NAMESPACE_WRITE_PROTECTED, Err(BlockError::ReadOnly), 1),
            (Status::CAPACITY_EXCEEDED, Err(BlockError::NoSpace), 1),
            (Status::LBA_OUT_OF_RANGE.with_dnr(), Err(BlockError::Invalid), 1),
            (Status::WRITE_FAULT, Err(BlockError::Io), 1),
            (Status::INTERNAL_ERROR.with_dnr(), Err(BlockError::Io), 1),
            (Status::ABORT_REQUESTED, Ok(()), 2),
            (Status::NAMESPACE_NOT_READY, Ok(()), 2),
        ];
        for (id, (status, result, tries)) in cases.into_iter().enumerate() {
            world.model.opcodes.clear();
            world.model.statuses.push_back(status);
            world.submit(id as u32, BlockKind::Write, 0, 8, 1);
            world.settle();
            assert_eq!(
                (world.results(), world.model.opcodes.len()),
                (vec![(id as u32, result)], tries),
                "{status:?}"
            );
        }
        world.model.statuses.extend([Status::INTERNAL_ERROR; 2]);
        world.submit(9, BlockKind::Read, 0, 8, 1);
        world.settle();
        assert_eq!(world.results(), [(9, Err(BlockError::Io))]);
    });
}

#[test]
fn outages_of_the_way_are_outlasted_with_growing_waits() {
    with_world(|world| {
        world.ready();
        world.model.statuses.extend([Status::DATA_TRANSFER_ERROR; 12]);
        world.submit(1, BlockKind::Write, 0, 8, 7);
        let start = world.now;
        world.settle();
        assert_eq!(world.model.opcodes.len(), 2, "at once only the first time");
        // Others are not held up.
        world.submit(2, BlockKind::Write, 100, 8, 8);
        world.model.statuses.push_front(Status::SUCCESS);
        world.settle();
        assert_eq!(world.results(), [(2, Ok(()))]);
        world.pass_until("done", |world| !world.done.is_empty());
        assert_eq!((world.results(), world.model.opcodes.len()), (vec![(1, Ok(()))], 14));
        let waited = world.now.since(start);
        assert!(waited > core::time::Duration::from_secs(4) && waited < times::IO_TIMEOUT, "{waited:?}");
        assert_eq!(world.driver().counters().resets.get(), 1);
    });
}

#[test]
fn a_delayed_command_survives_a_reset_and_ends_with_a_shutdown() {
    with_world(|world| {
        world.ready();
        world.model.statuses.extend([Status::NAMESPACE_NOT_READY; 3]);
        world.submit(1, BlockKind::Write, 0, 8, 7);
        world.settle();
        world.model.statuses.clear();
        world.reset();
        world.ready();
        world.settle();
        assert_eq!(world.results(), [(1, Ok(()))]);
        world.model.statuses.extend([Status::NAMESPACE_NOT_READY; 1000]);
        world.submit(2, BlockKind::Write, 0, 8, 7);
        world.settle();
        world.inputs.push_back(Input::Shutdown);
        world.pass_until("down", |world| world.driver().is_shut_down());
        assert_eq!(world.results(), [(2, Err(BlockError::Io))]);
    });
}

#[test]
fn the_function_reaches_pages_only_while_and_as_their_command_runs() {
    with_world(|world| {
        world.ready();
        world.model.hang = true;
        world.submit(1, BlockKind::Write, 0, 9, 1);
        world.submit(2, BlockKind::Read, 100, 8, 0);
        let rights = |world: &World<'_>, id| {
            let driver = world.driver();
            let rights = |page: &PageIndex| (driver.may_read(*page), driver.may_write(*page));
            world.pages[&id].iter().map(rights).collect::<Vec<_>>()
        };
        world.settle();
        assert_eq!((rights(world, 1), rights(world, 2)), (vec![(true, false); 2], vec![(false, true)]));
        let all = |world: &World<'_>| {
            let driver = world.driver();
            let reached =
                |page: &u16| driver.may_read(PageIndex(*page)) || driver.may_write(PageIndex(*page));
            (0..Pages::CAPACITY as u16).filter(reached).count()
        };
        assert_eq!(all(world), 3);
        world.model.hang = false;
        world.reset();
        let reset = world.inputs.pop_front().unwrap();
        world.step(reset.clone());
        assert_eq!(all(world), 0, "nothing is reached before it is issued again");
        world.ready();
        world.settle();
        // The write is kept, and its pages live.
        assert_eq!((world.driver().kept(), world.pages_used(), all(world)), ((1, 2), 2, 0));
        assert!(!world.driver().may_read(PageIndex(u16::MAX)));
    });
}

#[test]
fn what_no_controller_could_do_is_invalid() {
    with_world(|world| {
        world.ready();
        world.submit(1, BlockKind::WriteZeroes { deallocate: true }, 0, 65537, 0);
        world.submit(2, BlockKind::Read, 0, 0, 0);
        world.settle();
        assert_eq!(world.results(), [(1, Err(BlockError::Invalid)), (2, Err(BlockError::Invalid))]);
        assert!(world.model.opcodes.is_empty());
    });
}

#[test]
fn a_reset_issues_everything_again() {
    with_world(|world| {
        world.ready();
        world.model.hang = true;
        (0..200).for_each(|id| world.submit(id, BlockKind::Write, u64::from(id), 1, id as u8));
        world.settle();
        assert_eq!(world.driver().in_flight(), 200);
        world.model.hang = false;
        world.model.disk = vec![0; 2048 * BLOCK];
        world.reset();
        world.ready();
        world.settle();
        let results = world.results();
        assert_eq!(results.len(), 200);
        assert!(results.iter().all(|(_, result)| result.is_ok()));
        assert!((0..200).all(|lba| world.model.disk[lba * BLOCK] == lba as u8));
        assert_eq!(world.driver().geometry().map(|geometry| geometry.blocks), Some(2048));
    });
}

#[test]
fn a_lost_access_at_any_point_is_survived() {
    for skipped in 0..14 {
        with_world(|world| {
            for _ in 0..skipped {
                if let Some(input) = world.inputs.front().cloned() {
                    world.step(input);
                }
            }
            world.model.lost = 2;
            world.submit(1, BlockKind::Write, 5, 1, 7);
            world.pass_until("done", |world| !world.done.is_empty());
            assert_eq!(world.results(), [(1, Ok(()))]);
            assert!(world.lives == 1 && world.model.disk[5 * BLOCK] == 7);
        });
    }
}

#[test]
fn an_unanswered_access_is_given_up() {
    with_world(|world| {
        world.settle();
        world.ready();
        world.reset();
        let reset = world.inputs.pop_front().unwrap();
        let ledger = world.calm();
        let mut driver = driver(&ledger);
        assert!(
            deliver(&mut driver, &Pages::new(&ledger.root.pages, ledger.journal), world.now, &reset)
                .is_none()
        );
        // Its first access is never answered.
        assert!(driver.poll_access(world.now).is_some());
        assert_eq!(driver.poll_timeout(), Some(world.now + ACCESS_TIMEOUT));
        ledger.journal.commit();
        world.ready();
    });
}

#[test]
fn a_silent_controller_is_reset_after_the_time_out() {
    with_world(|world| {
        world.ready();
        world.model.hang = true;
        world.submit(1, BlockKind::Write, 0, 1, 9);
        world.settle();
        let start = world.now;
        world.pass_until("reset", |world| !world.driver().is_ready());
        assert!(world.now.since(start) >= COMMAND_TIMEOUT);
        world.model.hang = false;
        world.pass_until("done", |world| !world.done.is_empty());
        assert_eq!((world.results(), world.model.disk[0]), (vec![(1, Ok(()))], 9));
    });
}

#[test]
fn a_fatal_status_is_noticed_before_the_time_out() {
    with_world(|world| {
        world.ready();
        world.model.hang = true;
        world.submit(1, BlockKind::Flush, 0, 0, 0);
        world.settle();
        let start = world.now;
        world.model.fatal = true;
        world.pass_until("reset", |world| !world.driver().is_ready());
        assert!(world.now.since(start) < COMMAND_TIMEOUT);
        (world.model.fatal, world.model.hang) = (false, false);
        world.pass_until("done", |world| !world.done.is_empty());
    });
}

#[test]
fn an_absent_function_is_tried_again_with_growing_waits() {
    with_world(|world| {
        world.model.lost = usize::MAX;
        world.submit(1, BlockKind::Flush, 0, 0, 0);
        world.pass(12);
        assert_eq!(world.driver().state(), State::Backoff);
        assert!(world.done.is_empty() && world.now.since(Instant::ZERO) > core::time::Duration::from_secs(3));
        world.model.lost = 0;
        world.pass_until("done", |world| !world.done.is_empty());
    });
}

#[test]
fn shuts_down_in_order() {
    with_world(|world| {
        world.ready();
        world.submit(1, BlockKind::Write, 0, 1, 3);
        world.inputs.push_back(Input::Shutdown);
        world.model.slow_polls = 2;
        world.pass_until("down", |world| world.driver().is_shut_down());
        assert_eq!(world.results(), [(1, Ok(()))]);
        assert!(world.model.shut_down && world.model.opcodes == [NvmOpcode::WRITE, NvmOpcode::FLUSH]);
        assert_eq!((world.driver().poll_timeout(), world.driver().room()), (None, 0));
        world.inputs.push_back(Input::Start);
        world.ready();
    });
}

#[test]
fn a_shutdown_is_given_up_when_the_controller_is_gone() {
    with_world(|world| {
        world.ready();
        world.model.hang = true;
        world.submit(1, BlockKind::Write, 0, 1, 3);
        world.inputs.push_back(Input::Shutdown);
        world.pass_until("down", |world| world.driver().is_shut_down());
        assert_eq!(world.results(), [(1, Err(BlockError::Io))]);
    });
}

#[test]
fn a_controller_that_cannot_flush_at_its_end_is_not_waited_for() {
    with_world(|world| {
        world.ready();
        world.inputs.push_back(Input::Shutdown);
        world.model.fatal = true;
        world.pass_until("down", |world| world.driver().is_shut_down());
        assert!(world.now < Instant::ZERO + Duration::from_secs(1), "{:?}", world.now);
    });
}

#[test]
fn nonsense_from_the_function_is_ignored() {
    with_world(|world| {
        world.ready();
        let mut random = Random::new(7);
        for round in 0..3000 {
            let bytes: Vec<u8> = (0..random.below(200)).map(|_| random.next_u64() as u8).collect();
            let at = CONFIG.queue_memory + random.below(QUEUE_MEMORY_SIZE as u64 + 100);
            world.inputs.push_back(Input::Function(Output::Write(at, bytes.clone())));
            if round % 50 == 0 {
                let id = AccessId(random.below(100) as u32);
                world.inputs.push_back(Input::Function(Output::Answer(id, Ok(bytes))));
                world.reset();
                world.submit(round, BlockKind::Read, 0, 8, 0);
            }
            world.settle();
        }
    });
}

/// Requests, a reset in their middle, and a shutdown; everything completes once, whatever store a card dies at.
fn eventful(kill: Option<u64>, with_cmb: bool) -> (u64, usize) {
    let (arena, killer) = (Arena::default(), Killer::new(kill));
    let mut world = World::new(&arena, &killer);
    world.model.with_cmb = with_cmb;
    world.submit(1, BlockKind::Write, 0, 40, 0x10);
    world.ready();
    world.settle();
    world.model.statuses.extend([Status::SUCCESS, Status::ABORT_REQUESTED]);
    world.submit(2, BlockKind::Write, 100, 8, 0x20);
    world.submit(3, BlockKind::Trim, 200, 8, 0);
    world.settle();
    world.model.hang = true;
    world.submit(4, BlockKind::Write, 300, 9, 0x40);
    world.settle();
    world.model.hang = false;
    world.reset();
    world.submit(5, BlockKind::Read, 0, 40, 0);
    world.ready();
    world.settle();
    world.inputs.push_back(Input::Shutdown);
    world.pass_until("down", |world| world.driver().is_shut_down());
    let ok = |id| (id, Ok(()));
    assert_eq!(world.results(), [ok(1), ok(2), ok(3), ok(4), ok(5)]);
    let disk = &world.model.disk;
    assert_eq!((disk[0], disk[39 * BLOCK], disk[100 * BLOCK], disk[300 * BLOCK]), (0x10, 0x14, 0x20, 0x40));
    assert_eq!((disk[200 * BLOCK], world.read[&5][..40 * BLOCK] == disk[..40 * BLOCK]), (0xdd, true));
    assert_eq!(Pages::new(&world.calm().root.pages, world.calm().journal).used(), 0);
    (killer.stores.get(), world.lives)
}

#[test]
fn a_card_killed_at_every_store_loses_and_doubles_nothing() {
    for with_cmb in [true, false] {
        let (stores, _) = eventful(None, with_cmb);
        for kill in 0..stores {
            assert_eq!(eventful(Some(kill), with_cmb).1, 2, "killed at store {kill} of {stores}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Many requests at once under resets, lost accesses and kills: each completes once, and the drive is as written.
    #[test]
    fn storms_lose_nothing(seed: u64, with_cmb: bool) {
        let (arena, killer) = (Arena::default(), Killer::new(None));
        let mut world = World::new(&arena, &killer);
        let mut random = Random::new(seed);
        world.model.with_cmb = with_cmb;
        for id in 0..120 {
            world.submit(id, BlockKind::Write, u64::from(id) * 8, 1 + random.below(8) as u32, id as u8);
            match random.below(16) {
                0 => world.reset(),
                1 => world.model.lost = random.below(3) as usize,
                2..6 => killer.at.set(Some(killer.stores.get() + random.below(400))),
                _ => {}
            }
            for _ in 0..random.below(12) {
                if let Some(input) = world.inputs.front().cloned() {
                    world.step(input);
                }
            }
        }
        world.pass_until("done", |world| world.done.len() == 120);
        prop_assert!(world.results().iter().all(|(_, result)| result.is_ok()));
        prop_assert!((0..120).all(|id| world.model.disk[id * 8 * BLOCK] == id as u8));
    }
}
