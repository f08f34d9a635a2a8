//! Values that arguments and configuration files share: sizes, names, addresses, socket paths.

use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base::ids::Group;
use io::address::RailAddress;
use manager::model::{NoSilence, OnSilence};
use thiserror::Error;

/// Longest path of a Unix socket in bytes: `sun_path` has 108, one of them ends the text (unix(7)).
const SOCKET_PATH_MAX: usize = 107;
/// Longest name of an interface: `IFNAMSIZ` less the end of the text (netdevice(7)).
const INTERFACE_NAME_MAX: usize = 15;
/// Longest name of a node, in characters.
const NODE_NAME_MAX: usize = 64;

/// A value that cannot be what it should be. The message stands after "invalid value ...".
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ValueError(pub String);

impl ValueError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// What becomes of a loan when an end of it is silent.
pub(super) fn on_silence(text: &str) -> Result<OnSilence, ValueError> {
    text.parse().map_err(|why: NoSilence| ValueError(format!("{why}; of a shell, 'hold(60)' in quotes")))
}

/// A number of bytes. Written as plain bytes or with a unit: `K`, `M`, `G`, `T`, also as `KiB` and so on, of
/// either case; a unit is 1024 of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

const UNITS: [(char, u32); 5] = [('P', 50), ('T', 40), ('G', 30), ('M', 20), ('K', 10)];

impl ByteSize {
    /// The shortest exact text that parses to the same number: `512M`, `1000`.
    pub fn exact(self) -> String {
        let divides = |shift: u32| self.0 != 0 && self.0.is_multiple_of(1 << shift);
        match UNITS.iter().find(|(_, shift)| divides(*shift)) {
            Some((unit, shift)) => format!("{}{unit}", self.0 >> shift),
            None => self.0.to_string(),
        }
    }
}

impl FromStr for ByteSize {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong = || {
            let shown = text.escape_debug();
            ValueError::new(format!("`{shown}` is no size; write bytes or 64k, 512M, 1G, 2T (units of 1024)"))
        };
        let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(digits_end);
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        let unit = unit.to_ascii_uppercase();
        let unit = unit.strip_suffix("IB").unwrap_or(&unit);
        let shift = match unit {
            "" if digits.len() == text.len() => 0,
            _ => {
                let known = UNITS.iter().find(|(name, _)| unit.chars().eq([*name]));
                known.ok_or_else(wrong)?.1
            }
        };
        let bytes = number.checked_mul(1 << shift);
        bytes.map(Self).ok_or_else(|| ValueError::new(format!("`{text}` does not fit into 64 bits")))
    }
}

/// For people: `512 MiB`, `1.5 GiB`, `1000 B`.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((unit, shift)) = UNITS.iter().find(|(_, shift)| self.0 >> shift != 0) else {
            return write!(f, "{} B", self.0);
        };
        let whole = self.0 >> shift;
        // Tenths, rounded down: 1.9 GiB rather than a 2.0 GiB that is not there.
        let tenths = (u128::from(self.0 - (whole << shift)) * 10) >> shift;
        match tenths {
            0 => write!(f, "{whole} {unit}iB"),
            _ => write!(f, "{whole}.{tenths} {unit}iB"),
        }
    }
}

/// The name of a node on its machine: 1 to 64 of `A-Z a-z 0-9 . _ -`, beginning with a letter or digit. It is a
/// file name too: of the state directory and the control socket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(String);

impl NodeName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The nearest possible name: other characters become `-`, the length is cut, and what is empty then
    /// is `node`.
    pub fn cleaned(text: &str) -> Self {
        let text = text.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
        let clean = |c: char| if Self::allows(c) { c } else { '-' };
        let name: String = text.chars().take(NODE_NAME_MAX).map(clean).collect();
        Self(if name.is_empty() { "node".to_owned() } else { name })
    }

    fn allows(c: char) -> bool {
        c.is_ascii_alphanumeric() || "._-".contains(c)
    }
}

impl FromStr for NodeName {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !begins || text.len() > NODE_NAME_MAX || !text.chars().all(Self::allows) {
            return Err(ValueError::new(format!(
                "`{}` is no name of a node: 1 to {NODE_NAME_MAX} letters, digits, `.`, `_` or `-`, \
                 beginning with a letter or digit",
                text.escape_debug()
            )));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a rail is: an address with or without a port, `10.0.0.1`, `10.0.0.1:7411`, `fd00::1`, `[fd00::1]:7411`, or an
/// Ethernet interface, `eth:eth1`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Listen {
    /// Of UDP.
    Udp {
        /// The address.
        address: IpAddr,
        /// The port; without one the lender looks for a free one from 7411 on.
        port: Option<u16>,
    },
    /// Of Ethernet.
    Ethernet {
        /// The interface's name.
        interface: String,
    },
}

impl Listen {
    /// On this Ethernet interface.
    pub fn on(interface: &str) -> Result<Self, ValueError> {
        let allowed = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b':';
        let is_name = (1..=INTERFACE_NAME_MAX).contains(&interface.len()) && interface.bytes().all(allowed);
        if !is_name || interface == "." || interface == ".." {
            return Err(ValueError::new(format!(
                "`{}` is no name of an interface: `ip link` lists them",
                interface.escape_debug()
            )));
        }
        Ok(Self::Ethernet { interface: interface.to_owned() })
    }

    /// Whether it says all of where the rail is.
    pub fn is_whole(&self) -> bool {
        !matches!(self, Self::Udp { port: None, .. })
    }
}

impl FromStr for Listen {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if let Some(interface) = text.strip_prefix("eth:") {
            return Self::on(interface);
        }
        let shown = text.escape_debug();
        let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
        let (address, port) = if let Ok(address) = text.parse::<IpAddr>() {
            (address, None)
        } else if let Some(address) = bracketed() {
            (address.into(), None)
        } else if let Ok(address) = text.parse::<SocketAddr>() {
            if matches!(address, SocketAddr::V6(v6) if v6.scope_id() != 0) {
                return Err(ValueError::new(format!(
                    "`{shown}`: a scope (%...) means nothing to a borrower; use a global or unique local address"
                )));
            }
            (address.ip(), Some(address.port()))
        } else {
            return Err(ValueError::new(format!(
                "`{shown}` is no address; write 10.0.0.1, 10.0.0.1:7411, fd00::1 or [fd00::1]:7411 (no host names), or \
                 eth:INTERFACE"
            )));
        };
        if port == Some(0) {
            return Err(ValueError::new("port 0 is none; leave it out to take a free one"));
        }
        if address.is_unspecified() || address.is_multicast() {
            return Err(ValueError::new(format!(
                "`{shown}` is not the address of one machine, but it is what the borrower is told to call"
            )));
        }
        Ok(Self::Udp { address, port })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp { address, port: Some(port) } => SocketAddr::new(*address, *port).fmt(f),
            Self::Udp { address, port: None } => address.fmt(f),
            Self::Ethernet { interface } => write!(f, "eth:{interface}"),
        }
    }
}

/// The port of a switch, for a rail that is there.
pub(crate) fn gateway(text: &str, rail: &Listen) -> Result<RailAddress, ValueError> {
    let shown = text.escape_debug();
    let address = text.parse().map_err(|why| ValueError::new(format!("`{shown}`: {why}")))?;
    check_gateway(address, rail)?;
    Ok(address)
}

/// Whether a rail that is there can have the port of a switch at this address.
pub(crate) fn check_gateway(address: RailAddress, rail: &Listen) -> Result<(), ValueError> {
    let why = match (address, rail) {
        (RailAddress::Udp(to), _) if to.port() == 0 || to.ip().is_unspecified() || to.ip().is_multicast() => {
            "is not the address of one switch with a port"
        }
        (RailAddress::Ethernet(mac), _) if !mac.is_unicast() => "is not the address of one interface",
        (RailAddress::Udp(to), Listen::Udp { address, .. }) if to.is_ipv4() == address.is_ipv4() => {
            return Ok(());
        }
        (RailAddress::Udp(_), Listen::Udp { .. }) => {
            "and the rail are of IPv4 and IPv6: it cannot be reached"
        }
        (RailAddress::Ethernet(_), Listen::Ethernet { .. }) => return Ok(()),
        (RailAddress::Udp(_), Listen::Ethernet { .. }) => "is of UDP: behind an interface is eth:MAC",
        (RailAddress::Ethernet(_), Listen::Udp { .. }) => {
            "is of Ethernet: behind an address of UDP is ADDR:PORT"
        }
    };
    Err(ValueError::new(format!("the switch {address} {why}")))
}

/// Checks that a path can be that of a Unix socket.
pub fn socket_path(text: OsString) -> Result<PathBuf, ValueError> {
    check_socket_path(Path::new(&text))?;
    Ok(text.into())
}

/// As [`socket_path`], for a path that exists as one.
pub fn check_socket_path(path: &Path) -> Result<(), ValueError> {
    let bytes = path.as_os_str().as_bytes();
    match bytes.len() {
        0 => Err(ValueError::new("the path of a socket cannot be empty")),
        _ if bytes.contains(&0) => Err(ValueError::new("the path of a socket cannot contain a zero byte")),
        length if length > SOCKET_PATH_MAX => Err(ValueError::new(format!(
            "the path of a socket has at most {SOCKET_PATH_MAX} bytes, this one {length}; choose a shorter one"
        ))),
        _ => Ok(()),
    }
}

/// A zone that functions are lent in.
pub(super) fn group(text: &str) -> Result<Group, ValueError> {
    let group = text.parse().ok().and_then(Group::new);
    group.ok_or_else(|| ValueError::new(format!("a group is a number from 1 to {}", Group::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_in_units_of_1024() {
        let bytes = |text: &str| text.parse::<ByteSize>().unwrap().0;
        assert_eq!(bytes("64k"), 64 << 10);
        assert_eq!(bytes("64KiB"), 64 << 10);
        assert_eq!(bytes("512M"), 512 << 20);
        assert_eq!(bytes("1G"), 1 << 30);
        assert_eq!(bytes("2tib"), 2 << 40);
        assert_eq!(bytes("4096"), 4096);
        for wrong in [
            "",
            "G",
            "1.5G",
            "1KB",
            "1 G",
            "-1",
            "+1",
            "1GG",
            "1iB",
            "0x10",
            "99999999999999999999",
            "16384P",
        ] {
            assert!(wrong.parse::<ByteSize>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_for_people() {
        let shown = |bytes: u64| ByteSize(bytes).to_string();
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(1000), "1000 B");
        assert_eq!(shown(1 << 30), "1 GiB");
        assert_eq!(shown(3 << 29), "1.5 GiB");
        assert_eq!(shown((2 << 30) - 1), "1.9 GiB");
        assert_eq!(shown(u64::MAX), "16383.9 PiB");
    }

    #[test]
    fn addresses_with_and_without_port() {
        let shown = |text: &str| text.parse::<Listen>().unwrap().to_string();
        assert_eq!(shown("10.0.0.1"), "10.0.0.1");
        assert_eq!(shown("10.0.0.1:80"), "10.0.0.1:80");
        assert_eq!(shown("fd00::1"), "fd00::1");
        assert_eq!(shown("[fd00::1]"), "fd00::1");
        assert_eq!(shown("[fd00::1]:80"), "[fd00::1]:80");
        assert_eq!(shown("eth:enp3s0.7"), "eth:enp3s0.7");
        for wrong in
            ["", "host:80", "10.0.0.1:", "10.0.0.1:0", "0.0.0.0", "[::]:5", "224.0.0.1", "[fe80::1%2]:7"]
        {
            assert!(wrong.parse::<Listen>().is_err(), "{wrong}");
        }
        for wrong in ["", "..", "a/b", "a:b", "a b", "sixteen-letters-"] {
            assert!(format!("eth:{wrong}").parse::<Listen>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_file_names() {
        for wrong in ["", ".", "..", "a/b", "-a", "a b", "ä", &"x".repeat(65)] {
            assert!(wrong.parse::<NodeName>().is_err(), "{wrong}");
        }
        assert_eq!(NodeName::cleaned("../my disk/ä").as_str(), "my-disk--");
        assert_eq!(NodeName::cleaned("...").as_str(), "node");
    }

    #[test]
    fn socket_paths_have_a_longest() {
        assert!(socket_path("x".repeat(107).into()).is_ok());
        assert!(socket_path("x".repeat(108).into()).is_err());
        assert!(socket_path(OsString::new()).is_err());
    }

    proptest! {
        #[test]
        fn exact_sizes_come_back(bytes in any::<u64>(), shift in 0u32..64) {
            let size = ByteSize(bytes << shift);
            prop_assert_eq!(size.exact().parse::<ByteSize>(), Ok(size));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = text.parse::<ByteSize>();
            let _ = text.parse::<Listen>();
            prop_assert!(NodeName::cleaned(&text).as_str().parse::<NodeName>().is_ok());
        }
    }
}
