//! From a report to the last of many nodes that has heard it, where each has a machine of its own. No machine here has
//! so many processors, so the nodes are simulated: what one does with a message is done by a node's own code, what that
//! and the system's calls take is measured, and becomes the time of a node that does it while others do the same.
//!
//! ```text
//! one to all    tell, send ── way ──> wake, read ── wake its card     on all of them at once
//! one to each   tell, send, tell, send, ... ── way ──> wake, read     the last of them last
//! ```

use super::Round;
use base::ids::{DomainBlock, Group, Incarnation, NodeId, RailId};
use base::{Instant, Random};
use campaign::Error;
use node::information::{Announcer, Item, Role, write};
use node::{ANNOUNCE_EVERY, GroupKey, Name, Neighbourhood, NodeKey, Notice, NoticeCause};
use std::hint::black_box;
use std::net::UdpSocket;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant as SystemInstant};

/// What a frame takes from one machine to another, in microseconds: two hosts at one switch.
const WAY_US: f64 = 10.0;
/// Measurements of each step.
const SAMPLES: usize = 500;
/// The receiver sleeps by then.
const ASLEEP: Duration = Duration::from_micros(500);

/// What each step was seen to take, in microseconds, without the slowest hundredth: then this machine did something
/// else.
struct Costs {
    tell: Vec<f64>,
    send: Vec<f64>,
    wake: Vec<f64>,
    read: Vec<f64>,
}

pub(super) fn measure(nodes: usize, rounds: usize) -> Result<Vec<Round>, Error> {
    let costs = Costs::measure()?;
    let mut random = Random::new(nodes as u64);
    let round =
        |_| Round { ours: costs.one_to_all(&mut random, nodes), peer: costs.one_to_each(&mut random, nodes) };
    Ok((0..rounds).map(round).collect())
}

impl Costs {
    fn measure() -> Result<Self, Error> {
        let (tell, read) = messages();
        let [tell, send, wake, read] = [tell, sends()?, wakes()?, read].map(undisturbed);
        Ok(Self { tell, send, wake, read })
    }

    /// Microseconds until the last has moved.
    fn one_to_all(&self, random: &mut Random, nodes: usize) -> f64 {
        let sent = drawn(random, &self.tell) + drawn(random, &self.send) + WAY_US;
        let moved = (0..nodes).map(|_| {
            let agent = drawn(random, &self.wake) + drawn(random, &self.read);
            sent + agent + drawn(random, &self.wake)
        });
        moved.fold(0.0, f64::max)
    }

    /// The same with a frame to each.
    fn one_to_each(&self, random: &mut Random, nodes: usize) -> f64 {
        let mut sent = 0.0;
        let moved = (0..nodes).map(|_| {
            sent += drawn(random, &self.tell) + drawn(random, &self.send);
            sent + WAY_US + drawn(random, &self.wake) + drawn(random, &self.read)
        });
        moved.fold(0.0, f64::max)
    }
}

fn undisturbed(mut samples: Vec<f64>) -> Vec<f64> {
    samples.sort_by(f64::total_cmp);
    samples.truncate(samples.len() - samples.len() / 100);
    samples
}

fn drawn(random: &mut Random, samples: &[f64]) -> f64 {
    samples[random.index(samples.len())]
}

fn microseconds(since: SystemInstant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

/// Writing a notice that proves itself, and hearing it.
fn messages() -> (Vec<f64>, Vec<f64>) {
    let (public, key) = (NodeKey::new([5; 32]).public(), GroupKey::new(&[7; GroupKey::BYTES]));
    let announcer = |number| Announcer {
        role: Role::Node,
        key: public,
        domains: DomainBlock::of(public.id()),
        name: Name::new("teller"),
        interval_s: 5,
        incarnation: Incarnation(1),
        number,
        rail: RailId::ALL[1],
        group: Group::DEFAULT,
    };
    let notice = Notice { node: public.id(), rail: RailId::ALL[0], cause: NoticeCause::Carrier };
    let mut hears = Neighbourhood::new(Instant::ZERO, NodeId::default(), Some(key.clone()));
    let one = |number: u64| {
        let start = SystemInstant::now();
        let announcer = announcer(number);
        let proof = key.proof(&announcer, &notice);
        let (frame, _) = write(&announcer, &[Item::Notice(notice, proof)]);
        let told = microseconds(start);
        // As far apart as notices are heeded without end.
        let now = Instant::ZERO + ANNOUNCE_EVERY * number as u32;
        let start = SystemInstant::now();
        hears.hear(now, RailId::ALL[1], &frame, |_| None);
        assert_eq!(black_box(hears.take_notices()).len(), 1, "it is heeded");
        (told, microseconds(start))
    };
    (1..=SAMPLES as u64).map(one).unzip()
}

/// A small datagram, to where nobody sleeps.
fn sends() -> Result<Vec<f64>, Error> {
    let failed = || Error::io("cannot send a datagram");
    let (from, to) = (bound()?, bound()?);
    to.set_nonblocking(true).map_err(failed())?;
    let at = to.local_addr().map_err(failed())?;
    let one = |_| {
        let start = SystemInstant::now();
        from.send_to(&[0; 300], at).map_err(failed())?;
        let took = microseconds(start);
        let _ = to.recv(&mut [0; 512]);
        Ok(took)
    };
    (0..SAMPLES).map(one).collect()
}

/// From a datagram's coming until who slept for it goes on.
fn wakes() -> Result<Vec<f64>, Error> {
    let failed = || Error::io("cannot wait for a datagram");
    let (from, to) = (bound()?, bound()?);
    let at = to.local_addr().map_err(failed())?;
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut bytes = [0; 512];
            while to.recv(&mut bytes).is_ok_and(|len| len > 0) {
                if tell.send(SystemInstant::now()).is_err() {
                    return;
                }
            }
        });
        let wakes = (0..SAMPLES)
            .map(|_| {
                std::thread::sleep(ASLEEP);
                from.send_to(&[0; 300], at).map_err(failed())?;
                let sent = SystemInstant::now();
                let woken = told.recv().map_err(|_| Error::unexpected("nobody waits for datagrams"))?;
                Ok(woken.saturating_duration_since(sent).as_secs_f64() * 1e6)
            })
            .collect();
        from.send_to(&[], at).map_err(failed())?;
        wakes
    })
}

fn bound() -> Result<UdpSocket, Error> {
    UdpSocket::bind(("127.0.0.1", 0)).map_err(Error::io("cannot open a socket on loopback"))
}
