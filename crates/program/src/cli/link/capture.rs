//! `causeway link capture`: frames of a node or a switch, as they are on the wire or opened, in a file of pcapng.

use std::fs::{OpenOptions, Permissions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::geteuid;
use tokio::time::{Instant, sleep_until};

use super::super::CaptureArgs;
use super::super::events::over;
use super::pcapng::{File, Summary};
use crate::control::capture::{CaptureOrder, Item};
use crate::control::{CaptureItems, find, runtime_dir};
use crate::exit::Failure;
use crate::roles::{Hangup, Signals};

/// Longer than anybody waits.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Writes frames until there are enough, the time is over, the node has ended, nobody reads them, or a signal comes.
pub(super) fn run(args: &CaptureArgs) -> Result<(), Failure> {
    let unheard = |error: io::Error| Failure::io("cannot watch for signals", &error);
    let to_stdout = args.write.as_os_str() == "-";
    if to_stdout && io::stdout().is_terminal() {
        return Err(Failure::usage("frames are not for a terminal: give a file, or a program behind a pipe"));
    }
    let signals = Signals::listen(Hangup::Ends).map_err(unheard)?;
    let client = find(&runtime_dir(), args.name.as_ref())?;
    let mut over = over(signals, to_stdout).map_err(unheard)?;
    let order = CaptureOrder { link: args.link.clone(), opened: args.opened };
    client.run(async {
        let mut items = client.capture(&order).await?;
        if args.opened {
            tracing::warn!(
                "what is captured is opened: the data that this node reads and writes stand in the file as they are; \
                 keep it as you keep those"
            );
        }
        let mut file = None;
        let work = write(args, to_stdout, &mut items, &mut file);
        let ended = tokio::select! {
            biased;
            _ = &mut over => Ok(()),
            ended = work => ended,
        };
        // What has come is whole, whatever has ended it.
        if let Some(file) = file {
            match file.finish() {
                Ok(Summary { frames, dropped }) => {
                    let _ = writeln!(io::stderr(), "causeway: {frames} frames captured, {dropped} dropped");
                }
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(error) => return Err(unwritten(&args.write, &error)),
            }
        }
        ended
    })
}

async fn write(
    args: &CaptureArgs,
    to_stdout: bool,
    items: &mut CaptureItems,
    file: &mut Option<File<BufWriter<Box<dyn Write>>>>,
) -> Result<(), Failure> {
    let until = Instant::now() + args.seconds.map_or(FOR_EVER, Duration::from_secs);
    let mut left = args.count.unwrap_or(u64::MAX);
    loop {
        let some = tokio::select! {
            biased;
            () = sleep_until(until) => return Ok(()),
            some = items.next() => some?,
        };
        let written = some.into_iter().try_for_each(|item| match (item, file.as_mut()) {
            (Item::Head(head), None) => {
                let out = if to_stdout { Ok(Box::new(io::stdout()) as _) } else { create(&args.write) };
                *file = Some(File::begin(BufWriter::new(out?), &head, args.opened)?);
                Ok(())
            }
            (Item::Frame(captured, frame), Some(file)) if left > 0 => {
                left -= 1;
                file.frame(captured, &frame)
            }
            (Item::Counts(counts), Some(file)) => {
                file.note_counts(&counts);
                Ok(())
            }
            // Another head means nothing, and more frames than wanted are of no use.
            _ => Ok(()),
        });
        // Whoever reads at the same time sees what there is.
        let flushed = written.and_then(|()| file.as_mut().map_or(Ok(()), File::flush));
        match flushed {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(unwritten(&args.write, &error)),
            Ok(()) if left == 0 => return Ok(()),
            Ok(()) => {}
        }
    }
}

/// For this user alone: what is captured may be anybody's data. Nobody leads us to another file by a link, and one that
/// is there already is this user's, and is for nobody else from now on.
fn create(path: &Path) -> io::Result<Box<dyn Write>> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    let file = match options.open(path) {
        // To a pipe or a terminal it may lead, as /dev/stdout does.
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            let file = OpenOptions::new().write(true).open(path)?;
            if file.metadata()?.is_file() {
                return Err(io::Error::other("it is a symbolic link to a file: name that"));
            }
            return Ok(Box::new(file));
        }
        other => other?,
    };
    let found = file.metadata()?;
    if found.is_file() {
        if found.uid() != geteuid().as_raw() {
            return Err(io::Error::other("it belongs to another user, who could read it: remove it"));
        }
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(0)?;
    }
    Ok(Box::new(file))
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    Failure::io(format_args!("cannot write {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o777
    }

    #[test]
    fn a_capture_is_for_its_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let [new, open, link, pipe] = ["new", "open", "link", "pipe"].map(|name| folder.path().join(name));
        create(&new).unwrap().write_all(b"frames").unwrap();
        assert_eq!((mode(&new), std::fs::read(&new).unwrap()), (0o600, b"frames".to_vec()));
        std::fs::write(&open, "longer than what is captured").unwrap();
        std::fs::set_permissions(&open, Permissions::from_mode(0o644)).unwrap();
        create(&open).unwrap().write_all(b"frames").unwrap();
        assert_eq!((mode(&open), std::fs::read(&open).unwrap()), (0o600, b"frames".to_vec()));
        // A link is followed to what is no file only.
        std::os::unix::fs::symlink(&open, &link).unwrap();
        assert!(create(&link).err().unwrap().to_string().contains("symbolic link"));
        assert_eq!(std::fs::read(&open).unwrap(), b"frames");
        std::os::unix::fs::symlink("/dev/null", &pipe).unwrap();
        create(&pipe).unwrap().write_all(b"frames").unwrap();
        assert_ne!(mode(Path::new("/dev/null")), 0o600);
        // Another user's.
        if geteuid().is_root() {
            std::os::unix::fs::chown(&open, Some(1), None).unwrap();
            assert!(create(&open).err().unwrap().to_string().contains("another user"));
        }
    }
}
