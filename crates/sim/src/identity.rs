//! In some worlds state folders are restored from older copies, so incarnations repeat and fall; in some of those the
//! rival is a copy of the borrower: two nodes with one identity, both alive. And somebody repeats first messages of a
//! life that is long over.

use base::Random;
use base::ids::{Incarnation, LifeId, RailId};
use base::times::REFUSAL_PAUSE;
use link::Tenancy;
use link::frame::{Header, Kind};
use node::{Address, NodeLedger};

use crate::chance::Chance;
use crate::checkers::names;
use crate::checkers::single_owner::Life;
use crate::marks::{Mark, Marks};
use crate::network::{Fate, Frame, Network, first_messages};
use crate::stage::{BORROWER, Event, LENDER, NODES, RIVAL, Stage};

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
    has_rival: bool,
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
        let mut random = Chance::Identity.of(seed);
        random.chance(if has_rival { 500 } else { 200 }).then(|| Self {
            has_rival,
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

    /// Makes the rival a copy of the borrower, and records what a life has sent that ended before everything.
    pub(crate) fn begin(&mut self, stage: &mut Stage<'_>) {
        if self.twins {
            stage.nodes[RIVAL].identity = stage.nodes[BORROWER].identity.clone();
            NodeLedger::entitle(stage.nodes[RIVAL].memory, stage.nodes[RIVAL].identity.id());
        }
        let life = Life { node: BORROWER, number: 0 };
        let mut card = stage.foreign_card(BORROWER, |config| {
            (config.incarnation, config.life) = (Incarnation(0), life_id(life));
        });
        self.old = first_messages(&mut card, ATTEMPTS as u32, (REPEATER, life), stage.clock.instant());
        stage.clock.after(30_000_000, Event::OldMessages);
    }

    /// Somebody repeats them, faster than anybody would.
    pub(crate) fn repeat_old(&mut self, stage: &mut Stage<'_>) {
        let mut frames = Vec::new();
        for _ in 0..REPEATS {
            let frame = self.old[self.random.index(self.old.len())].clone();
            frames.push((self.random.below(WITHIN), frame));
        }
        let again = self.random.range(50_000_000, 900_000_000);
        frames.into_iter().for_each(|(after, frame)| stage.clock.after(after, Event::Arrival(frame)));
        if !stage.is_calm() {
            stage.clock.after(again, Event::OldMessages);
        }
    }

    /// A message of a handshake leaves the lender. While it serves a later life of that node, who repeats old messages
    /// is refused, and not too often.
    pub(crate) fn check_refusal(&mut self, stage: &mut Stage<'_>, to: Address, rail: u8) {
        let Some(card) = stage.nodes[LENDER].card.as_ref().filter(|_| to == REPEATER) else { return };
        let borrower = stage.nodes[BORROWER].identity.id();
        let is_met = card.peers().any(|(place, key)| {
            key.id() == borrower && card.channel(place).is_some_and(|channel| channel.peer().is_some())
        });
        if !is_met {
            return;
        }
        stage.report.marks.set(Mark::OldRefused);
        let (now, cards) = (stage.clock.now, stage.nodes[LENDER].cards);
        let last = self.refused[usize::from(rail)].replace((now, cards));
        let is_early =
            |(at, card): (u64, u64)| card == cards && u128::from(now - at) < REFUSAL_PAUSE.as_nanos();
        if let Some((at, _)) = last.filter(|last| is_early(*last)) {
            let what = format!("who repeats old messages is refused after {} us again", (now - at) / 1000);
            stage.report.fail(names::REFUSALS, what);
        }
    }

    /// Before a node's next life: an operator may restore an older state folder, or copy the other borrower's.
    pub(crate) fn tamper_with_folder(&mut self, stage: &mut Stage<'_>, node: usize) {
        let random = &mut self.random;
        let folder = stage.nodes[node].folder;
        if self.twins && node != LENDER && random.chance(300) {
            stage.nodes[node].folder = stage.nodes[BORROWER + RIVAL - node].folder;
        } else if random.chance(500) {
            stage.nodes[node].folder = random.below(folder + 1);
        }
        if stage.nodes[node].folder >= stage.nodes[node].incarnation {
            return;
        }
        stage.report.marks.set(Mark::FolderRestored);
        stage.log(Some(node), "restored", stage.nodes[node].folder, 0);
        if node == LENDER {
            self.restore_tenancies(stage);
        }
    }

    /// The lender's folder is an older one: its borrowers are told that they cannot rely on anything, if they have met
    /// a later life.
    fn restore_tenancies(&mut self, stage: &mut Stage<'_>) {
        for tenure in stage.loans.iter_mut().map(|lent| &mut lent.tenure) {
            tenure.outrun.fill(true);
            // What a rival would have by an older table, it would have by the operator's fault.
            if !self.has_rival && !tenure.tenancies.is_empty() {
                tenure.tenancy = tenure.tenancies[self.random.index(tenure.tenancies.len())];
            }
        }
    }

    /// The answer to a twin may take its time, and whoever could not be reached before can be reached again at once.
    pub(crate) fn delay_answer(
        &mut self,
        frame: &Frame,
        fates: &mut [Fate],
        network: &mut Network,
        marks: &mut Marks,
    ) {
        let is_answer = frame.by.node == LENDER
            && Header::parse(&frame.bytes).is_ok_and(|header| header.kind == Kind::Response);
        let other = (BORROWER + RIVAL).wrapping_sub(frame.to);
        let waits = self.twins && is_answer && other < NODES && network.islands[other];
        if !waits || self.random.chance(300) {
            return;
        }
        network.islands[other] = false;
        marks.set(Mark::OfferLate);
        for fate in fates {
            if let Fate::Arrives(after, _) = fate {
                *after += self.random.below(150_000_000);
            }
        }
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

/// The node of that, of so many.
pub(crate) fn borrower_of(tenancy: &Tenancy, nodes: usize) -> Option<usize> {
    holder_of(tenancy).map(|life| life.node).filter(|node| (BORROWER..nodes).contains(node))
}

/// Which life calls itself so.
pub(crate) fn life_of_id(id: LifeId) -> Option<Life> {
    let bits = u128::from_le_bytes(id.0);
    let node = ((bits >> 64) as usize).checked_sub(1)?;
    Some(Life { node, number: bits as u64 })
}
