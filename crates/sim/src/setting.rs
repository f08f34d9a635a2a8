//! What kind of world a seed has.

use base::{Random, RuleSet};
use device::nvme::Config;
use node::LoanKind;

use crate::chance::Chance;
use crate::client::{Client, Seat};
use crate::contest::Contest;
use crate::disks::Disks;
use crate::faults::Faults;
use crate::guest::Guest;
use crate::identity::Identity;
use crate::loans::{Loan, common_drive, protection};
use crate::media::Media;
use crate::neighbours::Neighbours;
use crate::rails;
use crate::replaced::Replaced;
use crate::rest::Rest;
use crate::shared::{self, Shared};
use crate::slot::has_guests;
use crate::stage::{BORROWER, LENDER, NODES, RIVAL};
use crate::terms::Terms;
use crate::volatile::Volatile;

/// How many times as many requests guests have whose drives others want, or replace.
const MORE: u32 = 6;

/// Which nodes have guests: who borrows, and with a rival either of the two, or both.
fn guests_of(seed: u64, has_rival: bool) -> [bool; NODES] {
    let mut guests = [false; NODES];
    if has_guests(seed) {
        let dice = Chance::GuestsOfRival.of(seed).below(4);
        guests[BORROWER] = !has_rival || dice > 0;
        guests[RIVAL] = has_rival && dice != 1;
    }
    guests
}

/// A world before anybody is in it.
pub(crate) struct Setting<'w> {
    pub(crate) terms: Terms,
    pub(crate) loans: Vec<Loan<'w>>,
    pub(crate) disks: Disks<'w>,
    /// In some worlds guests have drives with a volatile cache.
    pub(crate) volatile: Option<Volatile>,
    /// In some worlds there is a rival.
    pub(crate) contest: Option<Contest>,
    /// In some of these a guest rests.
    pub(crate) rest: Option<Rest>,
    /// In some, state folders are restored and copied.
    pub(crate) identity: Option<Identity>,
    /// In some worlds the nodes are on one machine.
    pub(crate) neighbours: Option<Neighbours>,
}

impl Setting<'_> {
    pub(crate) fn of(seed: u64, rules: RuleSet, random: &mut Random) -> Self {
        let rules = if random.chance(250) { rules.with_tight_credits() } else { rules };
        let frame_bytes = [1452, 8952, 65_507][random.index(3)];
        let shared = Shared::of(seed);
        let is_shared = shared.is_some();
        let media = Media::of(seed).filter(|_| !is_shared);
        let replaced = Replaced::of(seed).filter(|_| !is_shared && media.is_none());
        let media = media.or_else(|| replaced.as_ref().map(|_| Media::sound(seed)));
        let is_pair = is_shared || media.as_ref().is_some_and(|media| media.is_common);
        let count = if random.chance(250) || is_pair { shared::LOANS } else { 1 };
        let impatient = Chance::Impatient.of(seed).chance(200);
        let mut loans: Vec<_> = match is_shared {
            true => shared::loans(random),
            false => (0..count).map(|index| Loan::new(random, index, impatient)).collect(),
        };
        let is_common = match &media {
            Some(media) => media.is_common,
            None => count > 1 && Chance::CommonDrive.of(seed).chance(600),
        };
        let common: Option<Config> = match is_shared {
            true => Some(shared::drive(&mut loans)),
            false => is_common.then(|| common_drive(&mut loans)),
        };
        let is_other = is_shared || media.is_some();
        let contest = Contest::of(seed).filter(|_| !is_other);
        let guests = guests_of(seed, contest.is_some());
        let identity = Identity::of(seed, contest.is_some()).filter(|_| !is_other);
        // Twins fight for moments.
        let has_twins = identity.as_ref().is_some_and(Identity::has_twins);
        let can_rest = contest.is_some() && guests.contains(&true) && !has_twins;
        // There nobody but the power makes a drive another one.
        let is_undisputed = media.is_none() && contest.is_none() && identity.is_none();
        let protection = protection(&mut Chance::Protection.of(seed));
        let rails = rails::of_world(seed);
        let rail_mode = rails::modes_of_world(seed);
        Self {
            terms: Terms { rules, frame_bytes, rails, protection, rail_mode, common, guests },
            loans,
            volatile: Volatile::of(seed, count, is_common).filter(|_| is_undisputed),
            disks: Disks { shared, media: media.map(|media| media.with(count)), replaced },
            identity,
            neighbours: Neighbours::of(seed).filter(|_| contest.is_none()),
            contest,
            rest: Rest::of(seed).filter(|_| can_rest),
        }
    }

    /// Two, or with a rival three.
    pub(crate) fn nodes(&self) -> usize {
        if self.contest.is_some() { 3 } else { 2 }
    }

    /// What the loans of a node are.
    pub(crate) fn kind(&self, node: usize) -> LoanKind {
        match node {
            LENDER => LoanKind::Lend,
            node if self.terms.guests[node] => LoanKind::Slot,
            _ => LoanKind::Drive,
        }
    }

    /// Who uses what is borrowed, with so many requests all in all, if no guests do.
    pub(crate) fn clients(&self, requests: u32, random: &mut Random) -> Vec<(Seat, Client)> {
        let (count, is_shared) = (self.loans.len(), self.disks.shared.is_some());
        let requests = if is_shared { 3 * requests } else { requests };
        let requests = requests / (3 * count * (self.nodes() - BORROWER)) as u32;
        (BORROWER..self.nodes())
            .filter(|node| !self.terms.guests[*node])
            .flat_map(|node| (0..count).flat_map(move |loan| shared::seats(node, loan, is_shared)))
            .map(|seat| {
                let client = Client::new(random.fork(), self.loans[seat.loan].drive, requests);
                let is_foreign = seat.area != seat.loan;
                let base = self.loans[seat.area].base;
                (seat, if is_shared { client.sharing(base, is_foreign) } else { client })
            })
            .collect()
    }

    /// The guests that do, by node and loan.
    pub(crate) fn guests(&self, requests: u32, random: &mut Random) -> Vec<Guest> {
        let users = self.nodes() - BORROWER;
        let is_contested = self.contest.is_some() || self.identity.is_some();
        // So many that what others do to their drives comes in the middle of it.
        let is_long = self.contest.is_some() || self.disks.replaced.is_some();
        let requests = if is_long { MORE * requests } else { requests };
        let requests = requests / (self.loans.len() * users) as u32;
        let mut guest = |node: usize, loan: usize| {
            let nsid = if self.terms.common.is_some() { loan as u32 + 1 } else { 1 };
            let guest = Guest::new(random.fork(), (node, loan), nsid, self.loans[loan].drive, requests);
            let guest = if is_contested { guest.contested() } else { guest };
            let flushes = self.volatile.as_ref().is_some_and(|volatile| volatile.has(loan));
            if flushes { guest.flushing() } else { guest }
        };
        let nodes = (BORROWER..self.nodes()).filter(|node| self.terms.guests[*node]);
        let slots = nodes.flat_map(|node| (0..self.loans.len()).map(move |loan| (node, loan)));
        slots.map(|(node, loan)| guest(node, loan)).collect()
    }

    pub(crate) fn faults(&self, random: Random) -> Faults {
        let has_guests = self.terms.has_guests();
        let is_rare = has_guests || self.disks.media.is_some();
        let faults = if is_rare { Faults::with_reboots(random) } else { Faults::new(random) };
        if has_guests { faults.for_guests() } else { faults }
    }
}
