//! The loan line: everything a borrower needs, on one line that can be pasted.
//!
//! ```text
//! causeway://KEY@ADDR:PORT[,ADDR:PORT]/FUNCTION[?group=GROUP]
//! ```
//!
//! The first address is that of the lender's rail 0, the next that of rail 1, unless a number in front says another
//! rail: `10.0.0.1:7411,2=10.0.2.1:7411`. Other kinds than UDP bear their name ([`io::address`]).
//!
//! `KEY` is 120 characters of a base 32 alphabet without look-alikes (no `i`, `l`, `o`, `u`), lower case only.
//! They carry 75 bytes:
//!
//! ```text
//! bytes  0.. 3  6 bits: form of the line, 1; 18 bits: the lender's domain
//! bytes  3..35  the lender's public key (X25519)
//! bytes 35..67  the function's secret
//! bytes 67..70  check of the addresses' text:  20-bit CRC, then its length modulo 16
//! bytes 70..72  check of what follows the slash:  12-bit CRC, then its length modulo 16
//! bytes 72..75  24-bit CRC of bytes 0..72
//! ```
//!
//! So a typing error anywhere is recognised, and its part named: a changed character in `KEY` is a burst of
//! five bits, which a CRC always finds; in the other parts it is a burst of eight, and a character too many or
//! too few changes the length. The checks are against slips of the hand only. Against an attacker stands the
//! secret, and the line as a whole is as secret as its key.
//!
//! Nothing here prints a key by accident: `Debug` and `Display` of [`Key`] and [`Line`] leave it out, errors name
//! positions instead of characters, and [`redact`] cleans text that came from elsewhere. [`Line::reveal`] is the
//! one way out.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::str::FromStr;

use ::io::address::{AddressError, Addresses, AddressesError, RailAddress};
use base::ids::{ALPHABET, BASE32, DomainId, Group};
use crc::{Algorithm, Crc};
use node::{Lender, PublicKey};
use thiserror::Error;

use crate::config::open_regular;

/// What every loan line begins with.
pub const SCHEME: &str = "causeway://";
/// Most addresses a line may name: two bits of a fabric address choose the rail.
pub const RAILS_MAX: usize = 4;
/// Longest function name, in characters.
pub const FUNCTION_NAME_MAX: usize = 32;
/// Longest text looked at, in bytes. Four IPv6 addresses and a long name need less than half of it.
pub const LINE_BYTES_MAX: usize = 512;

/// Between a function and its group.
const GROUP: &str = "?group=";
/// Bytes of a secret.
pub const KEY_BYTES: usize = 32;
/// What the first bits say of the line.
const FORM: u32 = 1;
const PREFIX: std::ops::Range<usize> = 0..3;
const LENDER: std::ops::Range<usize> = 3..35;
const SECRET: std::ops::Range<usize> = 35..67;
const ADDRESSES_CHECK: std::ops::Range<usize> = 67..70;
const FUNCTION_CHECK: std::ops::Range<usize> = 70..72;
const KEY_CHECK: std::ops::Range<usize> = 72..75;
const CODED_BYTES: usize = 75;
/// Characters of the key's text before lines named the lender's public key.
const OLD_KEY_CHARS: usize = 64;
/// Characters of the key's text: five bits each.
const KEY_CHARS: usize = CODED_BYTES * 8 / 5;
/// A run of this many characters of the alphabet is taken for a key by [`redact`].
const REDACT_RUN: usize = 40;

const _: () = assert!(CODED_BYTES * 8 == KEY_CHARS * 5, "the key's text has no spare bits to mistype");

/// Everything a borrower needs: whom to call, secret, addresses (one a rail), function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    lender: Lender,
    secret: Key,
    addresses: Addresses,
    function: FunctionName,
    group: Group,
}

impl Line {
    /// A line from its parts. Errors are those a reader of the line would meet: no address, one twice, one that nobody
    /// can be reached at.
    pub fn new(
        lender: Lender,
        secret: Key,
        addresses: Addresses,
        function: FunctionName,
    ) -> Result<Self, LineError> {
        if addresses.is_empty() {
            return Err(LineError::NoAddress);
        }
        for (rail, address) in addresses.iter() {
            check_address(&address)
                .map_err(|why| LineError::Address { text: address.to_string(), why: why.to_owned() })?;
            if addresses.iter().any(|(other, it)| other < rail && it == address) {
                return Err(LineError::AddressTwice { address });
            }
        }
        Ok(Self { lender, secret, addresses, function, group: Group::DEFAULT })
    }

    /// The same in another group than the default one.
    #[must_use]
    pub fn in_group(self, group: Group) -> Self {
        Self { group, ..self }
    }

    /// The zone that the function is lent in.
    pub fn group(&self) -> Group {
        self.group
    }

    /// Who lends the function.
    pub fn lender(&self) -> Lender {
        self.lender
    }

    /// The function's secret.
    pub fn secret(&self) -> &Key {
        &self.secret
    }

    /// The lender's addresses by rail; at least one.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// The function that is lent.
    pub fn function(&self) -> &FunctionName {
        &self.function
    }

    /// The line with its key: for the one who is to borrow, and for nobody else.
    pub fn reveal(&self) -> String {
        let addresses = self.addresses.to_string();
        let key = self.coded_key(&addresses);
        format!("{SCHEME}{key}@{addresses}/{}", self.function_text())
    }

    fn coded_key(&self, addresses: &str) -> String {
        let mut coded = [0; CODED_BYTES];
        let [_, prefix @ ..] = (FORM << DomainId::BITS | self.lender.domain.0).to_be_bytes();
        coded[PREFIX].copy_from_slice(&prefix);
        coded[LENDER].copy_from_slice(&self.lender.key.0);
        coded[SECRET].copy_from_slice(&self.secret.0);
        coded[ADDRESSES_CHECK].copy_from_slice(&addresses_check(addresses));
        coded[FUNCTION_CHECK].copy_from_slice(&function_check(&self.function_text()));
        let check = key_check(&coded[..KEY_CHECK.start]);
        coded[KEY_CHECK].copy_from_slice(&check);
        let text = BASE32.encode(&coded);
        coded.fill(0);
        std::hint::black_box(&coded);
        text
    }

    fn function_text(&self) -> String {
        match self.group {
            Group::DEFAULT => self.function.to_string(),
            group => format!("{}{GROUP}{group}", self.function),
        }
    }
}

impl FromStr for Line {
    type Err = LineError;

    fn from_str(text: &str) -> Result<Self, LineError> {
        if text.len() > LINE_BYTES_MAX {
            return Err(LineError::TooLong { bytes: text.len() });
        }
        let rest = text.strip_prefix(SCHEME).ok_or(LineError::Scheme)?;
        let (key_text, rest) = rest.split_once('@').ok_or(LineError::NoKey)?;
        let coded = decode_key(key_text)?;
        let (addresses_text, function_text) = rest.split_once('/').ok_or(LineError::NoFunction)?;

        let is_checked = addresses_check(addresses_text) == coded[ADDRESSES_CHECK];
        let addresses = addresses_text.parse().map_err(|error| LineError::of_addresses(error, is_checked))?;
        if !is_checked {
            return Err(LineError::AddressesCheck { text: addresses_text.to_owned() });
        }
        let (function, group) = match function_text.split_once(GROUP) {
            None => (function_text, Group::DEFAULT),
            Some((function, number)) => {
                // The default one is not written, so that a function has one line.
                let group = number.parse().ok().and_then(Group::new).filter(|group| *group != Group::DEFAULT);
                let why = || LineError::Group { text: number.escape_debug().to_string() };
                (function, group.filter(|group| group.to_string() == number).ok_or_else(why)?)
            }
        };
        let function = FunctionName::from_str(function)?;
        if function_check(function_text) != coded[FUNCTION_CHECK] {
            return Err(LineError::FunctionCheck { text: function_text.to_owned() });
        }
        let (mut key, mut secret) = (PublicKey::default(), [0; KEY_BYTES]);
        key.0.copy_from_slice(&coded[LENDER]);
        if !key.is_usable() {
            return Err(LineError::Lender);
        }
        secret.copy_from_slice(&coded[SECRET]);
        let lender = Lender { key, domain: DomainId(prefix(&coded).1) };
        Self::new(lender, Key(secret), addresses, function).map(|line| line.in_group(group))
    }
}

/// The line without its key.
impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}***@{}/{}", self.addresses, self.function_text())
    }
}

/// 32 secret bytes. `Debug` shows none of them, there is no `Display`, and the memory is overwritten on drop as
/// far as safe code can promise that (copies the compiler made on the way are out of reach).
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY_BYTES]);

impl Key {
    /// A key of these bytes.
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// The secret bytes, for the handshake and for the file that keeps them.
    pub fn reveal(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// The secret in the alphabet of the line, without checks: for tests that look for leaks.
    #[cfg(test)]
    pub(crate) fn reveal_text(&self) -> String {
        BASE32.encode(&self.0[..30])
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.fill(0);
        // Without a reader the stores would be dead ones, and removed.
        std::hint::black_box(&self.0);
    }
}

/// The name of a function: 1 to 32 characters of `a-z`, `0-9` and `-`, beginning with a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionName(String);

impl FunctionName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name the `index`-th function of a lender gets when nobody chose one: `nvme0`, `nvme1`, ...
    pub fn nvme(index: usize) -> Self {
        Self(format!("nvme{index}"))
    }
}

impl FromStr for FunctionName {
    type Err = LineError;

    fn from_str(text: &str) -> Result<Self, LineError> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if text.is_empty() {
            return Err(LineError::NoFunction);
        }
        if text.len() > FUNCTION_NAME_MAX || text.starts_with('-') || !text.bytes().all(allowed) {
            return Err(LineError::FunctionName { text: text.escape_debug().to_string() });
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is wrong with a loan line. No variant holds any of the key's characters.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LineError {
    /// The text is longer than any line can be.
    #[error("a loan line has at most {LINE_BYTES_MAX} bytes, this text has {bytes}")]
    TooLong {
        /// Bytes found.
        bytes: usize,
    },
    /// The text does not begin with [`SCHEME`].
    #[error(
        "a loan line begins with `{SCHEME}`, this text does not; copy the whole line that `causeway lend` printed"
    )]
    Scheme,
    /// The text looks like the name of a file.
    #[error(
        "`{path}` is no loan line but the name of a file; write @{path} to read the line from it; or, if it is \
             NODE/FUNCTION, add --secret @FILE with that function's line"
    )]
    FileName {
        /// The text.
        path: String,
    },
    /// There is no `@`.
    #[error("the loan line has no `@` between its key and its addresses; copy the whole line")]
    NoKey,
    /// The key's text has the wrong length.
    #[error(
        "the key of the loan line has {found} characters instead of {KEY_CHARS}; a part is missing or doubled"
    )]
    KeyLength {
        /// Characters found.
        found: usize,
    },
    /// A line as earlier versions printed it.
    #[error(
        "this loan line is of an earlier version of causeway: it does not name its lender's public key; \
             take the line that the lender prints now"
    )]
    OldForm,
    /// A line as later versions print it.
    #[error("this loan line has form {form}, and this version of causeway knows form {FORM} only; update it")]
    LaterForm {
        /// What it says.
        form: u32,
    },
    /// A character that no key has.
    #[error(
        "typing error in the key of the loan line: its character {position} cannot be part of any key; copy the line \
         again"
    )]
    KeyCharacter {
        /// Where in the key's text, from 1.
        position: usize,
    },
    /// The key's checksum does not match.
    #[error("typing error in the key of the loan line: its checksum does not match; copy the line again")]
    KeyCheck,
    /// Nobody can have this public key.
    #[error("the loan line names a public key that no node can have; take the line that the lender prints")]
    Lender,
    /// There is no address.
    #[error("the loan line names no address")]
    NoAddress,
    /// More addresses than rails.
    #[error("the loan line names {found} addresses, at most {RAILS_MAX} are possible (one a rail)")]
    TooManyAddresses {
        /// Addresses found.
        found: usize,
    },
    /// One address cannot be used.
    #[error("typing error in address `{text}` of the loan line: {why}")]
    Address {
        /// The address as it stands there.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// It is no typing error, but of a kind that this version cannot use.
    #[error("address `{text}` of the loan line: {why}")]
    AddressKind {
        /// The address as it stands there.
        text: String,
        /// What this version says of the kind.
        why: AddressError,
    },
    /// A rail that there is not, or not here.
    #[error("typing error in the addresses of the loan line: {text}")]
    Rail {
        /// Which, and what a rail is.
        text: String,
    },
    /// The same address twice.
    #[error("the loan line names address {address} twice")]
    AddressTwice {
        /// The address.
        address: RailAddress,
    },
    /// The addresses' checksum does not match.
    #[error(
        "typing error in the addresses `{text}` of the loan line: their checksum does not match; \
             to lend at another address use `causeway lend --listen`"
    )]
    AddressesCheck {
        /// The addresses as they stand there.
        text: String,
    },
    /// There is no `/FUNCTION`.
    #[error("the loan line names no function: it ends with `/` and a name such as `nvme0`")]
    NoFunction,
    /// A function name with characters no name has.
    #[error(
        "`{text}` is no name of a function: 1 to {FUNCTION_NAME_MAX} characters of a-z, 0-9 and -, no - first"
    )]
    FunctionName {
        /// The name as it stands there.
        text: String,
    },
    /// A group that there is none.
    #[error("`{text}` is no group of the loan line: a number from 2 to 4094; without one it is group 1")]
    Group {
        /// What stands there.
        text: String,
    },
    /// The function's checksum does not match.
    #[error(
        "typing error in the function `{text}` of the loan line: its checksum does not match; \
             each function has a line of its own"
    )]
    FunctionCheck {
        /// The name as it stands there.
        text: String,
    },
}

impl LineError {
    /// What is wrong with the addresses. `is_checked`: whoever made the line has written them so.
    fn of_addresses(error: AddressesError, is_checked: bool) -> Self {
        match error {
            AddressesError::Address { text, .. } if text.is_empty() => Self::NoAddress,
            AddressesError::Address { text, why } if is_checked && why.is_of_other_kind() => {
                Self::AddressKind { text, why }
            }
            AddressesError::Address { text, why } => Self::Address { text, why: why.to_string() },
            AddressesError::TooMany { found } => Self::TooManyAddresses { found },
            rail @ AddressesError::Rail { .. } => Self::Rail { text: rail.to_string() },
        }
    }
}

/// Where `borrow` takes its line from. `-` and `@FILE` keep the key out of the process list.
#[derive(Clone, PartialEq, Eq)]
pub enum LineArgument {
    /// The argument is the line.
    Text(String),
    /// `-`: standard input.
    Stdin,
    /// `@FILE`: a file.
    File(std::path::PathBuf),
}

impl LineArgument {
    /// Reads and parses the line.
    pub fn read(&self) -> Result<Line, ReadLineError> {
        let parsed = |text: String| Ok(text.parse::<Line>()?);
        match self {
            Self::Text(text) if text.trim().starts_with(SCHEME) => parsed(text.trim().to_owned()),
            Self::Text(text) if is_file_name(text) => Err(LineError::FileName { path: text.clone() }.into()),
            Self::Text(text) => parsed(text.clone()),
            Self::Stdin => {
                let from = || "standard input".to_owned();
                let text = read_first_line(io::stdin().lock());
                let text = text.map_err(|error| ReadLineError::Read { from: from(), error })?;
                parsed(text.ok_or_else(|| ReadLineError::Empty { from: from() })?)
            }
            Self::File(path) => read_line_file(path),
        }
    }
}

impl FromStr for LineArgument {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.strip_prefix('@') {
            Some(path) => Self::File(path.into()),
            None if text == "-" => Self::Stdin,
            None => Self::Text(text.to_owned()),
        })
    }
}

impl fmt::Debug for LineArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(..)"),
            Self::Stdin => f.write_str("Stdin"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// Why no line could be read.
#[derive(Debug, Error)]
pub enum ReadLineError {
    /// The file or standard input cannot be read.
    #[error("cannot read the loan line from {from}: {error}")]
    Read {
        /// The file, or "standard input".
        from: String,
        /// What the system said.
        error: io::Error,
    },
    /// There is nothing in it.
    #[error("{from} holds no loan line: it is empty; put the line that `causeway lend` printed there")]
    Empty {
        /// The file, or "standard input".
        from: String,
    },
    /// What was read is no line.
    #[error(transparent)]
    Line(#[from] LineError),
}

impl ReadLineError {
    /// There is no such file.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Read { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }
}

/// Whether somebody has forgotten the `@` in front of a file's name.
fn is_file_name(text: &str) -> bool {
    !text.contains("://") && (text.ends_with(".line") || Path::new(text).is_file())
}

/// Reads and parses the loan line that is the first line of a file, which may be a pipe.
pub fn read_line_file(path: &Path) -> Result<Line, ReadLineError> {
    read_opened(path, File::open(path))
}

/// The same of a regular file alone: for a node that runs, and waits for nobody.
pub fn read_regular_line_file(path: &Path) -> Result<Line, ReadLineError> {
    read_opened(path, open_regular(path))
}

fn read_opened(path: &Path, file: io::Result<File>) -> Result<Line, ReadLineError> {
    let from = || path.display().to_string();
    let text = file.and_then(read_first_line);
    let text = text.map_err(|error| ReadLineError::Read { from: from(), error })?;
    Ok(text.ok_or_else(|| ReadLineError::Empty { from: from() })?.parse()?)
}

/// Text without anything that looks like a key: for messages that quote what a person typed.
///
/// Whatever follows [`SCHEME`] up to the `@`, a blank or a quote goes, and so does each long run of the key's
/// alphabet, in case it was the scheme that was mistyped; but not where it is a part of a path.
pub fn redact(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(SCHEME) {
        let (before, from) = rest.split_at(at);
        clean.push_str(before);
        clean.push_str(SCHEME);
        let after = &from[SCHEME.len()..];
        let end = after.find(|c: char| c == '@' || c.is_whitespace() || "'\"`".contains(c));
        let end = end.unwrap_or(after.len());
        clean.push_str(if end > 0 { "***" } else { "" });
        rest = &after[end..];
    }
    clean.push_str(rest);
    redact_runs(&clean)
}

fn redact_runs(text: &str) -> String {
    let in_alphabet = |c: char| ALPHABET.contains(c);
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let inside = in_alphabet(first);
        let end = rest.find(|c| in_alphabet(c) != inside).unwrap_or(rest.len());
        let may_be_key = !is_in_path(&clean) || rest[end..].starts_with('@');
        let is_key = inside && end >= REDACT_RUN && may_be_key;
        clean.push_str(if is_key { "***" } else { &rest[..end] });
        rest = &rest[end..];
    }
    clean
}

/// Whether the next word of a text is a part of a path: behind one slash, and not behind `://`, however that was
/// mistyped.
fn is_in_path(before: &str) -> bool {
    let mut backwards = before.chars().rev();
    backwards.next() == Some('/') && !matches!(backwards.next(), Some('/' | ':'))
}

/// The first line that is not empty, without blanks around it; none where all are. Never reads much more than a line
/// can have, and does not wait for an end of file: a terminal or a pipe that stays open has none.
fn read_first_line(source: impl Read) -> io::Result<Option<String>> {
    let mut source = BufReader::new(source.take(4 * LINE_BYTES_MAX as u64));
    loop {
        let mut bytes = Vec::new();
        if source.read_until(b'\n', &mut bytes)? == 0 {
            return Ok(None);
        }
        let text = String::from_utf8(bytes).map_err(|_| io::Error::other("it is not text"))?;
        if !text.trim().is_empty() {
            return Ok(Some(text.trim().to_owned()));
        }
    }
}

fn check_address(address: &RailAddress) -> Result<(), &'static str> {
    let address = match address {
        RailAddress::Udp(address) => address,
        RailAddress::Ethernet(mac) if mac.is_unicast() => return Ok(()),
        RailAddress::Ethernet(_) => return Err("it is the address of a group, not of one interface"),
    };
    let scoped = matches!(address, SocketAddr::V6(v6) if v6.scope_id() != 0);
    match address.ip() {
        _ if address.port() == 0 => Err("port 0 is none"),
        _ if scoped => Err("a scope (%...) means nothing on another machine"),
        ip if ip.is_unspecified() => Err("it names every address of a machine, not one"),
        ip if ip.is_multicast() => Err("it is a multicast address"),
        IpAddr::V4(v4) if v4.is_broadcast() => Err("it is the broadcast address"),
        _ => Ok(()),
    }
}

/// The form of a line and its lender's domain.
fn prefix(coded: &[u8; CODED_BYTES]) -> (u32, u32) {
    let bits = coded[PREFIX].iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte));
    (bits >> DomainId::BITS, bits & ((1 << DomainId::BITS) - 1))
}

fn decode_key(text: &str) -> Result<[u8; CODED_BYTES], LineError> {
    let is_known = |c: char| ALPHABET.contains(c);
    if let Some(index) = text.chars().position(|c| !is_known(c)) {
        return Err(LineError::KeyCharacter { position: index + 1 });
    }
    let mut coded = [0; CODED_BYTES];
    match text.len() {
        KEY_CHARS => {
            BASE32.decode_mut(text.as_bytes(), &mut coded).expect("whole bytes, and no other characters")
        }
        OLD_KEY_CHARS => return Err(LineError::OldForm),
        found => return Err(LineError::KeyLength { found }),
    };
    match prefix(&coded).0 {
        _ if key_check(&coded[..KEY_CHECK.start]) != coded[KEY_CHECK] => Err(LineError::KeyCheck),
        FORM => Ok(coded),
        form => Err(LineError::LaterForm { form }),
    }
}

fn addresses_check(text: &str) -> [u8; 3] {
    let check = CRC_20.checksum(text.as_bytes()) << 4 | (text.len() & 15) as u32;
    let [_, check @ ..] = check.to_be_bytes();
    check
}

fn function_check(text: &str) -> [u8; 2] {
    let check = CRC_12.checksum(text.as_bytes()) << 4 | (text.len() & 15) as u32;
    let [_, _, check @ ..] = check.to_be_bytes();
    check
}

fn key_check(coded: &[u8]) -> [u8; 3] {
    let [_, check @ ..] = CRC_24.checksum(coded).to_be_bytes();
    check
}

/// These find every burst up to their width and every exchange of neighbours, since their polynomials are primitive.
static CRC_12: Crc<u32> = Crc::<u32>::new(&crc(12, 0x53));
static CRC_20: Crc<u32> = Crc::<u32>::new(&crc(20, 0x9));
static CRC_24: Crc<u32> = Crc::<u32>::new(&crc(24, 0x87));

/// Most significant bit first, begun with ones. `poly` leaves out its highest term.
const fn crc(width: u8, poly: u32) -> Algorithm<u32> {
    let init = u32::MAX >> (32 - width);
    Algorithm { width, poly, init, refin: false, refout: false, xorout: 0, check: 0, residue: 0 }
}

#[cfg(test)]
#[path = "line_tests.rs"]
pub(crate) mod tests;
