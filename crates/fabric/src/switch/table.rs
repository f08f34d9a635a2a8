//! What a switch is made by: ports with their ranges, partitions, multicast groups; and what cannot be one.

use core::fmt;

use base::frame::Prefix;
use base::ids::{DomainId, Group, RailId};

use super::{MAX_MULTICASTS, MAX_PARTITIONS, MAX_PORTS, MAX_RANGES, PortId, PortSet};

/// Prefixes that follow each other: those of some domains on one rail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PrefixRange {
    base: u32,
    limit: u32,
}

impl PrefixRange {
    /// `len` domains from `base` on, on `rail`. `None` unless they are domains of a fabric; zero is nobody's.
    pub fn new(rail: RailId, base: u32, len: u32) -> Option<Self> {
        let last = base.checked_add(len.checked_sub(1)?)?;
        let prefix = |domain| Prefix { rail, domain: DomainId(domain) }.bits();
        (base > 0 && last >> DomainId::BITS == 0).then(|| Self { base: prefix(base), limit: prefix(last) })
    }

    fn overlaps(self, other: Self) -> bool {
        self.base <= other.limit && other.base <= self.limit
    }
}

/// `rail 1: 4096/16`.
impl fmt::Display for PrefixRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Prefix { rail, domain } = Prefix::from_bits(self.base);
        write!(f, "{}/{} on rail {rail}", domain.0, self.limit - self.base + 1)
    }
}

/// Some groups.
#[derive(Clone, PartialEq, Eq)]
pub struct GroupSet(Box<[u64; (Group::MAX.0 as usize).div_ceil(64)]>);

impl GroupSet {
    /// None.
    pub fn none() -> Self {
        Self(Box::new([0; _]))
    }

    /// All that there can be.
    pub fn all() -> Self {
        let mut all = Self::none();
        (1..=Group::MAX.0).for_each(|group| all.insert(Group(group)));
        all
    }

    /// Puts one in.
    pub fn insert(&mut self, group: Group) {
        if let Some(word) = self.0.get_mut(usize::from(group.0) / 64) {
            *word |= 1 << (group.0 % 64);
        }
    }

    /// Whether one is in it. No group is what cannot be one.
    pub fn contains(&self, group: Group) -> bool {
        self.0.get(usize::from(group.0) / 64).is_some_and(|word| word >> (group.0 % 64) & 1 == 1)
    }

    /// The one with the least number.
    pub fn first(&self) -> Option<Group> {
        let (at, word) = (0..).zip(self.0.iter()).find(|(_, word)| **word != 0)?;
        Some(Group(64 * at + word.trailing_zeros() as u16))
    }
}

impl fmt::Debug for GroupSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries((1..=Group::MAX.0).filter(|group| self.contains(Group(*group)))).finish()
    }
}

/// A port as somebody wants it.
#[derive(Clone, Debug)]
pub struct PortSpec {
    /// Its name.
    pub name: String,
    /// What lies behind it.
    pub ranges: Vec<PrefixRange>,
    /// What lies in no port's range lies behind it, too.
    pub is_default: bool,
    /// It leads to the same as this port, for which it stands by.
    pub standby_for: Option<usize>,
}

/// A switch of its own within a switch (PCIe 6.0 §2.9 calls the like a virtual hierarchy).
#[derive(Clone, Debug)]
pub struct PartitionSpec {
    /// Its name.
    pub name: String,
    /// Its ports.
    pub ports: Vec<usize>,
    /// The groups whose frames may pass.
    pub groups: GroupSet,
}

/// What is sent to any of these prefixes is for several (PCIe 6.0 §6.14 has the same with addresses).
#[derive(Clone, Debug)]
pub struct MulticastSpec {
    /// Its name.
    pub name: String,
    /// Its prefixes, which are no node's.
    pub ranges: Vec<PrefixRange>,
    /// Those who get it, ports of one partition.
    pub ports: Vec<usize>,
}

/// A switch as somebody wants it.
#[derive(Clone, Debug, Default)]
pub struct TableSpec {
    /// Of other fabrics nothing is forwarded.
    pub fabric: u32,
    /// Its ports.
    pub ports: Vec<PortSpec>,
    /// Its partitions; none: one of all ports and groups.
    pub partitions: Vec<PartitionSpec>,
    /// Its multicast groups.
    pub multicasts: Vec<MulticastSpec>,
}

/// What of a specification is meant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Subject {
    /// All of it.
    Switch,
    /// The port in this place.
    Port(usize),
    /// The partition in this place.
    Partition(usize),
    /// The multicast group in this place.
    Multicast(usize),
}

/// Something that is wrong, and with what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableProblem {
    /// With what.
    pub subject: Subject,
    /// What.
    pub error: TableError,
}

/// Why a specification cannot be a switch.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the messages say what the values are")]
pub enum TableError {
    TooMany { what: &'static str, most: usize },
    TwoNames { what: &'static str, name: String },
    Overlap { range: PrefixRange, with: PrefixRange, of: String },
    TwoDefaults { other: String },
    Nothing,
    StandbyWithRanges,
    StandbyOfItself,
    StandbyOfStandby { of: String },
    SecondStandby { of: String, other: String },
    StandbyElsewhere { of: String },
    TwoPartitions { port: String, other: String },
    NoPartition,
    NoGroups,
    MulticastAcross { port: String, other: String },
    MulticastToStandby { port: String },
    MulticastToNobody,
    NoSuchPort,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { what, most } => write!(f, "a switch has at most {most} {what}"),
            Self::TwoNames { what, name } => {
                write!(f, "{what} `{name}` is there already: choose another name")
            }
            Self::Overlap { range, with, of } => write!(
                f,
                "the domains {range} overlap with {with} of `{of}`: a switch could not tell where a frame for both is \
                 to leave; give each its own"
            ),
            Self::TwoDefaults { other } => {
                write!(f, "port `{other}` of the same partition is the default already: only one can be")
            }
            Self::Nothing => {
                write!(f, "nothing lies behind this port: give it domains, or make it the default")
            }
            Self::StandbyWithRanges => write!(
                f,
                "a port that stands by for another leads to the same as that: leave out its own domains and `default`"
            ),
            Self::StandbyOfItself => write!(f, "a port cannot stand by for itself"),
            Self::StandbyOfStandby { of } => {
                write!(f, "port `{of}` stands by for another itself: name that one")
            }
            Self::SecondStandby { of, other } => write!(f, "port `{other}` stands by for `{of}` already"),
            Self::StandbyElsewhere { of } => {
                write!(f, "port `{of}`, for which it stands by, is in another partition")
            }
            Self::TwoPartitions { port, other } => write!(
                f,
                "port `{port}` is in partition `{other}` already: a port is in one; give the other one a port of \
                 its own"
            ),
            Self::NoPartition => write!(f, "this port is in no partition: put it into one"),
            Self::NoGroups => write!(f, "this partition has no groups, so nothing could pass: give it some"),
            Self::MulticastAcross { port, other } => {
                write!(f, "ports `{other}` and `{port}` are in different partitions")
            }
            Self::MulticastToStandby { port } => {
                write!(
                    f,
                    "port `{port}` stands by for another: name that one, which it is used for if need be"
                )
            }
            Self::MulticastToNobody => write!(f, "nobody would get this: name ports and domains"),
            Self::NoSuchPort => write!(f, "there is no such port"),
        }
    }
}

impl core::error::Error for TableError {}

/// Where a prefix leads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    Port(PortId),
    /// One of the table's multicast groups.
    Multicast(u16),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    range: PrefixRange,
    target: Target,
}

/// A partition, ready for use.
#[derive(Clone, Debug)]
pub(super) struct Partition {
    name: String,
    pub(super) groups: GroupSet,
    /// Sorted; no two overlap.
    entries: Vec<Entry>,
    default: Option<PortId>,
    /// Its ports, but for those that stand by for others.
    pub(super) homes: PortSet,
}

impl Partition {
    /// Where a prefix leads.
    pub(super) fn find(&self, prefix: u32) -> Option<Target> {
        let next = self.entries.partition_point(|entry| entry.range.base <= prefix);
        let entry = next.checked_sub(1).and_then(|at| self.entries.get(at));
        match entry.filter(|entry| prefix <= entry.range.limit) {
            Some(entry) => Some(entry.target),
            None => self.default.map(Target::Port),
        }
    }
}

#[derive(Clone, Debug)]
struct Port {
    name: String,
    partition: usize,
    /// The port that it stands by for.
    standby_for: Option<PortId>,
    /// The port that stands by for it.
    standby: Option<PortId>,
}

impl TableSpec {
    /// The name of what a problem is about, if it has one.
    pub fn name_of(&self, subject: Subject) -> Option<&str> {
        match subject {
            Subject::Switch => None,
            Subject::Port(at) => self.ports.get(at).map(|port| port.name.as_str()),
            Subject::Partition(at) => self.partitions.get(at).map(|it| it.name.as_str()),
            Subject::Multicast(at) => self.multicasts.get(at).map(|it| it.name.as_str()),
        }
    }
}

/// Where everything leads. Nothing overlaps, and each port is in one partition.
#[derive(Clone, Debug)]
pub struct Table {
    fabric: u32,
    ports: Vec<Port>,
    partitions: Vec<Partition>,
    /// Who gets what is sent to each multicast group.
    multicasts: Vec<PortSet>,
}

impl Table {
    /// The table of a specification.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn new(spec: TableSpec) -> Result<Self, Vec<TableProblem>> {
        let mut check = Check { spec: &spec, problems: Vec::new() };
        check.sizes_and_names();
        // What has too many parts is not looked at further.
        if !check.problems.is_empty() {
            return Err(check.problems);
        }
        let partition_of = check.partitions();
        check.standbys(&partition_of);
        check.defaults(&partition_of);
        let members = check.multicasts(&partition_of);
        check.overlaps(&partition_of, &members);
        match check.problems {
            problems if !problems.is_empty() => Err(problems),
            _ => Ok(Self::build(spec, &partition_of, &members)),
        }
    }

    fn build(spec: TableSpec, partition_of: &[usize], members: &[Option<usize>]) -> Self {
        let id =
            |port: usize| PortId::new(port).expect("there are no more than MAX_PORTS, which was checked");
        let mut partitions: Vec<Partition> = effective(&spec)
            .map(|(name, groups)| Partition {
                name,
                groups,
                entries: Vec::new(),
                default: None,
                homes: PortSet::default(),
            })
            .collect();
        for (port, it) in spec.ports.iter().enumerate() {
            let partition = &mut partitions[partition_of[port]];
            let target = Target::Port(id(port));
            partition.entries.extend(it.ranges.iter().map(|range| Entry { range: *range, target }));
            if it.is_default {
                partition.default = Some(id(port));
            }
            if it.standby_for.is_none() {
                partition.homes.insert(id(port));
            }
        }
        for ((at, multicast), partition) in (0..).zip(&spec.multicasts).zip(members) {
            let target = Target::Multicast(at);
            // One without a partition has no ports, which was refused.
            let Some(partition) = partition.and_then(|at| partitions.get_mut(at)) else { continue };
            partition.entries.extend(multicast.ranges.iter().map(|range| Entry { range: *range, target }));
        }
        partitions.iter_mut().for_each(|it| it.entries.sort_by_key(|entry| entry.range));
        let standby = |of: usize| spec.ports.iter().position(|port| port.standby_for == Some(of)).map(id);
        let ports = spec.ports.iter().enumerate().map(|(at, port)| Port {
            name: port.name.clone(),
            partition: partition_of[at],
            standby_for: port.standby_for.map(id),
            standby: standby(at),
        });
        let members = |it: &MulticastSpec| it.ports.iter().map(|port| id(*port)).collect();
        let multicasts = spec.multicasts.iter().map(members).collect();
        Self { fabric: spec.fabric, ports: ports.collect(), partitions, multicasts }
    }

    /// Which fabric.
    pub fn fabric(&self) -> u32 {
        self.fabric
    }

    /// All ports, with their names and those of their partitions.
    pub fn ports(&self) -> impl Iterator<Item = (PortId, &str, &str)> {
        self.ports.iter().enumerate().filter_map(|(at, port)| {
            Some((PortId::new(at)?, port.name.as_str(), self.partitions[port.partition].name.as_str()))
        })
    }

    /// The port that stands by for this one.
    pub fn standby_of(&self, port: PortId) -> Option<PortId> {
        self.ports[port.index()].standby
    }

    /// The port that this one stands by for.
    pub fn stands_by_for(&self, port: PortId) -> Option<PortId> {
        self.ports[port.index()].standby_for
    }

    /// Whether another port leads to the same as this one.
    pub(super) fn is_of_pair(&self, port: PortId) -> bool {
        self.standby_of(port).or(self.stands_by_for(port)).is_some()
    }

    /// The first group that may pass at a port, if any may.
    pub fn first_group(&self, port: PortId) -> Option<Group> {
        self.partition_of(port).groups.first()
    }

    pub(super) fn partition_of(&self, port: PortId) -> &Partition {
        &self.partitions[self.ports[port.index()].partition]
    }

    /// Who gets what is sent to a multicast group.
    pub(super) fn members(&self, multicast: u16) -> PortSet {
        self.multicasts.get(usize::from(multicast)).copied().unwrap_or_default()
    }

    /// Whether what lies behind `home` is reached by `port`: the same, or one that stands by for it.
    pub(super) fn is_way(&self, home: PortId, port: PortId) -> bool {
        home == port || self.standby_of(home) == Some(port)
    }
}

/// The partitions that a specification has in effect.
fn effective(spec: &TableSpec) -> impl Iterator<Item = (String, GroupSet)> {
    let all = spec.partitions.is_empty().then(|| ("all".to_owned(), GroupSet::all()));
    all.into_iter().chain(spec.partitions.iter().map(|it| (it.name.clone(), it.groups.clone())))
}

struct Check<'a> {
    spec: &'a TableSpec,
    problems: Vec<TableProblem>,
}

impl Check<'_> {
    fn wrong(&mut self, subject: Subject, error: TableError) {
        self.problems.push(TableProblem { subject, error });
    }

    fn name(&self, port: usize) -> String {
        self.spec.ports.get(port).map_or_else(String::new, |port| port.name.clone())
    }

    fn sizes_and_names(&mut self) {
        let spec = self.spec;
        let too_many = |what, most| TableError::TooMany { what, most };
        if spec.ports.len() > MAX_PORTS {
            self.wrong(Subject::Port(MAX_PORTS), too_many("ports", MAX_PORTS));
        }
        if spec.partitions.len() > MAX_PARTITIONS {
            self.wrong(Subject::Partition(MAX_PARTITIONS), too_many("partitions", MAX_PARTITIONS));
        }
        if spec.multicasts.len() > MAX_MULTICASTS {
            self.wrong(Subject::Multicast(MAX_MULTICASTS), too_many("multicast groups", MAX_MULTICASTS));
        }
        let ranges = spec.ports.iter().map(|port| port.ranges.len());
        let ranges = ranges.chain(spec.multicasts.iter().map(|it| it.ranges.len()));
        if ranges.sum::<usize>() > MAX_RANGES {
            self.wrong(Subject::Switch, too_many("ranges of domains", MAX_RANGES));
        }
        let names = |count: usize, name: &dyn Fn(usize) -> String| -> Vec<(usize, String)> {
            let all: Vec<String> = (0..count).map(name).collect();
            let twice = |at: &usize| all[..*at].contains(&all[*at]);
            (0..count).filter(twice).map(|at| (at, all[at].clone())).collect()
        };
        for (at, name) in names(spec.ports.len().min(MAX_PORTS), &|at| spec.ports[at].name.clone()) {
            self.wrong(Subject::Port(at), TableError::TwoNames { what: "port", name });
        }
        let count = spec.partitions.len().min(MAX_PARTITIONS);
        for (at, name) in names(count, &|at| spec.partitions[at].name.clone()) {
            self.wrong(Subject::Partition(at), TableError::TwoNames { what: "partition", name });
        }
        let count = spec.multicasts.len().min(MAX_MULTICASTS);
        for (at, name) in names(count, &|at| spec.multicasts[at].name.clone()) {
            self.wrong(Subject::Multicast(at), TableError::TwoNames { what: "multicast group", name });
        }
        let ports = spec.ports.len();
        let mut named: Vec<(Subject, usize)> = Vec::new();
        let standbys = spec.ports.iter().enumerate();
        named.extend(standbys.filter_map(|(at, port)| Some((Subject::Port(at), port.standby_for?))));
        let partitions = spec.partitions.iter().enumerate();
        named.extend(
            partitions.flat_map(|(at, it)| it.ports.iter().map(move |port| (Subject::Partition(at), *port))),
        );
        let multicasts = spec.multicasts.iter().enumerate();
        named.extend(
            multicasts.flat_map(|(at, it)| it.ports.iter().map(move |port| (Subject::Multicast(at), *port))),
        );
        for (subject, _) in named.into_iter().filter(|(_, port)| *port >= ports) {
            self.wrong(subject, TableError::NoSuchPort);
        }
    }

    /// The partition of each port.
    fn partitions(&mut self) -> Vec<usize> {
        let spec = self.spec;
        let mut partition_of: Vec<Option<usize>> =
            vec![spec.partitions.is_empty().then_some(0); spec.ports.len()];
        for (at, partition) in spec.partitions.iter().enumerate() {
            if partition.groups == GroupSet::none() {
                self.wrong(Subject::Partition(at), TableError::NoGroups);
            }
            for port in &partition.ports {
                match partition_of[*port] {
                    Some(other) if other != at => {
                        let other = spec.partitions[other].name.clone();
                        let error = TableError::TwoPartitions { port: self.name(*port), other };
                        self.wrong(Subject::Partition(at), error);
                    }
                    _ => partition_of[*port] = Some(at),
                }
            }
        }
        for port in (0..spec.ports.len()).filter(|port| partition_of[*port].is_none()) {
            self.wrong(Subject::Port(port), TableError::NoPartition);
        }
        partition_of.into_iter().map(Option::unwrap_or_default).collect()
    }

    fn standbys(&mut self, partition_of: &[usize]) {
        let spec = self.spec;
        for (at, port) in spec.ports.iter().enumerate() {
            let Some(of) = port.standby_for else {
                if port.ranges.is_empty() && !port.is_default {
                    self.wrong(Subject::Port(at), TableError::Nothing);
                }
                continue;
            };
            let earlier = spec.ports[..at].iter().find(|other| other.standby_for == Some(of));
            let error = if of == at {
                TableError::StandbyOfItself
            } else if spec.ports[of].standby_for.is_some() {
                TableError::StandbyOfStandby { of: self.name(of) }
            } else if !port.ranges.is_empty() || port.is_default {
                TableError::StandbyWithRanges
            } else if partition_of[of] != partition_of[at] {
                TableError::StandbyElsewhere { of: self.name(of) }
            } else if let Some(other) = earlier {
                TableError::SecondStandby { of: self.name(of), other: other.name.clone() }
            } else {
                continue;
            };
            self.wrong(Subject::Port(at), error);
        }
    }

    fn defaults(&mut self, partition_of: &[usize]) {
        let spec = self.spec;
        for (at, _) in spec.ports.iter().enumerate().filter(|(_, port)| port.is_default) {
            let same =
                |other: &usize| spec.ports[*other].is_default && partition_of[*other] == partition_of[at];
            if let Some(other) = (0..at).find(same) {
                self.wrong(Subject::Port(at), TableError::TwoDefaults { other: self.name(other) });
            }
        }
    }

    /// The partition of each multicast group; none where that has no ports.
    fn multicasts(&mut self, partition_of: &[usize]) -> Vec<Option<usize>> {
        let spec = self.spec;
        let mut members = Vec::new();
        for (at, multicast) in spec.multicasts.iter().enumerate() {
            let subject = Subject::Multicast(at);
            let first = multicast.ports.first().copied();
            if first.is_none() || multicast.ranges.is_empty() {
                self.wrong(subject, TableError::MulticastToNobody);
            }
            for port in &multicast.ports {
                if spec.ports[*port].standby_for.is_some() {
                    self.wrong(subject, TableError::MulticastToStandby { port: self.name(*port) });
                }
                if let Some(first) = first.filter(|first| partition_of[*first] != partition_of[*port]) {
                    let (port, other) = (self.name(*port), self.name(first));
                    self.wrong(subject, TableError::MulticastAcross { port, other });
                }
            }
            members.push(first.map(|first| partition_of[first]));
        }
        members
    }

    fn overlaps(&mut self, partition_of: &[usize], members: &[Option<usize>]) {
        let spec = self.spec;
        let ports = spec.ports.iter().enumerate().flat_map(|(at, port)| {
            let name = port.name.as_str();
            port.ranges.iter().map(move |range| (partition_of[at], *range, Subject::Port(at), name))
        });
        let multicasts = spec.multicasts.iter().enumerate().flat_map(|(at, it)| {
            let partition = members[at].unwrap_or_default();
            it.ranges.iter().map(move |range| (partition, *range, Subject::Multicast(at), it.name.as_str()))
        });
        let mut all: Vec<_> = ports.chain(multicasts).collect();
        all.sort_by_key(|(partition, range, subject, _)| (*partition, *range, *subject));
        // The one that reaches farthest so far: what overlaps with any before overlaps with it.
        let mut farthest: Option<(usize, PrefixRange, &str)> = None;
        let mut said: Vec<(Subject, &str)> = Vec::new();
        for (partition, range, subject, name) in all {
            match farthest {
                Some((same, with, of)) if same == partition && range.overlaps(with) => {
                    // Once for each two: they may do so on several rails.
                    if !said.contains(&(subject, of)) {
                        said.push((subject, of));
                        self.wrong(subject, TableError::Overlap { range, with, of: of.to_owned() });
                    }
                    if range.limit > with.limit {
                        farthest = Some((partition, range, name));
                    }
                }
                _ => farthest = Some((partition, range, name)),
            }
        }
    }
}
