//! Errors of writing back, and what the open file descriptions have told of them: Linux's `errseq_t`.

/// Those of a medium, of which its agent has two descriptions.
#[derive(Default)]
pub(super) struct Errors {
    count: u64,
    /// Somebody was told of the last one.
    pub(super) is_seen: bool,
    description: u64,
    witness: u64,
}

impl Errors {
    pub(super) fn note(&mut self) {
        self.count += 1;
        self.is_seen = false;
    }

    /// A flush: whether there was an error since the last one.
    pub(super) fn flush(&mut self) -> bool {
        let is_told = core::mem::replace(&mut self.description, self.count) != self.count;
        self.is_seen |= is_told;
        is_told
    }

    pub(super) fn ask_witness(&mut self) -> bool {
        let is_told = core::mem::replace(&mut self.witness, self.count) != self.count;
        self.is_seen |= is_told;
        is_told
    }

    /// The file is opened again: what nobody was told is still to be told.
    pub(super) fn open(&mut self) {
        self.description = self.count - u64::from(self.count > 0 && !self.is_seen);
        self.witness = self.description;
    }

    pub(super) fn is_pending(&self) -> bool {
        self.description != self.count || self.witness != self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_once_a_description() {
        let mut errors = Errors::default();
        errors.open();
        assert!(!errors.flush() && !errors.ask_witness());
        errors.note();
        errors.note();
        assert!(errors.flush() && !errors.flush());
        assert!(errors.ask_witness() && !errors.ask_witness());
        errors.note();
        errors.open();
        assert!(errors.flush() && errors.ask_witness(), "nobody was told before");
        errors.open();
        assert!(!errors.flush() && !errors.ask_witness());
        errors.note();
        assert!(errors.flush());
        errors.open();
        assert!(!errors.ask_witness(), "somebody was told");
    }
}
