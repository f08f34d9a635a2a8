use base::Instant;
use base::ledger::Pages;
use device::{Dma, DmaError, DmaId, MediaFunction, MediaId};
use fabric::{AccessKind, GrantTable, Rights, Window};
use link::{Port, PostedCredit};
use pcie::{Bdf, Completion, CompletionStatus, FlowClass, Header, MemoryRequest, Tag};

use crate::apertures;
use crate::cells::EdgeGauges;
use crate::endpoint::{Endpoint, Remains};
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

/// A function that is lent: TLPs on one side, a [`MediaFunction`] on the other.
pub(crate) struct LentFunction<'m> {
    /// The function.
    function: Box<dyn MediaFunction + 'm>,
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
    pub(crate) fn new(
        function: Box<dyn MediaFunction + 'm>,
        pages: Pages<'m>,
        gauges: &'m EdgeGauges,
        (place, host): (usize, Bdf),
    ) -> Self {
        let mut grants = GrantTable::default();
        for (bar, start, bytes, rights) in self::grants(place) {
            grants.grant(host, start, bytes, rights, bar);
        }
        Self { function, pages, gauges, grants, window: None, max_payload: 0 }
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
                self.function.handle_dma_error(now, id, DmaError::UnsupportedRequest);
            }
        }
    }

    fn registers_read(&mut self, now: Instant, port: &mut Port<'m>, request: &MemoryRequest) {
        let completer = self.completer();
        let (address, len) = request.byte_range();
        match self.grants.check(request.requester, AccessKind::Read, address, len.max(1)) {
            Ok(granted) => {
                let (function, bar) = (&mut self.function, granted.memory);
                let read = |out: &mut [u8]| function.read(now, bar, granted.offset, out);
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
                self.function.write(now, granted.memory, granted.offset, bytes);
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
                self.function.handle_dma_data(now, id, done.offset, data, done.last);
            }
            (CompletionStatus::UnsupportedRequest, _) => {
                self.function.handle_dma_error(now, id, DmaError::UnsupportedRequest);
            }
            _ => self.function.handle_dma_error(now, id, DmaError::Aborted),
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
                let value = self.function.config_read(request.register);
                transaction::complete_config(port, request, self.completer(), Some(value));
            }
            Header::ConfigWrite(request) => {
                if let Some(value) = payload.first_chunk() {
                    let value = u32::from_le_bytes(*value);
                    self.function.config_write(now, request.register, value, request.first_be);
                }
                transaction::complete_config(port, request, self.completer(), None);
            }
            Header::Message(_) => self.gauges.malformed_tlps.add(1),
        }
    }

    /// A posted write that waited for credit would keep what is completed behind it waiting, too: the value of a
    /// register, for which a virtual machine may hold still that has to do a write before there is credit again. So a
    /// write stays in the function until nothing can hold it up, and what is read meanwhile comes before it.
    fn pump(&mut self, now: Instant, port: &mut Port<'m>, is_open: bool) -> bool {
        let Some(window) = self.window.filter(|_| is_open) else { return false };
        let mut credit = port.sender.posted_credit();
        for _ in 0..OUTPUTS_PER_STEP {
            let room = port.sender.has_room(FlowClass::Posted) && port.sender.has_room(FlowClass::NonPosted);
            if !room || !credit.suffices() || !port.tags.has_room() {
                return false;
            }
            if !port.may_go_on() {
                return true;
            }
            match self.function.poll_dma(now, self.max_payload) {
                Some(Dma::Write { address, payload }) => {
                    self.write(port, &window, &mut credit, address, payload);
                }
                Some(Dma::Read { id, address, len }) => self.read(now, port, &window, id, address, len),
                None => return false,
            }
        }
        true
    }

    fn handle_timeout(&mut self, now: Instant, port: &mut Port<'m>) {
        // Those that are left are overdue in the next step, too.
        while port.may_go_on()
            && let Some(timed_out) = port.tags.poll_timed_out(now)
        {
            self.gauges.completion_timeouts.add(1);
            self.function.handle_dma_error(now, DmaId(timed_out.context), DmaError::Timeout);
        }
        self.function.handle_timeout(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.function.poll_timeout()
    }

    fn depends_on_others(&self) -> bool {
        self.function.depends_on_others()
    }

    fn window(&self) -> Option<&Window> {
        self.window.as_ref()
    }

    fn set_peer(&mut self, window: Option<Window>, max_payload: usize) {
        self.window = window;
        self.max_payload = max_payload;
    }

    fn handle_reset(&mut self, now: Instant) {
        self.function.reset(now);
    }

    fn remains(&self) -> Remains {
        Remains::Work
    }

    fn replace(&mut self, now: Instant, _failed: &dyn Endpoint<'m>, given: &[MediaId]) {
        self.function.give_up(now, &|id| given.contains(&id));
    }

    fn function(&self) -> Option<&(dyn MediaFunction + 'm)> {
        Some(&*self.function)
    }

    fn function_mut(&mut self) -> Option<&mut (dyn MediaFunction + 'm)> {
        Some(&mut *self.function)
    }
}
