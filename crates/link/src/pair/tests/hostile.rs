//! What those can do who have recorded frames, or stand in between, and peers who know the key and break the rules.

use core::time::Duration;

use base::Instant;
use base::ids::{CardGeneration, DomainId, Group, LoanGeneration, RailId, StreamId};
use base::ledger::Arena;
use base::times::{HANDSHAKE_RETRY_MAX, PENDING_KEYS, REFUSAL_PAUSE};
use pcie::{Bdf, Header as TlpHeader};

use super::*;
use crate::frame::{HEADER_LEN, Header, Kind, Prefix, ROUTE, Route, TAG_LEN};
use crate::handshake::{
    Answer, Binding, FIRST_LEN, Initiator, Positions, Proposal, Responder, Speaker, mark, say,
};
use crate::identity::NodeKey;
use crate::pair::calls::Line;
use crate::pair::cookies::MARKS_LEN;
use crate::pair::*;
use crate::record::Status;
use crate::{Cipher, Protection};

fn is_open(world: &World<'_>) -> bool {
    world.nodes.iter().all(Node::is_open)
}

fn open(arena: &Arena) -> World<'_> {
    let mut world = World::pair(arena, 1);
    world.run_until(Duration::from_secs(1), is_open);
    world
}

fn stats<'w>(world: &World<'w>, node: usize) -> &'w Stats {
    world.nodes[node].slots[0].channel.stats()
}

fn is_met(world: &World<'_>, node: usize) -> bool {
    world.nodes[node].slots[0].channel.is_met()
}

fn refusals(node: &Node<'_>) -> Vec<Refusal> {
    let events = node.slots.iter().flat_map(|slot| &slot.events);
    events.filter_map(|event| if let Event::Refused(why) = event { Some(*why) } else { None }).collect()
}

/// The first frame that node 0 sends for a new write.
fn frame_of_write(world: &mut World<'_>) -> Vec<u8> {
    world.write_all(0);
    let frames = world.frames_of(0);
    frames.into_iter().next().unwrap().1
}

/// The next first message of node 0, as it takes its first rail.
fn call_of(world: &mut World<'_>) -> Vec<u8> {
    let (_, call) = world.frames_of(0).swap_remove(0);
    assert_eq!(Header::parse(&call).unwrap().kind, Kind::Initiation);
    call
}

/// Both first messages: the frame of node 0, and the answer of node 1.
fn messages(world: &mut World<'_>) -> [Vec<u8>; 2] {
    let call = call_of(world);
    assert!(matches!(world.give(1, &call), Heard::Proposal(_)));
    let now = world.now;
    let (_, answer) = world.nodes[1].frames(now).swap_remove(0);
    [call, answer]
}

/// What a handshake with node 1 is bound to, between these domains.
fn binding(identity: &NodeKey, source: DomainId, destination: DomainId) -> Binding<'_> {
    Line { identity, fabric: 0, group: Group::DEFAULT }.binding(key_of(1).public(), source, destination)
}

/// A message of a handshake to a node, with the mark of who knows the node's public key.
fn marked(to: usize, mut frame: Vec<u8>) -> Vec<u8> {
    let len = frame.len() - if to == 1 { TAG_LEN } else { 0 };
    mark(&key_of(to).public(), &mut frame[..len]);
    frame
}

/// `frame` with another header; a message of a handshake by who knows the public key of whom it is for.
fn with_header(to: usize, frame: &[u8], change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let mut header = Header::parse(frame).unwrap();
    change(&mut header);
    let mut changed = frame.to_vec();
    header.write(&mut changed);
    if header.kind == Kind::Sealed { changed } else { marked(to, changed) }
}

/// What node 1 reads in a first message.
fn read_call(call: &[u8]) -> (Responder, Proposal) {
    let (header, identity) = (Header::parse(call).unwrap(), key_of(1));
    let binding = binding(&identity, header.source.domain, header.destination.domain);
    Responder::read(binding, [9; 32], &call[HEADER_LEN..call.len() - MARKS_LEN]).unwrap()
}

/// `call` with another message of the one who sent it.
fn saying(call: &[u8], fields: &[u8]) -> Vec<u8> {
    let (header, identity) = (Header::parse(call).unwrap(), key_of(0));
    let message = say(binding(&identity, header.source.domain, header.destination.domain), fields);
    marked(1, [&call[..HEADER_LEN], &message, &[0; MARKS_LEN]].concat())
}

/// An answer to `call` by who has the key of node 1, under an honest header.
fn answer_of(world: &mut World<'_>, call: &[u8], change: impl FnOnce(Answer) -> Answer) -> Vec<u8> {
    let (responder, proposal) = read_call(call);
    let answer = change(world.nodes[1].answer_to(&proposal));
    let mut message = Vec::new();
    responder.answer(&answer, &mut message).unwrap();
    let header = Header {
        kind: Kind::Response,
        key_id: 0,
        route: Route::START,
        fabric: 0,
        destination: Prefix { rail: RailId::ALL[0], domain: proposal.speaker.domain },
        source: Prefix { rail: RailId::ALL[0], domain: answer.speaker.domain },
        group: Group::DEFAULT,
        channel: proposal.speaker.channel,
        stream: StreamId(0),
        loan_generation: LoanGeneration(0),
        incarnation: answer.speaker.incarnation,
        card_generation: CardGeneration(0),
        packet_number: proposal.attempt,
    };
    let mut frame = vec![0; HEADER_LEN];
    header.write(&mut frame);
    marked(0, [frame, message, vec![0; TAG_LEN]].concat())
}

/// First messages of lives of node 0, of so many attempts each, one on each rail, as a network could have recorded
/// them.
fn recorded_calls(arena: &Arena, lives: core::ops::Range<u8>, attempts: usize) -> Vec<Vec<u8>> {
    let calls = lives.flat_map(|life| {
        let mut world = World::pair_with(arena, 1, |config| {
            if config.index == 0 {
                (config.incarnation, config.life, config.seed) = (life.into(), life, life);
            }
        });
        let attempts = (0..attempts).flat_map(move |_| {
            world.now += HANDSHAKE_RETRY_MAX;
            world.frames_of(0)
        });
        attempts.map(|(_, bytes)| bytes).collect::<Vec<_>>()
    });
    calls.collect()
}

#[test]
fn replays_of_former_lives_delay_a_newcomer_only_for_a_moment() {
    let arena = Arena::default();
    let former = recorded_calls(&arena, 50..53, 2);
    assert_eq!(former.len(), 12);
    let mut world = World::pair_with(&arena, 1, |config| config.incarnation = 90);
    let bound = PENDING_KEYS * 6 + HANDSHAKE_RETRY_MAX;
    while !is_open(&world) {
        former.iter().for_each(|call| world.inject(0, 1, call));
        world.tick();
        // Each of the six attempts was unknown and can be answered once.
        assert!(world.now.since(Instant::ZERO) < bound, "{}", world.describe());
    }
    assert!(stats(&world, 1).deferred_handshakes.get() > 0);
    assert!(world.nodes[1].lobby.stats().dropped_replay.get() > 0);
}

#[test]
fn an_answered_message_is_not_answered_again_after_others_have_come_and_gone() {
    let arena = Arena::default();
    let old = recorded_calls(&arena, 1..2, 1);
    let mut world = World::pair_with(&arena, 1, |config| {
        if config.index == 0 {
            (config.incarnation, config.life, config.seed) = (2, 90, 90);
        }
    });
    assert!(matches!(world.give(1, &old[0]), Heard::Proposal(_)));
    world.run_until(Duration::from_secs(2), is_open);
    // Whoever was there has gone, and the card is another one.
    world.cut = Box::new(|_, _, _| true);
    world.now += Duration::from_secs(1000);
    let now = world.now;
    world.nodes[1].restart(now);
    for call in &old {
        assert_eq!(world.give(1, call), Heard::Nothing);
    }
    world.run_for(Duration::from_secs(1));
    assert!(!world.nodes[1].slots[0].channel.has_pending_for_test());
}

#[test]
fn a_refusal_does_not_displace_an_answer_that_waits_to_be_sent() {
    let arena = Arena::default();
    let old = recorded_calls(&arena, 1..2, 1);
    let mut world = World::pair_with(&arena, 1, |config| config.incarnation = 5);
    world.run_until(Duration::from_secs(1), is_open);
    let now = world.now;
    world.nodes[0].channel(1).call_for_test(now);
    let call = call_of(&mut world);
    assert!(matches!(world.give(1, &call), Heard::Proposal(_)));
    world.give(1, &old[0]);
    assert!(world.nodes[1].lobby.stats().refused.get() > 0);
    let answers = world.nodes[1].frames(now);
    assert!(answers.len() >= 2, "both are sent");
    answers.iter().for_each(|(_, bytes)| world.inject(1, 0, bytes));
    assert_eq!(stats(&world, 0).handshakes.get(), 2);
}

/// Whoever has no room for it finds that only when it was handed on.
#[test]
fn a_call_that_is_refused_is_so_on_each_path_and_is_not_taken_for_answered() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    let calls = world.frames_of(0);
    let (now, lobby) = (world.now, &mut world.nodes[1].lobby);
    for (path, mut call) in calls {
        let presence = |_, _| Presence::Channel(None);
        let reception = lobby.handle_call(now, &mut call, &[0, path.index() as u8], false, &presence);
        let Reception::Call(handed_on) = reception else { panic!("{reception:?} on {path:?}") };
        assert!(matches!(lobby.refuse(now, handed_on, Why::NoRoom, &[0], &mut call), Reception::Reply(_)));
    }
    assert_eq!(lobby.stats().refused.get(), 2);
}

#[test]
fn a_new_card_refuses_what_the_one_before_has_had() {
    let arena = Arena::default();
    let mut world = open(&arena);
    let frame = frame_of_write(&mut world);
    assert_ne!(world.give(1, &frame), Heard::Nothing);
    let now = world.now;
    world.nodes[1].restart(now);
    let before = stats(&world, 1).dropped_replay.get();
    assert_eq!(world.give(1, &frame), Heard::Nothing);
    assert_eq!(stats(&world, 1).dropped_replay.get(), before + 1);
    // What is sent from now on is new, and the stream goes on.
    world.write_all(0);
    world.run(200);
    assert_eq!(world.nodes[1].places[0].counts().1, 2);
}

#[test]
fn a_replay_to_a_new_card_is_not_taken_for_an_answer() {
    let arena = Arena::default();
    let mut world = open(&arena);
    // Node 1 speaks, so that the next frame of node 0 acknowledges something.
    world.write_all(1);
    for (_, frame) in world.frames_of(1) {
        world.give(0, &frame);
    }
    world.now += base::times::ACK_DELAY;
    let captured = world.frames_of(0);
    let heard: Vec<_> = captured.iter().map(|(_, frame)| world.give(1, frame)).collect();
    let at = heard.iter().position(|heard| *heard == Heard::Answer).unwrap();
    let now = world.now;
    world.nodes[1].restart(now);
    assert_ne!(world.give(1, &captured[at].1), Heard::Answer);
}

/// A duplicate may have come from where the peer is now: it is opened once more only for who asks for that.
#[test]
fn a_duplicate_is_heard_by_who_asks_for_it_if_it_is_authentic() {
    let arena = Arena::default();
    let mut world = open(&arena);
    let frame = frame_of_write(&mut world);
    assert_ne!(world.give(1, &frame), Heard::Nothing);
    let count = |world: &World<'_>| {
        let stats = stats(world, 1);
        (stats.dropped_replay.get(), stats.dropped_auth.get())
    };
    let before = count(&world);
    assert_eq!(world.give(1, &frame), Heard::Nothing);
    world.nodes[1].channel(0).hear_duplicates(true);
    assert_eq!(world.give(1, &frame), Heard::Duplicate);
    let mut forged = frame.clone();
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(world.give(1, &forged), Heard::Nothing);
    assert_eq!(count(&world), (before.0 + 2, before.1 + 1));
    world.run(50);
    assert_eq!(world.nodes[1].places[0].counts().1, 1);
}

/// What was sent to an address comes back from whoever is there, on whatever rail, and from nobody else.
#[test]
fn a_challenge_is_answered_by_who_has_heard_it() {
    let arena = Arena::default();
    let mut world = open(&arena);
    world.run_for(Duration::from_millis(50));
    let proofs = |world: &mut World<'_>| {
        let channel = world.nodes[1].channel(0);
        core::iter::from_fn(|| channel.poll_proof()).collect::<Vec<_>>()
    };
    world.nodes[1].channel(0).challenge(PATHS[1], 77);
    let now = world.now;
    let (path, challenge, frame) = world.nodes[1].next_frame(now).unwrap();
    assert_eq!((path, challenge), (PATHS[1], Some(77)), "alone, and first");
    world.run(50);
    assert_eq!(proofs(&mut world), [], "nobody has heard it");
    world.give(0, &frame);
    world.run(50);
    assert_eq!(proofs(&mut world), [77]);
    // Where too many wait, the last ones are dropped.
    (0..100).for_each(|number| world.nodes[1].channel(0).challenge(PATHS[0], number));
    world.run(50);
    assert_eq!(proofs(&mut world).len(), 1, "of many to one rail the last one that came is answered");
    // Repeated frames challenge nobody again.
    world.give(0, &frame);
    world.run(50);
    assert_eq!(proofs(&mut world), []);
}

#[test]
fn forged_and_repeated_frames_are_counted_each_and_a_switch_may_change_the_route() {
    let arena = Arena::default();
    let mut world = open(&arena);
    let mut frame = frame_of_write(&mut world);
    let before = stats(&world, 1).dropped_replay.get();
    let len = frame.len();
    let now = world.now;
    let give = |world: &mut World<'_>, mut bytes: Vec<u8>| {
        _ = world.nodes[1].take_misdirected(now, PATHS[0], &mut bytes);
    };
    for bit in (0..len * 8).step_by(13).filter(|bit| bit / 8 != ROUTE) {
        let mut forged = frame.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        give(&mut world, forged);
    }
    (0..len).for_each(|short| give(&mut world, frame[..short].to_vec()));
    for route in [0, 77, 255] {
        frame[ROUTE] = route;
        give(&mut world, frame.clone());
    }
    assert_eq!(world.nodes[1].places[0].counts().1, 1);
    let stats = stats(&world, 1);
    assert_eq!(stats.dropped_replay.get() - before, 2);
    assert!(stats.dropped_auth.get() > 100 && stats.dropped_malformed.get() > 0);
}

/// Each byte of each frame of a conversation is changed once, in every way that matters: nothing follows.
#[test]
fn each_byte_of_each_frame_changed_has_no_effect() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 2);
    for round in 0..40 {
        (0..2).for_each(|node| world.nodes[node].step(world.now));
        for from in 0..2 {
            let now = world.now;
            for (path, frame) in world.nodes[from].frames(now) {
                let to = 1 - from;
                // The mark of who has no cookie means nothing.
                let is_call = Header::parse(&frame).unwrap().kind == Kind::Initiation;
                let end = frame.len() - if is_call { TAG_LEN } else { 0 };
                for at in (0..end).filter(|at| *at != ROUTE) {
                    let mut forged = frame.clone();
                    forged[at] ^= 1 << ((at + round) % 8);
                    let before: Vec<_> = world.nodes[to].places.iter().map(TestLoan::counts).collect();
                    assert_eq!(world.give(to, &forged), Heard::Nothing, "{at} on {path:?}");
                    let after = world.nodes[to].places.iter().map(TestLoan::counts);
                    assert!(after.eq(before));
                }
                world.inject(from, to, &frame);
            }
        }
        if round > 10 {
            (0..2).for_each(|node| world.write_all(node));
        }
        world.now += TICK;
    }
    world.run_for(Duration::from_millis(100));
    assert!(is_open(&world));
    world.expect_all_came();
    assert!(world.nodes.iter().all(|node| node.slots[0].channel.stats().handshakes.get() == 1));
}

/// A read of a register of the peer's configuration space, which its completion ends.
fn ask(world: &mut World<'_>) {
    let now = world.now;
    let node = &mut world.nodes[0];
    let port = &mut node.places[0].stream.port;
    let tag = port.tags.alloc(now, Bdf(8), 0, 4).unwrap();
    let request = pcie::ConfigRequest {
        requester: Bdf(8),
        tag,
        target: Bdf(0x100),
        register: 0,
        first_be: 0xf,
        kind: pcie::ConfigKind::Type0,
        poisoned: false,
    };
    port.sender.push(&TlpHeader::ConfigRead(request), base::Payload::None, false);
    node.commit();
    node.wake();
}

#[test]
fn a_peer_that_goes_beyond_its_credit_is_refused() {
    let arena = Arena::default();
    let mut world = open(&arena);
    world.run(50);
    // Nothing is completed, and 256 were granted.
    (0..300).for_each(|_| ask(&mut world));
    let honest = world.nodes[0].places[0].stream.port.sender.credits().1[2];
    let more = crate::stream::Credits { non_posted_headers: 1000, ..Default::default() };
    world.nodes[0].places[0].stream.port.sender.handle_credits(more);
    world.nodes[0].commit();
    world.run(500);
    let [one, two] = [0, 1].map(|node| &world.nodes[node].places[0].stream);
    assert_eq!((honest, one.port.sender.next()), (256, 300));
    assert_eq!(two.receiver().expected(), honest);
    assert!(two.stats().credit_violations.get() > 0);
}

#[test]
fn a_broken_tlp_stops_nobody_and_a_request_among_them_is_answered() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 2);
    world.run_until(Duration::from_secs(1), is_open);
    // An I/O read, a length of 1024 dwords in a record that has fewer, a reserved bit of a write.
    for (count, (offset, byte)) in [(0, 0x02), (3, 0x00), (1, 0x02)].into_iter().enumerate() {
        let now = world.now;
        let first = world.nodes[0].places[0].stream.port.sender.next();
        world.nodes[1].places[0].log.is_lenient = true;
        match offset {
            0 => ask(&mut world),
            _ => assert!(world.nodes[0].places[0].write(4)),
        }
        world.nodes[0].commit();
        // Writes would pass a request that has no number yet.
        world.nodes[0].step(now);
        assert!((1..3).all(|_| world.nodes[0].places[0].write(4)));
        assert!(world.nodes[0].places[1].write(4));
        world.nodes[0].step(now);
        world.nodes[0].places[0].stream.port.sender.corrupt(first, offset, byte);
        world.nodes[0].commit();
        world.run(500);
        for node in &world.nodes {
            let mut places = node.places.iter();
            assert!(places.all(|place| place.stream.port.sender.is_empty()), "{count}: the stream goes on");
        }
        assert!(world.nodes[1].places[0].stream.stats().malformed_tlps.get() > count as u64);
    }
    // Where the end of one could not be told, the rest of its record went with it.
    assert_eq!(world.nodes[1].places[0].log.accepted, 4);
    let ended = &world.nodes[0].places[0].log.completions;
    assert_eq!(*ended, [pcie::CompletionStatus::UnsupportedRequest]);
    assert_eq!(world.nodes[1].places[1].counts().1, 3, "the other stream has noticed nothing");
}

#[test]
fn who_stands_in_between_cannot_choose_the_cipher() {
    let arena = Arena::default();
    let [call, answer] = messages(&mut World::pair(&arena, 1));
    let flipped = |frame: &[u8], bit: usize| {
        let mut changed = frame.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        changed
    };
    let mut world = World::pair(&arena, 1);
    for bit in (HEADER_LEN * 8..(call.len() - MARKS_LEN) * 8).step_by(3) {
        // Whoever stands in between may know the public keys.
        let changed = flipped(&call, bit);
        assert_eq!(world.give(1, &changed), Heard::Nothing);
        assert_eq!(world.give(1, &marked(1, changed)), Heard::Nothing, "bit {bit}");
    }
    assert_eq!(messages(&mut world)[1].len(), answer.len());
    for bit in (HEADER_LEN * 8..(answer.len() - TAG_LEN) * 8).step_by(3) {
        let changed = flipped(&answer, bit);
        world.give(0, &changed);
        world.give(0, &marked(0, changed));
        assert_eq!(world.nodes[0].slots[0].channel.cipher(), None, "bit {bit}");
    }
}

#[test]
fn who_chooses_what_was_not_offered_is_not_believed() {
    let arena = Arena::default();
    for (cipher, believed) in
        [(0, false), (Cipher::Crc32c as u8, false), (4, false), (Cipher::Aes256Gcm as u8, true)]
    {
        let mut world = World::pair(&arena, 1);
        let call = call_of(&mut world);
        let frame = answer_of(&mut world, &call, |answer| Answer { cipher, ..answer });
        world.give(0, &frame);
        assert_eq!(world.nodes[0].slots[0].channel.cipher().is_some(), believed, "{cipher}");
    }
}

#[test]
fn forged_frames_of_any_card_displace_no_key_and_change_nothing() {
    let arena = Arena::default();
    let mut world = open(&arena);
    let frame = frame_of_write(&mut world);
    let newest = |world: &World<'_>| world.nodes[1].slots[0].channel.newest_peer();
    let before = newest(&world);
    for card in [0, 2, 3, 1000, u64::MAX] {
        let mut forged = frame.clone();
        forged[48..56].copy_from_slice(&u64::to_le_bytes(card));
        assert_eq!(world.give(1, &forged), Heard::Nothing);
    }
    assert_eq!(newest(&world), before);
    assert_ne!(world.give(1, &frame), Heard::Nothing);
    assert_eq!(world.nodes[1].places[0].counts().1, 1);
}

/// Whoever knows a node's public key could change the header of an answer to it, and who has a key of its own could
/// send a first message that contradicts its own.
#[test]
fn a_header_that_names_another_sender_than_its_message_is_dropped() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    let call = call_of(&mut world);
    let (_, proposal) = read_call(&call);
    let (identity, mut message) = (key_of(0), Vec::new());
    let binding = binding(&identity, DomainId(9), DomainId(0));
    Initiator::begin(binding, [3; 32], &proposal, &mut message).unwrap();
    let mut false_call = with_header(1, &call, |header| header.source.domain = DomainId(9));
    false_call[HEADER_LEN..call.len() - MARKS_LEN].copy_from_slice(&message);
    let false_call = marked(1, false_call);
    let false_life = with_header(1, &call, |header| header.incarnation.0 += 1);
    for frame in [false_call, false_life] {
        assert_eq!(world.give(1, &frame), Heard::Nothing);
    }
    assert_eq!(world.nodes[1].lobby.stats().dropped_not_understood.get(), 2);
    assert!(!world.nodes[1].slots[0].channel.has_pending_for_test());
    // Whoever is faster than the network with an answer that he has changed keeps nobody from the true one.
    let answer = answer_of(&mut world, &call, |answer| answer);
    let changes: [fn(&mut Header); 2] =
        [|header| header.source.domain = DomainId(9), |header| header.incarnation.0 += 1];
    for change in changes {
        world.give(0, &with_header(0, &answer, change));
        assert!(!is_met(&world, 0));
    }
    world.give(0, &answer);
    assert!(is_met(&world, 0));
}

#[test]
fn only_who_was_called_by_its_domain_answers() {
    let arena = Arena::default();
    for (domain, called, is_met) in [(9, 2, false), (2, 2, true), (9, 0, true)] {
        let mut world = open(&arena);
        let call = loop {
            let now = world.now;
            world.nodes[0].channel(1).call_for_test(now);
            let call = call_of(&mut world);
            if Header::parse(&call).unwrap().destination.domain == DomainId(called) {
                break call;
            }
        };
        let answer = answer_of(&mut world, &call, |answer| {
            let speaker = Speaker { domain: DomainId(domain), ..answer.speaker };
            Answer { speaker, positions: Positions::default(), ..answer }
        });
        world.give(0, &answer);
        assert_eq!(stats(&world, 0).handshakes.get(), 1 + u64::from(is_met), "{domain} {called}");
    }
}

const AUTH: &str = "auth";
const TAKEN: &str = "taken";
const REPLAY: &str = "replay";
const MALFORMED: &str = "malformed";
const MISDIRECTED: &str = "misdirected";
const NOT_UNDERSTOOD: &str = "not understood";

/// What a node has dropped, by reason.
fn counts(node: &Node<'_>) -> [(&'static str, u64); 5] {
    let (stats, lobby) = (node.slots[0].channel.stats(), node.lobby.stats());
    [
        (AUTH, stats.dropped_auth.get() + lobby.dropped_auth.get()),
        (REPLAY, stats.dropped_replay.get() + lobby.dropped_replay.get()),
        (MALFORMED, stats.dropped_malformed.get()),
        (MISDIRECTED, stats.dropped_misdirected.get() + lobby.dropped_misdirected.get()),
        (NOT_UNDERSTOOD, stats.dropped_not_understood.get() + lobby.dropped_not_understood.get()),
    ]
}

/// Gives a frame of a kind (0 a call, 1 an answer, 2 a sealed one, 3 a cookie) with one byte changed, and says what
/// that is counted as. `remarks`: by who knows the public key of whom it is for.
fn counted_with(at: usize, bit: u8, kind: usize, remarks: bool, what: &str) -> Vec<&'static str> {
    let arena = Arena::default();
    let mut world = if kind == 2 { open(&arena) } else { World::pair(&arena, 1) };
    let (frame, to) = match kind {
        0 => (call_of(&mut world), 1),
        1 => (messages(&mut world)[1].clone(), 0),
        2 => (frame_of_write(&mut world), 1),
        _ => {
            world.nodes[1].config.is_under_load = true;
            let call = call_of(&mut world);
            world.give(1, &call);
            (world.frames_of(1).swap_remove(0).1, 0)
        }
    };
    let mut changed = frame.clone();
    changed[at.min(frame.len() - 1)] ^= bit;
    if remarks {
        changed = marked(to, changed);
    }
    let before = counts(&world.nodes[to]);
    let now = world.now;
    match kind {
        0 => {
            let address = [0, 0];
            let presence = |_, _| Presence::Channel(None);
            let is_call = world.nodes[1].lobby.handle_call(now, &mut changed, &address, false, &presence);
            if let Reception::Call(_) = is_call {
                return vec![TAKEN];
            }
        }
        _ => _ = world.nodes[to].take_misdirected(now, PATHS[0], &mut changed),
    }
    let counted = counts(&world.nodes[to]).into_iter().zip(before);
    let mut counted: Vec<_> =
        counted.filter_map(|((name, after), (_, before))| (after > before).then_some(name)).collect();
    if counted.is_empty() {
        counted.push(TAKEN);
    }
    // Nobody is kept from what is true.
    world.give(to, &frame);
    let is_taken = match kind {
        0 => world.nodes[1].slots[0].channel.has_pending_for_test(),
        1 => is_met(&world, 0),
        2 => world.nodes[1].places[0].counts().1 == 1,
        // The call is sent once more, with a mark that is made with it.
        _ => world.frames_of(0).iter().any(|(_, call)| call[call.len() - TAG_LEN..] != [0; TAG_LEN]),
    };
    assert!(is_taken, "{what} of kind {kind}");
    counted
}

/// A frame with one byte of its header changed, and what it is counted as. The mark of a message of a handshake tells
/// that it was changed, unless who has done it knows the public key: then, too, it is dropped.
#[test]
fn each_field_of_a_header_is_checked_and_counted() {
    const ELSEWHERE: [&str; 6] = [AUTH, MISDIRECTED, MISDIRECTED, MISDIRECTED, MISDIRECTED, MISDIRECTED];
    const UNREADABLE: [&str; 6] = [AUTH, AUTH, MALFORMED, MALFORMED, MALFORMED, MALFORMED];
    const NOT_ZERO: [&str; 6] = [AUTH, AUTH, MALFORMED, MALFORMED, AUTH, MALFORMED];
    // What, where, and what becomes of a call, of one with a new mark, an answer, one with a new mark, a sealed frame,
    // a cookie.
    let fields = [
        ("version", 0, UNREADABLE),
        ("kind", 1, UNREADABLE),
        ("key id", 2, NOT_ZERO),
        ("fabric", 4, ELSEWHERE),
        ("destination domain", 8, ELSEWHERE),
        // That one has no such rail its card sees.
        ("destination rail", 10, [AUTH, TAKEN, MISDIRECTED, MISDIRECTED, MISDIRECTED, MISDIRECTED]),
        ("above the destination", 11, NOT_ZERO),
        ("source domain", 12, [AUTH, AUTH, AUTH, MALFORMED, AUTH, AUTH]),
        ("source rail", 14, [AUTH, TAKEN, AUTH, MISDIRECTED, AUTH, MISDIRECTED]),
        ("above the source", 15, NOT_ZERO),
        ("group", 16, ELSEWHERE),
        ("reserved", 18, NOT_ZERO),
        ("channel", 20, ELSEWHERE),
        ("stream", 24, [AUTH, MISDIRECTED, MISDIRECTED, MISDIRECTED, AUTH, MISDIRECTED]),
        ("reserved", 28, NOT_ZERO),
        ("loan generation", 32, [AUTH, MISDIRECTED, MISDIRECTED, MISDIRECTED, AUTH, MISDIRECTED]),
        ("incarnation", 40, [AUTH, NOT_UNDERSTOOD, AUTH, MALFORMED, AUTH, AUTH]),
        ("card generation", 48, NOT_ZERO),
        ("packet number", 56, [AUTH, AUTH, AUTH, REPLAY, AUTH, REPLAY]),
        ("tag", usize::MAX, [AUTH; 6]),
    ];
    for (name, at, expected) in fields {
        // The upper bit of a rail, which neither end has then, and one of everything else that makes no other known
        // value of it.
        let bit = if name.ends_with("rail") { 0x08 } else { 0x40 };
        let ways = [(0, false), (0, true), (1, false), (1, true), (2, false), (3, false)];
        for (way, (kind, remarks)) in ways.into_iter().enumerate() {
            // A tag is what a new mark replaces; behind that of a call there is the one of who has a cookie.
            if at == usize::MAX && (remarks || kind == 0) {
                continue;
            }
            let counted = counted_with(at, bit, kind, remarks, name);
            assert_eq!(counted, [expected[way]], "{name} of kind {kind}, {remarks}");
        }
    }
}

#[test]
fn a_first_message_shorter_than_an_answer_can_be_is_not_even_opened() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    let call = call_of(&mut world);
    let fields = read_call(&call).1.encode();
    assert_eq!(call.len(), HEADER_LEN + FIRST_LEN + MARKS_LEN);
    // Without any padding, and with a byte too little.
    let padding = fields.iter().rposition(|byte| *byte != 0).unwrap();
    for len in [padding - 1, fields.len() - 2] {
        let mut short = fields[..len].to_vec();
        if len > padding {
            short[padding] -= 2;
        }
        assert_eq!(world.give(1, &saying(&call, &short)), Heard::Nothing);
    }
    assert_eq!(world.nodes[1].lobby.stats().dropped_auth.get(), 2);
    assert!(matches!(world.give(1, &saying(&call, &fields)), Heard::Proposal(_)));
}

/// A node of a later version calls, and one of this version hears why it is not let in.
#[test]
fn who_speaks_no_common_version_is_refused_and_counted() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    let call = call_of(&mut world);
    let mut fields = read_call(&call).1.encode();
    assert_eq!(fields[..4], [0x81, 2, 1, 1]);
    fields[2..4].copy_from_slice(&[2, 3]);
    let foreign = saying(&call, &fields);
    world.give(1, &foreign);
    let now = world.now;
    let answers = world.nodes[1].frames(now);
    assert!(answers.len() == 1 && answers[0].1.len() <= foreign.len());
    assert!(!world.nodes[1].slots[0].channel.has_pending_for_test());
    // It does not say who it is in any way that could be answered.
    world.now = now + REFUSAL_PAUSE;
    let padding = [&[0, 255][..], &[0; 255], &[0, 251], &[0; 251]].concat();
    let mute = saying(&call, &[&[0x81, 2, 1, 1][..], &padding].concat());
    assert_eq!(mute.len(), call.len() + 2);
    assert_eq!(world.give(1, &mute), Heard::Nothing);
    let now = world.now;
    assert_eq!(world.nodes[1].frames(now), []);
    assert_eq!(world.nodes[1].lobby.stats().dropped_not_understood.get(), 2);
    // What a refusal means, be it one that only a later version knows.
    for (verdict, refusal) in [(5, Refusal::Version), (99, Refusal::Unknown { verdict: 99 })] {
        let mut world = World::pair(&arena, 1);
        let call = call_of(&mut world);
        let answer = answer_of(&mut world, &call, |answer| Answer { verdict, ..answer });
        world.give(0, &answer);
        assert_eq!(refusals(&world.nodes[0]), [refusal]);
    }
}

/// A cookie is of the address and of the time: it counts for the rest of its period and the next one.
#[test]
fn a_cookie_is_worth_nothing_after_a_while_and_nothing_to_another_card() {
    let arena = Arena::default();
    let mut world = World::pair_with(&arena, 1, |config| config.is_under_load = config.index == 1);
    let call = call_of(&mut world);
    world.give(1, &call);
    let (_, cookie) = world.frames_of(1).swap_remove(0);
    world.give(0, &cookie);
    let call = call_of(&mut world);
    let asked_for = |world: &mut World<'_>, after: u64| {
        world.now = Instant::ZERO + Duration::from_secs(after);
        let before = world.nodes[1].lobby.stats().cookies.get();
        world.give(1, &call);
        world.nodes[1].lobby.stats().cookies.get() - before
    };
    assert_eq!([1, 119, 121, 239, 241].map(|after| asked_for(&mut world, after)), [0, 0, 0, 0, 1]);
    let now = world.now;
    world.nodes[1].restart(now);
    assert_eq!(asked_for(&mut world, 1), 1);
}

#[test]
fn a_forged_answer_costs_no_more_than_one_try() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    // Nobody answers.
    let mut calls = Vec::new();
    for _ in 0..3 {
        calls.push(call_of(&mut world));
        world.now += HANDSHAKE_RETRY_MAX;
    }
    let answers: Vec<_> = calls
        .iter()
        .map(|call| {
            world.give(1, call);
            let now = world.now;
            world.nodes[1].frames(now).swap_remove(0).1
        })
        .collect();
    let numbers = answers.iter().map(|answer| Header::parse(answer).unwrap().packet_number);
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 2, 3]);
    let mut give = |frame: &[u8]| {
        world.give(0, frame);
        let stats = stats(&world, 0);
        (stats.dropped_auth.get(), stats.dropped_replay.get(), stats.handshakes.get())
    };
    // Of an attempt that was not made, and one that says to be of another one.
    let number = |number: u64| with_header(0, &answers[0], |header| header.packet_number = number);
    assert_eq!(give(&number(9)), (0, 1, 0));
    assert_eq!(give(&number(2)), (1, 1, 0));
    // Those to earlier attempts come first, and only the last one counts.
    assert_eq!(give(&answers[0]), (1, 1, 0));
    assert_eq!(give(&answers[1]), (1, 1, 0));
    assert_eq!(give(&answers[2]), (1, 1, 1));
    assert_eq!(give(&answers[2]), (1, 2, 1));
}

#[test]
fn keys_wear_out_by_frames_and_bytes_of_both_directions() {
    let arena = Arena::default();
    let mut world = open(&arena);
    let before = world.nodes[0].channel(1).wear_for_test().bytes;
    (0..100).for_each(|_| world.write_all(1));
    world.run(50);
    let wear = world.nodes[0].channel(1).wear_for_test();
    assert!(wear.bytes - before > 100 * 16, "what the other one sends counts");
    assert!(!wear.is_over(crate::REKEY_FRAMES));
    // A terabyte cannot be sent here.
    wear.bytes = crate::sealing::REKEY_BYTES;
    world.write_all(1);
    world.run(50);
    assert_eq!(stats(&world, 0).handshakes.get(), 2);
}

#[test]
fn two_ends_keep_their_cipher_over_cards() {
    use Protection::{Aegis, Aes256Gcm, Insecure};
    for (one, two, agreed) in [
        (Aegis, Aegis, Cipher::Aegis128X2),
        (Aegis, Aes256Gcm, Cipher::Aes256Gcm),
        (Aes256Gcm, Aegis, Cipher::Aes256Gcm),
        (Insecure, Insecure, Cipher::Crc32c),
    ] {
        let arena = Arena::default();
        let mut world = World::pair_with(&arena, 1, |config| {
            config.protection = if config.index == 0 { one } else { two };
        });
        world.run_until(Duration::from_secs(1), is_open);
        for index in 0..20 {
            world.write_all(0);
            world.run(10);
            let now = world.now;
            world.nodes[index % 2].restart(now);
        }
        world.run(500);
        world.expect_all_came();
        for node in &world.nodes {
            assert_eq!(node.slots[0].channel.cipher(), Some(agreed), "{one:?} {two:?}");
        }
        assert_eq!(stats(&world, 0).handshakes.get(), 1);
    }
}

/// Two stream records of 13 bytes that claim 65,535 TLPs each and hold none: each would be counted as one that was
/// accepted.
#[test]
fn a_record_that_counts_more_than_its_bytes_can_hold_is_malformed() {
    let arena = Arena::default();
    let mut world = open(&arena);
    let id = StreamId(world.nodes[0].places[0].stream_number());
    let expected = world.nodes[1].places[0].stream.receiver().expected();
    let record = |first: u64, count: u16, tlps: &[u8]| {
        let mut raw = vec![0x82];
        raw.extend((tlps.len() as u16 + 10).to_le_bytes());
        raw.extend(count.to_le_bytes());
        raw.extend(first.to_le_bytes());
        raw.extend(tlps);
        raw
    };
    let empty = [record(expected, u16::MAX, &[]), record(expected + 65_535, u16::MAX, &[])].concat();
    for records in [empty, record(expected, 3, &[0; 35])] {
        let body = [vec![0; size_of::<Status>()], records].concat();
        let frame = world.nodes[0].channel(1).write_for_test(id, &body);
        world.give(1, &frame);
        assert_eq!(world.nodes[1].places[0].stream.receiver().expected(), expected);
    }
    assert_eq!(stats(&world, 1).dropped_malformed.get(), 2);
}

/// Each acknowledgement looks at all packets under way: who fills frames with them would keep a card busy.
#[test]
fn of_acknowledgements_of_one_path_a_frame_has_one() {
    let arena = Arena::default();
    let mut world = open(&arena);
    world.run(50);
    let sent = Header::parse(&frame_of_write(&mut world)).unwrap();
    let id = StreamId(world.nodes[1].places[0].stream_number());
    let ack = |number: u64| {
        let mut raw = vec![1, 28, 0, sent.path().index() as u8, 1, 0, 0];
        raw.extend(sent.card_generation.0.to_le_bytes());
        raw.extend([number.to_le_bytes(); 2].as_flattened());
        raw
    };
    let mut is_acked_by = |acks: &[u64]| {
        let records = acks.iter().flat_map(|number| ack(*number));
        let body: Vec<u8> = core::iter::repeat_n(0, size_of::<Status>()).chain(records).collect();
        let frame = world.nodes[1].channel(0).write_for_test(id, &body);
        assert_eq!(world.give(0, &frame), Heard::Answer);
        world.nodes[0].channel(1).has_answered_for_test(sent.path(), sent.packet_number)
    };
    assert!(!is_acked_by(&[sent.packet_number - 1, sent.packet_number]));
    assert!(is_acked_by(&[sent.packet_number]));
}

/// The rails in the header of an answer are confirmed by nothing in it. Whoever knows the public key of who has called,
/// and is faster than the network, must not change what that one knows of the rails of its peer: an answer comes on a
/// path that the call has taken.
#[test]
fn an_answer_on_a_path_that_no_call_has_taken_is_dropped() {
    let arena = Arena::default();
    let mut world = open(&arena);
    world.run_for(Duration::from_millis(50));
    let now = world.now;
    world.nodes[0].channel(1).call_for_test(now);
    let [_, answer] = messages(&mut world);
    let forged = with_header(0, &answer, |header| header.source.rail = RailId::ALL[3]);
    assert_eq!(world.give(0, &forged), Heard::Nothing);
    assert_eq!(world.give(0, &answer), Heard::Accepted, "the true one counts");
}

/// Nobody has called on that path, so there is no mark that a cookie could answer. Whoever knows the public key of the
/// called node, which all have that have its line, must not have a first message sent by each frame that he makes.
#[test]
fn a_cookie_on_a_path_that_no_call_has_taken_is_dropped() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    let call = call_of(&mut world);
    let now = world.now;
    world.nodes[0].frames(now);
    let header = Header::parse(&call).unwrap();
    let rail = |rail: usize, domain: u32| Prefix { rail: RailId::ALL[rail], domain: DomainId(domain) };
    let header = Header {
        kind: Kind::Cookie,
        incarnation: base::ids::Incarnation(0),
        destination: rail(0, header.source.domain.0),
        source: rail(1, 2),
        ..header
    };
    let mut cookies = cookies::Cookies::new(&[7; 32]);
    for from in 0..10 {
        let mut forged = vec![0; 512];
        let len = cookies.answer(now, &key_of(1).public(), header, &mut forged, &[from]);
        world.give(0, &forged[..len]);
        let sent = world.nodes[0].frames(now);
        assert!(sent.is_empty(), "{} first messages for a frame that anybody can make", sent.len());
    }
}
