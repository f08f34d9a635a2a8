//! Scripts (`tests/*.txt`), and what holds whatever comes.

use core::fmt::Write;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use ::script::Words;
use base::Random;
use base::ids::RailId;
use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;

/// What stands in a script: see `tests/README.md`.
#[derive(Default)]
struct Script {
    switches: BTreeMap<String, Switch>,
    /// By switch and port: what that port leads to.
    links: Vec<[(String, PortId); 2]>,
    /// What leaves here is lost.
    cuts: Vec<(String, PortId)>,
    now: Instant,
}

/// `16/8,1:16/8`: domains on all rails, and on rail 1.
fn ranges(text: &str) -> Vec<PrefixRange> {
    let parts = text.split(',').flat_map(|part| {
        let (rails, domains) = match part.split_once(':') {
            Some((rail, domains)) => (vec![RailId::new(rail.parse().unwrap()).unwrap()], domains),
            None => (RailId::ALL.to_vec(), part),
        };
        let (base, len) = domains.split_once('/').unwrap();
        let (base, len) = (base.parse().unwrap(), len.parse().unwrap());
        rails.into_iter().map(move |rail| PrefixRange::new(rail, base, len).unwrap())
    });
    parts.collect()
}

/// `1:16`: domain 16 on rail 1; `16`: on rail 0.
fn prefix(text: &str) -> u32 {
    let (rail, domain) = text.split_once(':').unwrap_or(("0", text));
    Prefix { rail: RailId::new(rail.parse().unwrap()).unwrap(), domain: DomainId(domain.parse().unwrap()) }
        .bits()
}

fn frame(source: u32, destination: u32, group: u16, route: Route, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len.max(HEADER_LEN)];
    let raw = RawHeader {
        version: VERSION,
        route: route.byte(),
        source: source.into(),
        destination: destination.into(),
        group: group.into(),
        ..FromBytes::read_from_bytes(&[0; HEADER_LEN][..]).unwrap()
    };
    frame[..HEADER_LEN].copy_from_slice(raw.as_bytes());
    frame.truncate(len);
    frame
}

impl Script {
    fn run(&mut self, input: &str) -> String {
        let mut lines = input.lines();
        let words = Words::of(lines.next().unwrap());
        match words.at(0) {
            "switch" => self.make(words.at(1), lines),
            "link" => {
                let ends = [words.at(1), words.at(2)].map(|end| {
                    let (switch, port) = end.split_once('.').unwrap();
                    (switch.to_owned(), self.port(switch, port))
                });
                self.links.push(ends);
                "ok\n".to_owned()
            }
            "frame" => {
                let (switch, port) = words.at(1).split_once('.').unwrap();
                let route =
                    Route { hops_left: words.number("hops", 32), congestion: words.number("congestion", 0) };
                let group = words.number("group", 1);
                let (from, to) = (prefix(words.get("from").unwrap()), prefix(words.get("to").unwrap()));
                let mut frame = frame(from, to, group, route, words.number("len", 80));
                if let Some(version) = words.get("version") {
                    frame[0] = version.parse().unwrap();
                }
                if let Some(fabric) = words.get("fabric") {
                    frame[4] = fabric.parse().unwrap();
                }
                if let Some(kind) = words.get("kind") {
                    frame[1] = kind.parse().unwrap();
                }
                if let Some(body) = words.get("body") {
                    frame[HEADER_LEN] = body.parse().unwrap();
                }
                if words.has(2, "wide") {
                    frame[11] = 1;
                }
                self.send(switch, self.port(switch, port), frame)
            }
            "wait" => {
                self.now += Duration::from_millis(words.number_at(1));
                "ok\n".to_owned()
            }
            "hellos" => {
                let mut text = String::new();
                for _ in 0..words.number_at::<u64>(1) / HELLO_EVERY.as_millis() as u64 {
                    text = self.hellos();
                    self.now += HELLO_EVERY;
                }
                text
            }
            "cut" | "mend" => {
                let (switch, port) = words.at(1).split_once('.').unwrap();
                let end = (switch.to_owned(), self.port(switch, port));
                self.cuts.retain(|it| *it != end);
                self.cuts.extend((words.at(0) == "cut").then_some(end));
                "ok\n".to_owned()
            }
            "interface" => {
                let (switch, port) = words.at(1).split_once('.').unwrap();
                let port = self.port(switch, port);
                self.switches.get_mut(switch).unwrap().set_running(port, words.at(2) == "up");
                "ok\n".to_owned()
            }
            "counters" => self.counters(words.at(1)),
            other => panic!("no command {other}"),
        }
    }

    fn make<'a>(&mut self, name: &str, lines: impl Iterator<Item = &'a str>) -> String {
        let mut spec = TableSpec::default();
        for line in lines {
            let words = Words::of(line);
            let listed = |key| {
                words.get(key).map(|it| {
                    it.split(',').filter(|it| !it.is_empty()).map(str::to_owned).collect::<Vec<_>>()
                })
            };
            let known =
                |name: &String| spec.ports.iter().position(|port| port.name == *name).unwrap_or(usize::MAX);
            let ports = || listed("ports").unwrap_or_default().iter().map(known).collect::<Vec<_>>();
            let name = words.at(1).to_owned();
            match words.at(0) {
                "port" => {
                    let standby_for = words.get("standby-for").map(|of| match of == name {
                        true => spec.ports.len(),
                        false => known(&of.to_owned()),
                    });
                    let ranges = words.get("domains").map(ranges).unwrap_or_default();
                    spec.ports.push(PortSpec {
                        name,
                        ranges,
                        is_default: words.has(2, "default"),
                        standby_for,
                    });
                }
                "partition" => {
                    let mut groups = GroupSet::none();
                    listed("groups")
                        .iter()
                        .flatten()
                        .for_each(|it| groups.insert(Group(it.parse().unwrap())));
                    let ports = ports();
                    spec.partitions.push(PartitionSpec { name, ports, groups });
                }
                "multicast" => {
                    let ranges = words.get("domains").map(ranges).unwrap_or_default();
                    let ports = ports();
                    spec.multicasts.push(MulticastSpec { name, ranges, ports });
                }
                other => panic!("no part {other}"),
            }
        }
        match Table::new(spec.clone()) {
            Ok(table) => {
                self.switches.insert(name.to_owned(), Switch::new(table));
                "ok\n".to_owned()
            }
            Err(problems) => problems.iter().fold(String::new(), |mut text, problem| {
                let what = match problem.subject {
                    Subject::Switch => "switch".to_owned(),
                    Subject::Port(at) => spec.ports[at].name.clone(),
                    Subject::Partition(at) => spec.partitions[at].name.clone(),
                    Subject::Multicast(at) => spec.multicasts[at].name.clone(),
                };
                writeln!(text, "{what}: {}", problem.error).unwrap();
                text
            }),
        }
    }

    fn port(&self, switch: &str, name: &str) -> PortId {
        self.switches[switch].table().ports().find(|(_, it, _)| *it == name).unwrap().0
    }

    fn name(&self, switch: &str, port: PortId) -> String {
        let (_, name, _) = self.switches[switch].table().ports().find(|(id, ..)| *id == port).unwrap();
        format!("{switch}.{name}")
    }

    /// What becomes of a frame, at this switch and at those that it is linked to.
    fn send(&mut self, switch: &str, port: PortId, frame: Vec<u8>) -> String {
        let mut text = String::new();
        let mut under_way = vec![(switch.to_owned(), port, frame)];
        while let Some((name, port, mut frame)) = under_way.pop() {
            let before = frame.clone();
            let switch = self.switches.get_mut(&name).unwrap();
            let ways: Vec<PortId> = match switch.forward(self.now, port, &mut frame) {
                Decision::Drop(reason) => {
                    assert_eq!(frame, before, "what is dropped is as it came");
                    writeln!(text, "{} drops: {}", self.name(&name, port), reason.name()).unwrap();
                    continue;
                }
                Decision::Take => {
                    writeln!(text, "{} takes it", self.name(&name, port)).unwrap();
                    continue;
                }
                Decision::Forward(way) => vec![way],
                Decision::Copy(ways) => ways.iter().collect(),
            };
            let mut after = frame.clone();
            after[ROUTE] = before[ROUTE];
            assert_eq!(after, before, "nothing but the route has changed");
            for way in ways {
                self.switches.get_mut(&name).unwrap().sent(way, 1, frame.len() as u64);
                let here = (name.clone(), way);
                match self.far(&here) {
                    Some(_) if self.cuts.contains(&here) => {
                        writeln!(text, "{} loses it", self.name(&name, way)).unwrap();
                    }
                    Some((next, port)) => under_way.insert(0, (next, port, frame.clone())),
                    None => {
                        let Route { hops_left, congestion } = Route::from_byte(frame[ROUTE]);
                        let seen =
                            if congestion > 0 { format!(" congestion={congestion}") } else { String::new() };
                        writeln!(text, "{} hops={hops_left}{seen}", self.name(&name, way)).unwrap();
                    }
                }
            }
        }
        text
    }

    /// What a port is linked to.
    fn far(&self, here: &(String, PortId)) -> Option<(String, PortId)> {
        let ends = self.links.iter().flat_map(|[a, b]| [(a, b), (b, a)]);
        ends.into_iter().find(|(end, _)| *end == here).map(|(_, far)| far.clone())
    }

    /// All say hello once: what is said, but what is lost.
    fn hellos(&mut self) -> String {
        let (mut text, mut said) = (String::new(), Vec::new());
        for (name, switch) in &mut self.switches {
            said.extend(switch.hellos(self.now).map(|(port, hello)| ((name.clone(), port), hello)));
        }
        for (here, hello) in said {
            let is_heard = hello[HEADER_LEN] & 1 == 1;
            writeln!(text, "{} hears: {is_heard}", self.name(&here.0, here.1)).unwrap();
            if let Some((name, port)) = self.far(&here).filter(|_| !self.cuts.contains(&here)) {
                let mut hello = hello;
                let decision = self.switches.get_mut(&name).unwrap().forward(self.now, port, &mut hello);
                assert_eq!(decision, Decision::Take);
            }
        }
        text
    }

    fn counters(&self, name: &str) -> String {
        let mut text = String::new();
        let switch = &self.switches[name];
        for (port, name, _) in switch.table().ports() {
            let counters = switch.counters(port);
            write!(text, "{name} received={} sent={}", counters.received, counters.sent).unwrap();
            for reason in Reason::ALL.into_iter().filter(|it| counters.dropped[it.index()] > 0) {
                write!(text, " {}={}", reason.name(), counters.dropped[reason.index()]).unwrap();
            }
            text.push('\n');
        }
        text
    }
}

/// Runs a script.
fn script(file: &str) {
    let mut script = Script::default();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/switch/tests");
    script::check(&folder.join(file), |input| script.run(input));
}

#[test]
fn frames_are_forwarded_by_ranges() {
    script("forwarding.txt");
}

#[test]
fn partitions_and_multicast() {
    script("partitions.txt");
}

#[test]
fn two_ports_that_lead_to_the_same() {
    script("standby.txt");
}

#[test]
fn a_link_that_carries_frames_one_way_only_is_left_at_both_ends() {
    script("one_way.txt");
}

#[test]
fn what_a_node_says_to_everybody() {
    script("information.txt");
}

/// Whoever shouts takes the room of his own port only.
#[test]
fn only_so_much_is_forwarded_to_everybody() {
    let mut switch = switch();
    let mut shout = |now: Instant, port: usize, from: u32| {
        let mut bytes = frame(from, 0, 1, Route::START, 80);
        bytes[1] = INFORMATION;
        switch.forward(now, PortId::new(port).unwrap(), &mut bytes)
    };
    let now = Instant::ZERO + Duration::from_secs(1);
    for _ in 0..INFORMATION_BURST {
        assert!(matches!(shout(now, 0, 1), Decision::Copy(ways) if ways.len() == 2));
    }
    assert_eq!(shout(now, 0, 1), Decision::Drop(Reason::TooOften));
    assert!(matches!(shout(now, 1, 4), Decision::Copy(_)), "another port has room of its own");
    let later = now + INFORMATION_EVERY;
    assert!(matches!(shout(later, 0, 1), Decision::Copy(_)));
    assert_eq!(shout(later, 0, 1), Decision::Drop(Reason::TooOften));
}

/// Whoever sends to a multicast group as fast as he can fills nobody's link, and takes nothing of what names one node.
#[test]
fn only_so_much_is_copied_to_multicast_groups() {
    let mut switch = switch();
    let mut send = |now: Instant, destination: u32| {
        let mut bytes = frame(1, destination, 1, Route::START, 80);
        switch.forward(now, PortId::new(0).unwrap(), &mut bytes)
    };
    let now = Instant::ZERO + Duration::from_secs(1);
    for _ in 0..MULTICAST_BURST {
        assert!(matches!(send(now, 12), Decision::Copy(ways) if ways.len() == 2));
    }
    assert_eq!(send(now, 12), Decision::Drop(Reason::TooOften));
    assert!(matches!(send(now, 4), Decision::Forward(_)), "for one node");
    let later = now + MULTICAST_EVERY;
    assert!(matches!(send(later, 12), Decision::Copy(_)));
    assert_eq!(send(later, 12), Decision::Drop(Reason::TooOften));
}

#[test]
fn several_switches() {
    script("several.txt");
}

#[test]
fn what_cannot_be_a_switch_is_refused_by_name() {
    script("refused.txt");
}

#[test]
fn congestion_grows_with_the_queue_and_is_never_taken_back() {
    assert_eq!([0, 24, 25, 50, 75, 99, 100, 500].map(|used| congestion(used, 100)), [0, 0, 1, 2, 3, 3, 3, 3]);
    assert_eq!(congestion(0, 0), 3);
    let mut bytes = frame(1, 2, 1, Route { hops_left: 9, congestion: 2 }, 80);
    assert!(!mark(&mut bytes, 1) && !mark(&mut bytes, 2));
    assert_eq!(Route::from_byte(bytes[ROUTE]), Route { hops_left: 9, congestion: 2 });
    assert!(mark(&mut bytes, 200));
    assert_eq!(Route::from_byte(bytes[ROUTE]), Route { hops_left: 9, congestion: 3 });
    assert!(!mark(&mut [], 3));
}

/// A switch of six ports: two partitions, a default, a pair, two multicast groups.
fn switch() -> Switch {
    let port = |name: &str, domains: &str, is_default, standby_for| PortSpec {
        name: name.to_owned(),
        ranges: if domains.is_empty() { Vec::new() } else { ranges(domains) },
        is_default,
        standby_for,
    };
    let groups = |list: &[u16]| {
        let mut groups = GroupSet::none();
        list.iter().for_each(|group| groups.insert(Group(*group)));
        groups
    };
    let partition = |name: &str, ports: &[usize], list: &[u16]| PartitionSpec {
        name: name.to_owned(),
        ports: ports.to_vec(),
        groups: groups(list),
    };
    let multicast = |name: &str, domains: &str, ports: &[usize]| MulticastSpec {
        name: name.to_owned(),
        ranges: ranges(domains),
        ports: ports.to_vec(),
    };
    let spec = TableSpec {
        fabric: 0,
        ports: vec![
            port("a", "1/3", false, None),
            port("b", "4/4", false, None),
            port("up", "", true, None),
            port("up2", "", false, Some(2)),
            port("c", "1/3", false, None),
            port("d", "0:4/2,1:6/2", false, None),
        ],
        partitions: vec![partition("red", &[0, 1, 2, 3], &[1, 2]), partition("blue", &[4, 5], &[2, 3])],
        multicasts: vec![multicast("m", "12/1", &[0, 1, 2]), multicast("n", "12/2", &[4, 5])],
    };
    Switch::new(Table::new(spec).unwrap())
}

proptest! {
    /// Whatever comes, nothing panics, nothing changes but the route, no more leaves than may, everything is counted.
    #[test]
    fn random_bytes_are_counted_and_never_amplified(
        frames in proptest::collection::vec((0..6_usize, proptest::collection::vec(any::<u8>(), 0..120)), 0..60),
    ) {
        let mut switch = switch();
        for (port, bytes) in frames {
            check(&mut switch, PortId::new(port).unwrap(), bytes)?;
        }
    }

    /// The same of frames that are nearly right.
    #[test]
    fn what_leaves_was_meant_for_there(
        frames in proptest::collection::vec(
            ((0..6_usize, 0..16_u32, 0..4_u32, 0..16_u32, 0..4_u32), (0..5_u16, 0..4_u8, 5..8_u8)), 0..200),
    ) {
        let mut switch = switch();
        for ((port, from, from_rail, to, to_rail), (group, hops_left, kind)) in frames {
            let (from, to) = (from | from_rail << 18, to | to_rail << 18);
            let mut bytes = frame(from, to, group, Route { hops_left, congestion: 1 }, 90);
            bytes[1] = kind;
            check(&mut switch, PortId::new(port).unwrap(), bytes)?;
        }
    }

    /// Ports that lead to each other at random: no frame is for ever, and none becomes two.
    #[test]
    fn a_frame_in_a_net_of_any_shape_comes_to_its_end(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let mut switches: Vec<Switch> = (0..4).map(|_| net_switch(&mut random)).collect();
        let far: Vec<(usize, usize)> = (0..16).map(|_| (random.below(4) as usize, random.below(4) as usize)).collect();
        for _ in 0..50 {
            let (mut at, mut port) = (random.below(4) as usize, random.below(4) as usize);
            let (from, to) = (1 + random.below(8) as u32, 1 + random.below(8) as u32);
            let mut bytes = frame(from, to, 1, Route::START, 80);
            let mut passed = 0;
            while let Decision::Forward(way) =
                switches[at].forward(Instant::ZERO, PortId::new(port).unwrap(), &mut bytes)
            {
                passed += 1;
                prop_assert!(passed <= 32, "hops run out");
                (at, port) = far[at * 4 + way.index()];
            }
        }
    }
}

/// A switch of four ports; where each of eight domains lies is chance.
fn net_switch(random: &mut Random) -> Switch {
    let mut ports: Vec<PortSpec> = (0..4)
        .map(|at| PortSpec {
            name: at.to_string(),
            ranges: Vec::new(),
            is_default: at == 0,
            standby_for: None,
        })
        .collect();
    ports[1..].iter_mut().zip(20..).for_each(|(port, base)| port.ranges = ranges(&format!("{base}/1")));
    for domain in 1..=8 {
        ports[random.below(4) as usize].ranges.extend(ranges(&format!("{domain}/1")));
    }
    Switch::new(Table::new(TableSpec { ports, ..TableSpec::default() }).unwrap())
}

fn check(switch: &mut Switch, port: PortId, mut bytes: Vec<u8>) -> Result<(), TestCaseError> {
    let before = bytes.clone();
    let count = |switch: &Switch| {
        let counters = switch.counters(port);
        (counters.received, counters.dropped.iter().sum::<u64>())
    };
    let (received, dropped) = count(switch);
    let decision = switch.forward(Instant::ZERO, port, &mut bytes);
    let ways: PortSet = match decision {
        Decision::Drop(_) | Decision::Take => PortSet::default(),
        Decision::Forward(way) => [way].into_iter().collect(),
        Decision::Copy(ways) => ways,
    };
    let is_dropped = matches!(decision, Decision::Drop(_));
    prop_assert_eq!(count(switch), (received + 1, dropped + u64::from(is_dropped)));
    prop_assert!(
        is_dropped
            || !ways.is_empty()
            || ([INFORMATION, HELLO].contains(&before[1]) && decision == Decision::Take)
    );
    prop_assert!(!ways.contains(port) && ways.len() < switch.table().ports().count());
    let red = |port: PortId| port.index() < 4;
    prop_assert!(ways.iter().all(|way| red(way) == red(port)), "partitions are apart");
    if ways.is_empty() {
        prop_assert_eq!(bytes, before);
    } else {
        let (is, was) = (Route::from_byte(bytes[ROUTE]), Route::from_byte(before[ROUTE]));
        prop_assert_eq!((is.hops_left + 1, is.congestion), (was.hops_left, was.congestion));
        bytes[ROUTE] = before[ROUTE];
        prop_assert_eq!(bytes, before);
    }
    Ok(())
}
