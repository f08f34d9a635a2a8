//! What is attached to a slot: a file `slot.DOMAIN.SLOT`, `GENERATION,WHAT`: a line, a function that a manager has
//! assigned ([`crate::assigned`]), `-` for nothing, `=` for what the node's file says, `!` and a line for nothing but
//! that its lender has yet to hear of it.

use super::file::{Named, read_value, write_value};
use super::{StateDir, StateError};
use crate::assigned::{self, Assigned};
use crate::cli::SlotName;
use crate::line::Line;

/// What a line begins with whose function is owed to its lender.
const OWED: char = '!';

/// What somebody has decided about a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Counts the decisions: 1 for the first.
    pub generation: u64,
    /// What is attached.
    pub attached: Attached,
}

/// What is attached to a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attached {
    /// What the node's file says: that was changed after somebody had decided something else.
    Preset,
    /// Nothing.
    Nothing,
    /// The function of this line.
    Line(Box<Line>),
    /// Nothing any more: the lender of this line was silent for too long, and has the function to get back.
    Owed(Box<Line>),
    /// The function that a manager has assigned to the slot.
    Assigned(Box<Assigned>),
}

impl StateDir {
    /// What was decided about a slot last, if anything ever was.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn attachment(&self, slot: &SlotName) -> Result<Option<Attachment>, StateError> {
        let Some(Named { file, value }) = read_value(self.path(), &file_of(slot))? else { return Ok(None) };
        let parsed = value.split_once(',').and_then(|(generation, line)| {
            let attached = match line {
                "-" => Attached::Nothing,
                "=" => Attached::Preset,
                text if text.starts_with(OWED) => {
                    Attached::Owed(Box::new(text[OWED.len_utf8()..].parse().ok()?))
                }
                text if text.starts_with(assigned::SCHEME) => {
                    Attached::Assigned(Box::new(text.parse().ok()?))
                }
                line => Attached::Line(Box::new(line.parse().ok()?)),
            };
            Some(Attachment { generation: generation.parse().ok()?, attached })
        });
        parsed.map(Some).ok_or(StateError::Damaged { file, why: "it names nothing that can be attached" })
    }

    /// Makes a decision about a slot durable.
    ///
    /// # Errors
    /// The system said no; the last decision still holds.
    pub fn set_attachment(&self, slot: &SlotName, attachment: &Attachment) -> Result<(), StateError> {
        let line = match &attachment.attached {
            Attached::Preset => "=".to_owned(),
            Attached::Nothing => "-".to_owned(),
            Attached::Line(line) => line.reveal(),
            Attached::Owed(line) => format!("{OWED}{}", line.reveal()),
            Attached::Assigned(assigned) => assigned.to_string(),
        };
        write_value(self.path(), &file_of(slot), &format!("{},{line}", attachment.generation))
    }
}

fn file_of(slot: &SlotName) -> String {
    format!("slot.{}.{}", slot.domain, slot.slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_decision_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let state = StateDir::open(&path).unwrap();
        let slot: SlotName = "vm1/disk.0".parse().unwrap();
        assert_eq!(state.attachment(&slot).unwrap(), None);
        let line = crate::line::tests::example();
        let attached =
            Attachment { generation: u64::from(u32::MAX), attached: Attached::Line(Box::new(line)) };
        state.set_attachment(&slot, &attached).unwrap();
        assert_eq!(state.attachment(&slot).unwrap(), Some(attached));
        let owed = Attached::Owed(Box::new(crate::line::tests::example()));
        let owed = Attachment { generation: 1 << 31, attached: owed };
        state.set_attachment(&slot, &owed).unwrap();
        assert_eq!(state.attachment(&slot).unwrap(), Some(owed));
        let preset = Attachment { generation: 1 << 32, attached: Attached::Preset };
        state.set_attachment(&slot, &preset).unwrap();
        assert_eq!(state.attachment(&slot).unwrap(), Some(preset));
        let vacant = Attachment { generation: (1 << 32) + 1, attached: Attached::Nothing };
        state.set_attachment(&slot, &vacant).unwrap();
        drop(state);
        let state = StateDir::open(&path).unwrap();
        assert_eq!(state.attachment(&slot).unwrap(), Some(vacant));
        assert_eq!(state.attachment(&"vm1/disk".parse().unwrap()).unwrap(), None);
        std::fs::write(path.join("slot.vm1.disk"), "1,x 00000000\n").unwrap();
        assert!(state.attachment(&"vm1/disk".parse().unwrap()).is_err());
    }
}
