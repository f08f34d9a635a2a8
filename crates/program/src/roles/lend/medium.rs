//! Whether what stands behind a drive is still what it was when this node had it last.

use io::agent::DriveEnd;
use io::event::Event;
use io::files::{Difference, Identity, Image, LastFlush, LastWrites, Mark};

use super::drive;
use crate::config::Device;
use crate::exit::Failure;
use crate::line::FunctionName;
use crate::state_dir::made::MadeRow;
use crate::state_dir::medium::{Change, Medium, MediumState, boot};
use crate::state_dir::{StateDir, StateError, random};

/// Compares the image of a device, which becomes drive `entry`, with what was there before. If it is another one, the
/// tenancy of each of its functions is raised: whoever has used them finds another drive, and puts nothing over it that
/// it has kept. Durable when it returns, and right if the start is refused after that: until [`begin`] nothing is
/// written.
pub(super) fn settle(
    (device, made): (&Device, &[MadeRow]),
    entry: usize,
    image: &Image,
    state: &StateDir,
    last_writes: &LastWrites,
) -> Result<(), Failure> {
    let source = &device.source;
    let asked = image.identify();
    let mut identity = asked.map_err(|error| Failure::io(format!("cannot look at {source}"), &error))?;
    let (known, boot) = (state.medium(&device.function)?, boot());
    let change = known.and_then(|known| known.change(&identity, boot, last_writes));
    if let Some(change) = change {
        let functions = drive::functions(device)?.into_iter().map(|function| function.name);
        for function in functions.map(Ok).chain(made.iter().map(super::made::name)) {
            state.renew_tenancy(&function?)?;
        }
        let (drive, source, what) = (device.function.to_string(), source.to_string(), words(change));
        Event::ImageReplaced { drive, source, what }.say();
    }
    let unmarked = matches!(identity, Identity::File { mark: Mark::None, .. });
    if known.is_none() || change.is_some() || unmarked {
        // A copy may have its original's.
        let given = image.give_mark(random(state.path())?);
        if let (Identity::File { mark, .. }, Some(given)) = (&mut identity, given) {
            *mark = given;
        }
    }
    let (life, quiet) = (state.incarnation(), MediumState::Quiet);
    Ok(state.set_medium(&device.function, &Medium { identity, boot, life, entry, state: quiet })?)
}

/// What the life before, if it was killed, has left of its last flush. That is made durable: a failed one as the fault
/// that it is. One that was under way may have been told an error, which Linux tells once; where a guest was shown a
/// volatile cache, what it was answered may be gone, and the drive is another one to it.
pub(super) fn settle_flush(
    drive: &FunctionName,
    shows_cache: bool,
    state: &StateDir,
    last_writes: &LastWrites,
) -> Result<(), StateError> {
    let Some(known) = state.medium(drive)?.filter(|known| known.state == MediumState::Open) else {
        return Ok(());
    };
    match last_writes.last_flush(known.life, known.entry) {
        Some(LastFlush::Failed) => state.set_fault(drive, true),
        // Of another life of the system the keeper of the cache is another one in any case.
        Some(LastFlush::Untold) | None if shows_cache && known.boot == boot() => {
            state.add_untold_flush(drive)
        }
        _ => Ok(()),
    }
}

/// From now on cards may write to the image of a drive.
pub(super) fn begin(state: &StateDir, drive: &FunctionName) -> Result<(), StateError> {
    match state.medium(drive)? {
        Some(known) => state.set_medium(drive, &Medium { state: MediumState::Open, ..known }),
        None => Ok(()),
    }
}

/// No card has been there after all.
pub(super) fn withdraw(state: &StateDir, drive: &FunctionName) -> Result<(), StateError> {
    match state.medium(drive)? {
        Some(known) if known.state == MediumState::Open => {
            state.set_medium(drive, &Medium { state: MediumState::Quiet, ..known })
        }
        _ => Ok(()),
    }
}

/// Somebody else has changed the image while it is lent: the next life has to know, however this one ends.
pub(in crate::roles) fn note_altered(state: &StateDir, drive: &FunctionName) -> Result<(), StateError> {
    match state.medium(drive)? {
        Some(known) => state.set_medium(drive, &Medium { state: MediumState::Altered, ..known }),
        None => Ok(()),
    }
}

/// The image has grown while it is lent: that is what the next life has to find.
pub(in crate::roles) fn note_grown(
    state: &StateDir,
    drive: &FunctionName,
    image: &Image,
) -> Result<(), StateError> {
    match (state.medium(drive)?, image.identify()) {
        (Some(known), Ok(identity)) => state.set_medium(drive, &Medium { identity, ..known }),
        _ => Ok(()),
    }
}

/// The node has ended, and this became of the drive: what its image is known by holds from now on, unless a card goes
/// on writing.
pub(in crate::roles) fn conclude(
    state: &StateDir,
    drive: &FunctionName,
    end: &DriveEnd,
) -> Result<(), StateError> {
    if end.has_lost {
        state.set_fault(drive, true)?;
    }
    match (state.medium(drive)?, end.identity) {
        (Some(known), Some(identity)) if known.state == MediumState::Open => {
            let state_now = if end.is_altered { MediumState::Altered } else { MediumState::Quiet };
            state.set_medium(drive, &Medium { identity, state: state_now, ..known })
        }
        _ => Ok(()),
    }
}

fn words(change: Change) -> String {
    match change {
        Change::Other(Difference::File) => "another file lies there now".to_owned(),
        Change::Other(Difference::Device) => "it is another device".to_owned(),
        Change::Other(Difference::Size { had, has }) => {
            format!("it has {has} bytes, and had {had} when this node had it last")
        }
        Change::Other(Difference::Written) => {
            "somebody else has written to it since this node had it last".to_owned()
        }
        Change::Altered => "somebody else has changed it while this node had it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A life of a node with one drive, which ends as `ends` says; by what the next one knows of its flushes.
    fn next_life(ends: impl FnOnce(&LastWrites), shows_cache: bool, left: MediumState) -> (bool, u64) {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path()).unwrap();
        let drive: FunctionName = "nvme0".parse().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let image = Image::open(file.path(), &io::files::ImageOptions::default()).unwrap();
        let (identity, life) = (image.identify().unwrap(), state.incarnation());
        let medium = Medium { identity, boot: boot(), life, entry: 0, state: left };
        state.set_medium(&drive, &medium).unwrap();
        let page = LastWrites::in_memory().unwrap();
        page.begin(life, std::iter::empty());
        ends(&page);
        settle_flush(&drive, shows_cache, &state, &page).unwrap();
        (state.fault(&drive).unwrap(), state.untold_flushes(&drive).unwrap())
    }

    #[test]
    fn what_a_killed_life_left_of_its_last_flush_is_kept() {
        let (open, quiet) = (MediumState::Open, MediumState::Quiet);
        let fails = |page: &LastWrites| page.end_flush(0, false);
        let begins = |page: &LastWrites| page.begin_flush(0);
        let forgets = |page: &LastWrites| page.begin(u64::MAX, std::iter::empty());
        for shows_cache in [false, true] {
            assert_eq!(next_life(|_| {}, shows_cache, open), (false, 0));
            assert_eq!(next_life(fails, shows_cache, open), (true, 0));
            assert_eq!(next_life(begins, shows_cache, open), (false, shows_cache.into()));
            assert_eq!(next_life(forgets, shows_cache, open), (false, shows_cache.into()));
            assert_eq!(next_life(begins, shows_cache, quiet), (false, 0), "its end has told more");
        }
    }
}
