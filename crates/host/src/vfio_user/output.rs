//! The bytes to the client: messages with their positions in the stream.

use base::ledger::Span;

use super::Session;
use super::cells::{Output, RING_BYTES};

impl<'m> Session<'m> {
    /// Puts a message at the end of the stream; there is room.
    pub(super) fn push_output(&self, output: Output) {
        let end = &self.cells.output_end;
        let output = Output { start: end.get(), ..output };
        self.cells.outputs.push(self.journal, output);
        end.set(self.journal, output.end());
    }

    pub(super) fn fill_spans(&self, position: u64, spans: &mut [Span<'m>]) -> usize {
        let behind = self.cells.outputs.iter().filter(|output| output.end() > position);
        let mut filled = 0;
        for (output, span) in behind.zip(spans) {
            let offset = position.saturating_sub(output.start) as usize;
            let len = output.len as usize - offset;
            *span = if output.transfer == 0 {
                self.cells.ring.span(output.place as usize % RING_BYTES + offset, len)
            } else {
                self.transfer_span(output.place as u16, offset, len)
            };
            filled += 1;
        }
        filled
    }

    /// Forgets what has been sent before `position`.
    pub(super) fn pop_sent(&mut self, position: u64) {
        while let Some(output) = self.cells.outputs.front().filter(|output| output.end() <= position) {
            self.cells.outputs.pop(self.journal);
            if output.transfer != 0 {
                self.transfer_sent(output.place as u16);
            }
        }
        self.free_ring();
    }
}
