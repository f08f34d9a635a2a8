use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use node::Limit;

use super::divide::{ZEROINGS_MAX, Zeroing};
use super::{Agent, AgentEvent, DriveSpec, LoanEnd, Withdrawn};
use crate::card::lost_by;
use crate::event::Event;
use crate::files::{Identity, LastFlush, LastWrites, Witness};
use crate::messages::{MediumTrouble, ToCard, ToDrive, ToLoan};
use crate::ring::Completion;

/// How often the agent looks whether images have grown.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// So long the agent waits for an image to be made durable beside it: most disks have nothing left to do.
const QUICK: Duration = Duration::from_millis(20);

/// What became of a drive when its node ended.
pub struct DriveEnd {
    /// Whether its image could be made durable.
    pub synced: io::Result<()>,
    /// Something that was answered may be lost: [`DriveSpec::has_lost`] of the next life.
    pub has_lost: bool,
    /// What the image is known by from now on; `None` if a card may still write to it.
    pub identity: Option<Identity>,
    /// Somebody else has changed the image, and the last look has not found it yet.
    pub is_altered: bool,
}

/// What became of the images since they were opened.
pub(super) struct Images {
    /// By drive, also where none is any more.
    seen: Vec<Seen>,
    look_at: Option<Instant>,
}

/// One of them.
#[derive(Default)]
pub(super) struct Seen {
    /// The most blocks that it ever had.
    blocks: u64,
    /// It has become shorter: to so many bytes.
    cut_to: Option<u64>,
    /// It was said that it was removed.
    said_removed: bool,
    /// It was said that another file lies in its place.
    said_displaced: bool,
    /// Its time stamp was somebody else's at the last look: it may be about to grow.
    is_suspect: bool,
    /// It had grown at the last look, and its time stamp may have followed since.
    has_grown: bool,
    /// The time stamp by which somebody else was found to have written to it.
    foreign: Option<i64>,
    /// Tells what a dead card may have heard and not told.
    witness: Option<Witness>,
    /// It has told something, and no operator has seen to the image since.
    has_lost: bool,
    /// How often an operator has seen to it.
    cleared: u64,
    /// It is being made durable by a thread, which says here how that went.
    syncing: Option<Receiver<io::Result<()>>>,
    /// The same, each after a part of it is made to read as zeroes: [`ZEROINGS_MAX`] at most.
    zeroing: Vec<Receiver<io::Result<()>>>,
}

impl Images {
    pub(super) fn new(drives: &[Option<DriveSpec>]) -> Self {
        let seen = drives.iter().map(|drive| drive.as_ref().map_or_else(Seen::default, Seen::new));
        Self { seen: seen.collect(), look_at: (!drives.is_empty()).then(|| Instant::now() + LOOK_EVERY) }
    }

    /// A drive has come to this place, which may be the next one behind those that there are.
    pub(super) fn come(&mut self, place: usize, drive: &DriveSpec) {
        self.seen.resize_with(self.seen.len().max(place + 1), Seen::default);
        self.seen[place] = Seen::new(drive);
        self.look_at.get_or_insert_with(|| Instant::now() + LOOK_EVERY);
    }

    /// Makes the image of the drive in this place durable in a thread of its own, if that is not being done. Whether it
    /// is over.
    pub(super) fn sync_beside(&mut self, place: usize, spec: &DriveSpec) -> bool {
        self.seen[place].sync_beside(spec)
    }

    /// Whether that is being done.
    pub(super) fn is_syncing(&self, place: usize) -> bool {
        self.seen.get(place).is_some_and(|seen| seen.syncing.is_some())
    }

    /// Begins to make a part of the image in this place read as zeroes, unless as many are as may be.
    pub(super) fn zero_beside(
        &mut self,
        place: usize,
        note: impl FnOnce(),
        begin: impl FnOnce() -> io::Result<(Zeroing, Receiver<io::Result<()>>)>,
    ) -> io::Result<Zeroing> {
        let seen = &mut self.seen[place];
        seen.look_at_zeroing(Duration::ZERO, note);
        if seen.zeroing.len() >= ZEROINGS_MAX {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let (zeroing, synced) = begin()?;
        seen.zeroing.push(synced);
        Ok(zeroing)
    }

    /// The drive in this place goes: what is known of its image.
    pub(super) fn go(&mut self, place: usize) -> Seen {
        std::mem::take(&mut self.seen[place])
    }

    /// No card is there: whatever went wrong with writing back is known to the witnesses, whoever was told before. And
    /// a flush that the disk itself has refused is in the memory of this `life`, where the card had no time to say so.
    pub(super) fn ask_witnesses(&mut self, last_writes: &LastWrites, life: u64) {
        for (drive, seen) in self.seen.iter_mut().enumerate() {
            seen.has_lost |= seen.witness.as_ref().is_some_and(Witness::has_lost);
            seen.has_lost |= last_writes.last_flush(life, drive) == Some(LastFlush::Failed);
        }
    }

    /// Whether something of an image may be lost that no card may have told.
    pub(super) fn has_lost(&self, drive: usize) -> bool {
        self.seen[drive].has_lost
    }

    /// How often an operator has seen to an image.
    pub(super) fn cleared(&self, drive: usize) -> u64 {
        self.seen[drive].cleared
    }

    /// When [`Agent::look_at_images`] is to be called.
    pub(super) fn look_at(&self) -> Option<Instant> {
        self.look_at
    }
}

impl Seen {
    fn new(drive: &DriveSpec) -> Self {
        let witness = Witness::of(&drive.image).unwrap_or_else(|error| {
            Event::ImageUnwitnessed { source: drive.source.clone(), error: error.to_string() }.say();
            None
        });
        Self { blocks: drive.config.blocks, witness, has_lost: drive.has_lost, ..Self::default() }
    }

    /// Makes the image durable.
    pub(super) fn sync(&mut self, spec: &DriveSpec) -> io::Result<()> {
        let synced = if spec.image.info().read_only { Ok(()) } else { spec.image.sync_all() };
        self.has_lost |= synced.is_err();
        synced
    }

    fn sync_beside(&mut self, spec: &DriveSpec) -> bool {
        let patience = if self.syncing.is_some() { Duration::ZERO } else { QUICK };
        if self.syncing.is_none() && !spec.image.info().read_only && !spec.image.info().memory_backed {
            let image = spec.image.as_fd().try_clone_to_owned();
            self.syncing = image.and_then(sync_in_thread).ok();
        }
        self.is_synced(patience)
    }

    /// Whether no thread makes the image durable any more. What it has met is only known from there: the kernel tells
    /// it once.
    fn is_synced(&mut self, patience: Duration) -> bool {
        let Some(thread) = &self.syncing else { return true };
        let is_over = is_over(thread, &mut self.has_lost, patience);
        if is_over {
            self.syncing = None;
        }
        is_over
    }

    /// The same of those that make parts of it read as zeroes. `note`: its time stamp is this node's doing until now;
    /// that is said last, so that it holds for all that they have written.
    fn look_at_zeroing(&mut self, patience: Duration, note: impl FnOnce()) {
        if self.zeroing.is_empty() {
            return;
        }
        let until = Instant::now() + patience;
        let left = || until.saturating_duration_since(Instant::now());
        self.zeroing.retain(|thread| !is_over(thread, &mut self.has_lost, left()));
        note();
    }

    /// What became of `drive`, of which no card asks anything any more; `goes_on`: unless one does after all.
    pub(super) fn conclude(
        &mut self,
        (drive, spec): (usize, &DriveSpec),
        (last_writes, life): (&LastWrites, u64),
        goes_on: bool,
    ) -> DriveEnd {
        // One that still hangs there hangs here, too, and then both say how it went.
        last_writes.begin_flush(drive);
        let synced = self.sync(spec);
        last_writes.end_flush(drive, synced.is_ok());
        self.is_synced(QUICK);
        self.look_at_zeroing(QUICK, || last_writes.note(drive));
        // A card that still has a flush under way may be told in our place; the witness is told in any case.
        self.has_lost |= self.witness.as_ref().is_some_and(Witness::has_lost);
        // Or has told the card, which nobody has heard since.
        self.has_lost |= last_writes.last_flush(life, drive) == Some(LastFlush::Failed);
        let identity = if goes_on { None } else { spec.image.identify().ok() };
        let is_altered = identity.is_some_and(|identity| {
            let blocks = identity.bytes() / u64::from(spec.config.block_size);
            let written = identity.written().filter(|_| blocks == self.blocks);
            let is_foreign = |written| last_writes.is_foreign(life, drive, written);
            // Whoever makes an image larger leaves what is there as it is.
            let is_found = self.foreign.is_some() || self.cut_to.is_some();
            is_found || blocks < self.blocks || written.is_some_and(is_foreign)
        });
        if is_altered && self.foreign.is_none() && self.cut_to.is_none() {
            Event::ImageChanged { source: spec.source.clone() }.say();
        }
        DriveEnd { synced, has_lost: self.has_lost, identity, is_altered }
    }
}

/// Whether a thread that makes an image durable has ended; if it has met an error, something is lost.
fn is_over(thread: &Receiver<io::Result<()>>, has_lost: &mut bool, patience: Duration) -> bool {
    match thread.recv_timeout(patience) {
        Err(RecvTimeoutError::Timeout) => return false,
        Err(RecvTimeoutError::Disconnected) | Ok(Ok(())) => {}
        Ok(Err(_)) => *has_lost = true,
    }
    true
}

/// Makes an image durable in a thread: how that went.
fn sync_in_thread(image: OwnedFd) -> io::Result<Receiver<io::Result<()>>> {
    let (tell, told) = mpsc::channel();
    let sync = move || {
        let synced = rustix::io::retry_on_intr(|| rustix::fs::fsync(&image));
        // Nobody asks any more where the node has ended.
        let _ = tell.send(synced.map_err(io::Error::from));
    };
    std::thread::Builder::new().name("causeway-sync".to_owned()).spawn(sync)?;
    Ok(told)
}

impl Agent {
    /// Looks at each image, if it is time to: the card is told of one that has grown, and the role of those that
    /// somebody else has changed.
    pub(super) fn look_at_images(&mut self) -> Vec<AgentEvent> {
        let now = Instant::now();
        if self.images.look_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        self.images.look_at = Some(now + LOOK_EVERY);
        let events = (0..self.spec.drives.len()).filter_map(|drive| self.look_at_image(drive)).collect();
        self.tell_card();
        events
    }

    fn look_at_image(&mut self, drive: usize) -> Option<AgentEvent> {
        let (spec, seen) = (self.spec.drives[drive].as_ref()?, &mut self.images.seen[drive]);
        let had_lost = seen.has_lost;
        seen.is_synced(Duration::ZERO);
        seen.look_at_zeroing(Duration::ZERO, || self.spec.last_writes.note(drive));
        if seen.has_lost && !had_lost {
            self.push_of_drive(drive, ToDrive::Fault);
            return None;
        }
        // What cannot be asked is what it was; reads and writes will say more.
        let look = spec.image.look().ok()?;
        let blocks = look.bytes / u64::from(spec.config.block_size);
        // Who has moved another file over it is to know of that one.
        if look.displaced && !seen.said_displaced {
            Event::ImageDisplaced { source: spec.source.clone() }.say();
        } else if look.removed && !look.displaced && !seen.said_removed {
            Event::ImageRemoved { source: spec.source.clone() }.say();
        }
        (seen.said_removed, seen.said_displaced) = (look.removed, look.displaced);
        if blocks < seen.blocks && seen.cut_to.is_none_or(|known| look.bytes < known) {
            return self.cut_off(drive, look.bytes).then_some(AgentEvent::Altered(drive));
        }
        if blocks > seen.blocks && seen.cut_to.is_none() {
            Event::ImageGrown { source: spec.source.clone(), bytes: look.bytes }.say();
            (seen.blocks, seen.has_grown) = (blocks, true);
            self.accept_growth(drive, look.written);
            self.tell_growth(drive);
            return Some(AgentEvent::Grown(drive));
        }
        if std::mem::take(&mut seen.has_grown) {
            self.accept_growth(drive, look.written);
        }
        look.written.filter(|written| self.is_overwritten(drive, *written))?;
        Some(AgentEvent::Altered(drive))
    }

    /// Whoever makes an image larger leaves what is there as it is.
    fn accept_growth(&mut self, drive: usize, written: Option<i64>) {
        self.images.seen[drive].is_suspect = false;
        written.into_iter().for_each(|written| self.spec.last_writes.accept(drive, written));
    }

    /// The image bears this time stamp. True if that is somebody else's at two looks, and news.
    fn is_overwritten(&mut self, drive: usize, written: i64) -> bool {
        let (spec, seen) = (&self.spec, &mut self.images.seen[drive]);
        let is_foreign = spec.last_writes.is_foreign(spec.incarnation, drive, written);
        let was_suspect = std::mem::replace(&mut seen.is_suspect, is_foreign);
        if !is_foreign || !was_suspect || seen.cut_to.is_some() {
            return false;
        }
        let is_news = seen.foreign.replace(written).is_none();
        if let Some(spec) = spec.drive(drive).filter(|_| is_news) {
            Event::ImageOverwritten { source: spec.source.clone() }.say();
            seen.has_lost = true;
            self.push_of_drive(drive, ToDrive::Fault);
        }
        is_news
    }

    /// The image was found shorter than it was. What was cut off is gone, also if it grows again. True if that is news.
    fn cut_off(&mut self, drive: usize, bytes: u64) -> bool {
        let (Some(spec), seen) = (self.spec.drive(drive), &mut self.images.seen[drive]) else { return false };
        if seen.cut_to.is_some_and(|known| known <= bytes) {
            return false;
        }
        seen.cut_to = Some(bytes);
        let had = seen.blocks * u64::from(spec.config.block_size);
        Event::ImageCut { source: spec.source.clone(), bytes, had }.say();
        self.push_of_drive(drive, ToDrive::Cut { bytes });
        true
    }

    /// The card has met trouble with an image, and its user was told: here is what the operator is told, and what the
    /// role has to know.
    pub(super) fn note_medium(&mut self, drive: usize, trouble: MediumTrouble) -> Option<AgentEvent> {
        let source = self.spec.drive(drive)?.source.clone();
        let event = match trouble {
            MediumTrouble::Full => Event::ImageFull { source },
            MediumTrouble::ReadOnly => Event::ImageReadOnly { source },
            MediumTrouble::Failed => Event::ImageFailed { source },
            MediumTrouble::Unmapped(errno) => {
                Event::ImageUnmapped { source, error: std::io::Error::from_raw_os_error(errno).to_string() }
            }
            MediumTrouble::Cut(bytes) => {
                return self.cut_off(drive, bytes).then_some(AgentEvent::Altered(drive));
            }
        };
        event.say();
        None
    }

    /// Tells the card what it would otherwise not know: that images have grown, or were cut off, since the node began.
    pub(super) fn tell_all_growth(&mut self) {
        for drive in 0..self.spec.drives.len() {
            let Some(spec) = self.spec.drive(drive) else { continue };
            if self.images.seen[drive].blocks > spec.config.blocks {
                self.tell_growth(drive);
            }
            if let Some(bytes) = self.images.seen[drive].cut_to {
                self.push_of_drive(drive, ToDrive::Cut { bytes });
            }
        }
    }

    fn tell_growth(&mut self, drive: usize) {
        let blocks = self.images.seen[drive].blocks;
        self.push_of_drive(drive, ToDrive::Grow { blocks });
    }

    /// Changes what the function of a lent loan may do, from now on and for the cards to come. False if nothing is lent
    /// there.
    pub fn set_limit(&mut self, loan: usize, limit: Limit) -> bool {
        let Some(LoanEnd::Lend(lent)) = self.spec.loans.get_mut(loan).map(|loan| &mut loan.config.role)
        else {
            return false;
        };
        lent.limit = limit;
        self.tell_of(loan, ToLoan::Limit(limit));
        true
    }

    /// An operator has seen to the image of a drive, which had lost something: flushes say again what it says. False if
    /// there is no card at the moment, which would have to know.
    pub fn clear_fault(&mut self, drive: usize) -> bool {
        let (Some(seen), Some(card)) = (self.images.seen.get_mut(drive), &mut self.card) else {
            return false;
        };
        // What the witness has to tell is of before, too.
        let _ = seen.witness.as_ref().is_some_and(Witness::has_lost);
        seen.has_lost = false;
        self.spec.last_writes.clear_flush(drive);
        // What somebody else has written so far is what the operator has seen.
        if let Some(written) = seen.foreign.take() {
            self.spec.last_writes.accept(drive, written);
        }
        // Should this card die before it hears that, its successor hears it.
        seen.cleared += 1;
        card.outbox.push(ToCard::Drive(drive, ToDrive::ClearFault { order: seen.cleared }));
        self.tell_card();
        true
    }

    /// What [`super::AgentEvent::Persist`] gave out is kept, or could not be.
    pub fn persisted(&mut self, drive: usize, version: u64, kept: bool) {
        self.push_of_drive(drive, ToDrive::Persisted { version, kept });
        self.tell_card();
    }

    /// Ends the card, unless virtual machines have to be answered by it until they are gone, and makes all images
    /// durable. To be called at the end of the node: what became of each drive, by its place, those included of which
    /// [`Agent::take_withdrawn`] has not told.
    pub fn conclude(&mut self) -> Vec<Withdrawn> {
        let lost = self.end_card();
        let mut ends = std::mem::take(&mut self.withdrawn);
        let writes = (&self.spec.last_writes, self.spec.incarnation);
        let present = std::mem::take(&mut self.spec.drives).into_iter().enumerate();
        let present = present.filter_map(|(place, spec)| Some((place, spec?, self.images.go(place))));
        let leaving = std::mem::take(&mut self.leaving).into_iter().map(|it| (it.place, it.spec, it.seen));
        for (place, spec, mut seen) in present.chain(leaving) {
            seen.has_lost |= lost.as_ref().is_some_and(|lost| lost.contains(&place));
            let end = seen.conclude((place, &spec), writes, lost.is_none());
            ends.push(Withdrawn { place, spec, end });
        }
        ends
    }

    /// What the drives came to is kept: nobody asks any more when they were written.
    pub fn forget_writes(&self) {
        self.spec.last_writes.remove();
    }

    /// Ends the card and whatever it has asked of disks. The drives of which a completion that it has not looked at
    /// says that something is lost; `None` if the card goes on.
    fn end_card(&mut self) -> Option<BTreeSet<usize>> {
        let serves = self.core.record().running && self.slots.has_clients();
        if self.card.is_some() && serves {
            return None;
        }
        // Before the card ends, which would close them as they are.
        self.slots.hang_up_all();
        let killed = self.card.take().map_or(Ok(()), |mut card| {
            card.child.kill()?;
            card.child.reap().map(|_| ())
        });
        if let Err(error) = killed.and_then(|()| self.drain_all()) {
            Event::CardUnended { error: error.to_string() }.say();
            return None;
        }
        let mut lost = BTreeSet::new();
        let loans = &self.spec.loans;
        let mut heed = |completion: Completion| {
            let lent = lost_by(&completion).and_then(|loan| loans.get(loan)?.lent());
            lost.extend(lent.map(|lent| lent.drive));
        };
        while self.ring.as_mut().is_some_and(|ring| ring.reap(&mut heed).is_some()) {}
        Some(lost)
    }

    /// A card that is not there need not be told: its successor starts with all that counts.
    pub(super) fn tell(&mut self, message: ToCard) {
        self.standby.note_change();
        if let Some(card) = &mut self.card {
            card.outbox.push(message);
        }
        self.tell_card();
    }

    /// The same of the loan that has this place.
    pub(super) fn tell_of(&mut self, loan: usize, what: impl Into<ToLoan>) {
        self.standby.note_change();
        if let Some(card) = &mut self.card {
            card.outbox.push_of(loan, what);
        }
        self.tell_card();
    }

    fn push_of_drive(&mut self, drive: usize, what: ToDrive) {
        self.standby.note_change();
        if let Some(card) = &mut self.card {
            card.outbox.push(ToCard::Drive(drive, what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::divide::zero_in_thread;
    use super::*;

    /// The successor of a card that was killed as soon as it was told is told, too.
    #[test]
    fn a_flush_that_a_dead_card_was_told_has_failed_is_known() {
        let page = LastWrites::in_memory().unwrap();
        page.begin(7, [None, None].into_iter());
        let mut images = Images { seen: vec![Seen::default(), Seen::default()], look_at: None };
        page.begin_flush(1);
        images.ask_witnesses(&page, 7);
        assert!(!images.has_lost(1), "it may have been done, and is done again");
        page.end_flush(1, false);
        images.ask_witnesses(&page, 8);
        assert!(!images.has_lost(1), "another life");
        images.ask_witnesses(&page, 7);
        assert_eq!((images.has_lost(0), images.has_lost(1)), (false, true));
    }

    /// Nothing waits for a disk that hangs, and what it says at last is known.
    #[test]
    fn an_image_is_made_durable_beside_the_agent() {
        let (tell, told) = mpsc::channel();
        let mut seen = Seen { syncing: Some(told), ..Seen::default() };
        assert!(!seen.is_synced(Duration::ZERO) && !seen.has_lost);
        tell.send(Err(rustix::io::Errno::IO.into())).unwrap();
        assert!(seen.is_synced(Duration::ZERO) && seen.has_lost && seen.syncing.is_none());
        // A thread says how it went.
        let told = sync_in_thread(crate::memory::create("image", 4096).unwrap()).unwrap();
        assert!(told.recv_timeout(Duration::from_secs(20)).unwrap().is_ok());
    }

    /// What reads as zeroes is durable when that is said, and what the disk could not keep is known to the drive.
    #[test]
    fn a_part_that_reads_as_zeroes_is_made_durable() {
        let failed = || io::Error::from(io::ErrorKind::StorageFull);
        for (zeroed, synced, told_other, is_lost) in [
            (true, true, false, false),
            (true, false, false, true),
            (false, true, false, false),
            (true, true, true, true),
        ] {
            let answer = move |is_well: bool| if is_well { Ok(()) } else { Err(failed()) };
            let mut images = Images { seen: vec![Seen::default()], look_at: None };
            let (go, wait) = mpsc::channel::<()>();
            let zero = move || {
                wait.recv().unwrap();
                answer(zeroed)
            };
            let begin = || zero_in_thread(zero, move || answer(synced), move || told_other);
            let zeroing = images.zero_beside(0, || {}, begin).unwrap();
            assert!(zeroing.poll().is_none());
            go.send(()).unwrap();
            let done = loop {
                match zeroing.poll() {
                    Some(done) => break done,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(done.is_ok(), zeroed && synced && !told_other);
            images.seen[0].look_at_zeroing(Duration::from_secs(20), || {});
            assert!(images.seen[0].zeroing.is_empty());
            assert_eq!(images.has_lost(0), is_lost);
        }
    }

    /// One that takes hours, or never ends, is no reason for others to wait.
    #[test]
    fn parts_of_an_image_are_made_to_read_as_zeroes_beside_each_other() {
        let mut images = Images { seen: vec![Seen::default()], look_at: None };
        let mut never = Vec::new();
        for _ in 1..ZEROINGS_MAX {
            let (end, told) = mpsc::channel();
            let begin = || Ok((Zeroing::from(mpsc::channel().1), told));
            images.zero_beside(0, || {}, begin).unwrap();
            never.push(end);
        }
        for _ in 0..2 {
            let begin = || zero_in_thread(|| Ok(()), || Ok(()), || false);
            let zeroing = images.zero_beside(0, || {}, begin).unwrap();
            while zeroing.poll().is_none() {
                std::thread::yield_now();
            }
        }
        let (_end, told) = mpsc::channel();
        images.zero_beside(0, || {}, || Ok((Zeroing::from(mpsc::channel().1), told))).unwrap();
        let more = images.zero_beside(0, || {}, || zero_in_thread(|| Ok(()), || Ok(()), || false));
        assert_eq!(more.err().map(|error| error.kind()), Some(io::ErrorKind::ResourceBusy));
    }

    /// What is written just before one ends is the node's doing, too.
    #[test]
    fn the_time_stamp_is_the_nodes_doing_until_it_is_known_that_no_part_is_cleared_any_more() {
        let (tell, told) = mpsc::channel();
        let mut seen = Seen { zeroing: vec![told], ..Seen::default() };
        let mut notes = 0;
        seen.look_at_zeroing(Duration::ZERO, || {
            notes += 1;
            tell.send(Ok(())).unwrap();
        });
        assert!(!seen.zeroing.is_empty(), "it has ended after that was noted");
        seen.look_at_zeroing(Duration::ZERO, || notes += 1);
        assert!(seen.zeroing.is_empty() && notes == 2);
        seen.look_at_zeroing(Duration::ZERO, || notes += 1);
        assert_eq!(notes, 2, "nothing is cleared");
    }
}
