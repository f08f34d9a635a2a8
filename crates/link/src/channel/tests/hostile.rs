//! What those can do who have recorded frames, and peers who know the key and break the rules.

use base::times::{HANDSHAKE_RETRY_MAX, HOLD, PENDING_KEYS};

use super::*;
use crate::cipher::Cipher;
use crate::frame::{HEADER_LEN, Header, Kind, TAG_LEN};
use crate::handshake::{Answer, Binding, FIRST_LEN, Initiator, Proposal, Responder, Speaker, mark, say};
use crate::stream::Credits;

/// The first messages of a node's next attempts, one by path each, as a network could have recorded them.
fn record_initiations(arena: &Arena, node: u64, attempts: usize) -> Vec<Vec<u8>> {
    let mut end = End::new(arena, Role::Borrower, |config| {
        config.identity = NodeKey::numbered(node);
        config.seed = [node as u8; 32];
    });
    let mut now = Instant::ZERO;
    let mut buffer = vec![0; MAX_FRAME];
    let mut frames = Vec::new();
    for _ in 0..attempts {
        end.step(now);
        while let Some(Transmit { len, .. }) = end.channel.poll_transmit(now, &mut buffer) {
            frames.push(buffer[..len].to_vec());
        }
        now += HANDSHAKE_RETRY_MAX;
    }
    frames
}

fn give(end: &mut End<'_>, now: Instant, frame: &[u8]) -> Heard {
    let heard = end.channel.handle_frame(now, &mut frame.to_vec(), &mut end.log);
    end.ledger.journal.commit();
    heard
}

#[test]
fn replays_of_former_borrowers_delay_a_newcomer_only_for_a_moment() {
    let arena = Arena::default();
    let former: Vec<_> = (50..53).flat_map(|node| record_initiations(&arena, node, 2)).collect();
    let newcomer = End::new(&arena, Role::Borrower, |config| config.identity = NodeKey::numbered(77));
    let mut ends = [newcomer, End::new(&arena, Role::Lender, |_| {})];
    let mut now = Instant::ZERO;
    // The borrower opens with the answer; the lender with the first frame that uses it.
    while ends[1].channel.state() != State::Open {
        for frame in &former {
            give(&mut ends[1], now, frame);
        }
        run(&mut now, &mut ends, &mut |_, _| true, 1);
        // Each of the six attempts was unknown to the lender and can be answered once.
        let bound = PENDING_KEYS * 6 + HANDSHAKE_RETRY_MAX;
        assert!(now.since(Instant::ZERO) < bound, "still {:?}", ends[1].channel.state());
    }
    let stats = ends[1].channel.stats();
    assert!(stats.deferred_handshakes.get() > 0 && stats.dropped_replay.get() > 0);
}

#[test]
fn an_answered_message_is_not_answered_again_after_others_have_come_and_gone() {
    let arena = Arena::default();
    let old = record_initiations(&arena, 50, 1);
    let mut lender = End::new(&arena, Role::Lender, |_| {});
    assert!(matches!(give(&mut lender, Instant::ZERO, &old[0]), Heard::Proposal(_)));
    let mut ends = [End::new(&arena, Role::Borrower, |_| {}), lender];
    let mut now = Instant::ZERO + HOLD;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    ends[0].channel.close(now);
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    assert_eq!(ends[1].channel.state(), State::Closed);
    ends[1].restart(now);
    for frame in &old {
        assert_eq!(give(&mut ends[1], now, frame), Heard::Nothing);
    }
}

#[test]
fn a_refusal_does_not_displace_an_answer_that_waits_to_be_sent() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    let mut buffer = vec![0; MAX_FRAME];
    ends[0].channel.handshake.next = Some(now);
    ends[0].step(now);
    let len = ends[0].channel.poll_transmit(now, &mut buffer).unwrap().len;
    let handshakes = ends[0].channel.stats().handshakes.get();
    assert!(matches!(give(&mut ends[1], now, &buffer[..len]), Heard::Proposal(_)));
    for frame in record_initiations(&arena, 50, 1) {
        assert_eq!(give(&mut ends[1], now, &frame), Heard::Nothing);
    }
    let sent = ends[1].channel.poll_transmit(now, &mut buffer).unwrap();
    assert!(sent.is_handshake);
    give(&mut ends[0], now, &buffer[..sent.len]);
    assert_eq!(ends[0].channel.stats().handshakes.get(), handshakes + 1);
}

#[test]
fn a_first_rail_that_leads_in_one_direction_only_hinders_no_handshake() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |to_lender, path| to_lender || path == 1, 50);
    assert_eq!(ends[0].channel.state(), State::Open);
}

#[test]
fn a_new_card_refuses_what_the_one_before_has_had() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    let mut buffer = vec![0; MAX_FRAME];
    ends[0].write(0);
    ends[0].step(now);
    let len = ends[0].channel.poll_transmit(now, &mut buffer).unwrap().len;
    assert_ne!(give(&mut ends[1], now, &buffer[..len]), Heard::Nothing);
    ends[1].restart(now);
    let before = ends[1].channel.stats().dropped_replay.get();
    assert_eq!(give(&mut ends[1], now, &buffer[..len]), Heard::Nothing);
    assert_eq!(ends[1].channel.stats().dropped_replay.get(), before + 1);
    // What the borrower sends from now on is new, and the stream goes on.
    ends[0].write(4);
    run(&mut now, &mut ends, &mut |_, _| true, 200);
    expect(&ends[1], 2);
}

#[test]
fn the_hold_time_goes_on_while_cards_of_the_lender_come_and_go() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    let [_, mut lender] = ends;
    let minute = Duration::from_secs(60);
    for _ in 0..HOLD.as_secs() / minute.as_secs() {
        now += minute;
        lender.restart(now);
    }
    now += minute / 2;
    let silent = now.since(lender.channel.last_heard());
    assert!(silent >= HOLD && silent < HOLD + minute, "{silent:?}");
    let second = End::new(&arena, Role::Borrower, |config| config.identity = NodeKey::numbered(77));
    let mut ends = [second, lender];
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    assert_eq!(ends[1].channel.peer().map(|(node, ..)| node), Some(NodeKey::numbered(77).id()));
}

/// A read of a register of the peer's configuration space, which its completion ends.
fn ask(end: &mut End<'_>, now: Instant) {
    let tag = end.channel.stream.port.tags.alloc(now, Bdf(8), 0, 4).unwrap();
    let request = pcie::ConfigRequest {
        requester: Bdf(8),
        tag,
        target: Bdf(0x100),
        register: 0,
        first_be: 0xf,
        kind: pcie::ConfigKind::Type0,
        poisoned: false,
    };
    end.channel.stream.port.sender.push(&TlpHeader::ConfigRead(request), Payload::None, false);
    end.ledger.journal.commit();
}

#[test]
fn a_peer_that_goes_beyond_its_credit_is_refused() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    // The lender completes nothing, and has granted 256.
    (0..300).for_each(|_| ask(&mut ends[0], now));
    let honest = ends[0].channel.stream.port.sender.credits().1[2];
    ends[0]
        .channel
        .stream
        .port
        .sender
        .handle_credits(Credits { non_posted_headers: 1000, ..Credits::default() });
    ends[0].ledger.journal.commit();
    run(&mut now, &mut ends, &mut |_, _| true, 500);
    assert_eq!((honest, ends[0].channel.stream.port.sender.next()), (256, 300));
    assert_eq!(ends[1].channel.stream.receiver().expected(), honest);
    assert!(ends[1].channel.stream.stats().credit_violations.get() > 0);
}

#[test]
fn a_broken_tlp_stops_nobody_and_a_request_among_them_is_answered() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    // An I/O read, a length of 1024 dwords in a record that has fewer, a reserved bit of a write.
    for (count, (offset, byte)) in [(0, 0x02), (3, 0x00), (1, 0x02)].into_iter().enumerate() {
        let first = ends[0].channel.stream.port.sender.next();
        if offset == 0 {
            ask(&mut ends[0], now);
        } else {
            ends[0].write(0);
        }
        // Writes would pass a request that has no number yet.
        ends[0].step(now);
        (1..3).for_each(|index| ends[0].write(index * 4));
        ends[0].step(now);
        ends[0].channel.stream.port.sender.corrupt(first, offset, byte);
        run(&mut now, &mut ends, &mut |_, _| true, 500);
        assert!(
            ends.iter().all(|end| end.channel.stream.port.sender.is_empty()),
            "{count}: the stream goes on"
        );
        assert!(ends[1].channel.stream.stats().malformed_tlps.get() > count as u64);
    }
    // Where the end of one could not be told, the rest of its record went with it.
    assert_eq!(ends[1].log.0, [4, 8, 4, 8]);
    assert_eq!(ends[0].log.1, [pcie::CompletionStatus::UnsupportedRequest]);
}

/// The next first message of a borrower.
fn call_of(end: &mut End<'_>, now: Instant) -> Vec<u8> {
    let mut buffer = vec![0; MAX_FRAME];
    end.step(now);
    let len = end.channel.poll_transmit(now, &mut buffer).unwrap().len;
    buffer[..len].to_vec()
}

/// `frame` with another header.
fn with_header(frame: &[u8], change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let mut header = Header::parse(frame).unwrap();
    change(&mut header);
    let mut changed = frame.to_vec();
    header.write(&mut changed);
    let is_handshake = matches!(header.kind, Kind::Initiation | Kind::Response);
    if is_handshake { marked(changed) } else { changed }
}

/// What a lender reads in a first message.
fn read_call(lender: &End<'_>, call: &[u8]) -> (Responder, Proposal) {
    let header = Header::parse(call).unwrap();
    let domains = (header.source.domain, header.destination.domain);
    let binding = crate::channel::keys::binding(&lender.config, domains.0, domains.1);
    Responder::read(binding, [9; 32], &call[HEADER_LEN..call.len() - TAG_LEN]).unwrap()
}

/// A message of a handshake, with the mark of who knows the lender's public key.
fn marked(mut frame: Vec<u8>) -> Vec<u8> {
    mark(&NodeKey::numbered(Role::Lender as u64 + 1).public(), &mut frame);
    frame
}

/// An answer to `call` by who knows the key, and what its header says if it is honest.
fn answer_of(lender: &End<'_>, call: &[u8], change: impl FnOnce(Answer) -> Answer) -> Vec<u8> {
    let (responder, proposal) = read_call(lender, call);
    let answer = change(lender.channel.answer_to(&proposal));
    let mut message = Vec::new();
    responder.answer(&answer, &mut message).unwrap();
    let to = Destination::of(&proposal.speaker);
    let number = (0, proposal.attempt);
    let mut frame = vec![0; HEADER_LEN];
    let incarnation = answer.speaker.incarnation;
    let header = lender.channel.header(Kind::Response, 0, to, incarnation, number);
    Header { card_generation: CardGeneration(0), ..header }.write(&mut frame);
    marked([frame, message, vec![0; TAG_LEN]].concat())
}

/// Both ends' first messages: the borrower's frame, and the lender's answer to it.
fn messages<'a>(ends: &mut [End<'a>; 2], now: Instant) -> [Vec<u8>; 2] {
    let mut buffer = vec![0; MAX_FRAME];
    ends[0].step(now);
    let len = ends[0].channel.poll_transmit(now, &mut buffer).unwrap().len;
    let proposal = buffer[..len].to_vec();
    assert!(matches!(give(&mut ends[1], now, &proposal), Heard::Proposal(_)));
    let len = ends[1].channel.poll_transmit(now, &mut buffer).unwrap().len;
    [proposal, buffer[..len].to_vec()]
}

#[test]
fn who_stands_in_between_cannot_choose_the_cipher() {
    let arena = Arena::default();
    let now = Instant::ZERO;
    let [proposal, answer] = messages(&mut pair(&arena), now);
    let body = |frame: &[u8]| (HEADER_LEN * 8)..(frame.len() - TAG_LEN) * 8;
    let flipped = |frame: &[u8], bit: usize| {
        let mut changed = frame.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        changed
    };
    let mut ends = pair(&arena);
    for bit in body(&proposal) {
        assert_eq!(give(&mut ends[1], now, &flipped(&proposal, bit)), Heard::Nothing);
    }
    assert_eq!(messages(&mut ends, now)[1].len(), answer.len());
    for bit in body(&answer) {
        give(&mut ends[0], now, &flipped(&answer, bit));
        assert_eq!(ends[0].channel.cipher(), None, "bit {bit}");
    }
}

#[test]
fn a_lender_that_chooses_what_was_not_offered_is_not_believed() {
    let arena = Arena::default();
    let now = Instant::ZERO;
    for (cipher, believed) in
        [(0, false), (Cipher::Crc32c as u8, false), (4, false), (Cipher::Aes256Gcm as u8, true)]
    {
        let mut ends = pair(&arena);
        let call = call_of(&mut ends[0], now);
        let frame = answer_of(&ends[1], &call, |answer| Answer { cipher, ..answer });
        give(&mut ends[0], now, &frame);
        assert_eq!(ends[0].channel.cipher().is_some(), believed, "{cipher}");
    }
}

#[test]
fn forged_frames_of_any_card_displace_no_key_and_change_nothing() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    ends[0].write(0);
    ends[0].step(now);
    let mut buffer = vec![0; MAX_FRAME];
    let len = ends[0].channel.poll_transmit(now, &mut buffer).unwrap().len;
    let frame = &buffer[..len];
    let before = ends[1].channel.newest_peer();
    for card in [0, 2, 3, 1000, u64::MAX] {
        let mut forged = frame.to_vec();
        forged[48..56].copy_from_slice(&u64::to_le_bytes(card));
        assert_eq!(give(&mut ends[1], now, &forged), Heard::Nothing);
    }
    assert_eq!(ends[1].channel.newest_peer(), before);
    assert_ne!(give(&mut ends[1], now, frame), Heard::Nothing);
    expect(&ends[1], 1);
}

/// Whoever knows the lender's public key could change the header of an answer, and who has the line could send a first message that contradicts its
/// own.
#[test]
fn a_header_that_names_another_sender_than_its_message_is_dropped() {
    let arena = Arena::default();
    let now = Instant::ZERO;
    let mut ends = pair(&arena);
    let call = call_of(&mut ends[0], now);
    let (_, proposal) = read_call(&ends[1], &call);
    let binding = crate::channel::keys::binding(&ends[0].config, DomainId(9), DomainId(0));
    let mut message = Vec::new();
    Initiator::begin(binding, [3; 32], &proposal, &mut message).unwrap();
    let mut false_call = with_header(&call, |header| header.source.domain = DomainId(9));
    false_call[HEADER_LEN..call.len() - TAG_LEN].copy_from_slice(&message);
    let false_call = marked(false_call);
    let false_life = with_header(&call, |header| header.incarnation.0 += 1);
    for frame in [false_call, false_life] {
        assert_eq!(give(&mut ends[1], now, &frame), Heard::Nothing);
    }
    assert!(ends[1].channel.pending.is_none());
    // Whoever is faster than the network with an answer that he has changed keeps nobody from the true one.
    let answer = answer_of(&ends[1], &call, |answer| answer);
    let changes: [fn(&mut Header); 2] =
        [|header| header.source.domain = DomainId(9), |header| header.incarnation.0 += 1];
    for change in changes {
        give(&mut ends[0], now, &with_header(&answer, change));
        assert!(ends[0].channel.cipher().is_none());
    }
    give(&mut ends[0], now, &answer);
    assert!(ends[0].channel.cipher().is_some());
}

#[test]
fn only_who_was_called_by_its_domain_answers() {
    let arena = Arena::default();
    for (domain, called, is_met) in [(9, 2, false), (2, 2, true), (9, 0, true)] {
        let mut ends = pair(&arena);
        let mut now = Instant::ZERO;
        run(&mut now, &mut ends, &mut |_, _| true, 50);
        ends[0].channel.handshake.next = Some(now);
        let mut call = call_of(&mut ends[0], now);
        if Header::parse(&call).unwrap().destination.domain != DomainId(called) {
            ends[0].channel.handshake.next = Some(now);
            ends[0].channel.handshake.due = 0;
            call = call_of(&mut ends[0], now);
        }
        assert_eq!(Header::parse(&call).unwrap().destination.domain, DomainId(called));
        let answer = answer_of(&ends[1], &call, |answer| {
            let positions = crate::handshake::Positions::default();
            let speaker = Speaker { domain: DomainId(domain), ..answer.speaker };
            Answer { speaker, positions, ..answer }
        });
        let answer = with_header(&answer, |header| header.source.domain = DomainId(domain));
        give(&mut ends[0], now, &answer);
        assert_eq!(ends[0].channel.stats().handshakes.get(), 1 + u64::from(is_met), "{domain} {called}");
    }
}

/// A frame with one byte of its header changed, and what it is counted as: `None` where it is taken.
#[test]
fn each_field_of_a_header_is_checked_and_counted() {
    const AUTH: Option<&str> = Some("auth");
    const MALFORMED: Option<&str> = Some("malformed");
    const MISDIRECTED: Option<&str> = Some("misdirected");
    const GENERATION: Option<&str> = Some("generation");
    // What, where, and what becomes of an initiation, a response and a sealed frame.
    let fields = [
        ("version", 0, [MALFORMED; 3]),
        ("kind", 1, [MALFORMED; 3]),
        ("key id", 2, [MALFORMED, MALFORMED, AUTH]),
        ("route", 3, [None; 3]),
        ("fabric", 4, [MISDIRECTED; 3]),
        ("destination domain", 8, [MISDIRECTED; 3]),
        ("destination rail", 10, [MISDIRECTED; 3]),
        ("above the destination", 11, [MALFORMED, MALFORMED, AUTH]),
        ("source domain", 12, [AUTH; 3]),
        ("source rail", 14, [MISDIRECTED; 3]),
        ("above the source", 15, [MALFORMED, MALFORMED, AUTH]),
        ("group", 16, [MISDIRECTED; 3]),
        ("reserved", 18, [MALFORMED, MALFORMED, AUTH]),
        ("channel", 20, [MISDIRECTED; 3]),
        ("stream", 24, [MISDIRECTED; 3]),
        ("reserved", 28, [MALFORMED, MALFORMED, AUTH]),
        ("loan generation", 32, [GENERATION; 3]),
        ("incarnation", 40, [AUTH; 3]),
        ("card generation", 48, [MALFORMED, MALFORMED, AUTH]),
        ("packet number", 56, [MALFORMED, AUTH, AUTH]),
        ("tag", usize::MAX, [AUTH; 3]),
    ];
    let counts = |end: &End<'_>| {
        let stats = end.channel.stats();
        [
            ("auth", stats.dropped_auth.get()),
            ("replay", stats.dropped_replay.get()),
            ("malformed", stats.dropped_malformed.get()),
            ("misdirected", stats.dropped_misdirected.get()),
            ("not understood", stats.dropped_not_understood.get()),
            ("generation", stats.dropped_generation.get()),
        ]
    };
    for (name, at, expected) in fields {
        for (kind, expected) in expected.into_iter().enumerate() {
            let arena = Arena::default();
            let (mut ends, mut now) = (pair(&arena), Instant::ZERO);
            let (frame, to) = match kind {
                0 => (call_of(&mut ends[0], now), 1),
                1 => (messages(&mut ends, now)[1].clone(), 0),
                _ => {
                    run(&mut now, &mut ends, &mut |_, _| true, 50);
                    ends[0].write(0);
                    (call_of(&mut ends[0], now), 1)
                }
            };
            let mut changed = frame.clone();
            // The lowest bit but one of a rail, and one of everything else that makes no other known value of it.
            changed[at.min(frame.len() - 1)] ^= if name.ends_with("rail") { 0x04 } else { 0x40 };
            let before = counts(&ends[to]);
            give(&mut ends[to], now, &changed);
            let counted: Vec<_> = (counts(&ends[to]).iter().zip(before))
                .filter_map(|((name, after), (_, before))| (*after > before).then_some(*name))
                .collect();
            assert_eq!(counted, Vec::from_iter(expected), "{name} of kind {kind}");
            // Nobody is kept from what is true.
            give(&mut ends[to], now, &frame);
            let is_taken = match kind {
                0 => ends[1].channel.pending.is_some(),
                1 => ends[0].channel.cipher().is_some(),
                _ => ends[1].log.0.len() == 1,
            };
            assert!(is_taken, "{name} of kind {kind}");
        }
    }
}

/// Fields of a first message, as they are sealed.
fn fields_of(lender: &End<'_>, call: &[u8]) -> Vec<u8> {
    read_call(lender, call).1.encode()
}

/// `call` with another message of the one who sent it.
fn saying(lender: &End<'_>, call: &[u8], fields: &[u8]) -> Vec<u8> {
    let header = Header::parse(call).unwrap();
    let domains = (header.source.domain, header.destination.domain);
    let binding = crate::channel::keys::binding(&lender.config, domains.0, domains.1);
    let message = say(Binding { identity: &NodeKey::numbered(Role::Borrower as u64 + 1), ..binding }, fields);
    marked([&call[..HEADER_LEN], &message, &[0; TAG_LEN]].concat())
}

#[test]
fn a_first_message_shorter_than_an_answer_can_be_is_not_even_opened() {
    let arena = Arena::default();
    let now = Instant::ZERO;
    let mut ends = pair(&arena);
    let call = call_of(&mut ends[0], now);
    let fields = fields_of(&ends[1], &call);
    assert_eq!(call.len(), HEADER_LEN + FIRST_LEN + TAG_LEN);
    // Without any padding, and with a byte too little.
    let padding = fields.iter().rposition(|byte| *byte != 0).unwrap();
    for len in [padding - 1, fields.len() - 2] {
        let short = match fields[..len].to_vec() {
            mut short if len > padding => {
                short[padding] -= 2;
                short
            }
            short => short,
        };
        let call = saying(&ends[1], &call, &short);
        assert_eq!(give(&mut ends[1], now, &call), Heard::Nothing);
    }
    assert_eq!(ends[1].channel.stats().dropped_malformed.get(), 2);
    let call = saying(&ends[1], &call, &fields);
    assert!(matches!(give(&mut ends[1], now, &call), Heard::Proposal(_)));
}

/// A node of a later version calls, and one of this version hears why it is not let in.
#[test]
fn who_speaks_no_common_version_is_refused_and_counted() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let mut ends = pair(&arena);
    let call = call_of(&mut ends[0], now);
    let mut fields = fields_of(&ends[1], &call);
    assert_eq!(fields[..4], [0x81, 2, 1, 1]);
    fields[2..4].copy_from_slice(&[2, 3]);
    let foreign = saying(&ends[1], &call, &fields);
    assert!(matches!(give(&mut ends[1], now, &foreign), Heard::Proposal(_)));
    let answer = ends[1].channel.poll_transmit(now, &mut vec![0; MAX_FRAME]).unwrap();
    assert!(answer.len <= foreign.len() && ends[1].channel.pending.is_none());
    // It does not say who it is in any way that could be answered.
    now += base::times::REFUSAL_PAUSE;
    let mute = saying(&ends[1], &call, &[&[0x81, 2, 1, 1, 0, 252][..], &[0; 252]].concat());
    assert_eq!(mute.len(), call.len() + 2);
    assert_eq!(give(&mut ends[1], now, &mute), Heard::Nothing);
    assert_eq!(ends[1].channel.stats().dropped_not_understood.get(), 2);
    // What a refusal means, be it one that only a later version knows.
    for (verdict, refusal) in [(5, Refusal::Version), (99, Refusal::Unknown { verdict: 99 })] {
        let mut ends = pair(&arena);
        let call = call_of(&mut ends[0], now);
        let answer = answer_of(&ends[1], &call, |answer| Answer { verdict, ..answer });
        give(&mut ends[0], now, &answer);
        ends[0].step(now);
        assert_eq!(ends[0].events, [Event::Refused(refusal)]);
    }
}
