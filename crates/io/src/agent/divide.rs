//! Functions that come to a drive that is lent, and go from it, while the others of it are used.
//!
//! The card of a node has a drive as it is configured when the card begins, so it is replaced, as where memory has
//! grown: that costs the loans of the node some milliseconds, as any death of a card does.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};

use node::{DriveCells, DriveConfig, MadeFunction};

use super::{Agent, LoanSpec, View};
use crate::files::{Image, Witness};

/// So many parts of one image are made to read as zeroes at once: one that takes hours is beside others then.
pub const ZEROINGS_MAX: usize = 4;

/// Part of an image that is made to read as zeroes, in a thread of its own: a disk may take its time.
pub struct Zeroing(Receiver<io::Result<()>>);

impl Zeroing {
    /// How that went, if it is over.
    pub fn poll(&self) -> Option<io::Result<()>> {
        match self.0.try_recv() {
            Ok(done) => Some(done),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(io::Error::other("the thread for it has ended"))),
        }
    }
}

/// One that is over when that is told here.
impl From<Receiver<io::Result<()>>> for Zeroing {
    fn from(told: Receiver<io::Result<()>>) -> Self {
        Self(told)
    }
}

/// Does both in a thread, the second one if the first one went well: how that went, and how the second one did, which
/// is told first. `has_lost` is asked then: whether another flush of the image was told instead what this one is about.
pub(super) fn zero_in_thread(
    zero: impl FnOnce() -> io::Result<()> + Send + 'static,
    sync: impl FnOnce() -> io::Result<()> + Send + 'static,
    has_lost: impl FnOnce() -> bool + Send + 'static,
) -> io::Result<(Zeroing, Receiver<io::Result<()>>)> {
    let (tell, told) = mpsc::channel();
    let (tell_synced, synced) = mpsc::channel();
    let run = move || {
        let done = zero().and_then(move |()| {
            let lost = || io::Error::other("another flush was told that the disk has lost something");
            let done = sync().and_then(|()| if has_lost() { Err(lost()) } else { Ok(()) });
            // Nobody asks any more where the node has ended.
            let _ = tell_synced.send(done.as_ref().copied().map_err(|error| error.kind().into()));
            done
        });
        let _ = tell.send(done);
    };
    std::thread::Builder::new().name("causeway-zero".to_owned()).spawn(run)?;
    Ok((Zeroing(told), synced))
}

impl Agent {
    /// A drive has these functions from now on beside those that were declared. The loans of those that go, which
    /// nobody has, are vacant; those of the ones that come have places of [`Agent::free_places`]. All of it or nothing.
    ///
    /// # Errors
    /// There is no memory for it: nothing has changed.
    ///
    /// # Panics
    /// If there is no such drive, or a place is not free.
    pub fn divide(
        &mut self,
        drive: usize,
        made: Vec<MadeFunction>,
        gone: &[usize],
        come: Vec<(usize, LoanSpec)>,
    ) -> io::Result<()> {
        self.reserve(&come, self.spec.drives.len())?;
        for loan in gone {
            self.forget_wants(*loan);
            self.spec.loans[*loan].vacate();
        }
        let spec = self.spec.drives[drive].as_mut().expect("functions come to a drive that there is");
        spec.config.made = made;
        let places: Vec<usize> = gone.iter().copied().chain(come.iter().map(|(place, _)| *place)).collect();
        for (place, loan) in come {
            self.seat(place, loan);
        }
        self.core.handle_replanned(places);
        self.follow();
        Ok(())
    }

    /// Has a part of a drive's image read as zeroes that no namespace has, durably: that is the first thing that counts
    /// of a function which is lent there. What the disk could not keep meanwhile may be somebody else's: the drive has
    /// lost it then, as with any other flush.
    ///
    /// # Errors
    /// There is no such drive, or it is being done in [`ZEROINGS_MAX`] places of it, or the system has no descriptor or
    /// thread for it.
    pub fn zero_beside(&mut self, drive: usize, start: u64, bytes: u64) -> io::Result<Zeroing> {
        let spec = self.spec.drive(drive).ok_or(io::ErrorKind::NotFound)?;
        let image = Arc::new(Image::from_fd(spec.image.as_fd().try_clone_to_owned()?)?);
        // Linux tells what went wrong with writing back once, and the image has one open file description.
        let witness = Witness::of(&image).ok().flatten();
        let has_lost = move || witness.as_ref().is_some_and(Witness::has_lost);
        self.note_zeroing(drive);
        let zeroed = Arc::clone(&image);
        let zero = move || zeroed.zero(start, bytes, true);
        let note = || self.spec.last_writes.note(drive);
        self.images.zero_beside(drive, note, || zero_in_thread(zero, move || image.sync_all(), has_lost))
    }

    /// As long as that goes on, and when it is over: the time stamp of the image is this node's doing.
    pub fn note_zeroing(&self, drive: usize) {
        self.spec.last_writes.note(drive);
    }
}

impl<'a> View<'a> {
    /// What the ledger has of a drive that is lent; `None`: no card has made it yet.
    pub fn drive(&self, drive: usize) -> Option<&'a DriveCells> {
        let life = self.spec().drive(drive)?.config.life;
        self.ledger().drive(drive, life)
    }

    /// Whether a card has a drive as it is configured now: none of it is left of functions that have gone.
    pub fn is_divided(&self, drive: usize, config: &DriveConfig) -> bool {
        self.drive(drive).is_some_and(|cells| cells.is_divided(config))
    }
}
