//! Two channels over a network that a test controls. Cards are killed and replaced; the ledgers stay.

mod copies;
mod hostile;
mod identity;
mod mutations;
mod private;
mod renewal;
mod slow;
mod steps;

use core::time::Duration;

use base::ledger::{Arena, Ledger, PageCells, Pages, RawMemory};
use base::{Payload, RuleSet};
use pcie::{Bdf, Header as TlpHeader, MemoryRequest, Tag, TlpView};

use super::*;
use crate::frame::MAX_FRAME;
use crate::sealing::REKEY_BYTES;
use crate::stream::Port;
use crate::{PRIVATE_PATH, REKEY_FRAMES, Transmit};

#[derive(FromBytes)]
#[repr(C)]
struct Root {
    channel: ChannelCells,
    pages: PageCells,
}

/// Remembers the addresses of the posted writes that came, how requests have ended, and whether it keeps what is
/// posted.
#[derive(Default)]
struct Log(Vec<u64>, Vec<pcie::CompletionStatus>, bool);

impl<'m> Sink<'m> for Log {
    fn accept(&mut self, _now: Instant, port: &mut Port<'m>, tlp: &TlpView<'_>) {
        match tlp.header() {
            TlpHeader::MemoryWrite(write) => {
                self.0.push(write.address);
                if self.2 {
                    port.held.keep(tlp.header().data_credits());
                }
            }
            TlpHeader::Completion(completion) => self.1.push(completion.status),
            _ => {}
        }
    }
}

struct End<'m> {
    memory: RawMemory<'m>,
    config: ChannelConfig,
    channel: Channel<'m>,
    ledger: Ledger<'m, Root>,
    log: Log,
    events: Vec<Event>,
    /// What its agent has to make durable stays undone.
    disk_is_full: bool,
}

impl<'m> End<'m> {
    fn new(arena: &'m Arena, role: Role, change: impl FnOnce(&mut ChannelConfig)) -> Self {
        let mut config = ChannelConfig {
            role,
            secret: [5; 32],
            lender: NodeKey::numbered(Role::Lender as u64 + 1).lends_in(DomainId::default()),
            allowed: None,
            protection: Protection::Aegis,
            fabric: 0,
            group: Group::DEFAULT,
            index: ChannelIndex(role as u32 + 3),
            stream: StreamId(7),
            loan_generation: LoanGeneration(0),
            tenancy: Tenancy::default(),
            identity: NodeKey::numbered(role as u64 + 1),
            name: Name::new("node"),
            domain: DomainId(role as u32 + 1),
            incarnation: Incarnation(1),
            life: LifeId([role as u8 + 1; 16]),
            generation: CardGeneration(1),
            seed: [role as u8; 32],
            rekey_frames: REKEY_FRAMES,
            paths: vec![PathConfig { max_frame: 9000 }, PathConfig { max_frame: 9000 }],
            max_payload: 4096,
        };
        change(&mut config);
        Self::start(arena.zeroed::<Root>(), config, Instant::ZERO)
    }

    fn start(memory: RawMemory<'m>, config: ChannelConfig, now: Instant) -> Self {
        let ledger = memory.ledger::<Root>(None, RuleSet::ALL);
        ledger.journal.roll_back().unwrap();
        let pages = Pages::new(&ledger.root.pages, ledger.journal);
        let channel = Channel::new(&ledger.root.channel, pages, ledger.journal, config.clone(), now);
        Self { memory, config, channel, ledger, log: Log::default(), events: Vec::new(), disk_is_full: false }
    }

    /// The card dies and the next one starts on the same ledger.
    fn restart(&mut self, now: Instant) {
        self.config.generation.0 += 1;
        self.config.seed[1] += 1;
        let next = Self::start(self.memory, self.config.clone(), now);
        (self.channel, self.ledger) = (next.channel, next.ledger);
    }

    fn step(&mut self, now: Instant) {
        self.channel.handle_timeout(now);
        while self.channel.deliver_ahead(now, &mut self.log) {}
        self.channel.assign_numbers(now);
        while let Some(event) = self.channel.poll_event() {
            if event == Event::Reset {
                self.channel.open();
            }
            self.events.push(event);
        }
        self.ledger.journal.commit();
        if let Some(tenancy) = self.channel.unsaved_tenancy().filter(|_| !self.disk_is_full) {
            self.config.tenancy = tenancy;
            self.channel.set_tenancy(tenancy);
        }
    }

    fn write(&mut self, address: u64) {
        let request = MemoryRequest::new(Bdf(8), Tag::new(0).unwrap(), address, 4).unwrap();
        self.channel.stream.port.sender.push(
            &TlpHeader::MemoryWrite(request),
            Payload::inline(&[1; 4]),
            false,
        );
        self.ledger.journal.commit();
    }
}

/// Whether the network delivers a frame: by direction (borrower to lender is true) and path.
type Network<'n> = dyn FnMut(bool, PathId) -> bool + 'n;

/// Loses a frame in three, always the same ones.
fn lossy() -> impl FnMut(bool, PathId) -> bool {
    let mut state = 1_u64;
    move |_, _| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        !(state >> 33).is_multiple_of(3)
    }
}

fn run(now: &mut Instant, ends: &mut [End<'_>; 2], network: &mut Network<'_>, rounds: u32) {
    let mut buffer = vec![0; MAX_FRAME];
    for _ in 0..rounds {
        *now += Duration::from_micros(200);
        ends.iter_mut().for_each(|end| end.step(*now));
        for from in 0..2 {
            while let Some(Transmit { path, len, .. }) = ends[from].channel.poll_transmit(*now, &mut buffer) {
                if network(from == 0, path) {
                    let to = &mut ends[1 - from];
                    let frame = &mut buffer[..len];
                    match path {
                        PRIVATE_PATH => to.channel.handle_private_frame(*now, frame, &mut to.log),
                        _ => to.channel.handle_frame(*now, frame, &mut to.log),
                    };
                    to.ledger.journal.commit();
                }
            }
        }
    }
}

fn pair(arena: &Arena) -> [End<'_>; 2] {
    [End::new(arena, Role::Borrower, |_| {}), End::new(arena, Role::Lender, |_| {})]
}

fn expect(end: &End<'_>, count: u64) {
    let expected: Vec<u64> = (0..count).map(|index| index * 4).collect();
    assert_eq!(end.log.0, expected, "each write once and in order");
}

#[test]
fn writes_arrive_once_and_in_order_over_loss() {
    let arena = Arena::default();
    let mut network = lossy();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut network, 3000);
    for index in 0..500 {
        ends[0].write(index * 4);
        run(&mut now, &mut ends, &mut network, 1);
    }
    run(&mut now, &mut ends, &mut network, 3000);
    expect(&ends[1], 500);
    assert!(ends[0].channel.stream.is_idle());
    assert!(ends[0].channel.stream.stats().retransmissions.get() > 0);
}

#[test]
fn both_cards_die_again_and_again() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    for index in 0..300 {
        ends[0].write(index * 4);
        run(&mut now, &mut ends, &mut |_, _| true, 1);
        if index % 7 == 0 {
            ends[0].restart(now);
        }
        if index % 11 == 0 {
            ends[1].restart(now);
        }
    }
    run(&mut now, &mut ends, &mut |_, _| true, 1000);
    expect(&ends[1], 300);
    assert!(ends[0].channel.stream.is_idle());
}

#[test]
fn a_cut_rail_costs_a_few_round_trips_and_is_taken_up_again() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    ends[0].write(0);
    let before = now;
    let mut cut = |_, path| path != 0;
    while ends[1].log.0.is_empty() {
        run(&mut now, &mut ends, &mut cut, 1);
    }
    assert!(now.since(before) < Duration::from_millis(20), "moved after {:?}", now.since(before));
    run(&mut now, &mut ends, &mut cut, 3000);
    assert!(!ends[0].channel.path_status(0, now).1 && ends[0].channel.path_status(1, now).1);
    run(&mut now, &mut ends, &mut |_, _| true, 3000);
    assert!(ends[0].channel.path_status(0, now).1);
}

#[test]
fn the_other_rail_is_cut_when_one_comes_back() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    for round in 0..6 {
        // The longer a rail is dead, the deader it seems, and the one that has just died seems healthier.
        run(&mut now, &mut ends, &mut |_, path| path != round % 2, 3000);
        ends[0].write(u64::from(round) * 4096);
        ends[1].write(u64::from(round) * 4096);
        let before = now;
        while ends.iter().any(|end| end.log.0.len() <= usize::from(round)) {
            run(&mut now, &mut ends, &mut |_, path| path == round % 2, 1);
            assert!(now.since(before) < base::times::PROBE_MAX * 3, "round {round}");
        }
    }
}

/// Whoever queues nothing without credit hears of new credit as early as one who has something waiting.
#[test]
fn who_has_no_credit_asks_for_it() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    ends[1].log.2 = true;
    for index in 0..1024 {
        assert!(ends[0].channel.stream.port.sender.posted_credit().suffices());
        ends[0].write(index * 4);
        run(&mut now, &mut ends, &mut |_, _| true, 1);
    }
    run(&mut now, &mut ends, &mut |_, _| true, 5);
    let sender = &ends[0].channel.stream.port.sender;
    assert!(sender.is_empty() && !sender.posted_credit().suffices());
    (0..1024).for_each(|_| ends[1].channel.stream.port.held.give_back(1));
    ends[1].ledger.journal.commit();
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    assert!(ends[0].channel.stream.port.sender.posted_credit().suffices(), "within 10 ms");
    let mut credit = ends[0].channel.stream.port.sender.posted_credit();
    let request = MemoryRequest::new(Bdf(8), Tag::new(0).unwrap(), 0, 4096).unwrap();
    let count = (0..).take_while(|_| {
        let suffices = credit.suffices();
        if suffices {
            credit.spend(&TlpHeader::MemoryWrite(request));
        }
        suffices
    });
    assert_eq!(count.count(), 1024, "credit for each, however large");
    // One that waits is before all others.
    ends[0].write(0);
    assert!(!ends[0].channel.stream.port.sender.posted_credit().suffices());
}

/// Runs until all writes have come, or for so long.
fn run_until_written(now: &mut Instant, ends: &mut [End<'_>; 2], network: &mut Network<'_>, writes: u64) {
    let before = *now;
    for end in &mut *ends {
        end.log.0.clear();
    }
    for write in 0..writes {
        ends.iter_mut().for_each(|end| end.write(write * 4096));
        run(now, ends, network, 1);
    }
    while ends.iter().any(|end| end.log.0.len() < writes as usize) {
        run(now, ends, network, 1);
        assert!(now.since(before) < Duration::from_secs(1), "nothing comes through");
    }
}

#[test]
fn cards_that_are_killed_while_a_rail_is_cut_find_the_other_one() {
    for seed in 0..20_u64 {
        let arena = Arena::default();
        let mut ends = pair(&arena);
        let mut now = Instant::ZERO;
        let mut random = seed;
        let mut below = |end: u64| {
            random =
                u64::wrapping_add(random.wrapping_mul(6_364_136_223_846_793_005), 1_442_695_040_888_963_407);
            (random >> 33) % end
        };
        run(&mut now, &mut ends, &mut |_, _| true, 50);
        for kill in 0..40 {
            let cut = (kill % 2) as PathId;
            let rounds = below(3000) as u32;
            let mut loss = |_, _| below(100) != 0;
            run(&mut now, &mut ends, &mut loss, rounds);
            while ends.iter().any(|end| !end.channel.path_status(1 - cut, now).1) {
                run(&mut now, &mut ends, &mut loss, 1);
            }
            let mut one_rail = |borrower, path| path != cut && loss(borrower, path);
            for side in [1, 0] {
                ends[side].restart(now);
                run_until_written(&mut now, &mut ends, &mut one_rail, 20);
            }
        }
    }
}

#[test]
fn a_lender_that_lost_its_ledger_is_met_again() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    let config = ChannelConfig { incarnation: Incarnation(2), ..ends[1].config.clone() };
    ends[1] = End::start(arena.zeroed::<Root>(), config, now);
    run(&mut now, &mut ends, &mut |_, _| true, 8000);
    assert_eq!(ends[0].events.iter().filter(|event| **event == Event::Reset).count(), 2);
    ends[0].write(0);
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    expect(&ends[1], 1);
}

#[test]
fn a_second_borrower_is_refused_by_name() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    let [_, lender] = ends;
    let second = End::new(&arena, Role::Borrower, |config| config.identity = NodeKey::numbered(77));
    let mut ends = [second, lender];
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    let refused = |event: &Event| matches!(event, Event::Refused(Refusal::InUse { by, .. }) if by.to_string() == "node");
    assert!(ends[0].events.iter().any(refused), "{:?}", ends[0].events);
}

#[test]
fn a_function_given_back_can_be_lent_to_another() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    ends[0].channel.close(now);
    run(&mut now, &mut ends, &mut lossy(), 200);
    assert!(ends.iter().all(|end| end.events.contains(&Event::Closed)));
    let [_, lender] = ends;
    let second = End::new(&arena, Role::Borrower, |config| config.identity = NodeKey::numbered(77));
    let mut ends = [second, lender];
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    ends[0].write(0);
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    expect(&ends[1], 1);
}

/// A borrower that lost the function by its silence, to one that has given it back since, comes again: the lender has
/// ended what this one still believes in.
#[test]
fn who_slept_through_the_hold_time_begins_anew() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    ends[0].write(0);
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    let [sleeper, lender] = ends;
    now += base::times::HOLD;
    let second = End::new(&arena, Role::Borrower, |config| config.identity = NodeKey::numbered(77));
    let mut ends = [second, lender];
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    assert_eq!(ends[1].channel.peer().map(|(node, ..)| node), Some(NodeKey::numbered(77).id()));
    ends[0].channel.close(now);
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    let [_, lender] = ends;
    let mut ends = [sleeper, lender];
    ends.iter_mut().for_each(|end| end.events.clear());
    // Its first frames are under keys that the lender has forgotten, until it notices the silence.
    run(&mut now, &mut ends, &mut |_, _| true, 2_000);
    assert!(ends.iter().all(|end| end.events.contains(&Event::Reset)), "{:?}", ends[0].events);
    assert!(ends.iter().all(|end| end.channel.state() == State::Open));
    let before = ends[1].log.0.len();
    ends[0].write(0);
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    assert_eq!(ends[1].log.0.len(), before + 1, "its writes arrive again");
}

#[test]
fn who_ends_before_it_met_anybody_has_nothing_to_give_back() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    ends[0].step(now);
    ends[0].channel.close(now);
    run(&mut now, &mut ends, &mut |_, _| true, 200);
    assert_eq!(ends[0].events, [Event::Closed]);
    assert_eq!([0, 1].map(|end| ends[end].channel.state()), [State::Closed, State::Idle]);
}

#[test]
fn forged_and_repeated_frames_are_counted_and_change_nothing() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    ends[0].write(0);
    ends[0].step(now);
    let mut frame = vec![0; MAX_FRAME];
    let len = ends[0].channel.poll_transmit(now, &mut frame).unwrap().len;
    let lender = &mut ends[1];
    let before = lender.channel.stats().dropped_replay.get();
    let mut give = |mut bytes: Vec<u8>| {
        lender.channel.handle_frame(now, &mut bytes, &mut lender.log);
    };
    for bit in (0..len * 8).step_by(13).filter(|bit| bit / 8 != crate::frame::ROUTE) {
        let mut forged = frame[..len].to_vec();
        forged[bit / 8] ^= 1 << (bit % 8);
        give(forged);
    }
    (0..len).for_each(|short| give(frame[..short].to_vec()));
    // What a switch may change is no matter.
    for route in [0, 77, 255] {
        frame[crate::frame::ROUTE] = route;
        give(frame[..len].to_vec());
    }
    expect(lender, 1);
    let stats = lender.channel.stats();
    assert_eq!(stats.dropped_replay.get() - before, 2);
    assert!(stats.dropped_auth.get() > 100 && stats.dropped_malformed.get() > 0);
}

#[test]
fn without_sealing_on_both_sides_nothing_is_lent() {
    let arena = Arena::default();
    let mut ends = [
        End::new(&arena, Role::Borrower, |config| config.protection = Protection::Insecure),
        End::new(&arena, Role::Lender, |_| {}),
    ];
    run(&mut Instant::ZERO.clone(), &mut ends, &mut |_, _| true, 50);
    assert!(ends[0].events.contains(&Event::Refused(Refusal::Sealing)), "{:?}", ends[0].events);
}

#[test]
fn two_ends_agree_on_a_cipher_and_keep_it_over_cards() {
    use Protection::{Aegis, Aes256Gcm, Insecure};
    for (borrower, lender, agreed) in [
        (Aegis, Aegis, Cipher::Aegis128X2),
        (Aegis, Aes256Gcm, Cipher::Aes256Gcm),
        (Aes256Gcm, Aegis, Cipher::Aes256Gcm),
        (Insecure, Insecure, Cipher::Crc32c),
    ] {
        let arena = Arena::default();
        let mut ends = [(Role::Borrower, borrower), (Role::Lender, lender)]
            .map(|(role, protection)| End::new(&arena, role, |config| config.protection = protection));
        let mut now = Instant::ZERO;
        run(&mut now, &mut ends, &mut |_, _| true, 50);
        for index in 0..20 {
            ends[0].write(index * 4);
            run(&mut now, &mut ends, &mut |_, _| true, 10);
            ends[index as usize % 2].restart(now);
        }
        run(&mut now, &mut ends, &mut |_, _| true, 500);
        expect(&ends[1], 20);
        assert!(ends.iter().all(|end| end.channel.cipher() == Some(agreed)), "{borrower:?} {lender:?}");
        assert_eq!(ends[0].channel.stats().handshakes.get(), 1);
    }
}

#[test]
fn keys_wear_out_by_frames_and_bytes_of_both_directions() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    (0..100).for_each(|index| ends[1].write(index * 4));
    let before = ends[0].channel.wear.bytes;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    assert!(ends[0].channel.wear.bytes - before > 100 * 16, "what the lender sends counts");
    assert!(!ends[0].channel.wear.is_over(REKEY_FRAMES));
    // A terabyte cannot be sent here.
    ends[0].channel.wear.bytes = REKEY_BYTES;
    ends[1].write(0);
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    assert_eq!(ends[0].channel.stats().handshakes.get(), 2);
}

#[test]
fn keys_are_replaced_under_traffic_without_a_reset() {
    let arena = Arena::default();
    let rekey = |config: &mut ChannelConfig| config.rekey_frames = 20;
    let mut ends = [End::new(&arena, Role::Borrower, rekey), End::new(&arena, Role::Lender, rekey)];
    let mut network = lossy();
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    for index in 0..300 {
        ends[0].write(index * 4);
        run(&mut now, &mut ends, &mut network, 20);
    }
    run(&mut now, &mut ends, &mut network, 3000);
    expect(&ends[1], 300);
    assert!(ends[1].channel.stats().handshakes.get() > 3, "{:?}", ends[1].channel.stats());
    assert_eq!(ends[1].events.iter().filter(|event| **event == Event::Reset).count(), 1);
}

#[test]
fn a_replay_to_a_new_card_is_not_taken_for_an_answer() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    // The lender speaks, so that the borrower's next frame acknowledges something.
    ends[1].write(0);
    ends[1].step(now);
    let mut frame = vec![0; MAX_FRAME];
    let [borrower, lender] = &mut ends;
    let len = lender.channel.poll_transmit(now, &mut frame).unwrap().len;
    borrower.channel.handle_frame(now, &mut frame[..len], &mut borrower.log);
    now += base::times::ACK_DELAY;
    let len = borrower.channel.poll_transmit(now, &mut frame).unwrap().len;
    let captured = frame[..len].to_vec();
    assert_eq!(lender.channel.handle_frame(now, &mut frame[..len], &mut lender.log), Heard::Answer);
    lender.restart(now);
    assert_eq!(lender.channel.handle_frame(now, &mut captured.clone(), &mut lender.log), Heard::Peer);
}
