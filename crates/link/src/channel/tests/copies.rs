//! A borrower's machine that was restored from a snapshot, while the machine that the snapshot was made of goes on or not.

use base::times::RAIL_VERDICT;

use super::*;
use crate::Refusal;

const ORIGINAL: usize = 0;
const COPY: usize = 1;

/// A lender and two borrowers that are the same machine until they part.
struct Copies<'m> {
    borrowers: [End<'m>; 2],
    lender: End<'m>,
    now: Instant,
    /// Which of the borrowers can be heard and hears.
    is_there: [bool; 2],
}

impl<'m> Copies<'m> {
    /// A pair that has met, and has written as often.
    fn begin(arenas: &'m [Arena; 2], writes: u64) -> Self {
        let borrower = |arena| End::new(arena, Role::Borrower, |_| {});
        let mut copies = Self {
            borrowers: [borrower(&arenas[0]), borrower(&arenas[1])],
            lender: End::new(&arenas[0], Role::Lender, |_| {}),
            now: Instant::ZERO,
            is_there: [true; 2],
        };
        copies.run(50);
        for index in 0..writes {
            copies.borrowers.iter_mut().for_each(|end| end.write(index * 4));
        }
        copies.run(100);
        expect(&copies.lender, writes);
        copies
    }

    /// This one's kernel says that it was restored.
    fn renew(&mut self, which: usize) {
        let end = &mut self.borrowers[which];
        // Each time another one.
        end.config.life = LifeId([end.config.life.0[0] + 100 + which as u8; 16]);
        end.channel.renew_keys(self.now, [end.config.life.0[0]; 32], Some(end.config.life));
        end.ledger.journal.commit();
    }

    /// Whether both are still one machine: then the lender hears it once.
    fn is_one(&self) -> bool {
        self.borrowers[0].config.life == self.borrowers[1].config.life && self.is_there == [true; 2]
    }

    fn run(&mut self, rounds: u32) {
        let mut buffer = vec![0; MAX_FRAME];
        for _ in 0..rounds {
            self.now += Duration::from_micros(200);
            let now = self.now;
            let (is_one, has_it) = (self.is_one(), self.lender.channel.cells.current.get().peer_life);
            self.lender.step(now);
            for (which, end) in
                self.borrowers.iter_mut().enumerate().filter(|(which, _)| self.is_there[*which])
            {
                let heard = end.events.len();
                end.step(now);
                for event in &end.events[heard..] {
                    if let Event::Refused(Refusal::Outdated { seen }) = event {
                        // What its agent does once that is durable.
                        end.config.incarnation = Incarnation(seen.0 + 1);
                        end.channel.raise_incarnation(now, end.config.incarnation);
                    }
                }
                while let Some(sent) = end.channel.poll_transmit(now, &mut buffer) {
                    if which == ORIGINAL || !is_one {
                        self.lender.channel.handle_frame(now, &mut buffer[..sent.len], &mut self.lender.log);
                        self.lender.ledger.journal.commit();
                    }
                }
            }
            while let Some(sent) = self.lender.channel.poll_transmit(now, &mut buffer) {
                for (which, end) in self.borrowers.iter_mut().enumerate() {
                    // An answer goes back to where the call came from; who did not call knows nothing of it.
                    let is_for_it = is_one || sent.is_handshake || end.config.life == has_it;
                    if self.is_there[which] && is_for_it {
                        let frame = &mut buffer[..sent.len].to_vec();
                        end.channel.handle_frame(now, frame, &mut end.log);
                        end.ledger.journal.commit();
                    }
                }
            }
        }
    }

    fn run_for(&mut self, time: Duration) {
        self.run((time.as_micros() / 200) as u32);
    }

    fn is_open(&self, which: usize) -> bool {
        let end = &self.borrowers[which];
        self.lender.channel.state() == State::Open
            && self.lender.channel.cells.current.get().peer_life == end.config.life
            && !end.channel.is_renewing()
    }

    /// What is written now arrives.
    fn expect_goes_on(&mut self, which: usize) {
        self.lender.log.0.clear();
        (0..10).for_each(|index| self.borrowers[which].write(index * 4));
        self.run(200);
        expect(&self.lender, 10);
    }

    fn is_twin(&self, which: usize) -> bool {
        let is_it = |event: &Event| matches!(event, Event::Refused(Refusal::Twin { .. }));
        self.borrowers[which].events.iter().any(is_it)
    }

    fn tenancy(&self) -> u64 {
        self.lender.config.tenancy.number
    }

    fn resets(&self, which: usize) -> usize {
        self.borrowers[which].events.iter().filter(|event| **event == Event::Reset).count()
    }
}

#[test]
fn a_copy_takes_nothing_from_the_machine_that_it_was_made_of() {
    let arenas = [Arena::default(), Arena::default()];
    let mut copies = Copies::begin(&arenas, 7);
    let tenancy = copies.tenancy();
    copies.renew(COPY);
    for _ in 0..10 {
        copies.run_for(RAIL_VERDICT);
        copies.expect_goes_on(ORIGINAL);
    }
    assert!(copies.is_twin(COPY) && copies.borrowers[COPY].channel.is_renewing());
    assert_eq!((copies.resets(ORIGINAL), copies.tenancy()), (1, tenancy));
}

/// Its drive may have gone on since the snapshot was made: it is told so.
#[test]
fn a_machine_that_was_restored_and_is_the_only_one_goes_on_as_another_user() {
    for restarts in [false, true] {
        let arenas = [Arena::default(), Arena::default()];
        let mut copies = Copies::begin(&arenas, 7);
        let tenancy = copies.tenancy();
        copies.is_there[ORIGINAL] = false;
        copies.renew(COPY);
        let now = copies.now;
        if restarts {
            copies.borrowers[COPY].restart(now);
        }
        while !copies.is_open(COPY) {
            assert!(copies.now.since(now) < RAIL_VERDICT * 2, "{:?}", copies.borrowers[COPY].events);
            copies.run(5);
        }
        assert!(copies.now.since(now) >= RAIL_VERDICT, "the machine before could have answered");
        copies.run(50);
        assert_ne!(copies.tenancy(), tenancy);
        assert_eq!(copies.borrowers[COPY].channel.tenancy(), copies.tenancy());
        assert_eq!(copies.resets(COPY), 2);
        copies.expect_goes_on(COPY);
    }
}

#[test]
fn a_machine_that_is_restored_again_and_again_is_let_in_in_the_end() {
    let arenas = [Arena::default(), Arena::default()];
    let mut copies = Copies::begin(&arenas, 7);
    copies.is_there[ORIGINAL] = false;
    copies.renew(COPY);
    copies.run_for(RAIL_VERDICT / 2);
    copies.renew(COPY);
    copies.run_for(RAIL_VERDICT * 20);
    assert!(copies.is_open(COPY));
    copies.expect_goes_on(COPY);
}

/// What a lender sends to the machine before comes to the address of both, under keys that both have.
#[test]
fn who_renews_takes_nothing_that_was_meant_for_the_machine_before() {
    let arenas = [Arena::default(), Arena::default()];
    let mut copies = Copies::begin(&arenas, 7);
    copies.lender.write(8);
    copies.renew(COPY);
    let mut buffer = vec![0; MAX_FRAME];
    for _ in 0..1500 {
        copies.now += Duration::from_micros(200);
        copies.lender.step(copies.now);
        while let Some(sent) = copies.lender.channel.poll_transmit(copies.now, &mut buffer) {
            let end = &mut copies.borrowers[COPY];
            end.channel.handle_frame(copies.now, &mut buffer[..sent.len], &mut end.log);
            end.ledger.journal.commit();
        }
    }
    assert!(copies.borrowers[COPY].channel.is_renewing());
    assert_eq!(copies.borrowers[COPY].log.0, []);
}

#[test]
fn of_two_that_were_restored_from_one_snapshot_one_goes_on() {
    let arenas = [Arena::default(), Arena::default()];
    let mut copies = Copies::begin(&arenas, 7);
    [ORIGINAL, COPY].into_iter().for_each(|which| copies.renew(which));
    copies.run_for(RAIL_VERDICT * 10);
    let first = [ORIGINAL, COPY].into_iter().find(|&which| copies.is_open(which)).unwrap();
    assert!(copies.is_twin(1 - first) && !copies.is_twin(first));
    assert_eq!(copies.resets(first), 2);
    for _ in 0..5 {
        copies.run_for(RAIL_VERDICT);
        copies.expect_goes_on(first);
    }
    assert_eq!(copies.resets(first), 2);
}
