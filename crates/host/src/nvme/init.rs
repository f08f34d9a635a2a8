//! From an unknown function to a ready controller, and back: the driver's state machine.

use core::time::Duration;

use base::{Instant, Payload, coded};
use pcie::msix::Entry;
use pcie::spec::{capability, header};
use spec::nvme::feature::{AsyncEventConfiguration, NumberOfQueues, VolatileWriteCache};
use spec::nvme::identify::HOST_KEEPS_OFFERED;
use spec::nvme::registers::{
    self, Aqa, Cap, Cc, CmbLoc, CmbMsc, CmbSts, CmbSz, Csts, ShutdownNotification, ShutdownStatus,
};
use spec::nvme::{
    Cns, CompletionEntry, CreateIoCompletionQueue, CreateIoSubmissionQueue, FeatureId, Identify,
    IdentifyController, IdentifyNamespace, PCI_CLASS_CODE, SetFeatures, SubmissionEntry,
};
use zerocopy::{FromBytes, IntoBytes};

use super::cells::{
    ADMIN_ENTRIES, AccessKind, AccessRecord, IO_ENTRIES, Owner, SUBMISSION_BYTES, flag, region,
};
use super::events::FIRST_OF_EVENTS;
use super::{ACCESS_TIMEOUT, Driver, FunctionError};
use crate::{Access, AccessId, BlockRequest};

/// The BAR of the controller's registers (NVMe PCIe 1.0 §3.1.1).
pub(super) const REGISTERS: u8 = 0;
/// The I/O queue pair.
pub(super) const IO_QUEUE: u16 = 1;
/// The address by which commands name the controller memory buffer: above all memory of the driver.
pub(super) const CMB_ADDRESS: u64 = 1 << 43;

/// More than any of the driver's memories has bytes.
const MEMORY_MAX: u64 = 1 << 32;
/// Most capabilities in a chain of the plain configuration space.
const CHAIN_MAX: u32 = 48;
/// Between two looks at CSTS.
const POLL_MS: u64 = 1;
/// First wait before another attempt; doubles with each failure up to [`BACKOFF_MAX_MS`].
const BACKOFF_MS: u64 = 10;
const BACKOFF_MAX_MS: u64 = 1_000;
/// Longest an admin command may take.
const ADMIN_TIMEOUT_MS: u64 = 10_000;
/// Unit of CAP.TO.
const READY_UNIT_MS: u64 = 500;
/// What a register reads when nothing answers.
const ALL_ONES: u32 = u32::MAX;
/// MSI-X Enable and Function Mask in the dword of Message Control (PCIe 6.0 §7.7.2.2).
const MSIX_ENABLE: u32 = 1 << 31;
const MSIX_FUNCTION_MASK: u32 = 1 << 30;
/// Table BIR in the Table Offset register (PCIe 6.0 §7.7.2.3).
const MSIX_BIR: u32 = 7;

/// What the driver is doing.
///
/// ```text
///  Stopped --start--> Identity --> Class --> Command --> Pointer --> Capability (each of the chain) --> Table
///                        ^                      |           |             |                              |
///                        |                      +-----------+-------------+----> Decode <----------------+
///                        |                                 (no MSI-X)              |
///                        |                         Capabilities <-- Vector <-------+
///                        |                              |
///                        |                          Disabling (CSTS.RDY = 0) --> [CmbLocation --> CmbSize --> CmbStatus]
///                        |                              |                                                   |
///                        |                          Enabling (CSTS.RDY = 1) <--------------------------------+
///                        |                              |
///                        |   IdentifyController --> IdentifyList --> IdentifyNamespace --> WriteCache --> Events --> QueueCount --> CreateCq
///                        |                                                                                |
///                     Backoff <--failed--                   Ready <-----------------CreateSq <------------+
///                                 any state                   | shutdown, idle, flushed
///                                                       ShuttingDown (CSTS.SHST = complete) --> ShutDown
/// ```
/// A reset leads to `Identity` from every state but `Stopped` and `ShutDown`; a shutdown that takes too long leads to
/// `ShutDown` from every state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Never started.
    Stopped = 0,
    /// Waits before another attempt.
    Backoff,
    /// Reads vendor and device.
    Identity,
    /// Reads the class code.
    Class,
    /// Reads whether there are capabilities.
    Command,
    /// Reads where they begin.
    Pointer,
    /// Reads one of them.
    Capability,
    /// Reads where the MSI-X table lies.
    Table,
    /// Enables memory space and bus mastering.
    Decode,
    /// Enables MSI-X.
    Vector,
    /// Reads CAP.
    Capabilities,
    /// Waits for the end of the controller's old life.
    Disabling,
    /// Reads CMBLOC.
    CmbLocation,
    /// Reads CMBSZ.
    CmbSize,
    /// Reads whether the controller took the buffer's address.
    CmbStatus,
    /// Waits for the controller to be ready.
    Enabling,
    /// Identify Controller is under way.
    IdentifyController,
    /// The list of attached namespaces is under way.
    IdentifyList,
    /// Identify Namespace is under way.
    IdentifyNamespace,
    /// The volatile write cache is being enabled.
    WriteCache,
    /// Events about namespaces are being enabled.
    Events,
    /// Queues are being asked for.
    QueueCount,
    /// The completion queue is being created.
    CreateCq,
    /// The submission queue is being created.
    CreateSq,
    /// Requests are issued.
    Ready,
    /// Waits for the end of the controller's shutdown processing.
    ShuttingDown,
    /// Ended in order, or given up.
    ShutDown,
}

coded!(
    State: Stopped, Backoff, Identity, Class, Command, Pointer, Capability, Table, Decode, Vector, Capabilities,
    Disabling, CmbLocation, CmbSize, CmbStatus, Enabling, IdentifyController, IdentifyList, IdentifyNamespace,
    WriteCache, Events, QueueCount, CreateCq, CreateSq, Ready, ShuttingDown, ShutDown,
);

impl State {
    /// Whether the controller runs with our admin queue.
    pub(super) fn has_admin_queue(self) -> bool {
        (Self::IdentifyController as u32..=Self::ShuttingDown as u32).contains(&(self as u32))
    }

    /// Whether the present step is an admin command.
    pub(super) fn waits_for_admin(self) -> bool {
        (Self::IdentifyController as u32..=Self::CreateSq as u32).contains(&(self as u32))
    }
}

/// What moves the state machine.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The awaited access has ended; a configuration write with 0.
    Answer(u64),
    /// The awaited access or a command of the initialisation has failed, or took too long.
    Failed,
    /// The state's timer.
    Timer,
    /// The admin command under way has ended.
    Admin(CompletionEntry),
    /// Nothing is in flight, and a shutdown is wanted.
    Idle,
}

impl Driver<'_> {
    /// All transitions but those of `begin` and `give_up`.
    pub(super) fn transition(&mut self, now: Instant, event: Event) {
        use Event::{Admin, Answer, Failed, Idle, Timer};
        match (self.state(), event) {
            (State::Backoff, Timer) => self.begin(now),
            (State::Stopped | State::Backoff | State::ShutDown, _) => {}
            (State::Ready, Idle) => self.shut_down_when_idle(now),
            (State::Ready, Answer(csts)) => self.check_health(now, csts),
            (_, Idle) => {}
            (_, Failed) => self.fail(now),

            (State::Identity, Answer(id)) if id as u32 == ALL_ONES => self.fail(now),
            (State::Identity, Answer(_)) => self.config_read(now, State::Class, header::CLASS),
            (State::Class, Answer(class)) if class as u32 >> 8 != PCI_CLASS_CODE => {
                self.refuse(now, FunctionError::Class(class as u32 >> 8));
            }
            (State::Class, Answer(_)) => self.config_read(now, State::Command, header::COMMAND),
            (State::Command, Answer(status)) => self.find_capabilities(now, status as u32),
            (State::Pointer, Answer(pointer)) => self.visit_capability(now, pointer as u8),
            (State::Capability, Answer(head)) => self.look_at_capability(now, head as u32),
            (State::Table, Answer(table)) => self.note_table(now, table as u32),
            (State::Decode, Answer(_)) => self.enable_vector(now),
            (State::Vector, Answer(_)) => self.read(now, State::Capabilities, registers::CAP, 8),
            (State::Capabilities, Answer(cap)) => self.disable(now, Cap(cap)),

            (State::Disabling | State::Enabling, Timer) => self.read(now, self.state(), registers::CSTS, 4),
            (State::Disabling, Answer(csts)) => self.wait_disabled(now, csts as u32),
            (State::CmbLocation, Answer(location)) => {
                self.cells.cmb_location.set(self.journal, location as u32);
                self.read(now, State::CmbSize, registers::CMBSZ, 4);
            }
            (State::CmbSize, Answer(size)) => self.place_cmb(now, CmbSz(size as u32)),
            (State::CmbStatus, Answer(status)) => self.check_cmb(now, CmbSts(status as u32)),
            (State::Enabling, Answer(csts)) => self.wait_enabled(now, csts as u32),

            (state, Admin(entry)) => self.admin_done(now, state, &entry),
            (State::ShuttingDown, Timer) => self.read(now, State::ShuttingDown, registers::CSTS, 4),
            (State::ShuttingDown, Answer(csts)) => self.wait_shut_down(now, Csts(csts as u32)),
            // An admin command has not ended in time.
            (_, Timer) => self.fail(now),
            (_, Answer(_)) => {}
        }
    }

    /// Forgets the function's old life and begins a new one; commands in flight wait for its queues.
    pub(super) fn begin(&mut self, now: Instant) {
        let (cells, journal) = (self.cells, self.journal);
        cells.counters.resets.add(1);
        cells.out.clear(journal);
        cells.timer.set(journal, 0);
        cells.watch.set(journal, 0);
        cells.cmb_size.set(journal, 0);
        cells.msix_control.set(journal, 0);
        self.forget_events();
        self.requeue();
        self.config_read(now, State::Identity, header::ID);
    }

    /// Another attempt, later.
    pub(super) fn fail(&mut self, now: Instant) {
        let attempts = self.cells.attempts.update(self.journal, |attempts| attempts.saturating_add(1));
        self.cells.out.clear(self.journal);
        self.cells.awaited.set(self.journal, 0);
        self.cells.watch.set(self.journal, 0);
        self.set_state(State::Backoff);
        self.cells.timer.set(self.journal, self.after(now, backoff_ms(attempts)));
    }

    /// The function is not one that can be used. Perhaps it is another one later.
    fn refuse(&mut self, now: Instant, why: FunctionError) {
        self.unusable = Some(why);
        self.fail(now);
    }

    fn find_capabilities(&mut self, now: Instant, command_and_status: u32) {
        if (command_and_status >> 16) as u16 & header::STATUS_CAPABILITIES == 0 {
            self.decode(now);
        } else {
            self.cells.chain_left.set(self.journal, CHAIN_MAX);
            self.config_read(now, State::Pointer, header::CAPABILITIES_POINTER);
        }
    }

    fn visit_capability(&mut self, now: Instant, pointer: u8) {
        let offset = u16::from(pointer & !3);
        if offset < capability::FIRST || self.cells.chain_left.get() == 0 {
            return self.decode(now);
        }
        self.cells.chain_left.update(self.journal, |left| left - 1);
        self.cells.capability.set(self.journal, offset.into());
        self.config_read(now, State::Capability, offset);
    }

    fn look_at_capability(&mut self, now: Instant, head: u32) {
        if head as u8 != capability::MSIX {
            return self.visit_capability(now, (head >> 8) as u8);
        }
        self.cells.msix_control.set(self.journal, head);
        let offset = self.cells.capability.get() as u16;
        self.config_read(now, State::Table, offset + 4);
    }

    fn note_table(&mut self, now: Instant, table: u32) {
        let bar = (table & MSIX_BIR) as u8;
        if usize::from(bar) >= header::BAR_COUNT {
            return self.refuse(now, FunctionError::VectorTable(bar));
        }
        self.cells.msix_table.set(self.journal, table);
        self.decode(now);
    }

    fn decode(&mut self, now: Instant) {
        let enable =
            header::COMMAND_MEMORY_SPACE | header::COMMAND_BUS_MASTER | header::COMMAND_INTERRUPT_DISABLE;
        self.config_write(now, State::Decode, header::COMMAND, enable.into(), 0b0011);
    }

    /// Points vector 0 at the driver, now that memory is decoded: a posted write could pass a configuration write.
    fn enable_vector(&mut self, now: Instant) {
        let control = self.cells.msix_control.get();
        if control == 0 {
            return self.read(now, State::Capabilities, registers::CAP, 8);
        }
        let table = self.cells.msix_table.get();
        let entry = Entry { address: self.config.interrupt, data: 0, control: 0 };
        self.post((table & MSIX_BIR) as u8, (table & !MSIX_BIR).into(), &entry.to_bytes());
        let offset = self.cells.capability.get() as u16;
        let enabled = control & !MSIX_FUNCTION_MASK | MSIX_ENABLE;
        self.config_write(now, State::Vector, offset, enabled, 0b1100);
    }

    fn disable(&mut self, now: Instant, cap: Cap) {
        if cap.0 == u64::MAX {
            return self.fail(now);
        }
        if cap.mpsmin() != 0 || cap.mqes() == 0 {
            return self.refuse(now, FunctionError::Capabilities(cap.0));
        }
        self.cells.cap.set(self.journal, cap.0);
        self.cells.limit.set(self.journal, self.ready_limit(now));
        self.post_u32(registers::CC, 0);
        self.read(now, State::Disabling, registers::CSTS, 4);
    }

    fn wait_disabled(&mut self, now: Instant, csts: u32) {
        if csts == ALL_ONES {
            self.fail(now);
        } else if Csts(csts).rdy() {
            self.poll_again(now);
        } else if Cap(self.cells.cap.get()).cmbs() {
            self.post(REGISTERS, registers::CMBMSC, &CmbMsc(0).with_cre(true).0.to_le_bytes());
            self.read(now, State::CmbLocation, registers::CMBLOC, 4);
        } else {
            self.enable(now);
        }
    }

    /// Takes a buffer that can hold the submission queue.
    fn place_cmb(&mut self, now: Instant, size: CmbSz) {
        let bytes = size.bytes().unwrap_or(0);
        let enough = bytes >= u64::from(IO_ENTRIES) * SUBMISSION_BYTES as u64;
        // An address means the buffer or memory, never both.
        let apart = self.config.queue_memory.max(self.config.data_memory) < CMB_ADDRESS - MEMORY_MAX;
        if !size.sqs() || !enough || !apart {
            return self.enable(now);
        }
        self.cells.cmb_size.set(self.journal, size.0);
        let (bar, offset) = self.cmb_place();
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= self.config.bar_bytes);
        if usize::from(bar) >= header::BAR_COUNT || !is_inside {
            return self.refuse(now, FunctionError::MemoryBuffer(bar));
        }
        let control = CmbMsc(CMB_ADDRESS).with_cre(true).with_cmse(true);
        self.post(REGISTERS, registers::CMBMSC, &control.0.to_le_bytes());
        self.read(now, State::CmbStatus, registers::CMBSTS, 4);
    }

    fn check_cmb(&mut self, now: Instant, status: CmbSts) {
        if status.cbai() {
            self.cells.cmb_size.set(self.journal, 0);
        }
        self.enable(now);
    }

    fn enable(&mut self, now: Instant) {
        self.reset_queues();
        let size = ADMIN_ENTRIES - 1;
        let memory = self.config.queue_memory;
        self.post_u32(registers::AQA, Aqa(0).with_asqs(size).with_acqs(size).0);
        self.post(REGISTERS, registers::ASQ, &(memory + region::ADMIN_SQ as u64).to_le_bytes());
        self.post(REGISTERS, registers::ACQ, &(memory + region::ADMIN_CQ as u64).to_le_bytes());
        self.post_u32(registers::CC, configuration().0);
        self.cells.limit.set(self.journal, self.ready_limit(now));
        self.read(now, State::Enabling, registers::CSTS, 4);
    }

    fn wait_enabled(&mut self, now: Instant, csts: u32) {
        if csts == ALL_ONES || Csts(csts).cfs() {
            self.fail(now);
        } else if Csts(csts).rdy() {
            let entry = Identify::new(Cns::CONTROLLER, 0).entry(0);
            self.admin(now, State::IdentifyController, entry.with_prps(self.identify_address(), 0));
        } else {
            self.poll_again(now);
        }
    }

    /// The admin command of `state` has ended.
    fn admin_done(&mut self, now: Instant, state: State, entry: &CompletionEntry) {
        // A controller may refuse what it can do without: a volatile write cache, events.
        if !entry.status().is_success() && !matches!(state, State::WriteCache | State::Events) {
            return self.fail(now);
        }
        match state {
            State::IdentifyController if self.read_controller() => {
                let entry = Identify::new(Cns::ACTIVE_NAMESPACES, 0).entry(0);
                self.admin(now, State::IdentifyList, entry.with_prps(self.identify_address(), 0));
            }
            State::IdentifyList if self.first_namespace() != 0 => {
                let nsid = self.first_namespace();
                self.cells.nsid.set(self.journal, nsid);
                let entry = Identify::new(Cns::NAMESPACE, nsid).entry(0);
                self.admin(now, State::IdentifyNamespace, entry.with_prps(self.identify_address(), 0));
            }
            State::IdentifyNamespace if self.read_namespace() => {
                if self.has_flag(flag::HIDDEN_CACHE) {
                    // Which is true: `unflushed`.
                    self.post_u32(registers::HOST_KEEPS, 1);
                }
                if self.has_flag(flag::VOLATILE_CACHE) {
                    let enable = VolatileWriteCache(0).with_wce(true).0;
                    self.set_feature(now, State::WriteCache, FeatureId::VOLATILE_WRITE_CACHE, enable);
                } else {
                    self.enable_events(now);
                }
            }
            State::WriteCache => self.enable_events(now),
            State::Events => self.ask_queues(now),
            State::QueueCount => self.create_cq(now),
            State::CreateCq => self.create_sq(now),
            State::CreateSq => self.become_ready(now),
            _ => self.fail(now),
        }
    }

    fn enable_events(&mut self, now: Instant) {
        if !self.has_flag(flag::NAMESPACE_EVENTS) {
            return self.ask_queues(now);
        }
        let wanted = AsyncEventConfiguration(0).with_namespace_attribute(true).0;
        self.set_feature(now, State::Events, FeatureId::ASYNC_EVENT_CONFIGURATION, wanted);
    }

    fn ask_queues(&mut self, now: Instant) {
        let wanted = NumberOfQueues::from_counts(1, 1).0;
        self.set_feature(now, State::QueueCount, FeatureId::NUMBER_OF_QUEUES, wanted);
    }

    fn create_cq(&mut self, now: Instant) {
        let queue = CreateIoCompletionQueue {
            qid: IO_QUEUE,
            entries: self.cells.io_entries.get().into(),
            vector: 0,
            interrupts: false,
            contiguous: true,
            base: self.config.queue_memory + region::IO_CQ as u64,
        };
        self.admin(now, State::CreateCq, queue.entry(0));
    }

    fn create_sq(&mut self, now: Instant) {
        let memory = self.config.queue_memory + region::IO_SQ as u64;
        let queue = CreateIoSubmissionQueue {
            qid: IO_QUEUE,
            entries: self.cells.io_entries.get().into(),
            cqid: IO_QUEUE,
            priority: spec::nvme::QueuePriority::URGENT,
            contiguous: true,
            nvm_set: 0,
            base: if self.has_cmb() { CMB_ADDRESS } else { memory },
        };
        self.admin(now, State::CreateSq, queue.entry(0));
    }

    fn become_ready(&mut self, now: Instant) {
        self.unusable = None;
        self.cells.attempts.set(self.journal, 0);
        self.set_state(State::Ready);
        self.request_events();
        self.rewrite_all();
        self.arm_watch(now);
        self.transition(now, Event::Idle);
    }

    fn shut_down_when_idle(&mut self, now: Instant) {
        if self.cells.shutdown_limit.get() == 0 || self.slots.used() > 0 || self.unflushed.is_rewriting() {
            return;
        }
        if self.cells.flushed.get() == 0 {
            return self.submit_flush(now, Owner::LastFlush);
        }
        self.cells.watch.set(self.journal, 0);
        self.post_u32(registers::CC, configuration().with_shn(ShutdownNotification::NORMAL.0).0);
        self.read(now, State::ShuttingDown, registers::CSTS, 4);
    }

    fn wait_shut_down(&mut self, now: Instant, csts: Csts) {
        if csts.0 == ALL_ONES || csts.shst() == ShutdownStatus::COMPLETE.0 {
            self.set_state(State::ShutDown);
        } else if csts.cfs() {
            // It could not flush, and never will be done with it.
            self.lose_all();
            self.set_state(State::ShutDown);
        } else {
            self.cells.timer.set(self.journal, self.after(now, POLL_MS));
        }
    }

    /// Looks at CSTS again soon, unless it has taken too long.
    fn poll_again(&mut self, now: Instant) {
        if now.as_nanos() >= self.cells.limit.get() {
            self.fail(now);
        } else {
            self.cells.timer.set(self.journal, self.after(now, POLL_MS));
        }
    }

    /// Takes what matters of Identify Controller; `false` for a controller this driver cannot use.
    fn read_controller(&self) -> bool {
        let mut bytes = [0; 4096];
        self.cells.identify.read(0, &mut bytes);
        let Ok(controller) = IdentifyController::ref_from_bytes(&bytes) else { return false };
        let needed = BlockRequest::MAX_PAGES.ilog2() as u8;
        let oncs = spec::nvme::identify::Oncs(controller.oncs.get());
        let mut flags = 0;
        let offers_cache = controller.vendor.starts_with(&HOST_KEEPS_OFFERED);
        flags |= if controller.vwc & 1 != 0 || offers_cache { flag::VOLATILE_CACHE } else { 0 };
        flags |= if offers_cache { flag::HIDDEN_CACHE } else { 0 };
        flags |= if oncs.dataset_management() { flag::DEALLOCATE } else { 0 };
        flags |= if oncs.write_zeroes() { flag::WRITE_ZEROES } else { 0 };
        let events = AsyncEventConfiguration(controller.oaes.get());
        flags |= if events.namespace_attribute() { flag::NAMESPACE_EVENTS } else { 0 };
        self.cells.flags.set(self.journal, flags);
        controller.mdts == 0 || controller.mdts >= needed
    }

    /// The lowest number in the list of attached namespaces; 0 for none.
    pub(super) fn first_namespace(&self) -> u32 {
        let mut first = [0; 4];
        self.cells.identify.read(0, &mut first);
        u32::from_le_bytes(first)
    }

    /// Whether other controllers may have the namespace that was identified.
    pub(super) fn is_shared_namespace(&self) -> bool {
        let mut nmic = [0];
        self.cells.identify.read(core::mem::offset_of!(IdentifyNamespace, nmic), &mut nmic);
        nmic[0] & 1 != 0
    }

    /// Takes size and format of the namespace; `false` for a format this driver cannot use. Requests in flight mean
    /// blocks of the old size, so they fail when it has changed.
    pub(super) fn read_namespace(&mut self) -> bool {
        let mut bytes = [0; 4096];
        self.cells.identify.read(0, &mut bytes);
        let Ok(namespace) = IdentifyNamespace::ref_from_bytes(&bytes) else { return false };
        let format = namespace.current_format();
        let Some(block_size @ (512 | 4096)) = format.block_size() else { return false };
        if format.ms.get() != 0 || namespace.nsze.get() == 0 {
            return false;
        }
        // Sizes in bytes are computed everywhere, and clients keep them in 63 bits.
        if namespace.nsze.get() > i64::MAX as u64 / u64::from(block_size) {
            return false;
        }
        let read_only = if namespace.nsattr & 1 != 0 { flag::READ_ONLY } else { 0 };
        let shared = if self.is_shared_namespace() { flag::SHARED } else { 0 };
        let old = flag::READ_ONLY | flag::SHARED;
        self.cells.flags.update(self.journal, |flags| flags & !old | read_only | shared);
        let old = self.cells.block_size.get();
        self.cells.block_size.set(self.journal, block_size);
        self.cells.blocks.set(self.journal, namespace.nsze.get());
        if old != 0 && old != block_size {
            self.fail_all();
        }
        true
    }

    fn set_feature(&mut self, now: Instant, state: State, fid: FeatureId, value: u32) {
        let command = SetFeatures { fid, save: false, nsid: 0, dw11: value, dw12: 0 };
        self.admin(now, state, command.entry(0));
    }

    /// Submits the one admin command under way.
    fn admin(&mut self, now: Instant, state: State, entry: SubmissionEntry) {
        let next = |cid: u16| if cid + 1 < FIRST_OF_EVENTS { cid + 1 } else { 0 };
        let cid = self.cells.admin_cid.update(self.journal, next);
        self.submit_admin(cid, entry);
        self.set_state(state);
        self.cells.timer.set(self.journal, self.after(now, ADMIN_TIMEOUT_MS));
    }

    /// Puts a command into the admin queue, and tells the controller.
    pub(super) fn submit_admin(&mut self, cid: u16, mut entry: SubmissionEntry) {
        let (cells, journal) = (self.cells, self.journal);
        entry.cid = cid.into();
        let slot = cells.admin_tail.get();
        cells.admin_sq.write(journal, usize::from(slot) * SUBMISSION_BYTES, entry.as_bytes());
        let tail = (slot + 1) % ADMIN_ENTRIES;
        cells.admin_tail.set(journal, tail);
        self.post_u32(self.doorbell(0, false), tail.into());
    }

    fn config_read(&mut self, now: Instant, state: State, register: u16) {
        self.ask(now, state, AccessRecord { kind: AccessKind::ConfigRead.into(), ..record(register.into()) });
    }

    fn config_write(&mut self, now: Instant, state: State, register: u16, value: u32, byte_enables: u8) {
        let mut asked =
            AccessRecord { kind: AccessKind::ConfigWrite.into(), byte_enables, ..record(register.into()) };
        asked.data[..4].copy_from_slice(&value.to_le_bytes());
        self.ask(now, state, asked);
    }

    /// Reads a register; the answer is an event of `state`.
    pub(super) fn read(&mut self, now: Instant, state: State, offset: u64, len: u8) {
        self.ask(
            now,
            state,
            AccessRecord { kind: AccessKind::Read.into(), bar: REGISTERS, len, ..record(offset) },
        );
    }

    fn ask(&mut self, now: Instant, state: State, mut asked: AccessRecord) {
        asked.id = self.cells.serial.update(self.journal, |serial| serial.wrapping_add(1).max(1));
        self.cells.awaited.set(self.journal, asked.id);
        self.cells.timer.set(self.journal, (now + ACCESS_TIMEOUT).as_nanos());
        self.cells.out.push(self.journal, asked);
        self.set_state(state);
    }

    pub(super) fn post_u32(&self, offset: u64, value: u32) {
        self.post(REGISTERS, offset, &value.to_le_bytes());
    }

    fn post(&self, bar: u8, offset: u64, bytes: &[u8]) {
        let mut posted =
            AccessRecord { kind: AccessKind::Write.into(), bar, len: bytes.len() as u8, ..record(offset) };
        posted.data[..bytes.len()].copy_from_slice(bytes);
        self.cells.out.push(self.journal, posted);
    }

    fn ready_limit(&self, now: Instant) -> u64 {
        let units = u64::from(Cap(self.cells.cap.get()).to()) + 1;
        self.after(now, units * READY_UNIT_MS)
    }

    pub(super) fn identify_address(&self) -> u64 {
        self.config.queue_memory + region::IDENTIFY as u64
    }

    /// Offset of a doorbell.
    pub(super) fn doorbell(&self, queue: u16, is_cq: bool) -> u64 {
        registers::doorbell(queue, is_cq, Cap(self.cells.cap.get()).dstrd())
    }

    /// Whether the submission queue lies in the controller.
    pub(super) fn has_cmb(&self) -> bool {
        self.cells.cmb_size.get() != 0
    }

    /// The BAR of the controller memory buffer and the buffer's offset in it.
    pub(super) fn cmb_place(&self) -> (u8, u64) {
        let location = CmbLoc(self.cells.cmb_location.get());
        let unit = CmbSz(self.cells.cmb_size.get()).unit().unwrap_or(0);
        (location.bir(), u64::from(location.ofst()) * unit)
    }
}

/// The access that `record` stands for.
pub(super) fn access_of(record: &AccessRecord) -> Access {
    let id = AccessId(record.id);
    let register = record.offset as u16;
    match record.kind.get() {
        AccessKind::Read => Access::Read { id, bar: record.bar, offset: record.offset, len: record.len },
        AccessKind::ConfigRead => Access::ConfigRead { id, register },
        AccessKind::ConfigWrite => {
            let [a, b, c, d, ..] = record.data;
            let value = u32::from_le_bytes([a, b, c, d]);
            Access::ConfigWrite { id, register, value, byte_enables: record.byte_enables }
        }
        AccessKind::Write => Access::Write {
            bar: record.bar,
            offset: record.offset,
            payload: Payload::inline(&record.data[..usize::from(record.len).min(record.data.len())]),
        },
    }
}

/// Queue entries of 64 and 16 bytes, 4 KiB pages, enabled.
fn configuration() -> Cc {
    Cc(0).with_en(true).with_iosqes(6).with_iocqes(4)
}

fn record(offset: u64) -> AccessRecord {
    AccessRecord {
        offset,
        data: [0; 16],
        id: 0,
        kind: AccessKind::Write.into(),
        bar: 0,
        len: 0,
        byte_enables: 0,
    }
}

/// The wait after so many failures (at least one).
pub(super) fn backoff_ms(failures: u32) -> u64 {
    (BACKOFF_MS << (failures - 1).min(16)).min(BACKOFF_MAX_MS)
}

pub(super) fn millis(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}
