//! What a loan's disk has lost, and who asks for it.

use crate::loans::Loan;

impl Loan<'_> {
    /// The driver of its borrower says how much it has lost, ever.
    pub(crate) fn note_lost(&mut self, lost: u64) {
        if lost > core::mem::replace(&mut self.lost, lost) {
            self.shared.trouble.has_lost = true;
            let tick = self.shared.next_tick();
            self.shared.model.kept_lost(tick);
        }
    }

    /// The kernel drops a block that it could not write back.
    pub(super) fn drop_block(&mut self, block: usize) {
        let shared = &mut self.shared;
        if let Some(value) = self.disk.drop_lost(block) {
            shared.tick += 1;
            shared.model.went_back(block, value, shared.tick);
        }
    }

    /// Nobody asks any more for what is lost.
    pub(super) fn accept_losses(&mut self) {
        for block in self.disk.lost_blocks() {
            self.drop_block(block);
        }
        self.disk.forget_lost();
        self.shared.tick += 1;
        self.cleared = self.shared.tick;
    }

    /// What was answered before a flush began that has succeeded, and is not durable.
    pub(super) fn lost_behind(&self, start: u64) -> Option<String> {
        let (block, request) = self
            .disk
            .lost()
            .find(|(block, request)| self.shared.model.was_promised(*block, *request, start))?;
        Some(format!(
            "a flush that began at {start} has succeeded, and block {block} has lost what request {request} wrote"
        ))
    }
}
