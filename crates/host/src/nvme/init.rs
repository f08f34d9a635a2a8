//! From an unknown function to a ready controller, and back: the driver's state machine.

use core::time::Duration;

use base::ledger::{Cell, Code, Journal, Layout};
use base::{Instant, coded};
use pcie::msix::Entry;
use pcie::spec::{capability, header};
use spec::nvme::feature::{AsyncEventConfiguration, NumberOfQueues, VolatileWriteCache};
use spec::nvme::registers::{
    self, Aqa, Cap, Cc, CmbMsc, CmbSts, CmbSz, Csts, ShutdownNotification, ShutdownStatus,
};
use spec::nvme::{
    Cns, CompletionEntry, CreateIoCompletionQueue, CreateIoSubmissionQueue, FeatureId, Identify,
    PCI_CLASS_CODE, SetFeatures, SubmissionEntry,
};
use zerocopy::FromBytes;

use super::cells::{ADMIN_ENTRIES, IO_ENTRIES, SUBMISSION_BYTES, region};
use super::events::FIRST_OF_EVENTS;
use super::namespace::{Identified, Namespace, flag};
use super::queues::{IO_QUEUE, Queues};
use super::registers::{REGISTERS, Registers};
use super::{ACCESS_TIMEOUT, COMMAND_TIMEOUT, DriverConfig, FunctionError, SHUTDOWN_TIMEOUT, WATCH};
use crate::AccessError;

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
///                        |                     Disabling (CSTS.RDY = 0) --> [CmbLocation --> CmbSize --> CmbStatus]
///                        |                              |                                             |
///                        |                     Enabling (CSTS.RDY = 1) <------------------------------+
///                        |                              |
///                        |                     IdentifyController --> IdentifyList --> IdentifyNamespace
///                        |                                                                    |
///                        |     CreateCq <-- QueueCount <-- Events <-- WriteCache <------------+
///                        |         |
///                     Backoff      +--> CreateSq --> Ready
///                        ^                             | shutdown, idle, flushed
///                        | any state, failed      ShuttingDown (CSTS.SHST = complete) --> ShutDown
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
}

/// What is left to be done by the driver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Next {
    /// Another attempt is due.
    Begin,
    /// The controller serves.
    Ready,
    /// Blocks have another size than before: requests in flight mean those of the old one.
    Resized,
    /// The controller failed while it shut down: it could not flush, and never will be done with it.
    Lost,
}

/// How far it is. All zeroes: never started.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct InitCells {
    state: Cell<Code<State>>,
    /// Failed attempts to initialise since the last success.
    attempts: Cell<u32>,
    /// When the present state is to be looked at again, in nanoseconds; 0 for never.
    timer: Cell<u64>,
    /// When what the present state polls for must have come.
    limit: Cell<u64>,
    /// When the commands are checked for their age; 0 while there are none.
    watch: Cell<u64>,
    /// When an orderly shutdown is given up; 0 while none is wanted.
    shutdown_limit: Cell<u64>,
    /// Capabilities still to be visited, so that a loop in the chain ends.
    pub(super) chain_left: Cell<u32>,
    /// Offset of the capability that is read.
    capability: Cell<u32>,
    /// Message control of MSI-X, shifted into its dword.
    msix_control: Cell<u32>,
    /// Table BIR and offset of MSI-X.
    msix_table: Cell<u32>,
    /// Identifier of the admin command under way.
    admin_cid: Cell<u64>,
}

/// What brings a controller up, watches it, and shuts it down.
pub(super) struct Initialiser<'m> {
    pub(super) cells: &'m InitCells,
    pub(super) registers: Registers<'m>,
    pub(super) queues: Queues<'m>,
    pub(super) namespace: Namespace<'m>,
    pub(super) journal: Journal<'m>,
    pub(super) config: DriverConfig,
    /// Why the last attempt to use the function came to nothing, if nothing can be done about that.
    pub(super) unusable: Option<FunctionError>,
}

impl Initialiser<'_> {
    pub(super) fn state(&self) -> State {
        self.cells.state.value()
    }

    /// Whether an orderly shutdown is wanted.
    pub(super) fn is_closing(&self) -> bool {
        self.cells.shutdown_limit.get() != 0
    }

    /// An orderly shutdown is wanted from now on.
    pub(super) fn close(&self, now: Instant) {
        self.cells.shutdown_limit.set(self.journal, (now + SHUTDOWN_TIMEOUT).as_nanos());
    }

    /// No shutdown is wanted any more.
    pub(super) fn reopen(&self) {
        self.cells.shutdown_limit.set(self.journal, 0);
    }

    /// The next time at which something is due, in nanoseconds; 0 for never.
    pub(super) fn times(&self) -> [u64; 3] {
        [self.cells.timer.get(), self.cells.watch.get(), self.cells.shutdown_limit.get()]
    }

    /// Whether the shutdown is given up.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        is_due(&self.cells.shutdown_limit, now)
    }

    /// What the state's timer means, if it has run out.
    pub(super) fn take_timer(&self, now: Instant) -> Option<Event> {
        if !is_due(&self.cells.timer, now) {
            return None;
        }
        self.cells.timer.set(self.journal, 0);
        let unanswered = self.registers.is_awaiting();
        self.registers.stop_awaiting();
        Some(if unanswered { Event::Failed } else { Event::Timer })
    }

    /// The awaited access has ended: what that means.
    pub(super) fn take_answer(&self, result: Result<&[u8], AccessError>) -> Event {
        self.registers.stop_awaiting();
        self.cells.timer.set(self.journal, 0);
        match result {
            Ok([]) => Event::Answer(0),
            Ok(&[a, b, c, d]) => Event::Answer(u32::from_le_bytes([a, b, c, d]).into()),
            Ok(&[a, b, c, d, e, f, g, h]) => Event::Answer(u64::from_le_bytes([a, b, c, d, e, f, g, h])),
            Ok(_) | Err(_) => Event::Failed,
        }
    }

    /// Whether a completion is that of the admin command under way; then it is no longer.
    pub(super) fn take_command(&self, entry: &CompletionEntry) -> bool {
        let is_ours = u64::from(entry.cid.get()) == self.cells.admin_cid.get();
        let is_awaited = is_ours && self.state().waits_for_admin();
        if is_awaited {
            self.cells.timer.set(self.journal, 0);
        }
        is_awaited
    }

    /// All transitions but those of `begin` and `shut_down`. Returns what is left to do.
    pub(super) fn handle(&mut self, now: Instant, event: Event) -> Option<Next> {
        use Event::{Admin, Answer, Failed, Timer};
        match (self.state(), event) {
            (State::Backoff, Timer) => return Some(Next::Begin),
            (State::Stopped | State::Backoff | State::ShutDown, _) => {}
            (State::Ready, Answer(csts)) => self.check_health(now, Csts(csts as u32)),
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
                self.registers.set_cmb_location(location as u32);
                self.read(now, State::CmbSize, registers::CMBSZ, 4);
            }
            (State::CmbSize, Answer(size)) => self.place_cmb(now, CmbSz(size as u32)),
            (State::CmbStatus, Answer(status)) => self.check_cmb(now, CmbSts(status as u32)),
            (State::Enabling, Answer(csts)) => self.wait_enabled(now, csts as u32),

            (state, Admin(entry)) => return self.admin_done(now, state, &entry),
            (State::ShuttingDown, Timer) => self.read(now, State::ShuttingDown, registers::CSTS, 4),
            (State::ShuttingDown, Answer(csts)) => return self.wait_shut_down(now, Csts(csts as u32)),
            // An admin command has not ended in time.
            (_, Timer) => self.fail(now),
            (_, Answer(_)) => {}
        }
        None
    }

    /// Forgets the function's old life.
    pub(super) fn forget(&self) {
        self.registers.clear();
        self.cells.timer.set(self.journal, 0);
        self.cells.watch.set(self.journal, 0);
        self.registers.set_cmb(CmbSz(0));
        self.cells.msix_control.set(self.journal, 0);
    }

    /// Begins a new one.
    pub(super) fn begin(&self, now: Instant) {
        self.config_read(now, State::Identity, header::ID);
    }

    /// Another attempt, later.
    fn fail(&self, now: Instant) {
        let attempts = self.cells.attempts.update(self.journal, |attempts| attempts.saturating_add(1));
        self.stop();
        self.set_state(State::Backoff);
        self.cells.timer.set(self.journal, after(now, backoff_ms(attempts)));
    }

    /// Nothing is asked or awaited any more.
    fn stop(&self) {
        self.registers.clear();
        self.registers.stop_awaiting();
        self.cells.watch.set(self.journal, 0);
    }

    /// The end, by force.
    pub(super) fn give_up(&self) {
        self.stop();
        self.shut_down();
    }

    /// The end.
    pub(super) fn shut_down(&self) {
        self.set_state(State::ShutDown);
        self.cells.timer.set(self.journal, 0);
        self.reopen();
    }

    pub(super) fn set_state(&self, state: State) {
        self.cells.state.set(self.journal, state.into());
    }

    /// The function is not one that can be used. Perhaps it is another one later.
    fn refuse(&mut self, now: Instant, why: FunctionError) {
        self.unusable = Some(why);
        self.fail(now);
    }

    fn find_capabilities(&self, now: Instant, command_and_status: u32) {
        if (command_and_status >> 16) as u16 & header::STATUS_CAPABILITIES == 0 {
            self.decode(now);
        } else {
            self.cells.chain_left.set(self.journal, CHAIN_MAX);
            self.config_read(now, State::Pointer, header::CAPABILITIES_POINTER);
        }
    }

    fn visit_capability(&self, now: Instant, pointer: u8) {
        let offset = u16::from(pointer & !3);
        if offset < capability::FIRST || self.cells.chain_left.get() == 0 {
            return self.decode(now);
        }
        self.cells.chain_left.update(self.journal, |left| left - 1);
        self.cells.capability.set(self.journal, offset.into());
        self.config_read(now, State::Capability, offset);
    }

    fn look_at_capability(&self, now: Instant, head: u32) {
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

    fn decode(&self, now: Instant) {
        let enable =
            header::COMMAND_MEMORY_SPACE | header::COMMAND_BUS_MASTER | header::COMMAND_INTERRUPT_DISABLE;
        self.config_write(now, State::Decode, header::COMMAND, enable.into(), 0b0011);
    }

    /// Points vector 0 at the driver, now that memory is decoded: a posted write could pass a configuration write.
    fn enable_vector(&self, now: Instant) {
        let control = self.cells.msix_control.get();
        if control == 0 {
            return self.read(now, State::Capabilities, registers::CAP, 8);
        }
        let table = self.cells.msix_table.get();
        let entry = Entry { address: self.config.interrupt, data: 0, control: 0 };
        self.registers.post((table & MSIX_BIR) as u8, (table & !MSIX_BIR).into(), &entry.to_bytes());
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
        self.registers.set_cap(cap);
        self.cells.limit.set(self.journal, self.ready_limit(now));
        self.registers.post_u32(registers::CC, 0);
        self.read(now, State::Disabling, registers::CSTS, 4);
    }

    fn wait_disabled(&self, now: Instant, csts: u32) {
        if csts == ALL_ONES {
            self.fail(now);
        } else if Csts(csts).rdy() {
            self.poll_again(now);
        } else if self.registers.cap().cmbs() {
            self.registers.post(REGISTERS, registers::CMBMSC, &CmbMsc(0).with_cre(true).0.to_le_bytes());
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
        self.registers.set_cmb(size);
        let (bar, offset) = self.registers.cmb_place();
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= self.config.bar_bytes);
        if usize::from(bar) >= header::BAR_COUNT || !is_inside {
            return self.refuse(now, FunctionError::MemoryBuffer(bar));
        }
        let control = CmbMsc(CMB_ADDRESS).with_cre(true).with_cmse(true);
        self.registers.post(REGISTERS, registers::CMBMSC, &control.0.to_le_bytes());
        self.read(now, State::CmbStatus, registers::CMBSTS, 4);
    }

    fn check_cmb(&self, now: Instant, status: CmbSts) {
        if status.cbai() {
            self.registers.set_cmb(CmbSz(0));
        }
        self.enable(now);
    }

    fn enable(&self, now: Instant) {
        self.queues.reset(u32::from(self.registers.cap().mqes()) + 1);
        let size = ADMIN_ENTRIES - 1;
        let memory = self.config.queue_memory;
        self.registers.post_u32(registers::AQA, Aqa(0).with_asqs(size).with_acqs(size).0);
        self.registers.post(REGISTERS, registers::ASQ, &(memory + region::ADMIN_SQ as u64).to_le_bytes());
        self.registers.post(REGISTERS, registers::ACQ, &(memory + region::ADMIN_CQ as u64).to_le_bytes());
        self.registers.post_u32(registers::CC, configuration().0);
        self.cells.limit.set(self.journal, self.ready_limit(now));
        self.read(now, State::Enabling, registers::CSTS, 4);
    }

    fn wait_enabled(&self, now: Instant, csts: u32) {
        if csts == ALL_ONES || Csts(csts).cfs() {
            self.fail(now);
        } else if Csts(csts).rdy() {
            self.identify(now, State::IdentifyController, Cns::CONTROLLER, 0);
        } else {
            self.poll_again(now);
        }
    }

    /// The admin command of `state` has ended.
    fn admin_done(&mut self, now: Instant, state: State, entry: &CompletionEntry) -> Option<Next> {
        // A controller may refuse what it can do without: a volatile write cache, events.
        if !entry.status().is_success() && !matches!(state, State::WriteCache | State::Events) {
            self.fail(now);
            return None;
        }
        match state {
            State::IdentifyController if self.namespace.read_controller() => {
                self.identify(now, State::IdentifyList, Cns::ACTIVE_NAMESPACES, 0);
            }
            State::IdentifyList => match self.namespace.choose() {
                Some(nsid) => self.identify(now, State::IdentifyNamespace, Cns::NAMESPACE, nsid),
                None => self.fail(now),
            },
            State::IdentifyNamespace => match self.namespace.read() {
                Identified::Unusable => self.fail(now),
                identified => {
                    self.enable_cache(now);
                    return (identified == Identified::Resized).then_some(Next::Resized);
                }
            },
            State::WriteCache => self.enable_events(now),
            State::Events => self.ask_queues(now),
            State::QueueCount => self.create_cq(now),
            State::CreateCq => self.create_sq(now),
            State::CreateSq => {
                self.unusable = None;
                self.cells.attempts.set(self.journal, 0);
                self.set_state(State::Ready);
                return Some(Next::Ready);
            }
            _ => self.fail(now),
        }
        None
    }

    fn identify(&self, now: Instant, state: State, cns: Cns, nsid: u32) {
        let entry = Identify::new(cns, nsid).entry(0);
        self.admin(now, state, entry.with_prps(self.config.identify_address(), 0));
    }

    fn enable_cache(&self, now: Instant) {
        if self.namespace.has(flag::HIDDEN_CACHE) {
            // Which is true: `unflushed`.
            self.registers.post_u32(registers::HOST_KEEPS, 1);
        }
        if self.namespace.has(flag::VOLATILE_CACHE) {
            let enable = VolatileWriteCache(0).with_wce(true).0;
            self.set_feature(now, State::WriteCache, FeatureId::VOLATILE_WRITE_CACHE, enable);
        } else {
            self.enable_events(now);
        }
    }

    fn enable_events(&self, now: Instant) {
        if !self.namespace.has(flag::NAMESPACE_EVENTS) {
            return self.ask_queues(now);
        }
        let wanted = AsyncEventConfiguration(0).with_namespace_attribute(true).0;
        self.set_feature(now, State::Events, FeatureId::ASYNC_EVENT_CONFIGURATION, wanted);
    }

    fn ask_queues(&self, now: Instant) {
        let wanted = NumberOfQueues::from_counts(1, 1).0;
        self.set_feature(now, State::QueueCount, FeatureId::NUMBER_OF_QUEUES, wanted);
    }

    fn create_cq(&self, now: Instant) {
        let queue = CreateIoCompletionQueue {
            qid: IO_QUEUE,
            entries: self.queues.entries().into(),
            vector: 0,
            interrupts: false,
            contiguous: true,
            base: self.config.queue_memory + region::IO_CQ as u64,
        };
        self.admin(now, State::CreateCq, queue.entry(0));
    }

    fn create_sq(&self, now: Instant) {
        let memory = self.config.queue_memory + region::IO_SQ as u64;
        let queue = CreateIoSubmissionQueue {
            qid: IO_QUEUE,
            entries: self.queues.entries().into(),
            cqid: IO_QUEUE,
            priority: spec::nvme::QueuePriority::URGENT,
            contiguous: true,
            nvm_set: 0,
            base: if self.registers.has_cmb() { CMB_ADDRESS } else { memory },
        };
        self.admin(now, State::CreateSq, queue.entry(0));
    }

    /// Shuts the controller down.
    pub(super) fn begin_shutdown(&self, now: Instant) {
        self.cells.watch.set(self.journal, 0);
        let cc = configuration().with_shn(ShutdownNotification::NORMAL.0);
        self.registers.post_u32(registers::CC, cc.0);
        self.read(now, State::ShuttingDown, registers::CSTS, 4);
    }

    fn wait_shut_down(&self, now: Instant, csts: Csts) -> Option<Next> {
        if csts.0 == ALL_ONES || csts.shst() == ShutdownStatus::COMPLETE.0 {
            self.shut_down();
        } else if csts.cfs() {
            return Some(Next::Lost);
        } else {
            self.cells.timer.set(self.journal, after(now, POLL_MS));
        }
        None
    }

    /// The ages of commands are looked at from now on.
    pub(super) fn arm_watch(&self, now: Instant) {
        if self.cells.watch.get() == 0 {
            self.cells.watch.set(self.journal, (now + WATCH).as_nanos());
        }
    }

    /// Whether the ages are to be looked at; then they are.
    pub(super) fn take_watch(&self, now: Instant) -> bool {
        let is_due = is_due(&self.cells.watch, now);
        if is_due {
            self.cells.watch.set(self.journal, 0);
        }
        is_due
    }

    /// Resets when the oldest command is too old; asks for the controller's health when it is old.
    pub(super) fn check_age(&self, now: Instant, age: Duration) {
        if age >= COMMAND_TIMEOUT {
            return self.fail(now);
        }
        self.arm_watch(now);
        if age >= WATCH && !self.registers.is_awaiting() && self.state() == State::Ready {
            self.read(now, State::Ready, registers::CSTS, 4);
        }
    }

    /// The controller's status while commands are old.
    fn check_health(&self, now: Instant, csts: Csts) {
        if csts.0 == ALL_ONES || csts.cfs() || !csts.rdy() {
            self.fail(now);
        }
    }

    /// Looks at CSTS again soon, unless it has taken too long.
    fn poll_again(&self, now: Instant) {
        if now.as_nanos() >= self.cells.limit.get() {
            self.fail(now);
        } else {
            self.cells.timer.set(self.journal, after(now, POLL_MS));
        }
    }

    fn set_feature(&self, now: Instant, state: State, fid: FeatureId, value: u32) {
        let command = SetFeatures { fid, save: false, nsid: 0, dw11: value, dw12: 0 };
        self.admin(now, state, command.entry(0));
    }

    /// Submits the one admin command under way.
    fn admin(&self, now: Instant, state: State, entry: SubmissionEntry) {
        let next = |cid: u64| if cid + 1 < FIRST_OF_EVENTS.into() { cid + 1 } else { 0 };
        let cid = self.cells.admin_cid.update(self.journal, next);
        self.queues.submit_admin(cid as u16, entry);
        self.set_state(state);
        self.cells.timer.set(self.journal, after(now, ADMIN_TIMEOUT_MS));
    }

    fn config_read(&self, now: Instant, state: State, register: u16) {
        self.registers.config_read(register);
        self.await_answer(now, state);
    }

    fn config_write(&self, now: Instant, state: State, register: u16, value: u32, byte_enables: u8) {
        self.registers.config_write(register, value, byte_enables);
        self.await_answer(now, state);
    }

    /// Reads a register; the answer is an event of `state`.
    fn read(&self, now: Instant, state: State, offset: u64, len: u8) {
        self.registers.read(offset, len);
        self.await_answer(now, state);
    }

    fn await_answer(&self, now: Instant, state: State) {
        self.cells.timer.set(self.journal, (now + ACCESS_TIMEOUT).as_nanos());
        self.set_state(state);
    }

    fn ready_limit(&self, now: Instant) -> u64 {
        after(now, (u64::from(self.registers.cap().to()) + 1) * READY_UNIT_MS)
    }
}

/// Queue entries of 64 and 16 bytes, 4 KiB pages, enabled.
fn configuration() -> Cc {
    Cc(0).with_en(true).with_iosqes(6).with_iocqes(4)
}

/// The wait after so many failures (at least one).
pub(super) fn backoff_ms(failures: u32) -> u64 {
    (BACKOFF_MS << (failures - 1).min(16)).min(BACKOFF_MAX_MS)
}

/// So many milliseconds after `now`.
pub(super) fn after(now: Instant, milliseconds: u64) -> u64 {
    (now + Duration::from_millis(milliseconds)).as_nanos()
}

/// Whether a time has come; 0 never does.
pub(super) fn is_due(at: &Cell<u64>, now: Instant) -> bool {
    at.get() != 0 && at.get() <= now.as_nanos()
}
