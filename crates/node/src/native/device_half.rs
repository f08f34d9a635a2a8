use base::INLINE_MAX;
use base::InlineBytes;
use base::Instant;
use base::Payload;
use base::RuleSet;
use base::ledger::{Journal, Ledger, PAGE_SIZE, PageCells, Pages, RawMemory};
use device::nvme::{Config, Controller, NvmeCells};
use device::{Dma, DmaError, DmaId, Function, MediaError, MediaFunction, MediaId};
use host::{Access, AccessError};
use zerocopy::FromBytes;

use super::{HostMemory, ToDevice, ToHost};
use crate::borrower::{DATA_MEMORY, INTERRUPTS, QUEUE_MEMORY};
use crate::card::MediaWork;

/// Accesses to the host's memory in one step: keeps the undo log short.
const OUTPUTS_PER_STEP: usize = 1024;

/// The ledger of a native device.
#[derive(FromBytes)]
#[repr(C)]
pub struct NativeDeviceCells {
    pages: PageCells,
    controller: NvmeCells,
}

/// The controller's half.
pub struct NativeDevice<'m> {
    journal: Journal<'m>,
    pages: Pages<'m>,
    controller: Controller<'m>,
    /// The last step has ended before everything was moved.
    more: bool,
}

impl<'m> NativeDevice<'m> {
    /// A device on new memory.
    ///
    /// # Panics
    /// If [`Config::check`] finds something.
    pub fn new(memory: RawMemory<'m>, config: Config) -> Self {
        let Ledger { journal, root } = memory.ledger::<NativeDeviceCells>(None, RuleSet::ALL);
        let pages = Pages::new(&root.pages, journal);
        let controller = Controller::new(&root.controller, pages, journal, config);
        journal.commit();
        Self { journal, pages, controller, more: false }
    }

    /// One step: takes in what the host says, moves data from and to its pages, and adds to `out` what it is to be
    /// told.
    pub fn step(
        &mut self,
        now: Instant,
        incoming: impl IntoIterator<Item = ToDevice>,
        memory: &impl HostMemory,
        out: &mut Vec<ToHost>,
    ) {
        for message in incoming {
            self.handle(now, message, out);
        }
        self.finish(now, memory, out);
    }

    /// The next work for the medium: to be executed, and its result handed in, before the next is asked for.
    pub fn poll_media(&mut self) -> Option<MediaWork<'m>> {
        let before = self.controller.sending();
        let work = self.controller.poll_media().map(|op| MediaWork::new(0, &op, &self.pages, false));
        // Asking fetches commands behind the present one, and what they have to send is for a step.
        self.more |= self.controller.sending() > before;
        self.journal.commit();
        work
    }

    /// The medium has ended work `id`.
    pub fn handle_media(
        &mut self,
        now: Instant,
        id: MediaId,
        result: Result<(), MediaError>,
        memory: &impl HostMemory,
        out: &mut Vec<ToHost>,
    ) {
        self.controller.handle_media(now, id, result);
        self.finish(now, memory, out);
    }

    /// When a step is due although nothing has come.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.more { Some(Instant::ZERO) } else { self.controller.poll_timeout() }
    }

    /// Fills a span of this half, as a medium does.
    #[cfg(test)]
    pub(super) fn fill(&self, span: base::ledger::Span<'_>, bytes: &[u8]) {
        span.write(self.journal, bytes);
    }

    fn finish(&mut self, now: Instant, memory: &impl HostMemory, out: &mut Vec<ToHost>) {
        if self.controller.poll_timeout().is_some_and(|deadline| deadline <= now) {
            self.controller.handle_timeout(now);
        }
        self.more = true;
        for _ in 0..OUTPUTS_PER_STEP {
            let Some(dma) = self.controller.poll_dma(now, PAGE_SIZE) else {
                self.more = false;
                break;
            };
            self.perform(now, dma, memory, out);
        }
        self.journal.commit();
    }

    fn handle(&mut self, now: Instant, message: ToDevice, out: &mut Vec<ToHost>) {
        match message {
            ToDevice::Access(access) => self.access(now, access, out),
            ToDevice::Data { id, offset, bytes, last } => {
                self.controller.handle_dma_data(now, id, offset.into(), bytes.as_slice(), last);
            }
        }
    }

    fn access(&mut self, now: Instant, access: Access, out: &mut Vec<ToHost>) {
        match access {
            Access::Write { bar, offset, payload } => match payload {
                Payload::Inline(bytes) => self.controller.write(now, bar, offset, bytes.as_slice()),
                // Our driver writes nothing longer to a function.
                Payload::Page(_) | Payload::None => {}
            },
            Access::Read { id, bar, offset, len } => {
                let mut bytes = [0; INLINE_MAX];
                let answer = match bytes.get_mut(..len.into()) {
                    Some(bytes) => {
                        self.controller.read(now, bar, offset, bytes);
                        Ok(InlineBytes::new(bytes))
                    }
                    None => Err(AccessError::UnsupportedRequest),
                };
                out.push(ToHost::Answer(id, answer));
            }
            Access::ConfigRead { id, register } => {
                let value = self.controller.config_read(register);
                out.push(ToHost::Answer(id, Ok(InlineBytes::new(&value.to_le_bytes()))));
            }
            Access::ConfigWrite { id, register, value, byte_enables } => {
                self.controller.config_write(now, register, value, byte_enables);
                out.push(ToHost::Answer(id, Ok(InlineBytes::new(&[]))));
            }
        }
    }

    fn perform(&mut self, now: Instant, dma: Dma, memory: &impl HostMemory, out: &mut Vec<ToHost>) {
        match dma {
            Dma::Write { address: address @ DATA_MEMORY.., payload: Payload::Page(slice) } => {
                let span = self.pages.span(slice.page, slice.offset.into(), slice.len.into());
                memory.write(address - DATA_MEMORY, span);
            }
            Dma::Write { address: INTERRUPTS, payload: Payload::Inline(bytes) } => {
                let vector = bytes.as_slice().first_chunk().map_or(0, |data| u32::from_le_bytes(*data));
                out.push(ToHost::Interrupt(vector));
            }
            Dma::Write { address, payload } => self.write_queues(address, payload, out),
            Dma::Read { id, address: address @ DATA_MEMORY.., len } => {
                let controller = &mut self.controller;
                memory.read(address - DATA_MEMORY, len.into(), &mut |bytes| {
                    controller.handle_dma_data(now, id, 0, bytes, true);
                });
            }
            Dma::Read { id, address, len } => match address.checked_sub(QUEUE_MEMORY) {
                Some(offset) => out.push(ToHost::Read { id, offset, len }),
                None => self.refuse(now, id),
            },
        }
    }

    /// A write to the driver's queue memory, in parts that a message holds.
    fn write_queues(&self, address: u64, payload: Payload, out: &mut Vec<ToHost>) {
        let Some(offset) = address.checked_sub(QUEUE_MEMORY) else { return };
        match payload {
            Payload::None => {}
            Payload::Inline(bytes) => out.push(ToHost::Write { offset, bytes }),
            Payload::Page(slice) => {
                let mut bytes = [0; PAGE_SIZE];
                let bytes = &mut bytes[..slice.len.into()];
                self.pages.read(slice.page, slice.offset.into(), bytes);
                let parts = bytes.chunks(INLINE_MAX).zip((offset..).step_by(INLINE_MAX));
                out.extend(
                    parts.map(|(part, offset)| ToHost::Write { offset, bytes: InlineBytes::new(part) }),
                );
            }
        }
    }

    fn refuse(&mut self, now: Instant, id: DmaId) {
        self.controller.handle_dma_error(now, id, DmaError::UnsupportedRequest);
    }
}
