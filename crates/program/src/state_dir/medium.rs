//! What stood behind a lent drive when this node had it last: a file `medium.NAME`,
//! `STATE:BOOT:LIFE:ENTRY:IDENTITY`.
//!
//! The identity is `file:BYTES:MARK:NUMBER:GENERATION:BIRTH:WRITTEN` or `device:BYTES:NAME:BEHIND:SEQUENCE`, with `-`
//! for what cannot be known. Everything in it is a number, so that no name of a device or path can be too long, or hold
//! a separator.

use io::files::{Difference, Identity, LastWrites, Mark, boot_id};

use super::file::{Named, read_value, write_value};
use super::{StateDir, StateError, hexadecimal, parse_hexadecimal};
use crate::line::FunctionName;

const NOTHING: &str = "-";
const UNMARKED: &str = "none";

/// What is known of the medium of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Medium {
    /// What it is known by.
    pub identity: Identity,
    /// Stands for the start of the machine under which this was written.
    pub boot: u64,
    /// The node's incarnation then,
    pub life: u64,
    /// and the drive's place in that life's [`LastWrites`].
    pub entry: usize,
    /// How that life had the medium.
    pub state: MediumState,
}

/// How a life of the node had a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediumState {
    /// It may have written to it until it died.
    Open,
    /// It writes nothing to it any more: the identity holds to the last.
    Quiet,
    /// Somebody else has changed it meanwhile.
    Altered,
}

/// Why a medium is another one than it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// By what it is.
    Other(Difference),
    /// It was changed while the node had it.
    Altered,
}

impl Medium {
    /// What shows that the medium, which is `now` known by this, is not what it was. `last_writes`: what the life
    /// before has left.
    pub fn change(&self, now: &Identity, boot: u64, last_writes: &LastWrites) -> Option<Change> {
        if self.state == MediumState::Altered {
            return Some(Change::Altered);
        }
        let same_boot = boot != 0 && boot == self.boot;
        if let Some(difference) = now.difference(&self.identity, same_boot) {
            return Some(Change::Other(difference));
        }
        let (before, written) = self.identity.written().zip(now.written())?;
        let is_foreign = match self.state {
            MediumState::Quiet => before != written,
            _ => last_writes.is_foreign(self.life, self.entry, written),
        };
        is_foreign.then_some(Change::Other(Difference::Written))
    }

    fn to_text(self) -> String {
        let state = match self.state {
            MediumState::Open => "open",
            MediumState::Quiet => "quiet",
            MediumState::Altered => "altered",
        };
        let identity = match self.identity {
            Identity::File { bytes, mark, number, generation, birth, written } => {
                let mark = match mark {
                    Mark::Impossible => NOTHING.to_owned(),
                    Mark::None => UNMARKED.to_owned(),
                    Mark::Is(mark) => hexadecimal(&mark),
                };
                let rest = [text(number), text(generation), text(birth), text(written)].join(":");
                format!("file:{bytes}:{mark}:{rest}")
            }
            Identity::Device { bytes, name, behind, sequence } => {
                format!("device:{bytes}:{}", [text(name), text(behind), text(sequence)].join(":"))
            }
        };
        format!("{state}:{:x}:{}:{}:{identity}", self.boot, self.life, self.entry)
    }

    fn parse(value: &str) -> Option<Self> {
        let parts: Vec<&str> = value.split(':').collect();
        let (&[state, boot, life, entry, kind, bytes], rest) = parts.split_first_chunk()?;
        let state = match state {
            "open" => MediumState::Open,
            "quiet" => MediumState::Quiet,
            "altered" => MediumState::Altered,
            _ => return None,
        };
        let bytes = bytes.parse().ok()?;
        let identity = match (kind, rest) {
            ("file", &[mark, own, generation, birth, written]) => Identity::File {
                bytes,
                mark: match mark {
                    NOTHING => Mark::Impossible,
                    UNMARKED => Mark::None,
                    mark => Mark::Is(parse_hexadecimal(mark)?),
                },
                number: number(own)?,
                generation: number(generation)?,
                birth: number(birth)?,
                written: number(written)?,
            },
            ("device", &[name, behind, sequence]) => Identity::Device {
                bytes,
                name: number(name)?,
                behind: number(behind)?,
                sequence: number(sequence)?,
            },
            _ => return None,
        };
        let boot = u64::from_str_radix(boot, 16).ok()?;
        Some(Self { identity, boot, life: life.parse().ok()?, entry: entry.parse().ok()?, state })
    }
}

fn text<T: ToString>(number: Option<T>) -> String {
    number.map_or_else(|| NOTHING.to_owned(), |number| number.to_string())
}

/// A number, or none; `None` for what is neither.
fn number<T: std::str::FromStr>(text: &str) -> Option<Option<T>> {
    if text == NOTHING { Some(None) } else { text.parse().ok().map(Some) }
}

/// Stands for this start of the machine; 0 where nobody knows.
pub fn boot() -> u64 {
    let id = boot_id().unwrap_or_default();
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).collect();
    // Its first and last digits: any 64 of its bits will do.
    let half = |range| digits.get(range).and_then(|half| u64::from_str_radix(half, 16).ok());
    half(0..16).zip(half(16..32)).map_or(0, |(one, two)| one ^ two)
}

impl StateDir {
    /// What stood behind a drive, if that was ever kept.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn medium(&self, drive: &FunctionName) -> Result<Option<Medium>, StateError> {
        let Some(Named { file, value }) = read_value(self.path(), &file_of(drive))? else { return Ok(None) };
        Medium::parse(&value).map(Some).ok_or(StateError::Damaged { file, why: "it holds no medium" })
    }

    /// Keeps what stands behind a drive, durably.
    ///
    /// # Errors
    /// The system said no; what was kept still is.
    pub fn set_medium(&self, drive: &FunctionName, medium: &Medium) -> Result<(), StateError> {
        write_value(self.path(), &file_of(drive), &medium.to_text())
    }
}

fn file_of(drive: &FunctionName) -> String {
    format!("medium.{drive}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(written: Option<i64>) -> Identity {
        Identity::File {
            bytes: 4096,
            mark: Mark::Is([0xa5; 16]),
            number: Some(7),
            generation: Some(u32::MAX),
            birth: Some(-1),
            written,
        }
    }

    #[test]
    fn whatever_is_known_is_found_again_and_is_never_too_long() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let drive: FunctionName = "nvme0".parse().unwrap();
        let longest = Identity::File {
            bytes: u64::MAX,
            mark: Mark::Is([0xff; 16]),
            number: Some(u64::MAX),
            generation: Some(u32::MAX),
            birth: Some(i64::MIN),
            written: Some(i64::MIN),
        };
        let none = Identity::File {
            bytes: 0,
            mark: Mark::Impossible,
            number: None,
            generation: None,
            birth: None,
            written: None,
        };
        let devices = [Some(u64::MAX), None].map(|it| Identity::Device {
            bytes: u64::MAX,
            name: it,
            behind: it,
            sequence: it,
        });
        let states = [MediumState::Open, MediumState::Quiet, MediumState::Altered];
        for identity in [longest, none, file(None)].into_iter().chain(devices) {
            for state in states {
                let (boot, life, entry) = (u64::MAX, u64::MAX, 79);
                let medium = Medium { identity, boot, life, entry, state };
                let node = StateDir::open(&path).unwrap();
                node.set_medium(&drive, &medium).unwrap();
                drop(node);
                let node = StateDir::open(&path).unwrap();
                assert_eq!(node.medium(&drive).unwrap(), Some(medium));
                assert_eq!(node.medium(&"nvme1".parse().unwrap()).unwrap(), None);
            }
        }
        assert_eq!(Medium::parse("open:0:0:0:file:1"), None);
        assert_eq!(Medium::parse("open:0:0:0:device:1:2:3:4:5"), None);
        assert_eq!(Medium::parse(""), None);
    }

    #[test]
    fn what_was_written_counts_by_how_the_medium_was_left() {
        let writes = LastWrites::in_memory().unwrap();
        writes.begin(3, [Some(50)].into_iter());
        let medium = |state| Medium { identity: file(Some(50)), boot: 9, life: 3, entry: 0, state };
        let later = file(Some(i64::MAX));
        let changed = Some(Change::Other(Difference::Written));
        assert_eq!(medium(MediumState::Quiet).change(&file(Some(50)), 9, &writes), None);
        assert_eq!(medium(MediumState::Quiet).change(&file(Some(49)), 9, &writes), changed, "also backwards");
        assert_eq!(medium(MediumState::Open).change(&later, 9, &writes), changed);
        let earlier_life = Medium { life: 2, ..medium(MediumState::Open) };
        assert_eq!(earlier_life.change(&later, 9, &writes), None, "nobody knows");
        assert_eq!(medium(MediumState::Quiet).change(&file(None), 9, &writes), None);
        assert_eq!(medium(MediumState::Altered).change(&file(Some(50)), 9, &writes), Some(Change::Altered));
        assert_ne!(boot(), 0);
    }
}
