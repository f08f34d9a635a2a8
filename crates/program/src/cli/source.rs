//! What a node lends.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use node::FlashConfig;

use super::values::{ByteSize, NodeName, ValueError};

/// The options of a flash card, for complaints.
const OPTIONS: &str =
    "there are scale, channels, read_iops, write_iops, read_mb_s, write_mb_s, read_us and write_us";

/// What a node lends: memory, a file or a block device, as fast as it is or as slow as a flash card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `ram:SIZE`: memory of this size, zeroed, gone with the node.
    Ram(ByteSize),
    /// A file or block device; which of them, opening it tells. A file called `ram:...` is written `./ram:...`.
    Path(PathBuf),
    /// `flash:ram:SIZE?scale=4` or `flash:FILE?...`: what takes as long as a flash card.
    Flash(Flash),
}

/// A source behind the timing of a flash card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flash {
    /// Where the data lies: no flash card itself.
    backing: Box<Source>,
    card: FlashConfig,
    /// The options as they were written.
    options: String,
}

impl Source {
    /// A source from an argument, which need not be Unicode.
    pub fn from_os(text: OsString) -> Result<Self, ValueError> {
        if text.is_empty() {
            return Err(ValueError::new("a source is a file, a block device, ram:SIZE or flash:SOURCE"));
        }
        if text.as_bytes().starts_with(crate::line::SCHEME.as_bytes()) {
            return Err(ValueError::new("this is a loan line, which `causeway borrow` takes"));
        }
        if let Some(size) = text.to_str().and_then(|text| text.strip_prefix("ram:")) {
            return Ok(Self::Ram(memory(size)?));
        }
        match text.as_bytes().strip_prefix(b"flash:") {
            Some(card) => Ok(Self::Flash(Flash::parse(OsStr::from_bytes(card))?)),
            None => Ok(Self::Path(text.into())),
        }
    }

    /// The name a node gets from its first source: the file's name without its ending, or `ram`, or `flash`.
    pub fn suggested_name(&self) -> NodeName {
        match self {
            Self::Ram(_) => NodeName::cleaned("ram"),
            Self::Flash(Flash { backing, .. }) => match &**backing {
                file @ Self::Path(_) => file.suggested_name(),
                _ => NodeName::cleaned("flash"),
            },
            Self::Path(path) => {
                NodeName::cleaned(&path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy())
            }
        }
    }

    /// The same source, where a relative path starts at `folder`.
    pub fn in_folder(self, folder: &Path) -> Self {
        match self {
            Self::Ram(size) => Self::Ram(size),
            Self::Path(path) => Self::Path(folder.join(path)),
            Self::Flash(flash) => {
                Self::Flash(Flash { backing: Box::new(flash.backing.in_folder(folder)), ..flash })
            }
        }
    }

    /// Bytes of memory that it takes; `None` for what lies elsewhere.
    pub fn memory(&self) -> Option<ByteSize> {
        match self {
            Self::Ram(size) => Some(*size),
            Self::Path(_) => None,
            Self::Flash(flash) => flash.backing.memory(),
        }
    }

    /// The file or block device that holds its data.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Ram(_) => None,
            Self::Path(path) => Some(path),
            Self::Flash(flash) => flash.backing.path(),
        }
    }

    /// What was meant, if the name of a flash card's file ends in something like an option.
    pub fn with_options(&self) -> Option<String> {
        let Self::Flash(Flash { backing, options, .. }) = self else { return None };
        let path = backing.path()?.to_str().filter(|_| options.is_empty())?;
        let (file, rest) = path.split_once(',')?;
        let (key, _) = rest.split_once('=')?;
        let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        is_key.then(|| format!("flash:{file}?{rest}"))
    }

    /// The flash card whose time it takes.
    pub fn card(&self) -> Option<FlashConfig> {
        match self {
            Self::Ram(_) | Self::Path(_) => None,
            Self::Flash(flash) => Some(flash.card),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ram(size) => write!(f, "ram:{}", size.exact()),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Flash(Flash { backing, options, .. }) if options.is_empty() => write!(f, "flash:{backing}"),
            Self::Flash(Flash { backing, options, .. }) => write!(f, "flash:{backing}?{options}"),
        }
    }
}

impl Flash {
    /// `SOURCE[?KEY=VALUE[,KEY=VALUE]...]`. A size alone is memory: `flash:1G` is `flash:ram:1G`, and its options may
    /// follow a comma too.
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        let (backing, options) = match text.as_bytes().iter().position(|byte| *byte == b'?') {
            Some(at) => (&text.as_bytes()[..at], &text.as_bytes()[at + 1..]),
            None => (text.as_bytes(), &[][..]),
        };
        let options = str::from_utf8(options)
            .map_err(|_| ValueError::new(format!("options of a flash card are plain text; {OPTIONS}")))?;
        let (backing, options) = match str::from_utf8(backing).ok().and_then(|text| text.split_once(',')) {
            Some((size, more)) if options.is_empty() && is_size(size) => (size.as_bytes(), more),
            _ => (backing, options),
        };
        let backing = match str::from_utf8(backing) {
            Ok(size) if is_size(size) => Source::Ram(memory(size.strip_prefix("ram:").unwrap_or(size))?),
            _ => Source::from_os(OsStr::from_bytes(backing).to_owned())?,
        };
        if let Source::Flash(_) = backing {
            return Err(ValueError::new(
                "a flash card is not made of flash:...; it lies in ram:SIZE or a file",
            ));
        }
        Ok(Self { backing: Box::new(backing), card: card(options)?, options: options.to_owned() })
    }
}

/// Whether that means memory: `64M`, `ram:64M`, with whatever mistakes in the number.
fn is_size(text: &str) -> bool {
    text.starts_with("ram:") || text.parse::<ByteSize>().is_ok()
}

fn memory(size: &str) -> Result<ByteSize, ValueError> {
    match size.parse()? {
        ByteSize(0) => Err(ValueError::new("ram:SIZE needs at least one block")),
        size => Ok(size),
    }
}

/// The card that `KEY=VALUE[,KEY=VALUE]...` describes; `&` separates as well.
fn card(options: &str) -> Result<FlashConfig, ValueError> {
    let (mut card, mut scale) = (FlashConfig::default(), 1);
    for option in options.split([',', '&']).filter(|_| !options.is_empty()) {
        let key = option.split_once('=').map_or(option, |(key, _)| key);
        let wrong =
            || ValueError::new(format!("`{}` is no option of a flash card; {OPTIONS}", key.escape_debug()));
        let (_, value) = option.split_once('=').ok_or_else(wrong)?;
        let number = || {
            value.parse::<u64>().map_err(|_| {
                let (value, key) = (value.escape_debug(), key.escape_debug());
                ValueError::new(format!("`{value}` is no whole number for `{key}` of a flash card"))
            })
        };
        match key {
            "scale" => scale = number()?,
            "channels" => card.channels = usize::try_from(number()?).unwrap_or(usize::MAX),
            "read_iops" => card.read.iops = number()?,
            "write_iops" => card.write.iops = number()?,
            "read_mb_s" => card.read.bytes_per_s = number()?.saturating_mul(1_000_000),
            "write_mb_s" => card.write.bytes_per_s = number()?.saturating_mul(1_000_000),
            "read_us" => card.read.latency = Duration::from_micros(number()?),
            "write_us" => card.write.latency = Duration::from_micros(number()?),
            _ => return Err(wrong()),
        }
    }
    if scale == 0 {
        return Err(ValueError::new(
            "the rates of a flash card cannot be divided by 0; `scale` is 1 or more",
        ));
    }
    let card = card.scaled(scale);
    card.check().map_err(|error| ValueError::new(format!("this flash card makes no sense: {error}")))?;
    Ok(card)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Source, ValueError> {
        Source::from_os(text.into())
    }

    #[test]
    fn a_line_is_no_source() {
        assert!(parse(&crate::line::tests::example().reveal()).is_err());
    }

    #[test]
    fn a_flash_card_lies_in_memory_or_in_a_file() {
        for (text, shown, memory, path, name) in [
            ("flash:ram:1G", "flash:ram:1G", Some(1 << 30), None, "flash"),
            ("flash:1G", "flash:ram:1G", Some(1 << 30), None, "flash"),
            ("flash:64M,scale=4", "flash:ram:64M?scale=4", Some(64 << 20), None, "flash"),
            ("flash:/srv/a,b.img", "flash:/srv/a,b.img", None, Some("/srv/a,b.img"), "a-b"),
            ("flash:a.img?scale=4&channels=2", "flash:a.img?scale=4&channels=2", None, Some("a.img"), "a"),
        ] {
            let source = parse(text).unwrap();
            assert_eq!(source.to_string(), shown);
            assert_eq!(source.memory().map(|size| size.0), memory, "{text}");
            assert_eq!(source.path(), path.map(Path::new), "{text}");
            assert!(source.card().is_some(), "{text}");
            assert_eq!(source.suggested_name(), NodeName::cleaned(name), "{text}");
        }
        let moved = parse("flash:a.img?scale=4").unwrap().in_folder(Path::new("/etc"));
        assert_eq!(moved.to_string(), "flash:/etc/a.img?scale=4");
        let bytes = OsStr::from_bytes(b"flash:\xff.img?channels=2").to_owned();
        assert_eq!(Source::from_os(bytes).unwrap().path().unwrap().as_os_str().as_bytes(), b"\xff.img");
    }

    #[test]
    fn an_option_behind_a_comma_is_a_part_of_the_name() {
        for (text, meant) in [
            ("flash:a.img,scale=4,channels=2", Some("flash:a.img?scale=4,channels=2")),
            ("flash:/srv/a.img,colour=red", Some("flash:/srv/a.img?colour=red")),
            ("flash:a.img?scale=4,channels=2", None),
            ("flash:a,b.img", None),
            ("flash:a,b.img?scale=4", None),
            ("flash:64M,scale=4", None),
            ("a.img,scale=4", None),
        ] {
            assert_eq!(parse(text).unwrap().with_options().as_deref(), meant, "{text}");
        }
    }

    #[test]
    fn a_flash_card_has_rates_that_can_be_chosen() {
        assert_eq!(parse("flash:ram:1G").unwrap().card(), Some(FlashConfig::default()));
        let card =
            parse("flash:ram:64M?scale=4,channels=2,read_us=80,write_mb_s=400").unwrap().card().unwrap();
        assert_eq!((card.channels, card.read.iops, card.write.bytes_per_s), (2, 46_500, 100_000_000));
        assert_eq!(card.read.latency, Duration::from_micros(80));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (text, complaint) in [
            ("flash:", "a source is"),
            ("flash:0", "at least one block"),
            ("flash:ram:x", "`x`"),
            ("flash:flash:1G", "not made of flash"),
            ("flash:1G?scale=0", "divided by 0"),
            ("flash:1G?scale=x", "`x` is no whole number for `scale`"),
            ("flash:a.img?scale=-1", "`-1` is no whole number for `scale`"),
            ("flash:1G?speed=9", "`speed` is no option"),
            ("flash:1G,speed=9", "`speed` is no option"),
            ("flash:1G?fast", "`fast` is no option"),
            ("flash:1G?channels=0", "0 channels"),
            ("flash:1G?channels=999", "999 channels"),
            ("flash:1G?read_iops=0", "a full queue of reads"),
            ("flash:1G?write_mb_s=0", "a full queue of writes"),
            ("flash:1G?scale=99999999", "a full queue of reads"),
            ("flash:1G?write_us=2000000", "longer than a second"),
            ("flash:1G?scale=2,", "`` is no option"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(complaint), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "((ram|flash|flash:ram):)?.{0,40}") {
            let _ = parse(&text);
        }

        #[test]
        fn what_was_said_comes_back(size in 1_u64..1 << 40, scale in 1_u64..400) {
            let text = format!("flash:ram:{}?scale={scale}", ByteSize(size).exact());
            prop_assert_eq!(parse(&text).unwrap().to_string(), text);
        }
    }
}
