use base::INLINE_MAX;
use base::InlineBytes;
use base::Instant;
use base::RuleSet;
use base::ledger::{Journal, Ledger, PageCells, Pages, RawMemory, Span};
use host::nvme::{Driver, DriverCells, DriverConfig, QUEUE_MEMORY_SIZE};
use zerocopy::FromBytes;

use super::{ToDevice, ToHost};
use crate::apertures::BAR_BYTES_MAX;
use crate::borrower::{DATA_MEMORY, INTERRUPTS, QUEUE_MEMORY};

/// Most messages that one turn leads to beyond those it answers: keeps the undo log short.
const OUTPUTS_PER_STEP: usize = 256;
/// Bytes of the largest read of the queue memory.
const READ_MAX: usize = 4096;

/// The ledger of a native host.
#[derive(FromBytes)]
#[repr(C)]
pub struct NativeHostCells {
    pages: PageCells,
    driver: DriverCells,
}

/// The driver's half.
pub struct NativeHost<'m> {
    journal: Journal<'m>,
    pages: Pages<'m>,
    driver: Driver<'m>,
}

impl<'m> NativeHost<'m> {
    /// A host on new memory, whose driver begins to look for its device.
    pub fn new(memory: RawMemory<'m>, now: Instant) -> Self {
        let Ledger { journal, root } = memory.ledger::<NativeHostCells>(None, RuleSet::ALL);
        let pages = Pages::new(&root.pages, journal);
        let config = DriverConfig {
            queue_memory: QUEUE_MEMORY,
            data_memory: DATA_MEMORY,
            interrupt: INTERRUPTS,
            bar_bytes: BAR_BYTES_MAX,
        };
        let mut driver = Driver::new(&root.driver, pages, journal, config);
        driver.start(now);
        journal.commit();
        Self { journal, pages, driver }
    }

    /// The pages, for the device.
    pub fn memory(&self) -> Span<'m> {
        self.pages.memory()
    }

    /// The driver: what it is and does.
    pub fn driver(&self) -> &Driver<'m> {
        &self.driver
    }

    /// One step: takes in what the device says, lets whoever uses the drive `act` (poll completions, submit requests),
    /// and adds to `out` what the device is to be told after it.
    pub fn step(
        &mut self,
        now: Instant,
        incoming: impl IntoIterator<Item = ToHost>,
        act: impl FnOnce(&mut Driver<'m>, Pages<'m>),
        out: &mut Vec<ToDevice>,
    ) {
        for message in incoming {
            self.handle(now, message, out);
        }
        if self.driver.poll_timeout().is_some_and(|deadline| deadline <= now) {
            self.driver.handle_timeout(now);
        }
        act(&mut self.driver, self.pages);
        let accesses = core::iter::from_fn(|| self.driver.poll_access(now));
        out.extend(accesses.take(OUTPUTS_PER_STEP).map(ToDevice::Access));
        self.journal.commit();
    }

    #[cfg(test)]
    pub(super) fn pages(&self) -> Pages<'m> {
        self.pages
    }

    fn handle(&mut self, now: Instant, message: ToHost, out: &mut Vec<ToDevice>) {
        match message {
            ToHost::Write { offset, bytes } if offset < QUEUE_MEMORY_SIZE as u64 => {
                self.driver.memory_write(now, offset, bytes.as_slice());
            }
            ToHost::Write { .. } => {}
            ToHost::Read { id, offset, len } => {
                let mut bytes = [0; READ_MAX];
                let bytes = &mut bytes[..usize::from(len).min(READ_MAX)];
                self.driver.memory_read(offset, bytes);
                let count = bytes.len().div_ceil(INLINE_MAX);
                out.extend(bytes.chunks(INLINE_MAX).enumerate().map(|(index, part)| ToDevice::Data {
                    id,
                    offset: (index * INLINE_MAX) as u16,
                    bytes: InlineBytes::new(part),
                    last: index + 1 == count,
                }));
            }
            ToHost::Interrupt(vector) => self.driver.interrupt(now, vector),
            ToHost::Answer(id, answer) => {
                self.driver.handle_access(
                    now,
                    id,
                    answer.as_ref().map(InlineBytes::as_slice).map_err(|error| *error),
                );
            }
        }
    }
}
