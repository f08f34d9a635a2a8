//! What comes to a node that runs, and what leaves it, beside the loans of slots ([`super::attach`]).
//!
//! A card is told of it, and takes it at once; its successors find it in their plans. Only where the memory of a ledger
//! that has grown does not show in the card, or somebody is still connected to a place, is the card replaced, as if it
//! had been killed: that costs the others some milliseconds, as any death does.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use node::{LoanKind, MAX_DRIVES, MAX_LOANS, Members, Whereabouts};

use super::drives::Seen;
use super::lenders::Lenders;
use super::{Agent, AgentEvent, DriveEnd, DriveSpec, Edge, LoanEnd, LoanSpec, clients};
use crate::card::now;
use crate::messages::{ToCard, ToDrive};
use crate::plan::{self, Allowed, DriveComing};

/// What comes to a node, all of it or nothing. Places are those of [`Agent::free_places`] and [`Agent::free_drives`],
/// in their order.
#[derive(Default)]
pub struct Arrivals {
    /// Drives with their places.
    pub drives: Vec<(usize, DriveSpec)>,
    /// Loans with their places, those of the functions of these drives among them.
    pub loans: Vec<(usize, LoanSpec)>,
    /// Where those are who have functions of these drives, as was made durable.
    pub holders: Vec<Whereabouts>,
}

/// A drive that was lent, and is not any more.
pub struct Withdrawn {
    /// Where it was among [`super::NodeSpec::drives`].
    pub place: usize,
    /// The drive. Its image is locked as long as this is there.
    pub spec: DriveSpec,
    /// What became of it.
    pub end: DriveEnd,
}

/// A drive that no next card is to have, and of which the present one may still have something under way.
pub(super) struct Leaving {
    pub(super) place: usize,
    /// Where its functions were lent.
    pub(super) loans: Vec<usize>,
    pub(super) spec: DriveSpec,
    pub(super) seen: Seen,
}

/// How the card hears of a loan that comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    /// It is told, and goes on.
    ByMessage,
    /// The next one finds it in its plan.
    ByPlan,
}

/// By how much the clock of the wall may be off before the card is told.
const CLOCK_STEP_MS: u64 = 1000;

/// The same by the clock of the wall as it is now.
pub(super) fn timed(members: Members) -> Members {
    Members { clock_ahead_ms: clock_ahead_ms(), ..members }
}

/// By how much the clock of the wall is ahead of that of agent and card.
fn clock_ahead_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let wall = u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX);
    wall.saturating_sub(now().as_nanos() / 1_000_000)
}

impl Agent {
    /// Places for loans that come: vacant ones that nobody is connected to any more and that are not `kept`, then new
    /// ones.
    pub fn free_places(&self, kept: impl Fn(usize) -> bool) -> Vec<usize> {
        let is_free = |place: &usize| {
            self.spec.loans[*place].is_vacant()
                && !kept(*place)
                && !self.clients.has_any(*place)
                && !self.slots.has_client(*place)
                && !self.leaving.iter().any(|leaving| leaving.loans.contains(place))
        };
        let present = self.spec.loans.len();
        (0..present).filter(is_free).chain(present..MAX_LOANS).collect()
    }

    /// Places for drives that come.
    pub fn free_drives(&self) -> Vec<usize> {
        let leaves = |place: &usize| self.leaving.iter().any(|leaving| leaving.place == *place);
        let is_free = |place: &usize| self.spec.drive(*place).is_none() && !leaves(place);
        (0..MAX_DRIVES).filter(is_free).collect()
    }

    /// Whether there is memory for so many drives more, and for loans of these kinds in these places of
    /// [`Agent::free_places`]. With `take` [`Agent::admit`] finds it afterwards, whatever else asks for memory.
    ///
    /// # Errors
    /// There is none, or the ledger is corrupt: nothing has changed.
    pub fn find_memory(&mut self, drives: usize, kinds: &[(usize, LoanKind)], take: bool) -> io::Result<()> {
        let last = self.free_drives().into_iter().take(drives).max();
        let drives = self.spec.drives.len().max(last.map_or(0, |last| last + 1));
        let places: Vec<usize> = kinds.iter().map(|(place, _)| *place).collect();
        let bytes = self.memory_for(&places, kinds.iter().map(|(_, kind)| *kind), drives)?;
        if take { self.grow_to(bytes) } else { Ok(()) }
    }

    /// Gives all that has come a place. Whether the card goes on.
    ///
    /// # Errors
    /// There is no memory for it: nothing has changed, and nobody listens at the sockets of these loans any more.
    ///
    /// # Panics
    /// If a place is not free.
    pub fn admit(&mut self, mut arrivals: Arrivals) -> io::Result<bool> {
        let drives = arrivals.drives.iter().map(|(place, _)| place + 1).max().unwrap_or(0);
        let drives = drives.max(self.spec.drives.len());
        if let Err(error) = self.reserve(&arrivals.loans, drives) {
            arrivals.loans.iter_mut().for_each(|(_, loan)| loan.vacate());
            return Err(error);
        }
        self.spec.drives.resize_with(drives, || None);
        let lent: Vec<usize> = arrivals.drives.iter().map(|(place, _)| *place).collect();
        for (place, drive) in arrivals.drives {
            assert!(self.spec.drives[place].is_none(), "a drive comes where there is none");
            self.images.come(place, &drive);
            self.spec.drives[place] = Some(drive);
        }
        // What is known of a node since it was written down is newer.
        let is_news = |it: &Whereabouts| self.spec.holders.iter().all(|known| known.key != it.key);
        let news: Vec<Whereabouts> = arrivals.holders.into_iter().filter(is_news).collect();
        self.spec.holders.extend(news);
        let coming: Vec<usize> = arrivals.loans.iter().map(|(place, _)| *place).collect();
        let told: Vec<Told> =
            arrivals.loans.into_iter().map(|(place, loan)| self.seat(place, loan)).collect();
        let goes_on = told.iter().all(|told| *told == Told::ByMessage);
        if goes_on {
            for drive in lent {
                self.core.handle_lent(drive, loans_of(&self.spec.loans, drive));
            }
            let borrowed = coming.iter().filter(|place| self.spec.loans[**place].lender().is_some());
            borrowed.for_each(|place| self.core.handle_attached(*place, true));
        } else {
            self.core.handle_replanned(coming);
        }
        self.follow();
        Ok(goes_on)
    }

    /// The place has this loan from now on, of which the card is to be told in this way.
    pub(super) fn seat(&mut self, place: usize, loan: LoanSpec) -> Told {
        if place == self.spec.loans.len() {
            self.spec.loans.push(LoanSpec::vacant(None));
            self.clients.append_place();
            self.slots.append_place();
        }
        let before = &self.spec.loans[place];
        assert!(before.is_vacant(), "a loan moves in where there is none");
        assert!(loan.config.life > before.config.life, "each loan of a place has an incarnation of its own");
        let told = self.how_told(place);
        if let Some(card) = &mut self.card {
            card.outbox.renew(place, loan.config.life);
        }
        self.forget_wants(place);
        self.spec.loans[place] = loan;
        self.clients.renew(place);
        self.slots.renew(place);
        for account in &self.shared().edges[place] {
            account.received.reset();
            account.sent.reset();
        }
        if let Err(error) = clients::listen_one(&self.spec.loans, place, &self.waiter) {
            // As where there are no descriptors for clients: they wait, and this is tried again.
            self.stop_accepting(&error);
        }
        told
    }

    /// What was to be made durable for the loan of this place is not wanted any more.
    pub(super) fn forget_wants(&mut self, place: usize) {
        let is_past = |event: &AgentEvent| match event {
            AgentEvent::RaiseIncarnation { loan, .. } | AgentEvent::StoreTenancy { loan, .. } => {
                *loan == place
            }
            _ => false,
        };
        self.wants.retain(|event| !is_past(event));
        self.entries.forget(place);
    }

    /// A card can take what comes where it has the memory for it and nobody is connected.
    fn how_told(&self, place: usize) -> Told {
        let has_room = self.card.as_ref().is_some_and(|card| card.memory_bytes >= self.mapping.len());
        let is_used = self.slots.has_client(place) || self.clients.has_any(place);
        if has_room && !is_used { Told::ByMessage } else { Told::ByPlan }
    }

    /// What is borrowed here has nobody new from now on: its socket is gone. Who is connected stays until
    /// [`Agent::detach`].
    pub fn close_edge(&mut self, loan: usize) {
        if let Some(LoanEnd::Borrow {
            edge: Edge::Nbd { path, listener } | Edge::Vm { path, listener, .. },
            ..
        }) = self.spec.loans.get_mut(loan).map(|loan| &mut loan.config.role)
        {
            if let Some(listener) = listener.as_ref() {
                // One that is not in the set is just as good.
                let _ = self.waiter.deregister(std::os::fd::AsFd::as_fd(listener));
            }
            clients::stop_listening_at(path, listener);
        }
    }

    /// Makes the image of a drive durable, which takes as long as the disk, beside everything else: whether that is
    /// over. What fails is told when the drive goes.
    pub fn sync_beside(&mut self, drive: usize) -> bool {
        self.spec
            .drives
            .get(drive)
            .and_then(Option::as_ref)
            .is_none_or(|spec| self.images.sync_beside(drive, spec))
    }

    /// Whether that is under way.
    pub fn is_syncing(&self, drive: usize) -> bool {
        self.images.is_syncing(drive)
    }

    /// Lends a drive no more, of which nobody has any function, as is durable ([`Agent::is_keeping`]): its loans are
    /// vacant. [`Agent::take_withdrawn`] tells when no card has the drive any more.
    pub fn withdraw(&mut self, drive: usize) {
        let Some(spec) = self.spec.drives.get_mut(drive).and_then(Option::take) else { return };
        let seen = self.images.go(drive);
        let loans = loans_of(&self.spec.loans, drive);
        for loan in &loans {
            self.forget_wants(*loan);
            self.spec.loans[*loan].vacate();
        }
        self.leaving.push(Leaving { place: drive, loans: loans.clone(), spec, seen });
        self.core.handle_withdrawn(drive, loans);
        self.follow();
    }

    /// Only these nodes may have what a drive lends; whoever has it keeps it.
    pub fn set_allowed(&mut self, drive: usize, nodes: Option<&[base::ids::NodeId]>) {
        for loan in &mut self.spec.loans {
            if let LoanEnd::Lend(lent) = &mut loan.config.role
                && lent.drive == drive
            {
                lent.allowed = nodes.map(Box::from);
            }
        }
        let allowed: Allowed = nodes.map(Box::from);
        let paper = plan::write(self.spec.identity.id(), &allowed);
        let Some(card) = &mut self.card else { return };
        match paper {
            Ok(paper) => {
                card.allowed.insert(drive, paper);
                self.tell(ToCard::Drive(drive, ToDrive::Allow));
            }
            Err(error) => self.replan(&error),
        }
    }

    /// What the node knows of its fabric from now on, for this card and each that comes after it. What it says of the
    /// clock is made here.
    ///
    /// # Errors
    /// The system has no memory to tell this card.
    pub fn set_fabric(&mut self, members: Members) -> io::Result<()> {
        let members = timed(members);
        let paper = plan::write(self.spec.identity.id(), &members);
        self.spec.fabric = Some(members);
        if let Some(card) = &mut self.card {
            card.fabric = Some(paper?);
            self.tell(ToCard::Fabric);
        }
        self.standby.note_change();
        Ok(())
    }

    /// The clock of the wall may have been set since the card was told of it.
    ///
    /// # Errors
    /// The system has no memory to say so.
    pub fn look_at_clock(&mut self) -> io::Result<()> {
        let is_other = |known: &Members| known.clock_ahead_ms.abs_diff(clock_ahead_ms()) > CLOCK_STEP_MS;
        match self.spec.fabric.as_ref().filter(|known| is_other(known)).cloned() {
            Some(members) => self.set_fabric(members),
            None => Ok(()),
        }
    }

    /// Tells the card of a drive that is lent from now on.
    pub(super) fn tell_drive(&mut self, drive: usize) {
        let Some(spec) = self.spec.drive(drive) else { return };
        let places = loans_of(&self.spec.loans, drive);
        let has_any = |holder: &&Whereabouts| {
            let mut tenancies = places.iter().map(|place| &self.spec.loans[*place].config.tenancy);
            tenancies.any(|tenancy| tenancy.is_held && tenancy.node == holder.node())
        };
        let holders = self.spec.holders.iter().filter(has_any).cloned().collect();
        let mut lenders = Lenders::of(&self.spec.loans, &self.spec.rails);
        let loans = places.iter().copied();
        let loans = loans.map(|place| (place, self.loan_config(&self.spec.loans[place], &mut lenders)));
        let coming = DriveComing {
            config: spec.config.clone(),
            medium: self.medium_plan(drive, spec),
            loans: loans.collect(),
            holders,
        };
        let paper = plan::write(self.spec.identity.id(), &coming);
        let Some(card) = &mut self.card else { return };
        match paper {
            Ok(paper) => {
                card.coming.insert(drive, paper);
                self.tell(ToCard::Drive(drive, ToDrive::Lend));
            }
            Err(error) => self.replan(&error),
        }
    }

    /// The card cannot be told of something: the next one finds it in its plan.
    fn replan(&mut self, error: &io::Error) {
        tracing::debug!(%error, "the card is replaced, since it cannot be told");
        self.core.handle_replanned([]);
        self.follow();
    }

    /// The card has a drive no more that was to go.
    pub(super) fn conclude_one(&mut self, drive: usize) {
        if let Some(at) = self.leaving.iter().position(|leaving| leaving.place == drive) {
            let leaving = self.leaving.remove(at);
            self.conclude_withdrawal(leaving);
        }
        if let Some(card) = &mut self.card {
            card.coming.remove(&drive);
            card.allowed.remove(&drive);
        }
    }

    /// A drive that has left since the last call.
    pub fn take_withdrawn(&mut self) -> Option<Withdrawn> {
        self.withdrawn.pop()
    }

    /// No card has the drives any more that were to go.
    pub(super) fn conclude_leaving(&mut self) {
        for leaving in std::mem::take(&mut self.leaving) {
            self.conclude_withdrawal(leaving);
        }
    }

    fn conclude_withdrawal(&mut self, leaving: Leaving) {
        let writes = (&self.spec.last_writes, self.spec.incarnation);
        let Leaving { place, spec, mut seen, .. } = leaving;
        let end = seen.conclude((place, &spec), writes, false);
        self.withdrawn.push(Withdrawn { place, spec, end });
    }
}

/// Where functions of a drive are lent.
pub(super) fn loans_of(loans: &[LoanSpec], drive: usize) -> Vec<usize> {
    let lends = |loan: &LoanSpec| loan.lent().is_some_and(|lent| lent.drive == drive);
    (0..loans.len()).filter(|at| lends(&loans[*at])).collect()
}
