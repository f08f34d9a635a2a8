#[cfg(test)]
mod tests;

use core::time::Duration;

use base::Instant;
use base::ledger::{PAGE_SIZE, PageIndex, Pages};
use fabric::{AccessKind, GrantTable, Rights, Window};
use host::AccessError;
use host::nbd::{Server, ServerCells};
use link::Port;
use pcie::{Bdf, Completion, CompletionStatus, Header, MemoryRequest};

use crate::apertures;
use crate::card::Unusable;
use crate::cells::EdgeGauges;
use crate::endpoint::Endpoint;
use crate::parts::{DriveDriver, DriverCells, DriverConfig, QUEUE_MEMORY_SIZE};
use crate::requests;
use crate::transaction;
use base::ledger::Journal;

/// Outputs of one step: keeps the undo log short.
const OUTPUTS_PER_STEP: usize = 256;
/// Where the driver's memory lies in the aperture of its loan.
pub(crate) const QUEUE_MEMORY: u64 = 0x1000_0000;
pub(crate) const INTERRUPTS: u64 = 0x2000_0000;
pub(crate) const DATA_MEMORY: u64 = 0x4000_0000;

/// What lies behind a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Memory {
    Queues,
    Interrupts,
    Data,
}

/// A drive that is borrowed: TLPs on one side, the native driver and its NBD edge on the other.
pub struct BorrowedDrive<'m> {
    /// The driver.
    pub driver: DriveDriver<'m>,
    /// The edge.
    pub server: Server<'m>,
    pages: Pages<'m>,
    gauges: &'m EdgeGauges,
    /// What the function reaches of this node.
    grants: GrantTable<Memory>,
    /// What the function is called here.
    function: Bdf,
    /// The way to the function's registers, once there is one.
    window: Option<Window>,
    max_payload: usize,
    /// The program itself uses the driver: the edge is left out.
    direct: bool,
}

impl<'m> BorrowedDrive<'m> {
    /// The drive of the loan in this place, whose function is called `function` here.
    pub fn new(
        (driver, server): (&'m DriverCells, &'m ServerCells),
        gauges: &'m EdgeGauges,
        pages: Pages<'m>,
        journal: Journal<'m>,
        (place, function): (usize, Bdf),
        io_timeout: Duration,
    ) -> Self {
        let config = DriverConfig {
            queue_memory: apertures::base_of(place) + QUEUE_MEMORY,
            data_memory: apertures::base_of(place) + DATA_MEMORY,
            interrupt: apertures::base_of(place) + INTERRUPTS,
            bar_bytes: apertures::BAR_BYTES_MAX,
        };
        let mut grants = GrantTable::default();
        for (memory, start, bytes, rights) in self::grants(place) {
            grants.grant(function, start, bytes, rights, memory);
        }
        Self {
            driver: DriveDriver::new(driver, pages, journal, config),
            server: Server::new(server, pages, journal, io_timeout),
            pages,
            gauges,
            grants,
            function,
            window: None,
            max_payload: 0,
            direct: false,
        }
    }

    /// The same, of which requests come from the program itself, which takes their completions.
    pub(crate) fn for_program(self) -> Self {
        Self { direct: true, ..self }
    }

    /// True if something is left for the next step.
    fn pump_edge(&mut self, now: Instant, port: &Port<'m>) -> bool {
        self.driver.abandon(core::iter::from_fn(|| self.server.poll_abandoned()));
        while port.may_go_on()
            && let Some((id, result)) = self.driver.poll_completion()
        {
            self.server.handle_completion(now, id, result);
        }
        self.server.set_geometry(now, self.driver.geometry());
        while self.driver.room() > 0 && port.may_go_on() {
            let Some(request) = self.server.poll_request() else { break };
            self.driver.submit(now, request);
        }
        if self.server.wants_pages() {
            self.driver.flush_kept();
        }
        !port.may_go_on()
    }

    fn memory_write(&mut self, now: Instant, request: &MemoryRequest, payload: &[u8]) {
        let (address, len) = request.byte_range();
        let granted = self.grants.check(request.requester, AccessKind::Write, address, len.max(1));
        let bytes = payload.get(request.padding()..request.padding() + len);
        let (Ok(granted), Some(bytes)) = (granted, bytes) else {
            return self.gauges.deny(request.requester, address, AccessKind::Write);
        };
        if request.poisoned || !request.is_contiguous() {
            return self.gauges.malformed_tlps.add(1);
        }
        match granted.memory {
            Memory::Queues if granted.offset as usize + len <= QUEUE_MEMORY_SIZE => {
                self.driver.memory_write(now, granted.offset, bytes);
            }
            Memory::Queues => self.gauges.deny(request.requester, address, AccessKind::Write),
            Memory::Interrupts => {
                let vector = bytes.first_chunk().map_or(0, |data| u32::from_le_bytes(*data));
                self.driver.interrupt(now, vector);
            }
            Memory::Data => {
                let (page, offset) = page_of(granted.offset);
                if !self.driver.may_write(page) || offset + len > PAGE_SIZE {
                    return self.gauges.deny(request.requester, address, AccessKind::Write);
                }
                self.pages.write(page, offset, bytes);
            }
        }
    }

    fn memory_read(&mut self, port: &mut Port<'m>, request: &MemoryRequest) {
        let completer = self.completer();
        let (address, len) = request.byte_range();
        let granted = self.grants.check(request.requester, AccessKind::Read, address, len.max(1));
        match granted.map(|granted| (granted.memory, granted.offset)) {
            Ok((Memory::Queues, offset)) if offset as usize + len <= QUEUE_MEMORY_SIZE => {
                let driver = &self.driver;
                let read = |out: &mut [u8]| driver.memory_read(offset, out);
                transaction::complete_copied(port, &self.pages, request, completer, self.max_payload, read);
            }
            Ok((Memory::Data, offset))
                if self.driver.may_read(page_of(offset).0) && page_of(offset).1 + len <= PAGE_SIZE =>
            {
                transaction::complete_page(port, request, completer, self.max_payload, page_of(offset));
            }
            _ => {
                self.gauges.deny(request.requester, address, AccessKind::Read);
                transaction::fail_read(port, request, completer, CompletionStatus::UnsupportedRequest);
            }
        }
    }

    fn completion(&mut self, now: Instant, port: &mut Port<'m>, completion: &Completion, payload: &[u8]) {
        if let Some((id, result)) = requests::completed(port, self.gauges, completion, payload) {
            self.driver.handle_access(now, id, result);
        }
    }
}

impl<'m> Endpoint<'m> for BorrowedDrive<'m> {
    fn take(&mut self, now: Instant, port: &mut Port<'m>, header: &Header, payload: &[u8]) {
        match header {
            Header::MemoryWrite(request) => self.memory_write(now, request, payload),
            Header::MemoryRead(request) => self.memory_read(port, request),
            Header::Completion(completion) => self.completion(now, port, completion, payload),
            Header::ConfigRead(request) | Header::ConfigWrite(request) => {
                transaction::refuse_config(port, self.gauges, request, self.completer());
            }
            Header::Message(_) => self.gauges.malformed_tlps.add(1),
        }
    }

    fn pump(&mut self, now: Instant, port: &mut Port<'m>, is_open: bool) -> bool {
        let waiting = !self.direct && self.pump_edge(now, port);
        let Some(window) = self.window.filter(|_| is_open) else { return waiting };
        for _ in 0..OUTPUTS_PER_STEP {
            if !requests::has_room(port) {
                return waiting;
            }
            if !port.may_go_on() {
                return true;
            }
            let Some(access) = self.driver.poll_access(now) else { return waiting };
            let asked = access.id();
            if requests::issue(now, port, (&window, self.function), access).is_err()
                && let Some(id) = asked
            {
                // The lender has named registers where there can be none. On a bus nobody would answer there, either: a
                // write is lost, and the driver gives the function up when what it was for has not happened.
                self.driver.handle_access(now, id, Err(AccessError::UnsupportedRequest));
            }
        }
        true
    }

    fn handle_timeout(&mut self, now: Instant, port: &mut Port<'m>) {
        // Those that are left are overdue in the next step, too.
        while port.may_go_on()
            && let Some(id) = requests::poll_timed_out(now, port, self.gauges)
        {
            self.driver.handle_access(now, id, Err(AccessError::Timeout));
        }
        self.driver.handle_timeout(now);
        self.server.handle_timeout(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [self.driver.poll_timeout(), self.server.poll_timeout()].into_iter().flatten().min()
    }

    fn is_waiting(&self, _port: &Port<'m>) -> bool {
        self.driver.in_flight() > 0
    }

    fn window(&self) -> Option<&Window> {
        self.window.as_ref()
    }

    fn set_peer(&mut self, window: Option<Window>, max_payload: usize) {
        self.window = window;
        self.max_payload = max_payload;
    }

    fn handle_reset(&mut self, now: Instant) {
        self.driver.handle_reset(now);
    }

    fn handle_open(&mut self, now: Instant) {
        self.driver.start(now);
    }

    /// Everything that is under way or not flushed ends with an error, since it was meant for what the drive held
    /// before.
    fn forget(&mut self, now: Instant) {
        self.driver.forget(now);
        self.server.evict_clients(now);
    }

    fn begin_closing(&mut self, now: Instant) {
        self.driver.shutdown(now);
    }

    fn give_up(&mut self, _now: Instant) {
        self.driver.give_up();
    }

    fn may_close(&self) -> bool {
        self.driver.is_shut_down()
    }

    fn end(&mut self, _now: Instant) -> bool {
        self.driver.has_lost()
    }

    fn is_ready(&self) -> bool {
        self.driver.geometry().is_some()
    }

    fn unusable(&self) -> Option<Unusable> {
        self.driver.unusable().map(Unusable::Drive)
    }

    fn publish(&self) {
        let edge = self.gauges;
        edge.has_lost.set(self.driver.has_lost().into());
        edge.kept_writes.set(self.driver.kept().0 as u64);
        if let Some(geometry) = self.driver.geometry() {
            edge.drive_bytes.set(geometry.blocks * u64::from(geometry.block_size));
            edge.drive_rights.set(1 + u64::from(geometry.read_only));
        }
    }

    fn drive(&self) -> Option<&BorrowedDrive<'m>> {
        Some(self)
    }

    fn drive_mut(&mut self) -> Option<&mut BorrowedDrive<'m>> {
        Some(self)
    }
}

/// What the function of the drive borrowed in this place reaches: the memory, where it begins, its bytes and rights.
pub(crate) fn grants(place: usize) -> [(Memory, u64, u64, Rights); 3] {
    let (base, both) = (apertures::base_of(place), Rights { read: true, write: true });
    let queue_bytes = (QUEUE_MEMORY_SIZE as u64).next_multiple_of(PAGE_SIZE as u64);
    let data_bytes = (Pages::CAPACITY * PAGE_SIZE) as u64;
    [
        (Memory::Queues, base + QUEUE_MEMORY, queue_bytes, both),
        (Memory::Interrupts, base + INTERRUPTS, PAGE_SIZE as u64, Rights { read: false, write: true }),
        // Which of them, and how, is the driver's word at each access: those of running commands, in their direction.
        (Memory::Data, base + DATA_MEMORY, data_bytes, both),
    ]
}

fn page_of(offset: u64) -> (PageIndex, usize) {
    (PageIndex((offset / PAGE_SIZE as u64) as u16), (offset % PAGE_SIZE as u64) as usize)
}
