//! `S.toml`: what `causeway switch --config` runs.
//!
//! ```toml
//! name = "s1"                         # default: the file's name without its ending
//! state_dir = "/var/lib/causeway/s1"
//! control = "10.0.0.9:7412"           # where `causeway switch ctl` reaches it; without it nobody moves ports
//!
//! [[ports]]
//! name = "store1"
//! listen = "10.0.1.1:7411"            # or, for raw Ethernet, ethernet = "eth1"; ports may share either
//! peer = "10.0.1.2:7411"              # whoever is behind it: a node's rail, or the port of a switch; or eth:MAC.
//!                                     # Over UDP it may be left out where there is a control: then it is told
//! nodes = ["9s3e..."]                 # ids of nodes (`causeway id`) that have no `domain_block`, and/or:
//! domains = ["4096/16"]               # BASE/LEN: a node's `domain_block`, or those of all nodes behind a switch
//! rails = [0]                         # of these rails; of all if left out
//! announce = false                    # the switch does not say there who it is
//!
//! [[ports]]
//! name = "up"
//! listen = "10.0.2.1:7411"
//! peer = "10.0.2.2:7411"
//! default = true                      # whatever is in no port's domains
//!
//! [[ports]]
//! name = "up2"
//! listen = "10.0.3.1:7411"
//! peer = "10.0.3.2:7411"
//! standby_for = "up"                  # used while that is not heard
//!
//! [[partitions]]                      # switches in the switch; without any, all ports and groups are together
//! name = "red"
//! ports = ["store1", "up", "up2"]
//! groups = [1, 2]                     # all if left out
//! owners = ["9s3e..."]                # ids of nodes that may take it, and then move its ports
//!
//! [[multicast]]
//! name = "news"
//! domains = ["262000/1"]              # what is sent there goes to each of these ports
//! ports = ["store1", "up"]
//! ```

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base::ids::{DomainBlock, Group, NodeId, RailId};
use io::address::RailAddress;
use manager::model::nearest_text;
use node::switch::{
    GroupSet, MAX_RANGES, MulticastSpec, PartitionSpec, PortSpec, PrefixRange, Subject, Table, TableError,
    TableSpec,
};
use serde::Deserialize;
use toml::Spanned;

use super::listen::Place;
use super::{ConfigError, Problem, read_text, toml_problem};
use crate::cli::{Listen, NodeName, PORT_FIRST};

/// Longest name of a port, partition or multicast group, in characters.
const NAME_MAX: usize = 32;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the keys of a switch")]
struct Raw {
    name: Option<Spanned<String>>,
    state_dir: Option<PathBuf>,
    control: Option<Spanned<String>>,
    #[serde(default)]
    ports: Vec<Spanned<RawPort>>,
    #[serde(default)]
    partitions: Vec<Spanned<RawPartition>>,
    #[serde(default)]
    multicast: Vec<Spanned<RawMulticast>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a port: [[ports]] with name, listen or ethernet, and peer")]
struct RawPort {
    name: Spanned<String>,
    listen: Option<Spanned<String>>,
    ethernet: Option<Spanned<String>>,
    peer: Option<Spanned<String>>,
    #[serde(default)]
    nodes: Vec<Spanned<String>>,
    #[serde(default)]
    domains: Vec<Spanned<String>>,
    rails: Option<Vec<Spanned<i64>>>,
    #[serde(default)]
    default: bool,
    standby_for: Option<Spanned<String>>,
    announce: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a partition: [[partitions]] with name and ports")]
struct RawPartition {
    name: Spanned<String>,
    ports: Vec<Spanned<String>>,
    groups: Option<Vec<Spanned<i64>>>,
    #[serde(default)]
    owners: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a multicast group: [[multicast]] with name, domains and ports")]
struct RawMulticast {
    name: Spanned<String>,
    domains: Vec<Spanned<String>>,
    ports: Vec<Spanned<String>>,
}

/// A switch as its file describes it.
#[derive(Debug, Clone)]
pub struct SwitchConfig {
    /// Its name.
    pub name: NodeName,
    /// Where key and identity are kept; `None` is the default place of this name.
    pub state_dir: Option<PathBuf>,
    /// Where it can be told of its ports.
    pub control: Option<SocketAddr>,
    /// Where its ports are, in the order of the table.
    pub ports: Vec<SwitchPort>,
    /// What leads where.
    pub table: Table,
    /// What that was made by.
    pub spec: TableSpec,
    /// Of each partition, who may take it.
    pub owners: Vec<Vec<NodeId>>,
}

/// Where a port is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchPort {
    /// Its name.
    pub name: String,
    /// The local address with a port, or the interface.
    pub listen: Listen,
    /// Whoever is behind it; `None`: it will be told.
    pub peer: Option<RailAddress>,
    /// The switch says there who it is.
    pub announces: bool,
}

/// Why nobody can be behind a port there.
pub(crate) fn peer_problem(peer: RailAddress, listen: Option<&Listen>) -> Option<&'static str> {
    Some(match (peer, listen) {
        (RailAddress::Udp(to), _) if to.port() == 0 || to.ip().is_unspecified() || to.ip().is_multicast() => {
            "this is not the address of one machine with a port"
        }
        (RailAddress::Ethernet(mac), _) if !mac.is_unicast() => "this is not the address of one interface",
        (RailAddress::Udp(to), Some(Listen::Udp { address, .. })) if to.is_ipv4() != address.is_ipv4() => {
            "`listen` and `peer` are of IPv4 and IPv6: nothing would reach the other"
        }
        (RailAddress::Udp(to), Some(Listen::Udp { address, port }))
            if to.ip() == *address && Some(to.port()) == *port =>
        {
            "this is the port's own address: name that of whoever is behind it"
        }
        (RailAddress::Udp(_), Some(Listen::Ethernet { .. })) => {
            "behind an interface is an address of Ethernet: peer = \"eth:MAC\""
        }
        (RailAddress::Ethernet(_), Some(Listen::Udp { .. })) => {
            "behind an address of UDP is another: peer = \"ADDR:PORT\""
        }
        _ => return None,
    })
}

impl SwitchConfig {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// It cannot be read, or is wrong: all that is wrong with it.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let path = &std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self::parse(&read_text(path)?, path)
    }

    /// Checks the text of a file. `path` is for messages, for the default name and for relative paths.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let wrong = |problems| ConfigError::Wrong { path: path.to_owned(), problems };
        let raw: Raw = toml::from_str(text).map_err(|error| wrong(vec![toml_problem(text, &error)]))?;
        let mut check = Check { text, problems: Vec::new() };
        let config = check.config(raw, path);
        match (config, check.problems) {
            (Some(config), problems) if problems.is_empty() => Ok(config),
            (_, mut problems) => {
                problems.sort_by_key(|problem| (problem.line, problem.column));
                Err(wrong(problems))
            }
        }
    }
}

struct Check<'a> {
    text: &'a str,
    problems: Vec<Problem>,
}

impl Check<'_> {
    fn config(&mut self, raw: Raw, path: &Path) -> Option<SwitchConfig> {
        let name = match &raw.name {
            Some(name) => self.parsed::<NodeName>(name),
            None => Some(NodeName::cleaned(&path.file_stem().unwrap_or_default().to_string_lossy())),
        };
        let state_dir = raw.state_dir.as_ref().map(|dir| path.parent().unwrap_or(Path::new("")).join(dir));
        if raw.ports.len() < 2 {
            let what = "a switch needs two ports at least: add [[ports]] with name, listen and peer";
            self.wrong(self.text.len(), what);
        }
        let names: Vec<&str> = raw.ports.iter().map(|port| port.get_ref().name.get_ref().as_str()).collect();
        self.names_twice(&raw.ports, &names);
        let places: Vec<Option<SwitchPort>> =
            raw.ports.iter().map(|port| self.place(port.get_ref(), raw.control.is_some())).collect();
        self.places_twice(&raw.ports, &places);
        let ports = raw.ports.iter().map(|port| self.port(port.get_ref(), &names)).collect();
        let partitions = raw.partitions.iter().map(|it| self.partition(it.get_ref(), &names)).collect();
        let multicasts = raw.multicast.iter().map(|it| self.multicast(it.get_ref(), &names)).collect();
        let owners = raw.partitions.iter().map(|it| self.owners(it.get_ref())).collect();
        let control = raw.control.as_ref().and_then(|address| self.control(address));
        // What is known to be wrong would only be said once more, in other words.
        if !self.problems.is_empty() {
            return None;
        }
        let spec = TableSpec { fabric: 0, ports, partitions, multicasts };
        let table = Table::new(spec.clone());
        let table = table.map_err(|problems| {
            for problem in problems {
                let at = match problem.subject {
                    Subject::Switch => Some(0),
                    Subject::Port(at) => raw.ports.get(at).map(|it| it.get_ref().name.span().start),
                    Subject::Partition(at) => raw.partitions.get(at).map(|it| it.get_ref().name.span().start),
                    Subject::Multicast(at) => raw.multicast.get(at).map(|it| it.get_ref().name.span().start),
                };
                self.wrong(at.unwrap_or(self.text.len()), problem.error);
            }
        });
        Some(SwitchConfig {
            name: name?,
            state_dir,
            control,
            ports: places.into_iter().collect::<Option<_>>()?,
            table: table.ok()?,
            spec,
            owners,
        })
    }

    fn name(&mut self, name: &Spanned<String>) -> String {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let text = name.get_ref();
        if text.is_empty() || text.len() > NAME_MAX || !text.chars().all(allowed) {
            let shown = text.escape_debug();
            let what = format!("`{shown}` is no name here: 1 to {NAME_MAX} letters, digits, `.`, `_`, `-`");
            self.wrong(name.span().start, what);
        }
        text.clone()
    }

    /// Where a port listens, and for whom.
    fn place(&mut self, raw: &RawPort, has_control: bool) -> Option<SwitchPort> {
        let name = self.name(&raw.name);
        let place = Place {
            of: "port",
            example: "ADDR:PORT",
            at: raw.name.span().start,
            listen: raw.listen.as_ref(),
            ethernet: raw.ethernet.as_ref(),
        };
        let listen = match place.find() {
            Ok(Listen::Udp { address, port }) => {
                Some(Listen::Udp { address, port: port.or(Some(PORT_FIRST)) })
            }
            Ok(listen) => Some(listen),
            Err((at, what)) => {
                self.wrong(at, what);
                None
            }
        };
        let peer = match &raw.peer {
            Some(peer) => Some(self.peer(peer, listen.as_ref())?),
            None if has_control && matches!(listen, Some(Listen::Udp { .. })) => None,
            None => {
                let what = "who is behind this port? Add peer = \"ADDR:PORT\" or \"eth:MAC\"; over UDP, and with a \
                            `control`, it may be told instead (`causeway switch ctl URL peer`)";
                self.wrong(raw.name.span().start, what);
                return None;
            }
        };
        Some(SwitchPort { name, listen: listen?, peer, announces: raw.announce.unwrap_or(true) })
    }

    fn peer(&mut self, raw: &Spanned<String>, listen: Option<&Listen>) -> Option<RailAddress> {
        let at = raw.span().start;
        let peer: RailAddress = match raw.get_ref().parse() {
            Ok(peer) => peer,
            Err(why) => {
                self.wrong(at, format_args!("`{}`: {why}", raw.get_ref().escape_debug()));
                return None;
            }
        };
        match peer_problem(peer, listen) {
            None => Some(peer),
            Some(why) => {
                self.wrong(at, why);
                None
            }
        }
    }

    /// Two ports of one socket differ by who is behind them.
    fn places_twice(&mut self, raw: &[Spanned<RawPort>], places: &[Option<SwitchPort>]) {
        for (at, place) in places.iter().enumerate() {
            let Some(place) = place.as_ref().filter(|place| place.peer.is_some()) else { continue };
            let is_same = |it: &&SwitchPort| (&it.listen, it.peer) == (&place.listen, place.peer);
            if let Some(other) = places[..at].iter().flatten().find(is_same) {
                let what = format!(
                    "port `{}` has this peer at {} already: what comes from there can be of one port only",
                    other.name, other.listen
                );
                let at = raw[at].get_ref().peer.as_ref().map_or(0, |peer| peer.span().start);
                self.wrong(at, what);
            }
        }
    }

    /// Said here, since whatever refers to the other one of the two would be wrong for want of its name.
    fn names_twice(&mut self, raw: &[Spanned<RawPort>], names: &[&str]) {
        for (at, name) in names.iter().enumerate().filter(|(at, name)| names[..*at].contains(name)) {
            let error = TableError::TwoNames { what: "port", name: (*name).to_owned() };
            self.wrong(raw[at].get_ref().name.span().start, error);
        }
    }

    fn port(&mut self, raw: &RawPort, names: &[&str]) -> PortSpec {
        let rails = self.rails(raw.rails.as_deref());
        let mut ranges = self.domains(&raw.domains, &rails);
        for node in &raw.nodes {
            let Some(block) = self.parsed::<NodeId>(node).map(DomainBlock::of) else { continue };
            // Domain 0 is nobody's, also where it is the first of a block.
            let (base, len) =
                if block.base() == 0 { (1, block.len() - 1) } else { (block.base(), block.len()) };
            ranges.extend(rails.iter().filter_map(|rail| PrefixRange::new(*rail, base, len)));
        }
        let standby_for = raw.standby_for.as_ref().and_then(|of| self.known(of, names));
        PortSpec { name: raw.name.get_ref().clone(), ranges, is_default: raw.default, standby_for }
    }

    fn rails(&mut self, raw: Option<&[Spanned<i64>]>) -> Vec<RailId> {
        let Some(raw) = raw else { return RailId::ALL.to_vec() };
        let mut rails = Vec::new();
        for rail in raw {
            match u8::try_from(*rail.get_ref()).ok().and_then(RailId::new) {
                Some(id) if !rails.contains(&id) => rails.push(id),
                Some(id) => self.wrong(rail.span().start, format_args!("rail {id} stands here already")),
                None => {
                    let last = RailId::COUNT - 1;
                    self.wrong(rail.span().start, format_args!("a rail is a number from 0 to {last}"));
                }
            }
        }
        rails
    }

    fn domains(&mut self, raw: &[Spanned<String>], rails: &[RailId]) -> Vec<PrefixRange> {
        let mut ranges = Vec::new();
        for text in raw.iter().take(MAX_RANGES) {
            let parts = text.get_ref().split_once('/');
            let parts = parts.and_then(|(base, len)| Some((base.parse().ok()?, len.parse().ok()?)));
            let found =
                parts.filter(|(base, len)| PrefixRange::new(RailId::default(), *base, *len).is_some());
            let Some((base, len)) = found else {
                let shown = text.get_ref().escape_debug();
                let what = format!(
                    "`{shown}` are no domains: BASE/LEN, such as 4096/16, is LEN domains from BASE on, the last below \
                     262144; domain 0 is nobody's"
                );
                self.wrong(text.span().start, what);
                continue;
            };
            ranges.extend(rails.iter().filter_map(|rail| PrefixRange::new(*rail, base, len)));
        }
        ranges
    }

    fn partition(&mut self, raw: &RawPartition, names: &[&str]) -> PartitionSpec {
        let name = self.name(&raw.name);
        let groups = match &raw.groups {
            None => GroupSet::all(),
            Some(list) => {
                let mut groups = GroupSet::none();
                for number in list {
                    match Group::new(*number.get_ref()) {
                        Some(group) => groups.insert(group),
                        None => {
                            let what = format!("group {} is none: 1 to {}", number.get_ref(), Group::MAX);
                            self.wrong(number.span().start, what);
                        }
                    }
                }
                groups
            }
        };
        PartitionSpec { name, ports: self.all_known(&raw.ports, names), groups }
    }

    fn owners(&mut self, raw: &RawPartition) -> Vec<NodeId> {
        raw.owners.iter().filter_map(|node| self.parsed::<NodeId>(node)).collect()
    }

    /// An address that whoever moves ports can be told.
    fn control(&mut self, raw: &Spanned<String>) -> Option<SocketAddr> {
        let address = raw.get_ref().parse::<SocketAddr>().ok();
        let usable = address.filter(|at| !at.ip().is_unspecified() && !at.ip().is_multicast());
        if usable.is_none() {
            let what = "control is an address of this machine with a port, such as \"10.0.0.9:7412\"";
            self.wrong(raw.span().start, what);
        }
        usable
    }

    fn multicast(&mut self, raw: &RawMulticast, names: &[&str]) -> MulticastSpec {
        let name = self.name(&raw.name);
        let ranges = self.domains(&raw.domains, &RailId::ALL);
        MulticastSpec { name, ranges, ports: self.all_known(&raw.ports, names) }
    }

    fn all_known(&mut self, ports: &[Spanned<String>], names: &[&str]) -> Vec<usize> {
        ports.iter().filter_map(|port| self.known(port, names)).collect()
    }

    fn known(&mut self, port: &Spanned<String>, names: &[&str]) -> Option<usize> {
        let found = names.iter().position(|name| *name == port.get_ref());
        if found.is_none() {
            let shown = port.get_ref().escape_debug();
            let hint = match nearest_text(port.get_ref(), names.iter().copied()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("there are: {}", names.join(", ")),
            };
            self.wrong(port.span().start, format_args!("there is no port `{shown}`; {hint}"));
        }
        found
    }

    fn parsed<T: FromStr<Err: Display>>(&mut self, text: &Spanned<String>) -> Option<T> {
        text.get_ref().parse().map_err(|error| self.wrong(text.span().start, error)).ok()
    }

    fn wrong(&mut self, at: usize, what: impl Display) {
        self.problems.push(Problem::at(self.text, at, what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[[ports]]
name = "a"
listen = "10.0.0.1"
peer = "10.0.0.2:7411"
domains = ["4096/16", "8192/1"]
rails = [0, 2]

[[ports]]
name = "b"
ethernet = "eth1"
peer = "eth:02:00:5e:10:00:01"
nodes = ["00000000000000000000000000000000"]

[[ports]]
name = "c"
listen = "10.0.0.1"
peer = "10.0.0.3:7411"
default = true

[[ports]]
name = "d"
listen = "[fd00::1]:9"
peer = "[fd00::2]:9"
standby_for = "c"

[[partitions]]
name = "all"
ports = ["a", "b", "c", "d"]
groups = [1, 4094]

[[multicast]]
name = "news"
domains = ["200000/2"]
ports = ["a", "b"]
"#;

    fn problems(text: &str) -> Vec<String> {
        match SwitchConfig::parse(text, Path::new("s1.toml")) {
            Err(ConfigError::Wrong { problems, .. }) => {
                problems.iter().map(|it| format!("{}: {}", it.line, it.what)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_becomes_a_switch() {
        let config = SwitchConfig::parse(GOOD, Path::new("s1.toml")).unwrap();
        assert_eq!(config.name.as_str(), "s1");
        assert_eq!(config.ports[0].listen.to_string(), "10.0.0.1:7411", "the usual port");
        assert_eq!(config.ports[1].peer.unwrap().to_string(), "eth:02:00:5e:10:00:01");
        let names: Vec<_> = config.table.ports().map(|(_, name, partition)| (name, partition)).collect();
        assert_eq!(names, [("a", "all"), ("b", "all"), ("c", "all"), ("d", "all")]);
    }

    /// Each is one change of the good one; the words say line, fault and remedy.
    #[test]
    fn what_cannot_be_is_refused_with_its_line() {
        for (is, other, line, words) in [
            ("4096/16", "4096/0", 6, "LEN domains from BASE on"),
            ("4096/16", "0/16", 6, "domain 0 is nobody's"),
            ("4096/16", "262143/2", 6, "below 262144"),
            ("4096/16", "x", 6, "`x` are no domains"),
            ("8192/1", "4100/1", 3, "overlap with 4096/16 on rail 0 of `a`"),
            ("200000/2", "4111/1", 33, "overlap with 4096/16 on rail 0 of `a`"),
            ("[0, 2]", "[0, 4]", 7, "a rail is a number from 0 to 3"),
            ("[0, 2]", "[0, 0]", 7, "rail 0 stands here already"),
            ("10.0.0.2:7411", "eth:02:00:5e:10:00:02", 5, "peer = \"ADDR:PORT\""),
            ("10.0.0.2:7411", "[fd00::3]:7411", 5, "IPv4 and IPv6"),
            ("10.0.0.2:7411", "10.0.0.1:7411", 5, "the port's own address"),
            ("10.0.0.2:7411", "10.0.0.2:0", 5, "not the address of one machine"),
            ("10.0.0.2:7411", "10.0.0.2", 5, "ADDR:PORT"),
            ("10.0.0.3:7411", "10.0.0.2:7411", 18, "port `a` has this peer at 10.0.0.1:7411 already"),
            ("eth:02:00:5e:10:00:01", "eth:ff:ff:ff:ff:ff:ff", 12, "not the address of one interface"),
            ("eth:02:00:5e:10:00:01", "10.0.0.9:1", 12, "peer = \"eth:MAC\""),
            ("ethernet = \"eth1\"", "", 10, "listen = \"ADDR:PORT\" or ethernet"),
            ("ethernet = \"eth1\"", "ethernet = \"eth1\"\nlisten = \"10.0.0.1\"", 11, "not both"),
            ("00000000000000000000000000000000", "me", 13, "a node's id has"),
            ("default = true", "", 16, "nothing lies behind this port"),
            ("standby_for = \"c\"", "standby_for = \"cc\"", 25, "did you mean `c`?"),
            ("standby_for = \"c\"", "standby_for = \"d\"", 22, "cannot stand by for itself"),
            ("\"d\"]\ngroups", "\"e\"]\ngroups", 29, "there is no port `e`"),
            ("[1, 4094]", "[0]", 30, "group 0 is none: 1 to 4094"),
            ("[1, 4094]", "[]", 28, "this partition has no groups"),
            ("[1, 4094]", "[1]\nowners = [\"me\"]", 31, "a node's id has"),
            (
                "[[ports]]\nname = \"a\"",
                "control = \"0.0.0.0:7412\"\n[[ports]]\nname = \"a\"",
                2,
                "control is an address",
            ),
            ("ports = [\"a\", \"b\", \"c\", \"d\"]", "ports = [\"b\", \"c\", \"d\"]", 3, "in no partition"),
            ("name = \"b\"", "name = \"a\"", 10, "port `a` is there already"),
            ("name = \"b\"", "name = \"b b\"", 10, "`b b` is no name here"),
            ("default = true", "defalt = true", 19, "did you mean `default`?"),
        ] {
            assert!(GOOD.contains(is), "{is}");
            let found = problems(&GOOD.replacen(is, other, 1));
            let expected = |it: &String| it.starts_with(&format!("{line}: ")) && it.contains(words);
            assert!(found.iter().any(expected), "{is} -> {other}: {found:?}");
        }
        let twice = format!("{GOOD}\n[[partitions]]\nname = \"more\"\nports = [\"b\"]\n");
        assert!(problems(&twice)[0].contains("port `b` is in partition `all` already"));
        assert!(problems("")[0].contains("needs two ports at least"));
    }
}
