//! What a node says of trouble with its peers: once when it begins, once when it is over, by the end that has it.
//!
//! [`Watch`] is a plain value that is shown how things are, once a second, and returns what is new about that. A change
//! that does not hold is not said: what flaps costs one line each [`PAUSE`].

mod domains;
mod kept;
mod misdeeds;
mod sightings;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, SystemTime};

use base::ids::NodeId;
use base::times::PEER_VERDICT;
use io::event::Event;
use manager::model::WallTime;

pub(super) use self::domains::{Domains, Member};
pub(super) use self::kept::Kept;
pub(super) use self::misdeeds::{Counts as Misdeeds, Misdeed};
pub(super) use self::sightings::Seen as Sighting;

/// A lender that has not answered by then is worth a line.
const FIRST_ANSWER: Duration = Duration::from_secs(2);
/// The least time between two lines about one thing.
const PAUSE: Duration = Duration::from_secs(10);
/// Frames for nothing that is here are worth a line when they have gone on for so long: a few come late, whenever
/// something ends.
const STRANGERS: Duration = Duration::from_secs(3);
/// They are forgotten when none came for so long, and not said again so soon.
const STRANGERS_GONE: Duration = Duration::from_secs(60);
/// What is that far away is said with its date.
const DAY: Duration = Duration::from_secs(86_400);
/// Names in one line; of others their number is said.
const NAMES_MAX: usize = 4;
/// How many hold times a line names.
const TIMES_MAX: usize = 4;

/// How the other end of some loans is doing, as the card's counters tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peer {
    /// What it calls itself, or its id.
    pub(super) name: String,
    /// What it lends to us.
    pub(super) borrowed: Vec<String>,
    /// What it has from us.
    pub(super) lent: Vec<Lent>,
    /// For how long nothing was heard of it, on whatever path.
    pub(super) silence: Duration,
    pub(super) rails: Vec<Rail>,
}

/// A function that a node has from us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lent {
    pub(super) function: String,
    /// For how long that node may be silent and has it still.
    pub(super) hold: Duration,
    /// A manager says whose it is.
    pub(super) is_managed: bool,
}

impl Lent {
    /// For how long that node has it yet, after so much silence. `None`: that time is over.
    pub(super) fn left(&self, silence: Duration) -> Option<Duration> {
        self.hold.checked_sub(silence).filter(|left| !left.is_zero())
    }

    /// Whether others may have it then: not where a manager has yet to say who.
    pub(super) fn is_released(&self, silence: Duration) -> bool {
        !self.is_managed && self.left(silence).is_none()
    }
}

/// A rail to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rail {
    pub(super) name: String,
    /// The peer's address there.
    pub(super) to: String,
    pub(super) is_up: bool,
}

/// A loan whose lender has never answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) function: String,
    /// Where it is looked for.
    pub(super) at: String,
    /// The id of the node that its line names.
    pub(super) node: String,
    /// For how long.
    pub(super) waited: Duration,
    /// It was refused, by whoever is there.
    pub(super) is_refused: bool,
}

/// How things are.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) peers: Vec<Peer>,
    pub(super) wanted: Vec<Wanted>,
    pub(super) kept: Vec<Kept>,
    pub(super) domains: Option<Domains>,
    pub(super) sightings: Vec<Sighting>,
    pub(super) misdeeds: Misdeeds,
    /// Frames that have come for nothing that is lent or borrowed here.
    pub(super) strangers: u64,
}

/// What has been said so far.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// By peer: for how long it was silent at the last look.
    silent: Spoken<Duration>,
    /// By peer and rail.
    down: Spoken<()>,
    /// What was down at the last look: it is said when it still is at the next one.
    doubted: BTreeSet<String>,
    /// By function and peer: the hold time has passed.
    released: Spoken<()>,
    /// Functions whose lender has never answered.
    wanted: Spoken<()>,
    kept: kept::Watch,
    domains: domains::Watch,
    sightings: sightings::Watch,
    misdeeds: misdeeds::Watch,
    strangers: Strangers,
}

/// Frames for nothing that is lent or borrowed here.
#[derive(Debug, Default)]
struct Strangers {
    /// How many there were at the last look.
    count: u64,
    /// When the first and the last of those came that are being looked at.
    seen: Option<(Duration, Duration)>,
    is_said: bool,
}

impl Strangers {
    fn look(&mut self, now: Duration, count: u64) -> Option<Event> {
        let came = count != std::mem::replace(&mut self.count, count);
        let recent = self.seen.filter(|(_, last)| now < *last + STRANGERS_GONE);
        self.is_said &= recent.is_some();
        let (first, last) = match recent {
            Some((first, last)) => (first, if came { now } else { last }),
            None if came => (now, now),
            None => return None,
        };
        self.seen = Some((first, last));
        let goes_on = !self.is_said && last >= first + STRANGERS;
        self.is_said |= goes_on;
        goes_on.then_some(Event::FramesUnknown { count })
    }
}

impl Watch {
    /// Compares how things are with what was said. `now` counts from whenever; `time` is that of the clock on the wall.
    pub(super) fn look(&mut self, now: Duration, time: SystemTime, seen: &Seen) -> Vec<Event> {
        let mut news = Vec::from_iter(self.strangers.look(now, seen.strangers));
        news.extend(self.misdeeds.look(now, &seen.misdeeds));
        for wanted in &seen.wanted {
            // A refusal is an answer, and was said.
            let is_late = wanted.waited >= FIRST_ANSWER && !wanted.is_refused;
            if is_late && self.wanted.begins(&wanted.function, now, ()) {
                let Wanted { function, at, node, .. } = wanted.clone();
                news.push(Event::LenderAwaited { function, at, node });
            }
        }
        for peer in &seen.peers {
            self.look_at_peer(now, time, peer, &mut news);
        }
        self.sightings.look(now, &seen.sightings, &mut news);
        let is_shared = |node| self.sightings.is_shared(now, node);
        self.kept.look((now, time), &seen.kept, is_shared, &mut news);
        if let Some(domains) = &seen.domains {
            self.domains.look(now, domains, &mut news);
        }
        news
    }

    /// Whether one of two programs with this identity was refused just now, as of the last look.
    pub(super) fn is_shared(&self, now: Duration, node: NodeId) -> bool {
        self.sightings.is_shared(now, node)
    }

    fn look_at_peer(&mut self, now: Duration, time: SystemTime, peer: &Peer, news: &mut Vec<Event>) {
        let name = &peer.name;
        if peer.silence < PEER_VERDICT {
            for lent in &peer.lent {
                self.released.ends(&release_of(lent, peer), now);
            }
            if let Some(longest) = self.silent.ends(name, now) {
                news.push(Event::PeerHeard { peer: name.clone(), silent_s: longest.as_secs() });
            }
            return self.look_at_rails(now, peer, news);
        }
        if self.silent.begins(name, now, peer.silence) {
            news.push(silence_of(peer, time));
        }
        self.look_at_lent(now, peer, news);
    }

    /// What others may have now that its node is silent.
    fn look_at_lent(&mut self, now: Duration, peer: &Peer, news: &mut Vec<Event>) {
        let mut released: BTreeMap<Duration, Vec<String>> = BTreeMap::new();
        for lent in peer.lent.iter().filter(|lent| lent.is_released(peer.silence)) {
            if self.released.begins(&release_of(lent, peer), now, ()) {
                released.entry(lent.hold).or_default().push(lent.function.clone());
            }
        }
        for (hold, functions) in released {
            let (peer, functions) = (peer.name.clone(), Names(&functions).to_string());
            news.push(Event::PeerReleased { peer, hold_s: hold.as_secs(), functions });
        }
    }

    fn look_at_rails(&mut self, now: Duration, peer: &Peer, news: &mut Vec<Event>) {
        // Where none answers there is no other path: that is silence, which is said when it lasts.
        let others_answer = peer.rails.iter().any(|rail| rail.is_up);
        for Rail { name, to, is_up } in &peer.rails {
            let key = format!("{name} {}", peer.name);
            let (rail, peer, to) = (name.clone(), peer.name.clone(), to.clone());
            if *is_up {
                self.doubted.remove(&key);
                if self.down.ends(&key, now).is_some() {
                    news.push(Event::RailUp { rail, peer, to });
                }
            } else if !others_answer {
                self.doubted.remove(&key);
            } else if !self.doubted.insert(key.clone()) && self.down.begins(&key, now, ()) {
                news.push(Event::RailDown { rail, peer, to });
            }
        }
    }
}

/// By what it is remembered that others may have a function.
fn release_of(lent: &Lent, peer: &Peer) -> String {
    format!("{} {}", lent.function, peer.name)
}

/// What it means that a peer is silent, and until when.
fn silence_of(peer: &Peer, time: SystemTime) -> Event {
    let rails: Vec<String> = peer.rails.iter().map(|rail| format!("{} ({})", rail.name, rail.to)).collect();
    let mut what = match rails.as_slice() {
        [] => String::new(),
        [one] => format!(" on rail {one}"),
        several => format!(" on any of its rails {}", several.join(", ")),
    };
    if !peer.borrowed.is_empty() {
        what += &format!(
            ": requests to {} wait until their I/O time-out. Is its node running, and the network up?",
            Names(&peer.borrowed)
        );
    }
    // By hold time, and whether a manager says whose they are.
    let mut kept: BTreeMap<(Duration, bool), Vec<String>> = BTreeMap::new();
    for lent in peer.lent.iter().filter(|lent| lent.left(peer.silence).is_some()) {
        kept.entry((lent.hold, lent.is_managed)).or_default().push(lent.function.clone());
    }
    let mut link = if peer.borrowed.is_empty() { ":" } else { " And" };
    let others = kept.len().saturating_sub(TIMES_MAX);
    for ((hold, is_managed), functions) in kept.into_iter().take(TIMES_MAX) {
        let (until, functions) = (moment(time, hold.saturating_sub(peer.silence)), Names(&functions));
        let others = match is_managed {
            true => "unless a manager takes that back before",
            false => "which nobody else can have before",
        };
        let hold_s = hold.as_secs();
        what += &format!("{link} until {until} (hold time {hold_s} s) it keeps {functions}, {others}");
        link = ";";
    }
    if others > 0 {
        what += &format!("; others for {others} other hold times");
    }
    Event::PeerSilent { peer: peer.name.clone(), silent_s: peer.silence.as_secs(), what }
}

/// When so much time will have passed.
fn moment(now: SystemTime, left: Duration) -> String {
    let end = now + left;
    if left < DAY {
        return format!("{} UTC", clock(end));
    }
    WallTime(0).plus_s(end.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()).to_string()
}

/// The time of the day.
fn clock(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Functions by name, not too many.
struct Names<'a>(&'a [String]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(NAMES_MAX)];
        f.write_str(&shown.join(", "))?;
        match self.0.len() - shown.len() {
            0 => Ok(()),
            others => write!(f, " and {others} more"),
        }
    }
}

/// What was said to have begun, by what it is about, and when.
#[derive(Debug)]
struct Spoken<T> {
    lines: BTreeMap<String, Line<T>>,
}

#[derive(Debug)]
struct Line<T> {
    at: Duration,
    /// It goes on, with what was seen last.
    lasts: Option<T>,
}

impl<T> Default for Spoken<T> {
    fn default() -> Self {
        Self { lines: BTreeMap::new() }
    }
}

impl<T> Spoken<T> {
    /// It is so. True if that is to be said.
    fn begins(&mut self, key: &str, now: Duration, seen: T) -> bool {
        match self.lines.get_mut(key) {
            Some(Line { lasts: Some(last), .. }) => {
                *last = seen;
                false
            }
            Some(line) if now < line.at + PAUSE => false,
            _ => {
                self.lines.insert(key.to_owned(), Line { at: now, lasts: Some(seen) });
                true
            }
        }
    }

    /// It is so of none but these.
    fn end_others(&mut self, now: Duration, is_so: impl Fn(&str) -> bool) {
        for line in self.lines.iter_mut().filter(|(key, _)| !is_so(key)).map(|(_, line)| line) {
            line.at = if line.lasts.take().is_some() { now } else { line.at };
        }
    }

    /// It is not so. What was seen last, if it is to be said that it is over.
    fn ends(&mut self, key: &str, now: Duration) -> Option<T> {
        let line = self.lines.get_mut(key)?;
        let seen = line.lasts.take()?;
        line.at = now;
        Some(seen)
    }
}

#[cfg(test)]
mod tests {
    use base::times::{HOLD, SILENCE};

    use super::*;

    fn lent(function: &str, hold: Duration, is_managed: bool) -> Lent {
        Lent { function: function.to_owned(), hold, is_managed }
    }

    /// Has these functions from us, and nothing else to do with us.
    fn borrower(silence_s: u64, lent: Vec<Lent>) -> Peer {
        Peer { borrowed: Vec::new(), rails: Vec::new(), lent, ..peer(silence_s, [false, false]) }
    }

    fn peer(silence_s: u64, up: [bool; 2]) -> Peer {
        let rail =
            |(name, is_up): (&str, bool)| Rail { name: name.into(), to: "10.0.0.2:7411".into(), is_up };
        Peer {
            name: "store".to_owned(),
            borrowed: vec!["nvme0".to_owned()],
            lent: Vec::new(),
            silence: Duration::from_secs(silence_s),
            rails: ["left", "right"].into_iter().zip(up).map(rail).collect(),
        }
    }

    /// Looks once a second.
    struct Days {
        watch: Watch,
        now: Duration,
    }

    impl Days {
        fn new() -> Self {
            Self { watch: Watch::default(), now: Duration::ZERO }
        }

        fn look(&mut self, peer: &Peer) -> Vec<Event> {
            self.now += Duration::from_secs(1);
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(12 * 3600);
            self.watch.look(self.now, time, &Seen { peers: vec![peer.clone()], ..Seen::default() })
        }
    }

    fn text(news: &[Event]) -> String {
        match news {
            [event] => event.to_string(),
            other => panic!("not one line: {other:?}"),
        }
    }

    #[test]
    fn a_rail_is_said_once_to_be_down_and_once_to_be_up() {
        let mut days = Days::new();
        assert_eq!(days.look(&peer(0, [true, true])), []);
        assert_eq!(days.look(&peer(0, [true, false])), [], "perhaps it was only late");
        let news = days.look(&peer(0, [true, false]));
        assert!(matches!(news[..], [Event::RailDown { .. }]));
        assert!(text(&news).starts_with("rail right to store (10.0.0.2:7411) does not answer"), "{news:?}");
        for _ in 0..100 {
            assert_eq!(days.look(&peer(0, [true, false])), []);
        }
        assert_eq!(
            text(&days.look(&peer(0, [true, true]))),
            "rail right to store (10.0.0.2:7411) answers again"
        );
        assert_eq!(days.look(&peer(0, [true, true])), []);
    }

    #[test]
    fn what_flaps_costs_a_line_now_and_then() {
        let mut days = Days::new();
        let lines: usize = (0..200).map(|at| days.look(&peer(0, [true, at % 4 < 2])).len()).sum();
        assert!(lines > 2 && lines <= 2 * 200 / PAUSE.as_secs() as usize + 2, "{lines} lines");
    }

    #[test]
    fn rails_that_are_all_late_are_not_said_to_be_down() {
        let mut days = Days::new();
        days.look(&peer(0, [false, true]));
        assert!(text(&days.look(&peer(0, [false, true]))).starts_with("rail left"));
        for _ in 0..3 {
            assert_eq!(days.look(&peer(1, [false, false])), [], "no frame takes another path");
        }
        assert_eq!(days.look(&peer(0, [false, true])), []);
        assert!(text(&days.look(&peer(0, [true, true]))).starts_with("rail left"));
    }

    #[test]
    fn all_rails_cut_is_silence_and_one_line() {
        let mut days = Days::new();
        let news = days.look(&peer(2, [false, false]));
        assert_eq!(
            text(&news),
            "store has not been heard for 2 s on any of its rails left (10.0.0.2:7411), right (10.0.0.2:7411): \
             requests to nvme0 wait until their I/O time-out. Is its node running, and the network up?"
        );
        for second in 3..50 {
            assert_eq!(days.look(&peer(second, [false, false])), []);
        }
        assert_eq!(text(&days.look(&peer(0, [true, true]))), "store is heard again, after 49 s of silence");
    }

    #[test]
    fn a_lender_says_until_when_it_keeps_a_function() {
        let mut days = Days::new();
        let functions = (0..6).map(|at| lent(&format!("nvme{at}"), HOLD, false));
        let mut borrower = borrower(2, functions.collect());
        assert_eq!(
            text(&days.look(&borrower)),
            "store has not been heard for 2 s: until 12:09:58 UTC (hold time 600 s) it keeps nvme0, nvme1, nvme2, \
             nvme3 and 2 more, which nobody else can have before"
        );
        borrower.silence = HOLD - Duration::from_secs(1);
        assert_eq!(days.look(&borrower), []);
        borrower.silence = HOLD;
        assert!(text(&days.look(&borrower)).contains("others may now have nvme0"));
        assert_eq!(days.look(&borrower), []);
    }

    #[test]
    fn who_is_not_on_the_list_keeps_nothing() {
        let mut days = Days::new();
        let functions = vec![lent("nvme0", SILENCE, false), lent("nvme1", HOLD, false)];
        let mut borrower = borrower(2, functions);
        let said: Vec<String> = days.look(&borrower).iter().map(Event::to_string).collect();
        let expected = [
            "store has not been heard for 2 s: until 12:09:58 UTC (hold time 600 s) it keeps nvme1, which nobody \
             else can have before",
            "store was silent for the whole hold time of 1 s: others may now have nvme0",
        ];
        assert_eq!(said, expected);
        borrower.silence = HOLD;
        let said = text(&days.look(&borrower));
        assert_eq!(said, "store was silent for the whole hold time of 600 s: others may now have nvme1");
        // It comes, and goes again.
        borrower.silence = Duration::ZERO;
        assert_eq!(text(&days.look(&borrower)), "store is heard again, after 600 s of silence");
        for _ in 0..PAUSE.as_secs() {
            days.look(&borrower);
        }
        borrower.silence = Duration::from_secs(2);
        assert_eq!(days.look(&borrower).len(), 2);
    }

    #[test]
    fn what_is_assigned_is_held_as_its_manager_says_and_given_to_nobody_here() {
        let mut days = Days::new();
        let (minute, month) = (Duration::from_secs(60), 30 * DAY);
        let functions =
            vec![lent("nvme0", month, true), lent("nvme1", minute, true), lent("nvme2", SILENCE, true)];
        let mut borrower = Peer { borrowed: vec!["disk".to_owned()], ..borrower(2, functions) };
        assert_eq!(
            text(&days.look(&borrower)),
            "store has not been heard for 2 s: requests to disk wait until their I/O time-out. Is its node running, \
             and the network up? And until 12:00:58 UTC (hold time 60 s) it keeps nvme1, unless a manager takes \
             that back before; until 1970-01-31T11:59:58Z (hold time 2592000 s) it keeps nvme0, unless a manager \
             takes that back before"
        );
        for silence in [minute, HOLD, month, 2 * month] {
            borrower.silence = silence;
            assert_eq!(days.look(&borrower), []);
        }
    }

    #[test]
    fn a_lender_that_was_never_heard_is_named_once() {
        let mut watch = Watch::default();
        let mut look = |waited, is_refused| {
            let wanted = Wanted {
                function: "nvme0".to_owned(),
                at: "192.0.2.1:7411".to_owned(),
                node: "2b7c-node".to_owned(),
                waited: Duration::from_secs(waited),
                is_refused,
            };
            let seen = Seen { wanted: vec![wanted], ..Seen::default() };
            watch.look(Duration::from_secs(waited), SystemTime::UNIX_EPOCH, &seen)
        };
        assert_eq!(look(1, false), []);
        assert_eq!(look(2, true), [], "the refusal was said");
        let said = text(&look(3, false));
        assert!(said.starts_with("nobody has answered for nvme0 at 192.0.2.1:7411 yet"));
        assert!(said.contains("as node 2b7c-node"), "{said}");
        assert!((4..100).all(|second| look(second, false).is_empty()));
    }

    #[test]
    fn frames_for_nothing_are_said_when_they_go_on() {
        let mut watch = Watch::default();
        let mut look = |second, strangers| {
            let seen = Seen { strangers, ..Seen::default() };
            watch.look(Duration::from_secs(second), SystemTime::UNIX_EPOCH, &seen).len()
        };
        let late: usize =
            [(1, 2), (2, 5), (3, 5), (4, 5), (90, 5)].map(|(at, count)| look(at, count)).iter().sum();
        assert_eq!(late, 0, "something has ended here");
        let first: Vec<u64> = (100..200).filter(|at| look(*at, at / 2) == 1).collect();
        assert_eq!(first, [104], "somebody who calls every other second");
        let again: Vec<u64> = (300..400).filter(|at| look(*at, *at) == 1).collect();
        assert_eq!(again, [303]);
    }
}
