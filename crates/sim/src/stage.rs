//! The stage: the nodes and what they lend each other, time, and the checkers. Whatever a card does it does here, since
//! each step of it is judged, and it may die of any.

use base::ids::NodeId;
use base::ledger::Arena;
use base::{Instant, Random, Rule};
use core::time::Duration;
use device::nvme::Config;
use node::agent::{Effect, Exit};
use node::{Card, CardConfig, Notice};

use crate::checkers::names;
use crate::clock::Clock;
use crate::death::{End, survive};
use crate::loans::{Loan, in_rings};
use crate::marks::Mark;
use crate::network::Frame;
use crate::nodes::Node;
use crate::report::Report;
use crate::terms::Terms;
use crate::watch::{Scene, Watch};

/// The node that lends.
pub(crate) const LENDER: usize = 0;
/// The node that borrows.
pub(crate) const BORROWER: usize = 1;
/// In some worlds, the node that wants what the borrower has.
pub(crate) const RIVAL: usize = 2;
/// Nodes at most.
pub(crate) const NODES: usize = 3;

/// The signal that kills cards.
const SIGKILL: i32 = 9;

/// How long a node may be without a card, at most: disks end what was asked of them, the agent pauses since many cards
/// have hardly lived, and the start takes its time.
pub(crate) const LONGEST_ABSENCE: Duration = Duration::from_millis(500);

/// How long the start of a card takes at most.
pub(crate) const LONGEST_START: Duration = Duration::from_millis(300);

/// What happens.
pub(crate) enum Event {
    /// A node has something to do.
    Wake(usize),
    Arrival(Frame),
    /// The disk of a loan has ended a request of the ring.
    Ring(usize, u64),
    /// The mark of an executed piece of work is made late: only without [`Rule::MarkEffects`].
    Mark(usize),
    /// The agent of a node has something to do.
    Agent(usize),
    /// What the agent of this life of a node has asked for is done: a card begins, or disks have had their time.
    Performed(usize, u64, Effect),
    /// The next fault.
    Fault,
    /// A rail comes back.
    Mend(u64),
    /// A node hears which of its rails have no carrier, as bits.
    Carriers(usize, u8),
    /// A member of a node's group, or one that lies, tells it of a rail.
    Notice(usize, Notice),
    /// A client thinks of something.
    Think(usize),
    /// A guest of a virtual machine does.
    ThinkGuest(usize),
    /// Its driver looks at its clock.
    GuestTick(usize),
    /// The agents agree on memory.
    Agree,
    /// A node looks into it.
    Memory(usize),
    /// It has what is to be kept of a drive.
    Kept(usize),
    /// The kernel writes back, or drops, some of what the cache of a drive has.
    Medium(usize),
    /// The lender's agent looks at its images.
    Look,
    /// An operator clears a drive.
    Clear(usize),
    /// A drive is unplugged from its guest.
    Unplug(usize),
    /// The lender is switched off and on.
    Off,
    /// The borrowers' next move.
    Contest,
    /// Perhaps a guest begins to rest, or its node can be reached again.
    Rest,
    /// The program of a node ends, if that life of it still runs.
    Gone(usize, u64),
    /// It is started again.
    Return(usize),
    /// A node that nobody could reach can be reached again.
    Join(usize),
    /// Somebody repeats first messages of a life that is over.
    OldMessages,
}

/// What all parts of a world act on.
pub(crate) struct Stage<'w> {
    pub(crate) arena: &'w Arena,
    pub(crate) terms: Terms,
    pub(crate) random: Random,
    pub(crate) clock: Clock<Event>,
    pub(crate) report: Report,
    /// Two, or with a rival three.
    pub(crate) nodes: Vec<Node<'w>>,
    pub(crate) loans: Vec<Loan<'w>>,
    pub(crate) watch: Watch<'w>,
    /// When faults have ended.
    pub(crate) calm_since: Option<u64>,
}

impl<'w> Stage<'w> {
    /// Everything passes, and everybody lives, from now on.
    pub(crate) fn is_calm(&self) -> bool {
        self.calm_since.is_some()
    }

    /// Something has happened, to a node or to all.
    pub(crate) fn log(&mut self, node: Option<usize>, what: &str, a: u64, b: u64) {
        self.report.log.event(self.clock.now, node, what, a, b);
    }

    /// Wakes a node at `at`, and a little later than now in any case.
    pub(crate) fn wake_at(&mut self, node: usize, at: u64) {
        let at = at.max(self.clock.now + 1_000);
        if self.nodes[node].wake.set(at) {
            self.clock.at(at, Event::Wake(node));
        }
    }

    pub(crate) fn wake_soon(&mut self, node: usize) {
        let at = self.clock.now + self.random.range(1_000, 20_000);
        self.wake_at(node, at);
    }

    /// Time passes for a card. Returns the node, if its card is to be served.
    pub(crate) fn let_time_pass(&mut self, node: usize) -> Option<usize> {
        let due = self.nodes[node].card.as_ref().and_then(Card::poll_timeout);
        let is_due = due.is_some_and(|at| at.as_nanos() <= self.clock.now);
        (!is_due || self.act(node, Card::handle_timeout)).then_some(node)
    }

    /// The checkers, and what they look at.
    pub(crate) fn scene(&mut self) -> (&mut Watch<'w>, Scene<'_, 'w>) {
        let (now, nodes, loans) = (self.clock.now, &self.nodes, &mut self.loans);
        (&mut self.watch, Scene { now, nodes, loans, report: &mut self.report })
    }

    /// Lets the card do something: false if it is dead, or dies of it.
    pub(crate) fn act(&mut self, node: usize, work: impl FnOnce(&mut Card<'w>, Instant)) -> bool {
        let now = self.clock.instant();
        let Some(card) = self.nodes[node].card.as_mut() else { return false };
        self.watch.begin_step(node, card);
        match survive(|| work(card, now)) {
            Ok(()) => {
                self.check_step(node);
                !self.report.has_failed()
            }
            Err(end) => {
                self.end_card(node, end);
                false
            }
        }
    }

    /// After each step of a card.
    fn check_step(&mut self, node: usize) {
        let (watch, mut scene) = self.scene();
        watch.end_step(&mut scene, node);
        for loan in 0..scene.loans.len() {
            watch.check_beliefs(&mut scene, loan);
            watch.check_strays(&mut scene, node, loan);
        }
        if scene.nodes[node].switch.take_mismatch().is_some() {
            scene.report.fail(names::ROLL_BACK, "a roll-back where there was none".into());
        }
    }

    pub(crate) fn end_card(&mut self, node: usize, end: End) {
        match end {
            End::Killed => self.bury(node),
            End::Panicked(what) => self.report.fail(names::ASSERTION, what),
        }
    }

    /// A place at which a card may be killed from outside: true if it was.
    pub(crate) fn dies_here(&mut self, node: usize) -> bool {
        if self.nodes[node].card.is_none() {
            return true;
        }
        if !self.nodes[node].switch.dies_at_effect() {
            return false;
        }
        self.report.marks.set(Mark::EffectKilled);
        self.bury(node);
        true
    }

    /// A card is dead, and its agent notices.
    pub(crate) fn bury(&mut self, node: usize) {
        if self.nodes[node].card.is_some() {
            self.end_life(node);
            self.tell_agent(node, |agent, now| agent.handle_exit(now, Exit::Signal(SIGKILL)));
        }
    }

    /// A card is dead: what it had not committed is to be seen by its successor only.
    pub(crate) fn end_life(&mut self, node: usize) {
        let Some(card) = self.nodes[node].card.take() else { return };
        self.watch.card_died(node, &card);
        self.report.kills += 1;
        self.log(Some(node), "dies", self.nodes[node].generation(), 0);
        self.nodes[node].switch.disarm();
        self.nodes[node].wake.stop();
        let is_dead = |node: usize| self.nodes[node].card.is_none();
        self.report.marks.set_if(Mark::BothDead, is_dead(LENDER) && is_dead(BORROWER));
    }

    /// The agent of a node is about to start a card: false if it should not.
    pub(crate) fn may_start(&mut self, node: usize) -> bool {
        if self.nodes[node].card.is_some() {
            self.report.fail(names::ASSERTION, format!("node {node} is to have a second card"));
            return false;
        }
        if node == LENDER {
            if in_rings(&self.loans) > 0 && self.terms.rules.has(Rule::DrainBeforeStart) {
                let what = "a card starts while requests of an earlier one are under way";
                self.report.fail(names::ASSERTION, what.into());
                return false;
            }
            self.loans.iter_mut().for_each(|loan| loan.unmarked.clear());
        }
        self.nodes[node].cards += 1;
        true
    }

    /// The next card begins on the node's ledger, and may die at once.
    pub(crate) fn make_card(&mut self, node: usize, config: CardConfig) -> Option<Card<'w>> {
        let may_die = !self.is_calm() && self.report.kills > 0 && self.random.chance(150);
        let this = &mut self.nodes[node];
        if may_die {
            this.switch.arm_store(self.random.below(120));
        }
        self.report.log.event(self.clock.now, Some(node), "start", this.generation(), 0);
        let (memory, switch, now) = (this.memory, this.switch, self.clock.instant());
        let rollbacks = switch.rollbacks();
        let made = survive(|| Card::new(memory, Some(switch), config, now));
        if let Some(offset) = switch.take_mismatch() {
            let what = format!("offset {offset:#x} of the ledger is not what was committed");
            self.report.fail(names::ROLL_BACK, what);
        }
        self.report.marks.set_if(Mark::RolledBack, switch.rollbacks() > rollbacks);
        this.agent.handle_started(now, node as i32 + 1);
        match made {
            Ok(card) => return Some(card.expect("the memory was made for it")),
            Err(End::Killed) => {
                self.report.marks.set(Mark::RecoveryKilled);
                self.report.kills += 1;
                self.tell_agent(node, |agent, now| agent.handle_exit(now, Exit::Signal(SIGKILL)));
            }
            Err(End::Panicked(what)) => self.report.fail(names::ASSERTION, what),
        }
        None
    }

    /// It lives.
    pub(crate) fn card_began(&mut self, node: usize, mut card: Card<'w>) {
        // Somebody whom nobody meets is to be told of rails: so the checkers hear of them, and nothing else changes.
        card.set_member(NodeId::default(), 0b01);
        let this = &mut self.nodes[node];
        this.switch.disarm();
        self.watch.listen(self.clock.now, node, &card);
        this.card = Some(card);
        this.agent.handle_running(self.clock.instant());
        let (watch, mut scene) = self.scene();
        watch.card_began(&mut scene, node);
    }

    /// The agent's configuration of a node's card, which lends these drives.
    pub(crate) fn card_config(&mut self, node: usize, drives: Vec<Config>) -> CardConfig {
        let mut seed = [0; 32];
        seed.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = self.random.next_u64().to_le_bytes());
        self.terms.config((node, &self.nodes), &self.loans, drives, seed)
    }

    /// A new card as `node` had one before everything, of which nobody here knows: `change` says how it differs.
    pub(crate) fn foreign_card(&mut self, node: usize, change: impl FnOnce(&mut CardConfig)) -> Card<'w> {
        let mut config = self.card_config(node, Vec::new());
        change(&mut config);
        let memory = config.new_memory(self.arena);
        Card::new(memory, None, config, self.clock.instant()).expect("the memory was made for it")
    }
}
