//! In some worlds state folders are restored from older copies, so incarnations repeat and fall; in some of those the
//! rival is a copy of the borrower: two nodes with one identity, both alive. And somebody repeats first messages of a
//! life that is long over.

use base::Random;
use base::ids::{Incarnation, LifeId, RailId};
use base::times::REFUSAL_PAUSE;
use link::Tenancy;
use link::frame::{Header, Kind};
use node::{Address, Card, NodeLedger};

use crate::checkers::names;
use crate::checkers::single_owner::Life;
use crate::contest::Contest;
use crate::marks::Mark;
use crate::network::{Fate, Frame, first_messages};
use crate::world::{BORROWER, Event, LENDER, NODES, RIVAL, World};

/// Told from other seeds.
const IDENTITY: u64 = 0x1de_0000_0000;
/// Attempts of the old life that were recorded.
const ATTEMPTS: u64 = 2;
/// How often they are repeated in a row, and within how many nanoseconds.
const REPEATS: usize = 20;
const WITHIN: u64 = 15_000_000;
/// Where they come from.
const REPEATER: Address = Address([8; 28]);

/// What happens to state folders.
pub(crate) struct Identity {
    random: Random,
    /// Whether the rival's folder is a copy of the borrower's.
    twins: bool,
    /// First messages of a life that is over.
    old: Vec<Frame>,
    /// By rail: the last refusal that went to who repeats them, with the card that sent it.
    refused: [Option<(u64, u64)>; RailId::COUNT],
}

impl Identity {
    /// In a fifth of all worlds; with a rival, in half of them.
    pub(crate) fn of(seed: u64, has_rival: bool) -> Option<Self> {
        // Dice of its own: the other worlds stay what they are.
        let mut random = Random::new(seed ^ IDENTITY);
        random.chance(if has_rival { 500 } else { 200 }).then(|| Self {
            twins: has_rival && random.chance(700),
            random,
            old: Vec::new(),
            refused: Default::default(),
        })
    }

    /// Whether the rival's folder is a copy of the borrower's.
    pub(crate) fn has_twins(&self) -> bool {
        self.twins
    }
}

/// What tells a life of a node from all others.
pub(crate) fn life_id(life: Life) -> LifeId {
    LifeId((((life.node as u128) + 1) << 64 | u128::from(life.number)).to_le_bytes())
}

/// The life that has, or had, a function.
pub(crate) fn holder_of(tenancy: &Tenancy) -> Option<Life> {
    life_of_id(tenancy.life)
}

/// Which life calls itself so.
pub(crate) fn life_of_id(id: LifeId) -> Option<Life> {
    let bits = u128::from_le_bytes(id.0);
    let node = ((bits >> 64) as usize).checked_sub(1)?;
    Some(Life { node, number: bits as u64 })
}

impl World<'_> {
    /// Whether two nodes have one identity.
    pub(crate) fn has_twins(&self) -> bool {
        self.identity.as_ref().is_some_and(Identity::has_twins)
    }

    /// Begins what [`Identity`] plans.
    pub(crate) fn begin_identity(&mut self) {
        if self.identity.is_none() {
            return;
        }
        if self.has_twins() {
            self.nodes[RIVAL].identity = self.nodes[BORROWER].identity.clone();
            NodeLedger::entitle(self.nodes[RIVAL].memory, self.nodes[RIVAL].identity.id());
            // Twins fight for moments.
            self.contest.iter_mut().for_each(Contest::keep_short);
        }
        self.faults.reboot_often();
        self.record_old();
        self.clock.after(30_000_000, Event::OldMessages);
    }

    /// Records what a life has sent that ended before everything.
    fn record_old(&mut self) {
        let mut config = self.card_config(BORROWER);
        let life = Life { node: BORROWER, number: 0 };
        (config.incarnation, config.life) = (Incarnation(0), life_id(life));
        let now = self.clock.instant();
        let memory = config.new_memory(self.arena);
        let mut card = Card::new(memory, None, config, now).expect("the memory was made for it");
        let old = first_messages(&mut card, ATTEMPTS as u32, (REPEATER, life), now);
        if let Some(identity) = &mut self.identity {
            identity.old = old;
        }
    }

    /// Somebody repeats them, faster than anybody would.
    pub(crate) fn repeat_old(&mut self) {
        let Some(identity) = &mut self.identity else { return };
        let mut frames = Vec::new();
        for _ in 0..REPEATS {
            let frame = identity.old[identity.random.index(identity.old.len())].clone();
            frames.push((identity.random.below(WITHIN), frame));
        }
        let again = identity.random.range(50_000_000, 900_000_000);
        frames.into_iter().for_each(|(after, frame)| self.clock.after(after, Event::Arrival(frame)));
        if !self.faults.are_over() {
            self.clock.after(again, Event::OldMessages);
        }
    }

    /// A message of a handshake leaves the lender. While it serves a later life of that node, who repeats old messages
    /// is refused, and not too often.
    pub(crate) fn check_refusal(&mut self, to: Address, rail: u8) {
        let Some(card) = self.nodes[LENDER].card.as_ref().filter(|_| to == REPEATER) else { return };
        let borrower = self.nodes[BORROWER].identity.id();
        let is_met = card.peers().any(|(place, key)| {
            key.id() == borrower && card.channel(place).is_some_and(|channel| channel.peer().is_some())
        });
        if !is_met {
            return;
        }
        self.report.marks.set(Mark::OldRefused);
        let (now, cards) = (self.clock.now, self.nodes[LENDER].cards);
        let Some(identity) = &mut self.identity else { return };
        let last = identity.refused[usize::from(rail)].replace((now, cards));
        let is_early =
            |(at, card): (u64, u64)| card == cards && u128::from(now - at) < REFUSAL_PAUSE.as_nanos();
        if let Some((at, _)) = last.filter(|last| is_early(*last)) {
            let what = format!("who repeats old messages is refused after {} us again", (now - at) / 1000);
            self.report.fail(names::REFUSALS, what);
        }
    }

    /// Before a node's next life: an operator may restore an older state folder, or copy the other borrower's.
    pub(crate) fn tamper_with_folder(&mut self, node: usize) {
        let has_twins = self.has_twins();
        let Some(identity) = &mut self.identity else { return };
        let random = &mut identity.random;
        let folder = self.nodes[node].folder;
        if has_twins && node != LENDER && random.chance(300) {
            self.nodes[node].folder = self.nodes[BORROWER + RIVAL - node].folder;
        } else if random.chance(500) {
            self.nodes[node].folder = random.below(folder + 1);
        }
        if self.nodes[node].folder >= self.nodes[node].incarnation {
            return;
        }
        self.report.marks.set(Mark::FolderRestored);
        self.report.log.event(self.clock.now, Some(node), "restored", self.nodes[node].folder, 0);
        if node == LENDER {
            self.restore_tenancies();
        }
    }

    /// The lender's folder is an older one: its borrowers are told that they cannot rely on anything, if they have met
    /// a later life.
    fn restore_tenancies(&mut self) {
        let is_alone = self.contest.is_none();
        let Some(identity) = &mut self.identity else { return };
        for lent in &mut self.loans {
            lent.tenure.outrun.fill(true);
            // What a rival would have by an older table, it would have by the operator's fault.
            if is_alone && !lent.tenure.tenancies.is_empty() {
                lent.tenure.tenancy =
                    lent.tenure.tenancies[identity.random.index(lent.tenure.tenancies.len())];
            }
        }
    }

    /// The answer to a twin may take its time, and whoever could not be reached before can be reached again at once.
    pub(crate) fn delay_answer(&mut self, frame: &Frame, fates: &mut [Fate]) {
        let is_answer = frame.by.node == LENDER
            && Header::parse(&frame.bytes).is_ok_and(|header| header.kind == Kind::Response);
        let other = (BORROWER + RIVAL).wrapping_sub(frame.to);
        let Some(identity) = self.identity.as_mut().filter(|it| it.twins && is_answer && other < NODES)
        else {
            return;
        };
        if !self.network.islands[other] || identity.random.chance(300) {
            return;
        }
        self.network.islands[other] = false;
        self.report.marks.set(Mark::OfferLate);
        for fate in fates {
            if let Fate::Arrives(after, _) = fate {
                *after += identity.random.below(150_000_000);
            }
        }
    }

    /// Another life has a function, or nobody any more. Who gave it back just now may have taken it just before, so
    /// that nothing was told of that.
    pub(crate) fn check_take_over(&mut self, loan: usize, tenancy: &Tenancy) {
        let taker = holder_of(tenancy);
        if let Some(life) = taker {
            self.check_taker(loan, tenancy, life);
        }
        if !tenancy.is_held {
            self.loans[loan].take_over.ends();
            if !self.loans.iter().any(|lent| lent.take_over.is_held()) {
                self.loans.iter_mut().for_each(|lent| lent.take_over.forget_twins());
            }
        }
    }

    fn check_taker(&mut self, loan: usize, tenancy: &Tenancy, taker: Life) {
        let is_twin = self.nodes[taker.node].identity.id() == tenancy.node;
        match self.loans[loan].take_over.changes(self.clock.now, taker) {
            Ok(Some(former)) if is_twin && self.nodes[former.node].identity.id() == tenancy.node => {
                self.report.marks.set_if(Mark::TwinTookOver, taker.node != former.node);
                self.loans[loan].owner.gives_back(former);
            }
            Ok(_) => {}
            Err(what) if is_twin => self.report.fail(names::TAKE_OVER, what),
            Err(_) => {}
        }
    }
}
