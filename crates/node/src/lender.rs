use base::Instant;
use base::ledger::Pages;
use device::nvme::Controller;
use device::{Dma, DmaError, DmaId, Function};
use fabric::{AccessKind, GrantTable, Rights, Window};
use link::{Port, PostedCredit};
use pcie::{Bdf, Completion, CompletionStatus, FlowClass, Header, MemoryRequest, Tag};

use crate::apertures;
use crate::cells::EdgeGauges;
use crate::endpoint::Endpoint;
use crate::transaction;

/// Outputs of one step: keeps the undo log short.
const OUTPUTS_PER_STEP: usize = 256;
/// BARs of a function.
const BARS: u8 = 6;
/// Bytes of a BAR that are granted.
const BAR_BYTES: u64 = 1 << 24;

/// What the borrower of the function in this place reaches: BARs, where each begins, its bytes and rights.
pub(crate) fn grants(place: usize) -> impl Iterator<Item = (u8, u64, u64, Rights)> {
    (0..BARS).map(move |bar| {
        // Of a constant.
        let start = apertures::bar_address(bar, 0).expect("every BAR begins in the aperture");
        (bar, apertures::base_of(place) + start, BAR_BYTES, Rights { read: true, write: true })
    })
}

/// A function that is lent: TLPs on one side, a [`Function`] and its medium on the other.
pub struct LentFunction<'m> {
    /// The function.
    pub controller: Controller<'m>,
    pages: Pages<'m>,
    gauges: &'m EdgeGauges,
    /// Who reaches the function's registers.
    grants: GrantTable<u8>,
    /// The way to the borrower's memory, once there is one.
    window: Option<Window>,
    max_payload: usize,
}

impl<'m> LentFunction<'m> {
    /// The function of the loan in this place, whose borrower's requests bear `host`.
    pub fn new(
        controller: Controller<'m>,
        pages: Pages<'m>,
        gauges: &'m EdgeGauges,
        (place, host): (usize, Bdf),
    ) -> Self {
        let mut grants = GrantTable::default();
        for (bar, start, bytes, rights) in self::grants(place) {
            grants.grant(host, start, bytes, rights, bar);
        }
        Self { controller, pages, gauges, grants, window: None, max_payload: 0 }
    }

    /// The way to the borrower's memory is known: DMA leads there.
    pub(crate) fn set_peer(&mut self, window: Option<Window>, max_payload: usize) {
        self.window = window;
        self.max_payload = max_payload;
    }

    /// Queues what the function has to say, as far as there is room and credit. True if there may be more, which is
    /// then for the next step.
    ///
    /// A posted write that waited for credit would keep what is completed behind it waiting, too: the value of a
    /// register, for which a virtual machine may hold still that has to do a write before there is credit again. So a
    /// write stays in the function until nothing can hold it up, and what is read meanwhile comes before it.
    pub(crate) fn pump(&mut self, now: Instant, port: &mut Port<'m>) -> bool {
        let Some(window) = self.window else { return false };
        let mut credit = port.sender.posted_credit();
        for _ in 0..OUTPUTS_PER_STEP {
            let room = port.sender.has_room(FlowClass::Posted) && port.sender.has_room(FlowClass::NonPosted);
            if !room || !credit.suffices() || !port.tags.has_room() {
                return false;
            }
            if !port.may_go_on() {
                return true;
            }
            match self.controller.poll_dma(now, self.max_payload) {
                Some(Dma::Write { address, payload }) => {
                    self.write(port, &window, &mut credit, address, payload);
                }
                Some(Dma::Read { id, address, len }) => self.read(now, port, &window, id, address, len),
                None => return false,
            }
        }
        true
    }

    fn write(
        &self,
        port: &mut Port<'m>,
        window: &Window,
        credit: &mut PostedCredit,
        address: u64,
        payload: base::Payload,
    ) {
        // What the host has programmed may be no address at all: such a write goes nowhere, as in hardware.
        let request = MemoryRequest::new(window.requester(), Tag::default(), address, payload.len());
        let whole = address.is_multiple_of(4) && payload.len().is_multiple_of(4);
        match request
            .ok()
            .filter(|_| whole)
            .and_then(|request| window.pass(Header::MemoryWrite(request)).ok())
        {
            Some(header) => {
                credit.spend(&header);
                port.sender.push(&header, payload, false);
            }
            None => self.gauges.malformed_tlps.add(1),
        }
    }

    fn read(
        &mut self,
        now: Instant,
        port: &mut Port<'m>,
        window: &Window,
        id: DmaId,
        address: u64,
        len: u16,
    ) {
        let Some(tag) = port.tags.alloc(now, window.requester(), id.0, len.into()) else { return };
        let request = MemoryRequest::new(window.requester(), tag, address, len.into());
        match request.ok().and_then(|request| window.pass(Header::MemoryRead(request)).ok()) {
            Some(header) => port.sender.push(&header, base::Payload::None, false),
            None => {
                self.gauges.malformed_tlps.add(1);
                port.tags.cancel(tag);
                self.controller.handle_dma_error(now, id, DmaError::UnsupportedRequest);
            }
        }
    }

    /// Requests without completion in time.
    pub(crate) fn handle_timeout(&mut self, now: Instant, port: &mut Port<'m>) {
        // Those that are left are overdue in the next step, too.
        while port.may_go_on()
            && let Some(timed_out) = port.tags.poll_timed_out(now)
        {
            self.gauges.completion_timeouts.add(1);
            self.controller.handle_dma_error(now, DmaId(timed_out.context), DmaError::Timeout);
        }
        self.controller.handle_timeout(now);
    }

    fn registers_read(&mut self, now: Instant, port: &mut Port<'m>, request: &MemoryRequest) {
        let completer = self.completer();
        let (address, len) = request.byte_range();
        match self.grants.check(request.requester, AccessKind::Read, address, len.max(1)) {
            Ok(granted) => {
                let (controller, bar) = (&mut self.controller, granted.memory);
                let read = |out: &mut [u8]| controller.read(now, bar, granted.offset, out);
                transaction::complete_copied(port, &self.pages, request, completer, self.max_payload, read);
            }
            Err(_) => {
                self.gauges.deny(request.requester, address, AccessKind::Read);
                transaction::fail_read(port, request, completer, CompletionStatus::UnsupportedRequest);
            }
        }
    }

    fn registers_write(&mut self, now: Instant, request: &MemoryRequest, payload: &[u8]) {
        let (address, len) = request.byte_range();
        let bytes = payload.get(request.padding()..request.padding() + len);
        let granted = self.grants.check(request.requester, AccessKind::Write, address, len.max(1));
        match (granted, bytes) {
            (Ok(granted), Some(bytes)) if !request.poisoned => {
                self.controller.write(now, granted.memory, granted.offset, bytes);
            }
            (Err(_), _) => self.gauges.deny(request.requester, address, AccessKind::Write),
            _ => self.gauges.malformed_tlps.add(1),
        }
    }

    fn completion(&mut self, now: Instant, port: &mut Port<'m>, completion: &Completion, payload: &[u8]) {
        let Some(done) = port.tags.complete(completion) else {
            return self.gauges.unexpected_completions.add(1);
        };
        if !done.wanted {
            return;
        }
        let id = DmaId(done.context);
        let data = payload.get(completion.padding()..completion.padding() + completion.data_len());
        match (completion.status, data) {
            (CompletionStatus::Success, Some(data)) if !completion.poisoned => {
                self.controller.handle_dma_data(now, id, done.offset, data, done.last);
            }
            (CompletionStatus::UnsupportedRequest, _) => {
                self.controller.handle_dma_error(now, id, DmaError::UnsupportedRequest);
            }
            _ => self.controller.handle_dma_error(now, id, DmaError::Aborted),
        }
    }
}

impl<'m> Endpoint<'m> for LentFunction<'m> {
    fn take(&mut self, now: Instant, port: &mut Port<'m>, header: &Header, payload: &[u8]) {
        match header {
            Header::MemoryWrite(request) => self.registers_write(now, request, payload),
            Header::MemoryRead(request) => self.registers_read(now, port, request),
            Header::Completion(completion) => self.completion(now, port, completion, payload),
            Header::ConfigRead(request) => {
                let value = self.controller.config_read(request.register);
                transaction::complete_config(port, request, self.completer(), Some(value));
            }
            Header::ConfigWrite(request) => {
                if let Some(value) = payload.first_chunk() {
                    let value = u32::from_le_bytes(*value);
                    self.controller.config_write(now, request.register, value, request.first_be);
                }
                transaction::complete_config(port, request, self.completer(), None);
            }
            Header::Message(_) => self.gauges.malformed_tlps.add(1),
        }
    }

    fn window(&self) -> Option<&Window> {
        self.window.as_ref()
    }
}
