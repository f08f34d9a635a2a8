//! What comes to a card that runs, and what leaves it.
//!
//! A card is told of it when it is in the configuration of the next one: whoever dies in between has a successor that
//! finds it there.

use std::rc::Rc;

use base::Instant;
use base::ids::NodeId;
use base::ledger::{Owner, RawMemory, RegionError};
use link::{Entry, Members, State};

use super::{Card, CardEvent, frames, name_of};
use crate::DriveConfig;
use crate::cells::drive_owner;
use crate::config::{LoanConfig, LoanRole};
use crate::drive::Drive;
use crate::loan::Loan;
use crate::whereabouts::Whereabouts;

impl<'m> Card<'m> {
    /// The ledger has grown where it lies: there is room for more.
    pub fn grow_ledger(&mut self, memory: RawMemory<'m>) {
        self.ledger.grow(memory);
    }

    /// A place has another loan from now on, which borrows; the others notice nothing of it. The one before is over,
    /// and what it has left is given back. A loan for which there is no room is [`super::Unusable::NoRoom`], and its
    /// place stays vacant. The place may be the next one behind those that there are.
    ///
    /// # Errors
    /// The ledger is corrupt.
    ///
    /// # Panics
    /// If there is no such place, the loan lends, or another one is of its function.
    pub fn attach(&mut self, now: Instant, place: usize, loan: LoanConfig) -> Result<(), RegionError> {
        assert!(matches!(loan.role, LoanRole::Borrow { .. }), "what is lent comes with its drive");
        self.now = now;
        self.seat(place, loan);
        self.ledger.retain(&self.config.loans, self.drive_owners());
        self.obtain(place, &self.ledger.loans())?;
        self.decode();
        self.begin(place)
    }

    /// A drive comes to a place that has none, or to the next one, with the loans of its functions, and with where
    /// those are who have some of them; the others notice nothing of it.
    ///
    /// # Errors
    /// The ledger is corrupt, or has no room for the drive. A loan for which it has none is
    /// [`super::Unusable::NoRoom`].
    ///
    /// # Panics
    /// If there is no such place or a drive is in it, or a loan is of something else, or another one is of its
    /// function.
    pub fn lend(
        &mut self,
        now: Instant,
        drive: usize,
        config: DriveConfig,
        loans: Vec<(usize, LoanConfig)>,
        holders: &[Whereabouts],
    ) -> Result<(), RegionError> {
        assert!(!self.leaving.contains(&drive), "a drive comes where there is none");
        assert!(self.drive(drive).is_none(), "nor is any left");
        self.now = now;
        let places: Vec<usize> = loans.iter().map(|(place, _)| *place).collect();
        for (place, loan) in loans {
            let is_its = loan.role.lent().is_some_and(|lent| lent.drive == drive);
            assert!(is_its, "a drive comes with the loans of its functions");
            self.seat(place, loan);
        }
        put(&mut self.config.drives, drive, Some(config.clone()));
        let owner = drive_owner(drive, config.life);
        self.ledger.retain(&self.config.loans, self.drive_owners().chain([owner]));
        let cells = self.ledger.obtain_drive(owner)?;
        let known = self.ledger.loans();
        for place in &places {
            self.obtain(*place, &known)?;
        }
        self.decode();
        let journal = self.ledger.journal;
        let lent = Drive::new(drive, (owner, cells), journal, config, &self.config.loans);
        put(&mut self.drives, drive, Some(lent));
        journal.commit();
        // Whose its functions were in an earlier life of the node.
        self.lobby.set_tenants(frames::lobby_config(&self.config).tenants);
        places.into_iter().try_for_each(|place| self.begin(place))?;
        self.config.holders.retain(|known| holders.iter().all(|holder| holder.key != known.key));
        self.config.holders.extend(holders);
        // They are called as after a start.
        self.expect_holders()
    }

    /// A drive is lent no more. Whoever has a function of it is told so; [`CardEvent::Withdrawn`] follows when nothing
    /// of it is with its medium, and until then nothing may come to its places.
    pub fn withdraw(&mut self, now: Instant, drive: usize) {
        if !self.leaving.contains(&drive) {
            self.leaving.push(drive);
        }
        let loans = self.drive(drive).map_or(Vec::new(), |drive| drive.loans().to_vec());
        for loan in loans {
            self.step_one(now, loan, |card| {
                let peer = card.peer_of(loan).filter(|peer| !card.peers[*peer].has_failed());
                let channel = peer.and_then(|peer| card.peers.get_mut(peer)).map(|peer| &mut peer.channel);
                card.loans[loan].withdraw(now, channel);
            });
        }
    }

    /// Only these nodes may have what a drive lends from now on; whoever has it keeps it.
    pub fn set_allowed(&mut self, now: Instant, drive: usize, allowed: Option<&[NodeId]>) {
        for loan in 0..self.config.loans.len() {
            if let LoanRole::Lend(lent) = &mut self.config.loans[loan].role
                && lent.drive == drive
            {
                lent.allowed = allowed.map(Box::from);
                self.step_one(now, loan, |card| card.loans[loan].set_allowed(allowed.map(Box::from)));
            }
        }
    }

    /// This node's table has this entry of what a loan lends from now on: [`CardEvent::Applied`] says how far it is.
    /// The other loans notice nothing of it. A loan that lends nothing has no entry.
    pub fn set_entry(&mut self, now: Instant, loan: usize, entry: Entry) {
        if let Some(LoanRole::Lend(lent)) = self.config.loans.get_mut(loan).map(|loan| &mut loan.role) {
            lent.entry = Some(entry);
            // It may be in another zone now. Whoever has a stream of it keeps that as long as the entry lets him.
            self.lobby.set_groups(self.config.groups());
            self.step_one(now, loan, |card| card.loans[loan].set_entry(now, entry));
        }
    }

    /// What this node knows of its fabric from now on, if it belongs to one. A node that was removed from it is heard
    /// no more, and has nothing more of this one: what it had is free. What is with the others goes on.
    pub fn set_members(&mut self, now: Instant, members: Option<Members>) {
        let members = members.map(Rc::new);
        self.lobby.set_members(members.clone());
        self.peers.set_members(members.clone());
        for place in 0..self.peers.len() {
            if self.peers.get(place).is_some() {
                self.peer_step(now, place, |_, _| {});
            }
        }
        let is_gone = |node| members.as_ref().is_some_and(|members| members.is_revoked(node));
        for loan in 0..self.loans.len() {
            if self.loans.get(loan).and_then(Loan::tenant).is_some_and(is_gone) {
                self.step_one(now, loan, |card| {
                    let peer = card.peer_of(loan).filter(|peer| !card.peers[*peer].has_failed());
                    let channel =
                        peer.and_then(|peer| card.peers.get_mut(peer)).map(|peer| &mut peer.channel);
                    card.loans[loan].evict(channel);
                });
            }
        }
    }

    fn drive_owners(&self) -> impl Iterator<Item = Owner> {
        self.drives.iter().flatten().map(|drive| drive.owner)
    }

    /// Drives of which a medium has nothing any more are gone.
    pub(super) fn conclude_leaving(&mut self) {
        if self.leaving.is_empty() {
            return;
        }
        let (drives, loans) = (&self.drives, &self.loans);
        let is_quiet = |loan: &usize| loans.get(*loan).is_none_or(Loan::is_quiet);
        let has_gone = |drive: &mut usize| {
            drives.get(*drive).into_iter().flatten().all(|it| it.loans().iter().all(is_quiet))
        };
        let gone: Vec<usize> = self.leaving.extract_if(.., has_gone).collect();
        for drive in gone {
            for (place, config) in self.config.loans.iter_mut().enumerate() {
                if config.role.lent().is_some_and(|lent| lent.drive == drive) {
                    config.vacate();
                    self.loans.vacate(place);
                    self.parts[place] = None;
                }
            }
            // What it has in the ledger is given back when something else comes.
            if let Some(place) = self.drives.get_mut(drive) {
                (*place, self.config.drives[drive]) = (None, None);
            }
            self.events.push_back(CardEvent::Withdrawn(drive));
        }
    }

    /// A place, which may be a new one, is to have this loan; that of the one before is over.
    fn seat(&mut self, place: usize, loan: LoanConfig) {
        // A place whose loan is over has its name until another one comes.
        let is_over = |other| {
            self.loans.get(other).is_none_or(|loan| loan.has_failed() || loan.state() == State::Closed)
        };
        let present = (0..self.loans.len()).filter(|other| *other != place && !is_over(*other));
        let twins = present.filter(|other| name_of(&self.config.loans[*other]) == name_of(&loan));
        assert_eq!(twins.count(), 0, "nodes speak of a function by its name");
        // Nobody has told of places that are vacant.
        while self.loans.len() <= place {
            self.loans.append_vacant();
            self.parts.push(None);
            self.config.loans.push(LoanConfig::vacant(LoanRole::Vacant));
        }
        self.loans.vacate(place);
        self.parts[place] = None;
        self.without_room.retain(|without| *without != place);
        self.config.loans[place] = loan;
        self.lobby.set_groups(self.config.groups());
    }

    /// The loan of a place that has its cells begins.
    fn begin(&mut self, place: usize) -> Result<(), RegionError> {
        let now = self.now;
        self.occupy(place)?;
        if let Some(loan) = self.loans.get_mut(place).filter(|_| self.contains_faults) {
            loan.contain_faults();
        }
        self.reach_guest(place);
        self.ledger.journal.commit();
        // Whoever nobody borrows from any more is called no more.
        for peer in 0..self.peers.len() {
            if let Some(peer) = self.peers.get_mut(peer).filter(|peer| !peer.has_failed()) {
                peer.follow(now, &self.config);
            }
        }
        self.ledger.journal.commit();
        self.step_one(now, place, |_| ());
        Ok(())
    }
}

/// An element of a list from now on, which may be the next one.
fn put<T>(list: &mut Vec<T>, at: usize, value: T) {
    if at == list.len() {
        list.push(value);
    } else {
        list[at] = value;
    }
}
