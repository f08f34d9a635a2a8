use std::time::{Duration, Instant};

use node::Limit;
use tracing::{info, warn};

use super::{Agent, DriveSpec, LoanEnd};
use crate::files::Witness;
use crate::messages::{MediumTrouble, ToCard};
use crate::plan::LimitPlan;

/// How often the agent looks whether images have grown.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What became of the images since they were opened.
pub(super) struct Images {
    seen: Vec<Seen>,
    look_at: Option<Instant>,
}

/// One of them.
struct Seen {
    /// The most blocks that it ever had.
    blocks: u64,
    /// It has become shorter: to so many bytes.
    cut_to: Option<u64>,
    /// It was said that it was removed.
    said_removed: bool,
    /// Tells what a dead card may have heard and not told.
    witness: Option<Witness>,
    /// It has told something, and no operator has seen to the image since.
    has_lost: bool,
}

impl Images {
    pub(super) fn new(drives: &[DriveSpec]) -> Self {
        let witness = |drive: &DriveSpec| {
            Witness::of(&drive.image).unwrap_or_else(|error| {
                let source = &drive.source;
                warn!(source, %error, "the image cannot be opened once more: an error that a card takes with it stays unknown");
                None
            })
        };
        let seen = drives.iter().map(|drive| Seen {
            blocks: drive.config.blocks,
            cut_to: None,
            said_removed: false,
            witness: witness(drive),
            has_lost: false,
        });
        Self { seen: seen.collect(), look_at: (!drives.is_empty()).then(|| Instant::now() + LOOK_EVERY) }
    }

    /// No card is there: whatever went wrong with writing back is known to the witnesses, whoever was told before.
    pub(super) fn ask_witnesses(&mut self) {
        for seen in &mut self.seen {
            seen.has_lost |= seen.witness.as_ref().is_some_and(Witness::has_lost);
        }
    }

    /// Whether something of an image may be lost that no card may have told.
    pub(super) fn has_lost(&self, drive: usize) -> bool {
        self.seen[drive].has_lost
    }

    /// When [`Agent::look_at_images`] is to be called.
    pub(super) fn look_at(&self) -> Option<Instant> {
        self.look_at
    }
}

impl Agent {
    /// Looks at the size of each image, if it is time to: the card is told of one that has grown.
    pub(super) fn look_at_images(&mut self) {
        let now = Instant::now();
        if self.images.look_at.is_none_or(|at| now < at) {
            return;
        }
        self.images.look_at = Some(now + LOOK_EVERY);
        for drive in 0..self.spec.drives.len() {
            if self.look_at_image(drive) {
                self.tell_growth(drive);
            }
        }
        self.tell_card();
    }

    /// True if the image has grown.
    fn look_at_image(&mut self, drive: usize) -> bool {
        let (spec, seen) = (&self.spec.drives[drive], &mut self.images.seen[drive]);
        // What cannot be asked is what it was; reads and writes will say more.
        let Ok(look) = spec.image.look() else { return false };
        let blocks = look.bytes / u64::from(spec.config.block_size);
        let source = &spec.source;
        if look.removed && !seen.said_removed {
            warn!(source, "the image was removed: it is lent until this node ends, and then gone");
        }
        seen.said_removed = look.removed;
        if blocks < seen.blocks && seen.cut_to.is_none_or(|known| look.bytes < known) {
            self.cut_off(drive, look.bytes);
            return false;
        }
        if blocks <= seen.blocks || seen.cut_to.is_some() {
            return false;
        }
        info!(source = spec.source, bytes = look.bytes, "the image has grown");
        seen.blocks = blocks;
        true
    }

    /// The image was found shorter than it was. What was cut off is gone, also if it grows again.
    fn cut_off(&mut self, drive: usize, bytes: u64) {
        let (spec, seen) = (&self.spec.drives[drive], &mut self.images.seen[drive]);
        if seen.cut_to.is_some_and(|known| known <= bytes) {
            return;
        }
        seen.cut_to = Some(bytes);
        let (source, had) = (&spec.source, seen.blocks * u64::from(spec.config.block_size));
        warn!(
            source,
            bytes,
            had,
            "the image has become shorter while it is lent, and what lay behind its end is lost: requests there, and flushes, fail \
             with EIO from now on. Restore it from a backup, start this node again, then say `causeway device clear`"
        );
        self.push_for_card(ToCard::Cut { drive, bytes });
    }

    /// The card has met trouble with an image, and its user was told: here is what the operator is told.
    pub(super) fn note_medium(&mut self, drive: usize, trouble: MediumTrouble) {
        let Some(spec) = self.spec.drives.get(drive) else { return };
        let source = &spec.source;
        match trouble {
            MediumTrouble::Full => warn!(
                source,
                "no space is left where the image lies: writes fail with ENOSPC until there is room again"
            ),
            MediumTrouble::ReadOnly => warn!(
                source,
                "the image refuses to be written, and writes fail: look whether its file system has become read-only"
            ),
            MediumTrouble::Failed => warn!(
                source,
                "the image has failed a request, which its user sees as EIO: look at the disk and at the kernel's log"
            ),
            MediumTrouble::Cut(bytes) => self.cut_off(drive, bytes),
        }
    }

    /// Tells the card what it would otherwise not know: that images have grown, or were cut off, since the node began.
    pub(super) fn tell_all_growth(&mut self) {
        for drive in 0..self.spec.drives.len() {
            if self.images.seen[drive].blocks > self.spec.drives[drive].config.blocks {
                self.tell_growth(drive);
            }
            if let Some(bytes) = self.images.seen[drive].cut_to {
                self.push_for_card(ToCard::Cut { drive, bytes });
            }
        }
    }

    fn tell_growth(&mut self, drive: usize) {
        let blocks = self.images.seen[drive].blocks;
        self.push_for_card(ToCard::Grow { drive, blocks });
    }

    /// Changes what the function of a lent loan may do, from now on and for the cards to come. False if nothing is lent there.
    pub fn set_limit(&mut self, loan: usize, limit: Limit) -> bool {
        let Some(LoanEnd::Lend { limit: known, .. }) =
            self.spec.loans.get_mut(loan).map(|loan| &mut loan.end)
        else {
            return false;
        };
        *known = limit;
        self.push_for_card(ToCard::Limit { loan, limit: LimitPlan::of(limit) });
        self.tell_card();
        true
    }

    /// An operator has seen to the image of a drive, which had lost something: flushes say again what it says. False if there is no
    /// card at the moment, which would have to know.
    pub fn clear_fault(&mut self, drive: usize) -> bool {
        let (Some(seen), Some(card)) = (self.images.seen.get_mut(drive), &mut self.card) else {
            return false;
        };
        // What the witness has to tell is of before, too.
        let _ = seen.witness.as_ref().is_some_and(Witness::has_lost);
        seen.has_lost = false;
        card.outbox.push(ToCard::ClearFault { drive });
        self.tell_card();
        true
    }

    /// What [`super::AgentEvent::Persist`] gave out is kept, or could not be.
    pub fn persisted(&mut self, drive: usize, version: u64, kept: bool) {
        self.push_for_card(ToCard::Persisted { drive, version, kept });
        self.tell_card();
    }

    /// A card that is not there need not be told: its successor starts with all that counts.
    fn push_for_card(&mut self, message: ToCard) {
        if let Some(card) = &mut self.card {
            card.outbox.push(message);
        }
    }
}
