//! Somebody has recorded first messages of many nodes, and repeats them from everywhere: whoever is new finds a place.

use super::*;

/// First messages that were recorded: more than a lobby remembers nodes.
const RECORDED: u64 = 100;
/// Of which nodes, from here on; the newcomer is node 2.
const CALLERS: u64 = 1000;
/// Fewer than make a card ask for cookies by their number.
const CALLS_PER_SECOND: u32 = 450;
const STEP: Duration = Duration::from_micros(500);

/// What nodes have said that called the lender before.
fn recorded(arena: &Arena) -> Vec<Vec<u8>> {
    let call = |number: u64| {
        let mut caller = config(CALLERS + number, borrow(BorrowEdge::Program));
        caller.life = LifeId([10 + number as u8; 16]);
        End::new(arena, caller).turn(Instant::ZERO).swap_remove(0).1
    };
    (0..RECORDED).map(call).collect()
}

/// Repeats calls, each from another address.
struct Repeater {
    calls: Vec<Vec<u8>>,
    begun: Instant,
    sent: u32,
}

impl Repeater {
    fn send(&mut self, now: Instant, lender: &mut End<'_>) {
        while now.since(self.begun) >= Duration::from_secs(1) * self.sent / CALLS_PER_SECOND {
            let mut from = [7; 28];
            from[..4].copy_from_slice(&self.sent.to_le_bytes());
            let mut call = self.calls[self.sent as usize % self.calls.len()].clone();
            lender.card.handle_frame(now, RailId::ALL[0], Address(from), &mut call);
            self.sent += 1;
        }
    }
}

/// After what time a newcomer has its stream while calls are repeated, so far away.
fn opens_after(one_way: Duration) -> Option<Duration> {
    let arena = Arena::default();
    let mut lends = config(1, LoanRole::Lend(LendConfig::of(0)));
    lends.loans[0].tenancy = Tenancy::default();
    let mut lender = End::new(&arena, lends);
    let mut now = Instant::ZERO + Duration::from_secs(1);
    let mut repeater = Repeater { calls: recorded(&arena), begun: now, sent: 0 };
    while now.since(repeater.begun) < Duration::from_millis(500) {
        repeater.send(now, &mut lender);
        lender.turn(now);
        now += STEP;
    }
    let comes = now;
    let mut fresh = config(2, borrow(BorrowEdge::Program));
    fresh.loans[0].tenancy = Tenancy::default();
    let mut ends = [lender, End::on(fresh.new_memory(&arena), fresh, now)];
    let mut on_the_way: VecDeque<(Instant, usize, (Egress, Vec<u8>))> = VecDeque::new();
    while now.since(comes) < Duration::from_secs(10) {
        repeater.send(now, &mut ends[0]);
        while on_the_way.front().is_some_and(|(at, ..)| *at <= now) {
            let (_, to, frame) = on_the_way.pop_front().expect("it was looked at");
            ends[to].incoming.push_back(frame);
        }
        for (at, end) in ends.iter_mut().enumerate() {
            // What goes to others does not come back.
            let sent = end.turn(now).into_iter().filter(|(_, frame)| {
                Header::parse(frame).is_ok_and(|header| u64::from(header.destination.domain.0) < CALLERS)
            });
            on_the_way.extend(sent.map(|frame| (now + one_way, 1 - at, frame)));
        }
        if is_open(&ends[1].card, now) {
            return Some(now.since(comes));
        }
        now += STEP;
    }
    None
}

/// A round trip for a cookie, one for the handshake, one for the stream, and what its lender has to do.
#[test]
fn recorded_calls_from_many_addresses_keep_no_newcomer_out() {
    for one_way in [1, 20, 100].map(Duration::from_millis) {
        let after = opens_after(one_way);
        assert!(
            after.is_some_and(|after| after <= 8 * one_way + Duration::from_millis(20)),
            "{one_way:?}: {after:?}"
        );
    }
}
