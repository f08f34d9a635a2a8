//! One question to a node and its answer, where the two have no channel: how a switch is told what to do.
//!
//! ```text
//!  1  ──> call       Noise IK, first message, and a mark: proves who asks. It can be repeated, so it asks nothing yet
//!  2  <── answer     Noise IK, second message
//!  3  ──> question   sealed: whoever sends it has heard 2
//!  4  <── reply      sealed
//!
//!  a datagram: 0 form, 1    1 which of these    8 number    16 ...
//! ```
//!
//! All four bear the number that who asks has chosen. A question is acted on once: its repetition is answered by the
//! same reply. What comes is bounded, and nobody gets more than it sent before it has shown that it is where it says.

use core::time::Duration;
use std::collections::VecDeque;

use base::{Bucket, Instant};
use snow::{HandshakeState, StatelessTransportState};

use crate::frame::TAG_LEN;
use crate::handshake::{builder, is_marked, mark};
use crate::identity::{NodeKey, PublicKey};

/// Bytes of the longest question, and of the longest reply.
pub const ERRAND_MAX: usize = 60_000;

const FORM: u8 = 1;
const CALL: u8 = 1;
const ANSWER: u8 = 2;
const QUESTION: u8 = 3;
const REPLY: u8 = 4;
const HEAD: usize = 16;
const PROLOGUE: &[u8] = b"causeway errand 1";
/// Bytes of a first message without a payload: an ephemeral public key, a sealed static one, a tag.
const CALL_BODY: usize = 32 + (32 + 16) + 16;
/// Bytes of a second one: an ephemeral public key, a tag.
const ANSWER_BODY: usize = 32 + 16;
/// Most errands at a time: who comes then takes the place of the one that is oldest.
const SESSIONS_MAX: usize = 64;
/// An errand that took longer is over.
const LIFE: Duration = Duration::from_secs(10);
/// So many calls are looked at at once, and then one each time.
const CALLS: u32 = 64;
/// So often a reply is sent again: who repeats a question from where it came from has nobody flooded.
const REPEATS: u8 = 50;
const CALL_EVERY: Duration = Duration::from_millis(20);

// Nobody is sent more than came from there.
const _: () = assert!(HEAD + ANSWER_BODY <= HEAD + CALL_BODY + TAG_LEN);

/// The number and the rest of a datagram of this kind.
fn open(datagram: &[u8], kind: u8) -> Option<(u64, &[u8])> {
    let (head, rest) = datagram.split_first_chunk::<HEAD>()?;
    let (number, is_it) =
        (u64::from_le_bytes(*head.last_chunk()?), head[..8] == [FORM, kind, 0, 0, 0, 0, 0, 0]);
    is_it.then_some((number, rest))
}

fn begin(kind: u8, number: u64) -> Vec<u8> {
    let mut datagram = vec![FORM, kind, 0, 0, 0, 0, 0, 0];
    datagram.extend_from_slice(&number.to_le_bytes());
    datagram
}

fn seal(keys: &StatelessTransportState, kind: u8, number: u64, text: &[u8]) -> Option<Vec<u8>> {
    let mut datagram = begin(kind, number);
    let mut sealed = vec![0; text.len() + TAG_LEN];
    // Each direction has keys of its own, and says one thing.
    let len = keys.write_message(0, text, &mut sealed).ok()?;
    datagram.extend_from_slice(&sealed[..len]);
    Some(datagram)
}

fn unseal(keys: &StatelessTransportState, sealed: &[u8]) -> Option<Vec<u8>> {
    let mut text = vec![0; sealed.len()];
    let len = keys.read_message(0, sealed, &mut text).ok()?;
    text.truncate(len);
    Some(text)
}

/// Who asks.
pub struct Asker {
    number: u64,
    question: Vec<u8>,
    stage: Stage,
    /// What is sent until something is heard.
    saying: Vec<u8>,
}

enum Stage {
    Called(Box<HandshakeState>),
    Asked(StatelessTransportState),
}

/// What has come to who asks.
#[derive(PartialEq, Eq, Debug)]
pub enum Heard {
    /// Nothing of use.
    Nothing,
    /// [`Asker::saying`] is another one now, and to be sent at once.
    Answer,
    /// The reply.
    Reply(Vec<u8>),
}

impl Asker {
    /// Asks the node with this key. `number` and `entropy` are random. `None`: the question is longer than
    /// [`ERRAND_MAX`].
    pub fn new(
        own: &NodeKey,
        called: PublicKey,
        question: Vec<u8>,
        (number, entropy): (u64, [u8; 32]),
    ) -> Option<Self> {
        if question.len() > ERRAND_MAX {
            return None;
        }
        let builder = builder(own, PROLOGUE, entropy)?.remote_public_key(&called.0).ok()?;
        let mut state = builder.build_initiator().ok()?;
        let mut saying = begin(CALL, number);
        let mut body = [0; CALL_BODY];
        let len = state.write_message(&[], &mut body).ok()?;
        saying.extend_from_slice(&body[..len]);
        saying.extend_from_slice(&[0; TAG_LEN]);
        mark(&called, &mut saying);
        Some(Self { number, question, stage: Stage::Called(Box::new(state)), saying })
    }

    /// What to send now, and again until something is heard.
    pub fn saying(&self) -> &[u8] {
        &self.saying
    }

    /// A datagram has come.
    pub fn handle(&mut self, datagram: &[u8]) -> Heard {
        match &mut self.stage {
            Stage::Called(state) => {
                let Some((number, body)) = open(datagram, ANSWER) else { return Heard::Nothing };
                if number != self.number || state.read_message(body, &mut [0; ANSWER_BODY]).is_err() {
                    return Heard::Nothing;
                }
                self.ask().map_or(Heard::Nothing, |()| Heard::Answer)
            }
            Stage::Asked(keys) => {
                let reply = open(datagram, REPLY).filter(|(number, _)| *number == self.number);
                let text = reply.and_then(|(_, sealed)| unseal(keys, sealed));
                text.map_or(Heard::Nothing, Heard::Reply)
            }
        }
    }

    /// The handshake is over.
    fn ask(&mut self) -> Option<()> {
        let Stage::Called(state) = &self.stage else { return None };
        if !state.is_handshake_finished() {
            return None;
        }
        // It is over: whatever stands in its place is never read.
        let idle = builder(&NodeKey::new([1; 32]), PROLOGUE, [0; 32])?.build_responder().ok()?;
        let stage = core::mem::replace(&mut self.stage, Stage::Called(Box::new(idle)));
        let Stage::Called(state) = stage else { return None };
        let keys = state.into_stateless_transport_mode().ok()?;
        self.saying = seal(&keys, QUESTION, self.number, &self.question)?;
        self.stage = Stage::Asked(keys);
        Some(())
    }
}

/// Who answers; `A` is where datagrams come from.
pub struct Answerer<A> {
    own: NodeKey,
    sessions: VecDeque<Session<A>>,
    calls: Bucket,
}

struct Session<A> {
    from: A,
    number: u64,
    begun: Instant,
    key: PublicKey,
    keys: StatelessTransportState,
    /// The call and its answer.
    called: [Vec<u8>; 2],
    /// The question and its reply.
    asked: Option<[Vec<u8>; 2]>,
    /// How often it was sent again.
    repeats: u8,
}

impl<A: PartialEq + Copy> Answerer<A> {
    /// Nobody has asked anything yet.
    pub fn new(own: NodeKey, now: Instant) -> Self {
        Self { own, sessions: VecDeque::new(), calls: Bucket::full(CALLS, CALL_EVERY, now) }
    }

    /// A datagram has come; returns what goes back. `act` does what a question of this node asks for, once, and says
    /// what came of it, of which [`ERRAND_MAX`] bytes are sent at most. `entropy` is random.
    pub fn handle(
        &mut self,
        now: Instant,
        from: A,
        datagram: &[u8],
        entropy: [u8; 32],
        act: &mut dyn FnMut(&PublicKey, &[u8]) -> Vec<u8>,
    ) -> Option<Vec<u8>> {
        self.sessions.retain(|it| now.since(it.begun) < LIFE);
        if let Some((number, _)) = open(datagram, CALL) {
            return self.answer(now, from, number, datagram, entropy);
        }
        let (number, sealed) = open(datagram, QUESTION)?;
        let session = self.sessions.iter_mut().find(|it| (it.from, it.number) == (from, number))?;
        match &session.asked {
            Some([question, reply]) if question == datagram && session.repeats < REPEATS => {
                session.repeats += 1;
                Some(reply.clone())
            }
            Some(_) => None,
            None => {
                let question = unseal(&session.keys, sealed)?;
                let mut text = act(&session.key, &question);
                text.truncate(ERRAND_MAX);
                let reply = seal(&session.keys, REPLY, number, &text)?;
                session.asked = Some([datagram.to_vec(), reply.clone()]);
                Some(reply)
            }
        }
    }

    fn answer(
        &mut self,
        now: Instant,
        from: A,
        number: u64,
        call: &[u8],
        entropy: [u8; 32],
    ) -> Option<Vec<u8>> {
        if call.len() != HEAD + CALL_BODY + TAG_LEN || !is_marked(&self.own.public(), call) {
            return None;
        }
        if let Some(known) = self.sessions.iter().find(|it| (it.from, it.number) == (from, number)) {
            return (known.called[0] == call).then(|| known.called[1].clone());
        }
        if !self.calls.take(now) {
            return None;
        }
        let mut state = builder(&self.own, PROLOGUE, entropy)?.build_responder().ok()?;
        state.read_message(&call[HEAD..HEAD + CALL_BODY], &mut [0; CALL_BODY]).ok()?;
        let mut key = PublicKey::default();
        key.0.copy_from_slice(state.get_remote_static().filter(|key| key.len() == 32)?);
        if !key.is_usable() {
            return None;
        }
        let (mut answer, mut body) = (begin(ANSWER, number), [0; ANSWER_BODY]);
        let len = state.write_message(&[], &mut body).ok()?;
        answer.extend_from_slice(&body[..len]);
        let keys = state.into_stateless_transport_mode().ok()?;
        if self.sessions.len() == SESSIONS_MAX {
            self.sessions.pop_front();
        }
        let called = [call.to_vec(), answer.clone()];
        self.sessions.push_back(Session {
            from,
            number,
            begun: now,
            key,
            keys,
            called,
            asked: None,
            repeats: 0,
        });
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::ZERO;

    fn answerer() -> Answerer<u8> {
        Answerer::new(NodeKey::numbered(1), NOW)
    }

    fn asker(number: u64) -> Asker {
        let question = format!("question {number}").into_bytes();
        Asker::new(
            &NodeKey::numbered(2),
            NodeKey::numbered(1).public(),
            question,
            (number, [number as u8; 32]),
        )
        .unwrap()
    }

    /// One that writes down what it is asked.
    fn hear(
        answerer: &mut Answerer<u8>,
        from: u8,
        datagram: &[u8],
        done: &mut Vec<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        answerer.handle(NOW, from, datagram, [9; 32], &mut |key, question| {
            assert_eq!(*key, NodeKey::numbered(2).public());
            done.push(question.to_vec());
            format!("done {}", done.len()).into_bytes()
        })
    }

    #[test]
    fn a_question_is_done_once_however_often_it_comes() {
        let (mut answerer, mut done) = (answerer(), Vec::new());
        let mut asker = asker(7);
        let call = asker.saying().to_vec();
        let answer = hear(&mut answerer, 1, &call, &mut done).unwrap();
        assert!(answer.len() <= call.len());
        assert_eq!(hear(&mut answerer, 1, &call, &mut done), Some(answer.clone()), "it was lost");
        assert_eq!(asker.handle(&answer), Heard::Answer);
        assert_eq!(asker.handle(&answer), Heard::Nothing);
        let question = asker.saying().to_vec();
        assert_eq!(hear(&mut answerer, 2, &question, &mut done), None, "somebody repeats it from elsewhere");
        let reply = hear(&mut answerer, 1, &question, &mut done).unwrap();
        assert_eq!(hear(&mut answerer, 1, &question, &mut done), Some(reply.clone()));
        assert_eq!(done, [b"question 7".to_vec()]);
        let again = (0..1000).filter(|_| hear(&mut answerer, 1, &question, &mut done).is_some()).count();
        assert_eq!(again + 1, REPEATS.into(), "nobody is flooded by a repetition");
        assert_eq!(asker.handle(&reply), Heard::Reply(b"done 1".to_vec()));
        // The whole of it once more, by somebody who has seen it, to one who has forgotten: he cannot answer.
        let mut later = Answerer::new(NodeKey::numbered(1), NOW);
        let other = later.handle(NOW, 1, &call, [8; 32], &mut |_, _| unreachable!()).unwrap();
        assert_ne!(other, answer);
        assert_eq!(hear(&mut later, 1, &question, &mut done), None);
        assert_eq!(done.len(), 1);
    }

    #[test]
    fn who_does_not_know_the_key_gets_no_answer_and_what_is_changed_is_nothing() {
        let (mut answerer, mut done) = (answerer(), Vec::new());
        let mut asker = asker(7);
        let call = asker.saying().to_vec();
        for at in (0..call.len()).filter(|at| *at != crate::frame::ROUTE) {
            let mut other = call.clone();
            other[at] ^= 1;
            assert_eq!(hear(&mut answerer, 1, &other, &mut done), None, "byte {at}");
            assert_eq!(hear(&mut answerer, 1, &call[..at], &mut done), None);
        }
        let stranger =
            Asker::new(&NodeKey::numbered(2), NodeKey::numbered(3).public(), Vec::new(), (1, [1; 32]))
                .unwrap();
        assert_eq!(hear(&mut answerer, 1, stranger.saying(), &mut done), None);
        let answer = hear(&mut answerer, 1, &call, &mut done).unwrap();
        for at in 0..answer.len() {
            let mut other = answer.clone();
            other[at] ^= 1;
            assert_eq!(asker.handle(&other), Heard::Nothing, "byte {at}");
        }
        assert_eq!(asker.handle(&answer), Heard::Answer, "what was false has spoilt nothing");
        let question = asker.saying().to_vec();
        for at in 0..question.len() {
            let mut other = question.clone();
            other[at] ^= 1;
            assert_eq!(hear(&mut answerer, 1, &other, &mut done), None, "byte {at}");
        }
        let reply = hear(&mut answerer, 1, &question, &mut done).unwrap();
        for at in 0..reply.len() {
            let mut other = reply.clone();
            other[at] ^= 1;
            assert_eq!(asker.handle(&other), Heard::Nothing, "byte {at}");
        }
        assert!(
            Asker::new(
                &NodeKey::numbered(2),
                NodeKey::numbered(1).public(),
                vec![0; ERRAND_MAX + 1],
                (1, [1; 32])
            )
            .is_none()
        );
    }

    #[test]
    fn calls_are_bounded_in_number_and_time() {
        let (mut answerer, mut done) = (answerer(), Vec::new());
        let answered =
            (0..200).filter(|number| hear(&mut answerer, 1, asker(*number).saying(), &mut done).is_some());
        assert_eq!(answered.count(), CALLS as usize);
        let later = NOW + CALL_EVERY;
        assert!(answerer.handle(later, 1, asker(300).saying(), [1; 32], &mut |_, _| Vec::new()).is_some());
        assert_eq!(answerer.sessions.len(), SESSIONS_MAX);
        answerer.handle(later + LIFE, 1, &[], [1; 32], &mut |_, _| Vec::new());
        assert!(answerer.sessions.is_empty());
    }
}
