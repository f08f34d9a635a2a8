//! Where a lender's peer is: data go to an address only when it has answered a challenge (RFC 9000 §8.2), so that who
//! repeats frames from elsewhere, be it faster than the network, leads nobody astray.
//!
//! A challenge is sent whenever something authentic comes from an address that is not proven, so no more leaves for it
//! than came from it. It bears a number that nobody can guess, and comes back sealed: whoever has received it there is
//! the peer, or hands everything on to it. As long as no address of a path is proven, up to three times of what came
//! from one may be sent there: the first exchange with a newcomer waits for nothing.

use std::collections::BTreeMap;

use base::Instant;
use link::{PathId, derive};

use crate::cells::Address;

/// Addresses of a path that are being proven at the same time; the one that was heard longest ago goes first.
const CANDIDATES: usize = 4;
/// The last of these places is for who is known by frames alone that have come before: whoever has caught one can
/// repeat it from as many addresses as he likes, and must not drive out who sends frames that are new.
const DUPLICATE: usize = CANDIDATES - 1;
/// Between two challenges to one address. What comes meanwhile may be what the peer had sent before it heard the first.
const AGAIN: core::time::Duration = core::time::Duration::from_millis(10);
/// How many times as much may be sent to an address that is not proven as came from it (RFC 9000 §8.1).
const AMPLIFICATION: usize = 3;

/// The addresses that have not been proven yet. They are no more than guesses, so each card makes its own.
pub(crate) struct Addresses {
    seed: [u8; 32],
    made: u64,
    candidates: BTreeMap<PathId, [Option<Candidate>; CANDIDATES]>,
}

#[derive(Clone, Copy)]
struct Candidate {
    address: Address,
    challenge: u64,
    again: Instant,
    heard: Instant,
    /// Bytes that may still be sent there.
    allowance: usize,
}

impl Candidate {
    /// What is to be sent there, if it is time.
    fn challenge(&mut self, now: Instant) -> Option<u64> {
        if self.again > now {
            return None;
        }
        self.again = now + AGAIN;
        Some(self.challenge)
    }
}

impl Addresses {
    /// `seed` is as random as the card's.
    pub(crate) fn new(seed: &[u8; 32]) -> Self {
        Self { seed: derive(seed, PURPOSE), made: 0, candidates: BTreeMap::new() }
    }

    /// Something authentic of `len` bytes has come from an address that is not proven: the challenge to send there, if
    /// it is time.
    pub(crate) fn hear(&mut self, now: Instant, path: PathId, from: Address, len: usize) -> Option<u64> {
        let place = match self.place_of(path, from) {
            Some(DUPLICATE) => {
                let place = self.oldest(path);
                let candidates = self.candidates.get_mut(&path)?;
                candidates[place] = candidates[DUPLICATE].take();
                place
            }
            Some(place) => place,
            None => self.make(now, path, self.oldest(path), from),
        };
        let candidate = self.candidates.get_mut(&path)?[place].as_mut()?;
        candidate.heard = now;
        candidate.allowance += len * AMPLIFICATION;
        candidate.challenge(now)
    }

    /// A frame that has come before has come from an address that is not proven: the same, but nothing else may be sent
    /// there.
    pub(crate) fn hear_duplicate(&mut self, now: Instant, path: PathId, from: Address) -> Option<u64> {
        let known = self.place_of(path, from);
        let place = known.unwrap_or_else(|| self.make(now, path, DUPLICATE, from));
        self.candidates.get_mut(&path)?[place].as_mut()?.challenge(now)
    }

    fn place_of(&self, path: PathId, address: Address) -> Option<usize> {
        self.candidates.get(&path)?.iter().position(|it| it.is_some_and(|it| it.address == address))
    }

    /// The place for a newcomer among those that have sent what is new.
    fn oldest(&self, path: PathId) -> usize {
        let candidates = self.candidates.get(&path).copied().unwrap_or_default();
        let heard = |place: &usize| candidates[*place].map(|it| it.heard);
        (0..DUPLICATE).min_by_key(heard).unwrap_or(0)
    }

    fn make(&mut self, now: Instant, path: PathId, place: usize, address: Address) -> usize {
        self.made += 1;
        let random = derive(&self.seed, self.made);
        let challenge = random.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let candidate = Candidate { address, challenge, again: now, heard: now, allowance: 0 };
        self.candidates.entry(path).or_default()[place] = Some(candidate);
        place
    }

    /// The peer has answered `challenge`: the path's address is proven.
    pub(crate) fn prove(&mut self, challenge: u64) -> Option<(PathId, Address)> {
        let (path, candidate) = self.find(challenge)?;
        self.candidates.remove(&path);
        Some((path, candidate.address))
    }

    /// Where `challenge` is to be sent.
    pub(crate) fn of(&self, challenge: u64) -> Option<Address> {
        self.find(challenge).map(|(_, candidate)| candidate.address)
    }

    /// Where `len` bytes may go on a path of which no address is proven: to the one that was heard last, if it has sent
    /// enough.
    pub(crate) fn spend(&mut self, path: PathId, len: usize) -> Option<Address> {
        let fresh = &mut self.candidates.get_mut(&path)?[..DUPLICATE];
        let last = fresh.iter_mut().flatten().max_by_key(|candidate| candidate.heard)?;
        last.allowance = last.allowance.checked_sub(len)?;
        Some(last.address)
    }

    /// Another peer has come.
    pub(crate) fn forget(&mut self) {
        self.candidates.clear();
    }

    fn find(&self, challenge: u64) -> Option<(PathId, Candidate)> {
        let paths = self.candidates.iter();
        let mut all =
            paths.flat_map(|(path, candidates)| candidates.iter().flatten().map(move |it| (*path, *it)));
        all.find(|(_, candidate)| candidate.challenge == challenge)
    }
}

/// What the seed of challenges is derived with.
const PURPOSE: u64 = u64::from_le_bytes(*b"address\0");

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use base::ids::RailId;

    use super::*;

    const PATH: PathId = PathId::new(RailId::ALL[0], RailId::ALL[0]);
    const OTHER: PathId = PathId::new(RailId::ALL[0], RailId::ALL[1]);

    fn address(number: u8) -> Address {
        Address([number; 28])
    }

    #[test]
    fn an_address_is_proven_by_its_own_challenge_only() {
        let mut addresses = Addresses::new(&[1; 32]);
        let now = Instant::ZERO;
        let one = addresses.hear(now, PATH, address(1), 100).unwrap();
        let two = addresses.hear(now, OTHER, address(2), 100).unwrap();
        assert_ne!(one, two);
        assert_eq!((addresses.of(one), addresses.of(two)), (Some(address(1)), Some(address(2))));
        assert_eq!(addresses.prove(one ^ two), None);
        assert_eq!(addresses.prove(two), Some((OTHER, address(2))));
        assert_eq!(addresses.prove(two), None);
        assert_eq!(addresses.prove(one), Some((PATH, address(1))));
    }

    #[test]
    fn a_flood_of_forged_sources_is_bounded_and_the_last_ones_can_be_proven() {
        let mut addresses = Addresses::new(&[1; 32]);
        let challenges: Vec<u64> = (0..100)
            .map(|number| {
                let now = Instant::ZERO + Duration::from_millis(u64::from(number));
                addresses.hear(now, PATH, address(number), 100).unwrap()
            })
            .collect();
        let known = challenges.iter().filter(|challenge| addresses.of(**challenge).is_some()).count();
        assert_eq!(known, DUPLICATE);
        assert_eq!(addresses.prove(challenges[97]), Some((PATH, address(97))));
    }

    /// He needs no key, only one frame that he has caught.
    #[test]
    fn who_repeats_a_frame_from_many_addresses_drives_nobody_out() {
        let mut addresses = Addresses::new(&[1; 32]);
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let challenge = addresses.hear(at(0), PATH, address(1), 100).unwrap();
        let repeated: Vec<u64> = (2..50)
            .map(|number| addresses.hear_duplicate(at(number.into()), PATH, address(number)).unwrap())
            .collect();
        assert_eq!(addresses.spend(PATH, 300), Some(address(1)));
        assert_eq!(addresses.spend(PATH, 1), None, "nothing goes where he says");
        // Whoever is known by such frames only can be proven, and by others then, too.
        assert_eq!(addresses.of(repeated[47]), Some(address(49)));
        assert_eq!(addresses.hear(at(100), PATH, address(49), 10), Some(repeated[47]));
        assert!(addresses.hear_duplicate(at(101), PATH, address(60)).is_some());
        assert_eq!(addresses.spend(PATH, 30), Some(address(49)));
        assert_eq!(addresses.prove(challenge), Some((PATH, address(1))));
    }

    #[test]
    fn no_more_than_three_times_of_what_came_leaves_for_what_is_not_proven() {
        let mut addresses = Addresses::new(&[1; 32]);
        assert_eq!(addresses.spend(PATH, 1), None);
        addresses.hear(Instant::ZERO, PATH, address(1), 100);
        assert_eq!(addresses.spend(PATH, 250), Some(address(1)));
        assert_eq!(addresses.spend(PATH, 51), None);
        assert_eq!(addresses.spend(PATH, 50), Some(address(1)));
        assert_eq!((addresses.spend(PATH, 1), addresses.spend(OTHER, 1)), (None, None));
    }

    #[test]
    fn a_challenge_is_repeated_while_frames_come_and_not_for_each() {
        let mut addresses = Addresses::new(&[1; 32]);
        let first = addresses.hear(Instant::ZERO, PATH, address(1), 100);
        assert!(first.is_some());
        assert_eq!(addresses.hear(Instant::ZERO + AGAIN / 2, PATH, address(1), 100), None);
        assert_eq!(addresses.hear(Instant::ZERO + AGAIN, PATH, address(1), 100), first);
    }
}
