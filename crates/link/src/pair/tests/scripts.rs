//! Scripts of rails (`scripts/*.txt`): what two nodes send over them, frame by frame, while they are slow, lossy, cut,
//! or said to have failed. The vocabulary is in `scripts/README.md`.

use core::fmt::Write;
use core::time::Duration;
use std::collections::BTreeMap;
use std::path::Path;

use ::script::Words;
use base::Instant;
use base::ids::RailId;
use base::ledger::Arena;

use super::spread::{MS, pair, write};
use super::*;
use crate::frame::{HEADER_LEN, Header, Kind, TAG_LEN};
use crate::pair::Event;
use crate::record::{Record, parse, parse_control};
use crate::{Notice, NoticeCause, PathId, RailMode};

/// The nodes, by their place in the world.
const NAMES: [&str; 2] = ["one", "two"];

/// The longest that anything takes that is waited for.
const LONG: Duration = Duration::from_secs(20);

/// What a script has made.
struct Script<'m> {
    arena: &'m Arena,
    world: Option<World<'m>>,
    /// What is wrong with a rail, by its id.
    wires: BTreeMap<usize, Wire>,
    /// Of a cut rail, whose frames are lost.
    cuts: BTreeMap<usize, [bool; 2]>,
    /// Writes of each millisecond of the first load.
    clean: Option<f64>,
}

impl<'m> Script<'m> {
    fn run(&mut self, input: &str) -> String {
        let words = Words::of(input);
        match words.at(0) {
            "nodes" => self.make(&words),
            "rail" => self.change(&words),
            "run" => self.trace(MS * words.number_at(1)),
            "pass" => self.pass(MS * words.number_at(1)),
            "write" => {
                let (world, count) = (self.world(), words.number_at::<u32>(1));
                let now = world.now;
                world.nodes[0].guarded(now, |node| {
                    node.is_awake = true;
                    (0..count).for_each(|_| assert!(node.places[0].write(64), "there is no room"));
                    node.commit();
                });
                self.trace(MS * words.number("for", 1))
            }
            "load" => self.load(MS * words.number_at(1)),
            "carriers" => {
                let (node, lost) = (self.node(words.at(1)), rails(words.get("lost").unwrap_or_default()));
                let lost = lost.iter().fold(0, |bits, rail| bits | 1 << rail);
                self.act(node, |now, channel| channel.set_lost_carriers(now, lost));
                "ok\n".to_owned()
            }
            "notify" => {
                let cause = match words.get("cause") {
                    Some("carrier") => NoticeCause::Carrier,
                    _ => NoticeCause::Silence,
                };
                let of = self.node(words.get("of").unwrap_or(words.at(1)));
                let notice = Notice { node: key_of(of).id(), rail: rail(&words), cause };
                self.act(self.node(words.at(1)), |_, channel| channel.notify(notice));
                self.trace(MS)
            }
            "doubt" => {
                let (rail, is_certain) = (rail(&words), words.has(2, "certain"));
                let node = self.node(words.at(1));
                self.act(node, |now, channel| channel.doubt(now, None, Some(rail), is_certain));
                self.trace(MS)
            }
            "state" => self.state(),
            "settle" => {
                self.world().run_until(LONG, is_idle);
                self.world().expect_all_came();
                self.events("") + "all has come, once and in order\n"
            }
            other => panic!("no command {other}"),
        }
    }

    fn world(&mut self) -> &mut World<'m> {
        self.world.as_mut().expect("`nodes` comes first")
    }

    fn node(&self, name: &str) -> usize {
        NAMES.iter().position(|it| *it == name).unwrap_or_else(|| panic!("no node {name}"))
    }

    /// A verb of a node's channel.
    fn act(&mut self, node: usize, verb: impl FnOnce(Instant, &mut crate::pair::Channel<'m>)) {
        let world = self.world();
        let now = world.now;
        world.nodes[node].guarded(now, |node| {
            node.is_awake = true;
            verb(now, &mut node.slots[0].channel);
            node.commit();
        });
    }

    fn make(&mut self, words: &Words<'_>) -> String {
        let mode = match words.get("mode") {
            Some("standby") => RailMode::Standby,
            _ => RailMode::Balance,
        };
        let mut world = pair(self.arena, words.number("rails", 2), mode);
        world.delay = Duration::from_micros(words.number("delay-us", 0));
        if !world.delay.is_zero() {
            // Until both know how long the way is.
            write(&mut world, MS * 500);
            world.run_until(LONG, is_idle);
        }
        // Just behind questions whether somebody is there, which come each 100 ms.
        world.run_for(MS * 10);
        world.nodes.iter_mut().for_each(|node| node.slots[0].events.clear());
        (self.world, self.clean) = (Some(world), None);
        (self.wires, self.cuts) = Default::default();
        "ok\n".to_owned()
    }

    fn change(&mut self, words: &Words<'_>) -> String {
        let rail = words.number_at(1);
        let bytes_per_tick = words.get("rate").map(|it| it.parse().unwrap());
        let wire =
            Wire { delay: MS * words.number("delay", 0), lost: words.number("lost", 0), bytes_per_tick };
        self.wires.insert(rail, wire);
        let cut = match words.get("cut") {
            Some(name) => NAMES.map(|it| it == name),
            None => [words.has(2, "cut"); 2],
        };
        self.cuts.insert(rail, cut);
        let (wires, cuts) = (self.wires.clone(), self.cuts.clone());
        let of = |path: PathId| path.rails().map_or(0, |(own, _)| own.index());
        let world = self.world();
        world.wire = Box::new(move |_, path| wires.get(&of(path)).copied().unwrap_or_default());
        world.cut = Box::new(move |from, _, path| cuts.get(&of(path)).is_some_and(|cut| cut[from]));
        "ok\n".to_owned()
    }

    /// Each frame that leaves while time goes on, and what the nodes say to their drivers.
    fn trace(&mut self, time: Duration) -> String {
        let (mut text, begin) = (String::new(), self.world().now);
        self.world().record = Some(Vec::new());
        while self.world().now.since(begin) < time {
            self.world().tick();
            let at = format!("{:.1} ", self.world().now.since(begin).as_secs_f64() * 1e3);
            for (from, bytes) in self.world().record.replace(Vec::new()).unwrap_or_default() {
                let what = self.described(from, bytes);
                writeln!(text, "{at}{what}").unwrap();
            }
            text += &self.events(&at);
        }
        self.world().record = None;
        text
    }

    /// Only what the nodes say to their drivers.
    fn pass(&mut self, time: Duration) -> String {
        self.world().run_for(time);
        self.events("") + "ok\n"
    }

    /// Which share of its frames with TLPs the first node has sent on which rail, writing as much as it could, and how
    /// much of that has come, beside the first time.
    fn load(&mut self, time: Duration) -> String {
        let (frames, came) = write(self.world(), time);
        let rate = came as f64 / time.as_secs_f64();
        let clean = *self.clean.get_or_insert(rate);
        let all = frames.iter().sum::<u64>().max(1);
        let shares = frames.map(|of| (of * 100 + all / 2) / all);
        let much = (rate / clean * 10.0).round() * 10.0;
        self.events("")
            + &format!("rail 0: {} %, rail 1: {} %; {much} % of the first\n", shares[0], shares[1])
    }

    /// Which rails the nodes take for up.
    fn state(&mut self) -> String {
        let mut text = String::new();
        let world = self.world();
        for (name, node) in NAMES.iter().zip(&world.nodes) {
            write!(text, "{name}:").unwrap();
            for rail in node.config.rails.iter().filter_map(|rail| RailId::new(*rail)) {
                let status = node.slots[0].channel.rail_status(rail, world.now);
                let is_up = status.is_some_and(|(_, status)| status.is_up);
                write!(text, " {} {}", rail.get(), if is_up { "up" } else { "down" }).unwrap();
            }
            text.push('\n');
        }
        text
    }

    /// What the nodes have said to their drivers since this was asked last.
    fn events(&mut self, at: &str) -> String {
        let mut text = String::new();
        for (name, node) in NAMES.iter().zip(&mut self.world().nodes) {
            for event in node.slots[0].events.drain(..) {
                match event {
                    Event::Silent(rail) => {
                        writeln!(text, "{at}{name} finds rail {} silent", rail.get()).unwrap();
                    }
                    Event::Notice(notice) => writeln!(text, "{at}{name} hears {}", told(&notice)).unwrap(),
                    other => writeln!(text, "{at}{name}: {other:?}").unwrap(),
                }
            }
        }
        text
    }

    /// Who has sent a frame on which rail, and what is in it.
    fn described(&mut self, from: usize, mut bytes: Vec<u8>) -> String {
        let header = Header::parse(&bytes).unwrap();
        let mut text = format!("{}/{}:", NAMES[from], header.source.rail.get());
        if header.kind != Kind::Sealed {
            write!(text, " {:?}", header.kind).unwrap();
            return text;
        }
        assert!(self.world().nodes[from].slots[0].channel.reveal(&mut bytes, true), "its own keys open it");
        let body = &bytes[HEADER_LEN..bytes.len() - TAG_LEN];
        let (records, committed) = match header.stream.0 {
            0 => (parse_control(body), None),
            _ => {
                let (status, records) = parse(body).unwrap();
                (records, Some(status.committed.get()))
            }
        };
        let mut has_any = false;
        for record in records {
            has_any = true;
            match record.unwrap() {
                Record::Stream { first, count: 1, .. } => write!(text, " tlp {first}"),
                Record::Stream { first, count, .. } => {
                    write!(text, " tlps {first}-{}", first + u64::from(count) - 1)
                }
                Record::Ack { path, .. } => {
                    // As the other end numbers it.
                    let rail = PathId::from_number(path).and_then(PathId::rails).map(|(own, _)| own.get());
                    write!(text, " ack-of-{}", rail.unwrap())
                }
                Record::Ping => write!(text, " ping"),
                Record::Notice(notice) => write!(text, " notice of {}", told(&notice)),
                Record::StreamStatus { .. } => write!(text, " status"),
                other => write!(text, " {other:?}"),
            }
            .unwrap();
        }
        if !has_any {
            write!(text, " committed-below {}", committed.unwrap_or_default()).unwrap();
        }
        text
    }
}

fn told(Notice { node, rail, cause }: &Notice) -> String {
    let of = NAMES.iter().enumerate().find(|(place, _)| key_of(*place).id() == *node);
    format!("rail {} of {}, {cause:?}", rail.get(), of.map_or("nobody", |(_, name)| name)).to_lowercase()
}

fn rail(words: &Words<'_>) -> RailId {
    RailId::new(words.number("rail", 0)).unwrap()
}

fn rails(list: &str) -> Vec<u8> {
    list.split(',').filter(|it| !it.is_empty()).map(|it| it.parse().unwrap()).collect()
}

fn is_idle(world: &World<'_>) -> bool {
    world.nodes.iter().flat_map(|node| &node.places).all(|it| it.stream.is_idle())
}

/// Runs a script.
fn script(file: &str) {
    let arena = Arena::default();
    let (world, clean) = (None, None);
    let (wires, cuts) = Default::default();
    let mut script = Script { arena: &arena, world, wires, cuts, clean };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/pair/tests/scripts");
    ::script::check(&folder.join(file), |input| script.run(input));
}

#[test]
fn a_rail_that_is_cut() {
    script("cut.txt");
}

#[test]
fn a_rail_that_carries_one_way_only() {
    script("one_way.txt");
}

#[test]
fn a_rail_that_becomes_slow() {
    script("slow.txt");
}

#[test]
fn a_rail_that_loses_frames() {
    script("lossy.txt");
}

#[test]
fn a_rail_that_comes_and_goes() {
    script("flap.txt");
}

#[test]
fn a_rail_that_rests_beside_one_that_becomes_narrow() {
    script("narrow.txt");
}

#[test]
fn a_rail_that_stands_by() {
    script("standby.txt");
}

#[test]
fn a_notice_that_is_a_lie() {
    script("forged.txt");
}

#[test]
fn a_notice_that_comes_late() {
    script("late.txt");
}

#[test]
fn a_carrier_that_is_lost() {
    script("carrier.txt");
}

#[test]
fn all_rails_dead() {
    script("dead.txt");
}

#[test]
fn a_rail_that_is_used_again() {
    script("recovery.txt");
}
