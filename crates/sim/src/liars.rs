//! A peer that holds the keys of a channel and lies in a stream: its frames are authentic, and say anything.
//!
//! Two nodes have two loans in one channel, all cards of them our own. In the second loan's stream one end's frames are
//! changed on their way (memory that the nodes share, where nothing is sealed: so what is changed is as authentic as it
//! was): bytes, counts, registers' values, whole records, and TLPs that nobody sent. What a frame says of the channel
//! stays true. The loan may fail of it, as often as it likes. But no card dies, no step is too long, and the first loan
//! between the same nodes keeps every byte.
//!
//! Where chance comes from is the caller's: a seed here, the bytes of a fuzzer in `fuzz/`.

mod client;
pub(crate) mod seat;
pub(crate) mod twist;

use base::ids::DomainId;
use base::ledger::Arena;
use base::{Instant, Random, RuleSet};
use core::time::Duration;
use link::frame::Header;
use link::pair::Channel;
use node::{BorrowEdge, Card, CardConfig, CardEvent, Egress};

pub(crate) use self::client::Client;
use self::seat::Seat;
use crate::Failure;
use crate::checkers::names;
use crate::death::{End, survive};
use crate::stage::{BORROWER, LENDER};

/// The loan that nobody lies about, and the other.
const HONEST: usize = 0;
const LIED: usize = 1;
const LOANS: usize = 2;
/// The domain of the virtual machine.
const MACHINE: u32 = 9;
/// The place of the other node among the peers of each.
const PEER: usize = 0;

/// Bytes and number of a drive's blocks.
pub(crate) const BLOCK: usize = 512;
pub(crate) const BLOCKS: u64 = 64;
/// Turns without a lie at the end, in which everything of honest loans has to end.
pub(crate) const PATIENCE: u32 = 20_000;
pub(crate) const TURN: Duration = Duration::from_micros(100);
/// Frames that a card may send in a turn: more would be a storm.
pub(crate) const FRAMES: usize = 2_000;

/// Who lies, to whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Liar {
    /// A borrower, to the lender of its drive.
    Borrower,
    /// A lender, to the driver of a drive.
    Lender,
    /// A lender, to the slot of a virtual machine.
    LenderOfSlot,
}

impl Liar {
    /// Every role.
    pub const ALL: [Self; 3] = [Self::Borrower, Self::Lender, Self::LenderOfSlot];

    fn node(self) -> usize {
        if self == Self::Borrower { BORROWER } else { LENDER }
    }
}

/// Where chance comes from.
pub trait Dice {
    /// A number below `limit`, which is not zero.
    fn below(&mut self, limit: u64) -> u64;

    /// True in `permille` of a thousand cases.
    fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }
}

impl Dice for Random {
    fn below(&mut self, limit: u64) -> u64 {
        Random::below(self, limit)
    }
}

/// What a run has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lies {
    /// Frames that were changed.
    pub told: u64,
    /// Blocks of the honest loan that were read and compared.
    pub verified: u64,
    /// How often the drive of the other loan became usable.
    pub usable: u64,
    /// Cards that were killed and replaced.
    pub replaced: u64,
}

/// A run of the world of `seed`, in which `turns` turns may have lies.
///
/// # Errors
/// A card died, or the honest loan suffered.
pub fn run_liar(seed: u64, turns: u32) -> Result<(Liar, Lies), Failure> {
    let liar = Liar::ALL[(seed % 3) as usize];
    let outcome = survive(|| lie(liar, &mut Random::new(seed), turns));
    let (checker, what) = match outcome {
        Ok(Ok(lies)) => return Ok((liar, lies)),
        Ok(Err(what)) => (names::LIARS, what),
        Err(End::Panicked(what)) => (names::ASSERTION, what),
        Err(End::Killed) => (names::ASSERTION, "nobody kills here".into()),
    };
    Err(Failure { seed, checker, what: format!("{liar:?}: {what}"), summary: crate::Summary::of_seed(seed) })
}

/// Two nodes, of which one lies for `turns` turns.
///
/// # Errors
/// What the honest loan suffered.
///
/// # Panics
/// When a card dies.
pub fn lie(liar: Liar, dice: &mut dyn Dice, turns: u32) -> Result<Lies, String> {
    let arena = Arena::default();
    let mut world = World::new(&arena, liar);
    while !world.is_met() {
        world.turn(dice, false)?;
    }
    for _ in 0..turns {
        let lies = dice.chance(300);
        world.turn(dice, lies)?;
        if dice.chance(3) {
            // The one that is lied to; what it has been told lies in its ledger.
            world.replace(1 - liar.node());
        }
        if dice.chance(10) {
            world.borrow_anew();
        }
        // Now and then long enough for requests to time out, and for a peer to count as silent.
        let pause = [10_u64, 1_000, 4_000][dice.below(3) as usize];
        world.now += if dice.chance(4) { Duration::from_millis(pause) } else { Duration::ZERO };
    }
    world.come_to_rest(dice)?;
    Ok(world.lies)
}

struct World<'w> {
    liar: Liar,
    now: Instant,
    seats: [Seat<'w>; 2],
    clients: [Client; LOANS],
    buffer: Vec<u8>,
    was_usable: bool,
    lies: Lies,
}

impl<'w> World<'w> {
    fn new(arena: &'w Arena, liar: Liar) -> Self {
        let now = Instant::from_nanos(1_000_000);
        let seat = |node: usize| Seat::new(arena, config(node, liar), now);
        Self {
            liar,
            now,
            seats: [seat(LENDER), seat(BORROWER)],
            clients: [Client::new(), Client::new()],
            buffer: vec![0; link::frame::MAX_FRAME],
            was_usable: false,
            lies: Lies::default(),
        }
    }

    /// The borrower gives up what it has of the other loan, and begins it anew: it looks at a function that it has
    /// never seen.
    fn borrow_anew(&mut self) {
        self.seats[BORROWER].config.loans[LIED].life += 1;
        self.replace(BORROWER);
        self.clients[LIED] = Client::new();
    }

    /// The card of a node dies, and the next one goes on.
    fn replace(&mut self, node: usize) {
        self.seats[node].replace(self.now);
        self.lies.replaced += 1;
    }

    /// Whether both loans are there, and go through memory.
    fn is_met(&self) -> bool {
        let is_open = |card: &Card<'_>| (0..LOANS).all(|loan| card.state(loan) == link::State::Open);
        let is_shared = |channel| seat::is_shared(channel, self.now);
        self.seats.iter().all(|seat| is_open(&seat.card)) && self.ends().into_iter().all(is_shared)
    }

    /// The agents agree on memory as soon as the nodes have met.
    fn share(&mut self) {
        if seat::can_share(self.ends(), self.now) {
            self.seats.iter_mut().for_each(|seat| seat.card.set_shm(self.now, PEER, true));
        }
    }

    /// The channel, by end.
    fn ends(&self) -> [Option<&Channel<'w>>; 2] {
        self.seats.each_ref().map(|seat| seat.card.channel(PEER))
    }

    /// Some time passes for both nodes. With `lies`, what the liar sends may be changed.
    fn turn(&mut self, dice: &mut dyn Dice, lies: bool) -> Result<(), String> {
        self.now += TURN;
        self.share();
        self.use_drives(dice)?;
        for node in [LENDER, BORROWER] {
            self.seats[node].let_time_pass(self.now);
            self.serve(node);
            self.transmit(node, dice, lies && node == self.liar.node())?;
        }
        let usable = self.seats[BORROWER].card.borrowed(LIED).is_some_and(|drive| drive.driver.is_ready());
        self.lies.usable += u64::from(usable && !self.was_usable);
        self.was_usable = usable;
        Ok(())
    }

    /// Events and media.
    fn serve(&mut self, node: usize) {
        let (now, seat) = (self.now, &mut self.seats[node]);
        while let Some(event) = seat.card.poll_event() {
            if let CardEvent::Tenant(loan, tenancy) = event {
                seat.card.set_tenancy(now, loan, tenancy);
            }
        }
        seat.serve_media(now);
    }

    fn transmit(&mut self, node: usize, dice: &mut dyn Dice, lies: bool) -> Result<(), String> {
        for _ in 0..FRAMES {
            let now = self.now;
            let Some(sent) = self.seats[node].card.poll_transmit(now, &mut self.buffer) else {
                return Ok(());
            };
            let mut frame = self.buffer[..sent.len].to_vec();
            let lied = self.seats[node].card.stream_id(LIED);
            let is_lied = Header::parse(&frame).is_ok_and(|header| lied == Some(header.stream));
            if lies && sent.egress == Egress::Shm(PEER) && is_lied && dice.chance(400) {
                let told = told(&self.seats[1 - node].card, self.liar, dice);
                twist::twist(dice, &told, twist::Extent::Stream, &mut frame);
                self.lies.told += 1;
            }
            let other = &mut self.seats[1 - node];
            match sent.egress {
                Egress::Rail(rail) => other.card.handle_frame(now, rail, seat::address(node), &mut frame),
                Egress::Shm(_) => other.card.handle_shm_frame(now, PEER, &mut frame),
            }
            other.check_commit();
        }
        Err(format!("node {node} sends without end"))
    }

    fn use_drives(&mut self, dice: &mut dyn Dice) -> Result<(), String> {
        let loans = if self.liar == Liar::LenderOfSlot { 1 } else { LOANS };
        for (loan, client) in self.clients.iter_mut().enumerate().take(loans) {
            match self.seats[BORROWER].use_drive(self.now, loan, client, dice) {
                // What the other loan reads, its lender may have made up.
                Err(what) if loan == HONEST => return Err(what),
                Ok(verified) if loan == HONEST => self.lies.verified += verified,
                _ => {}
            }
        }
        Ok(())
    }

    /// Nobody lies any more, and nothing new is wanted: what was under way for the honest loan ends.
    fn come_to_rest(&mut self, dice: &mut dyn Dice) -> Result<(), String> {
        self.clients[HONEST].stop();
        for _ in 0..PATIENCE {
            if self.clients[HONEST].under_way() == 0 {
                return Ok(());
            }
            self.turn(dice, false)?;
            // A request that was lost with a card may have to time out.
            self.now += Duration::from_millis(1);
        }
        Err(format!("{} requests of the honest loan have not ended", self.clients[HONEST].under_way()))
    }
}

/// What the one who is lied to expects, at its own endpoint, or at that of the other loan: which is denied.
fn told(card: &Card<'_>, liar: Liar, dice: &mut dyn Dice) -> twist::Told {
    let loan = if dice.chance(100) { HONEST } else { LIED };
    let (domain, base) = match liar {
        Liar::Borrower => (LENDER as u32 + 1, node::base_of(loan)),
        Liar::Lender => (BORROWER as u32 + 1, node::base_of(loan)),
        Liar::LenderOfSlot => (MACHINE, 0),
    };
    // What its stream was given: any other name would have each access denied.
    let (requesters, is_lent) = (vec![node::requester_of(LIED)], liar == Liar::Borrower);
    twist::Told::of(card, LIED, twist::Target { domain: DomainId(domain), is_lent, base, requesters })
}

fn config(node: usize, liar: Liar) -> CardConfig {
    let loan = |loan: usize| {
        let edge = match liar {
            Liar::LenderOfSlot if loan == LIED => BorrowEdge::Slot { domain: DomainId(MACHINE) },
            _ => BorrowEdge::Program,
        };
        let role = if node == LENDER { seat::lends(loan) } else { seat::borrows(LENDER, edge) };
        seat::loan_of(loan, [loan as u8 + 1; 32], role)
    };
    seat::config_of(node, (0..LOANS).map(loan).collect(), RuleSet::ALL)
}
