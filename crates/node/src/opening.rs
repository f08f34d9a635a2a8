//! What a loan's stream begins and ends with: the claim of a borrower, the offer of a lender.

use base::Instant;
use base::ids::{LifeId, LoanGeneration, NodeId, StreamId};
use base::ledger::Journal;
use link::pair::{
    Channel, Claim, ClaimConfig, ClaimState, Course, Offer, OfferConfig, OfferState, Said, Wish,
};
use link::{State, Stream};

use crate::cells::LoanCells;
use crate::config::{CardConfig, LoanRole};
use crate::transaction::requester_of;

/// How the stream of a loan begins and ends.
pub(crate) enum Opening<'m> {
    Claim(Claim<'m>),
    Offer(Offer<'m>),
    /// There is no loan any more: its place is vacant.
    Nothing,
}

impl<'m> Opening<'m> {
    /// That of a loan: a borrower asks from now on, unless it has given the function back.
    pub(crate) fn new(
        cells: &'m LoanCells,
        journal: Journal<'m>,
        card: &CardConfig,
        place: usize,
        now: Instant,
    ) -> Self {
        let loan = &card.loans[place];
        let (function, secret) = (loan.function, loan.title.secret().map(|secret| secret.0));
        match &loan.role {
            LoanRole::Vacant | LoanRole::VacantSlot => Self::Nothing,
            LoanRole::Borrow { .. } => {
                let (generation, domain) = (loan.title.generation(), card.domain_of(loan));
                let (slot, host) = (loan.slot(place), requester_of(place));
                let wish = Wish { function, generation, domain, slot, host };
                let mut claim = Claim::new(&cells.claim, journal, ClaimConfig { wish, secret }, now);
                if claim.state() == ClaimState::Idle {
                    claim.open(now);
                }
                Self::Claim(claim)
            }
            LoanRole::Lend(lent) => {
                let (allowed, tenancy, life) = (lent.allowed.clone(), loan.tenancy, card.life);
                let entry = lent.entry.map(Box::new);
                let config = OfferConfig { function, secret, entry, allowed, tenancy, life };
                Self::Offer(Offer::new(&cells.offer, journal, config, now))
            }
        }
    }

    /// By which entry of the lender's table the stream was opened, or is asked for; 0: by a line.
    pub(crate) fn generation(&self) -> LoanGeneration {
        match self {
            Self::Claim(claim) => claim.generation(),
            Self::Offer(offer) => offer.generation(),
            Self::Nothing => LoanGeneration::default(),
        }
    }

    /// The stream that there is or shall be, in which course of its channel.
    pub(crate) fn stream(&self) -> Option<(Course, StreamId)> {
        match self {
            Self::Claim(claim) => claim.stream(),
            Self::Offer(offer) => offer.stream(),
            Self::Nothing => None,
        }
    }

    /// Of what is lent: who has it, as is durable.
    pub(crate) fn holder(&self) -> Option<(NodeId, LifeId)> {
        match self {
            Self::Offer(offer) => offer.durable_holder(),
            Self::Claim(_) | Self::Nothing => None,
        }
    }

    /// Where the loan stands.
    pub(crate) fn state(&self) -> State {
        match self {
            Self::Claim(claim) => match claim.state() {
                ClaimState::Idle => State::Idle,
                ClaimState::Asking if claim.stream().is_none() => State::Idle,
                ClaimState::Asking => State::Resetting,
                ClaimState::Open | ClaimState::Closing => State::Open,
                ClaimState::Closed => State::Closed,
            },
            Self::Offer(offer) => match offer.state() {
                OfferState::Free if offer.tenant().number != 0 && !offer.tenant().is_held => State::Closed,
                OfferState::Free => State::Idle,
                OfferState::Ending | OfferState::Saving => State::Resetting,
                OfferState::Open => State::Open,
                OfferState::Closing => State::Closed,
            },
            Self::Nothing => State::Closed,
        }
    }

    /// What the other end has said of the stream.
    pub(crate) fn handle_said(
        &mut self,
        now: Instant,
        said: &Said,
        channel: &mut Channel<'m>,
        stream: &mut Stream<'m>,
    ) {
        match self {
            Self::Claim(claim) => claim.handle_said(now, said, channel, stream),
            Self::Offer(offer) => offer.handle_said(now, said, channel, stream),
            Self::Nothing => channel.handle_stray(now, said),
        }
    }

    /// Part of every step of the loan.
    pub(crate) fn advance(
        &mut self,
        now: Instant,
        channel: Option<&mut Channel<'m>>,
        stream: &mut Stream<'m>,
    ) {
        match (self, channel) {
            (Self::Claim(claim), Some(channel)) => claim.advance(now, channel, stream),
            (Self::Offer(offer), channel) => offer.advance(now, channel, stream),
            (Self::Claim(_), None) | (Self::Nothing, _) => {}
        }
    }

    /// When [`Opening::advance`] has something to do.
    pub(crate) fn poll_timeout(&self, channel: Option<&Channel<'m>>) -> Option<Instant> {
        match (self, channel) {
            (Self::Claim(claim), Some(channel)) => claim.poll_timeout(channel),
            (Self::Offer(offer), channel) => offer.poll_timeout(channel),
            (Self::Claim(_), None) | (Self::Nothing, _) => None,
        }
    }
}
