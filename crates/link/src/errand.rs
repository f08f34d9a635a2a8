//! One question to a node and its answer, where the two have no channel: how a switch is told what to do.
//!
//! ```text
//!  1  ──> call       Noise IK, first message, and two marks: proves who asks. It may be a copy, so it asks nothing
//!  2  <── answer     Noise IK, second message
//!  3  ──> question   sealed: whoever sends it has heard 2
//!  4  <── reply      sealed
//!  5  <── cookie     sealed, in place of 2: call once more, with what is in here
//!
//!  a datagram: 0 form, 1    1 which of these    8 number    16 ...
//! ```
//!
//! All of them bear the number that who asks has chosen. A question is acted on once: its repetition is answered by the
//! same reply. What comes is bounded, and nobody gets more than it sent before it has shown that it is where it says.
//!
//! A call can be recorded, and sent again from any address. So some are answered at once, and while there are more,
//! only those whose second mark was made with a cookie (`pair/cookies.rs`), which who is not where it says never gets.
//! Those have places of their own, and of these each host has its share.

use core::time::Duration;
use std::collections::VecDeque;

use base::{Bucket, Instant};
use snow::{HandshakeState, StatelessTransportState};

use crate::frame::TAG_LEN;
use crate::handshake::{builder, is_marked, mark};
use crate::identity::{NodeKey, PublicKey};
use crate::pair::cookies::{Cookie, Cookies, MARKS_LEN, SEALED_LEN, mark_in};
use crate::record::ADDRESS_BYTES;

/// Bytes of the longest question, and of the longest reply.
pub const ERRAND_MAX: usize = 60_000;

const FORM: u8 = 1;
const CALL: u8 = 1;
const ANSWER: u8 = 2;
const QUESTION: u8 = 3;
const REPLY: u8 = 4;
const COOKIE: u8 = 5;
const HEAD: usize = 16;
const PROLOGUE: &[u8] = b"causeway errand 1";
/// Bytes of a first message without a payload: an ephemeral public key, a sealed static one, a tag.
const CALL_BODY: usize = 32 + (32 + 16) + 16;
/// Bytes of a second one: an ephemeral public key, a tag.
const ANSWER_BODY: usize = 32 + 16;
const CALL_LEN: usize = HEAD + CALL_BODY + MARKS_LEN;
/// Behind a call's body and its mark is the one that is made with a cookie.
const MARKED: usize = CALL_LEN - TAG_LEN;
/// Most errands at a time.
const SESSIONS_MAX: usize = UNPROVEN_MAX + PROVEN_MAX;
/// Most of those whose calls had no cookie. Who comes then is asked for one.
const UNPROVEN_MAX: usize = 16;
/// Most of the others. Who comes then takes a place of the host that has most of them.
const PROVEN_MAX: usize = 64;
/// Most of one host. Who comes from there then takes the place of its oldest.
const HOST_MAX: usize = 8;
/// An errand that took longer is over.
const LIFE: Duration = Duration::from_secs(10);
/// So many calls without a cookie are looked at at once, and then one each time.
const UNPROVEN_CALLS: u32 = 16;
const UNPROVEN_EVERY: Duration = Duration::from_secs(1);
/// So many with one.
const CALLS: u32 = 128;
const CALL_EVERY: Duration = Duration::from_millis(5);
/// And so many of these from one host.
const HOST_CALLS: u32 = 32;
const HOST_EVERY: Duration = Duration::from_millis(50);
/// Of so many hosts it is known how much they have called: who comes then takes the place of who came first.
const HOSTS_MAX: usize = 64;
/// So often a reply is sent again: who repeats a question from where it came from has nobody flooded.
const REPEATS: u8 = 50;

// Nobody is sent more than came from there.
const _: () = assert!(HEAD + ANSWER_BODY <= CALL_LEN && HEAD + SEALED_LEN <= CALL_LEN);

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

/// What the cookie that answers a call is bound to.
fn associated(number: u64, call: &[u8]) -> Vec<u8> {
    let mut bound = begin(COOKIE, number);
    bound.extend_from_slice(&mark_in(call));
    bound
}

/// Who asks.
pub struct Asker {
    called: PublicKey,
    number: u64,
    question: Vec<u8>,
    stage: Stage,
    /// What is sent until something is heard.
    saying: Vec<u8>,
}

enum Stage {
    /// With a cookie or without one.
    Called(Box<HandshakeState>, Option<Cookie>),
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
        saying.extend_from_slice(&[0; TAG_LEN]);
        Some(Self { called, number, question, stage: Stage::Called(Box::new(state), None), saying })
    }

    /// What to send now, and again until something is heard.
    pub fn saying(&self) -> &[u8] {
        &self.saying
    }

    /// A datagram has come.
    pub fn handle(&mut self, datagram: &[u8]) -> Heard {
        match &mut self.stage {
            Stage::Called(state, known) => {
                if let Some((number, sealed)) = open(datagram, COOKIE).filter(|it| it.0 == self.number) {
                    let cookie = Cookie::open(&self.called, sealed, &associated(number, &self.saying));
                    // The same once more would only be answered in the same way.
                    let Some(cookie) = cookie.filter(|it| *known != Some(*it)) else { return Heard::Nothing };
                    cookie.mark(&mut self.saying);
                    *known = Some(cookie);
                    return Heard::Answer;
                }
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
        let Stage::Called(state, _) = &self.stage else { return None };
        if !state.is_handshake_finished() {
            return None;
        }
        // It is over: whatever stands in its place is never read.
        let idle = builder(&NodeKey::new([1; 32]), PROLOGUE, [0; 32])?.build_responder().ok()?;
        let stage = core::mem::replace(&mut self.stage, Stage::Called(Box::new(idle), None));
        let Stage::Called(state, _) = stage else { return None };
        let keys = state.into_stateless_transport_mode().ok()?;
        self.saying = seal(&keys, QUESTION, self.number, &self.question)?;
        self.stage = Stage::Asked(keys);
        Some(())
    }
}

/// Where a datagram came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    /// The address with its port.
    pub address: [u8; ADDRESS_BYTES],
    /// What is the same in all addresses that one machine may well have.
    pub host: [u8; 16],
}

/// Why a datagram has neither effect nor answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dropped {
    /// It is neither a call nor a question.
    Malformed,
    /// A call that was made for another key, or was changed on its way.
    OtherKey,
    /// It does not unseal.
    Unsealed,
    /// It is of no errand that is under way from there, or says something else than what that has heard.
    Astray,
    /// Its host calls more often than it is heard, or all do; or one thing is repeated without end.
    TooOften,
}

impl Dropped {
    /// What programs know it by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::OtherKey => "other_key",
            Self::Unsealed => "unsealed",
            Self::Astray => "astray",
            Self::TooOften => "too_often",
        }
    }

    /// The same for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Malformed => "it is neither a call nor a question",
            Self::OtherKey => "whoever calls does not know this key",
            Self::Unsealed => "it was made without the keys of the errand",
            Self::Astray => "it belongs to no errand that is under way from there",
            Self::TooOften => "calls come faster than they are looked at",
        }
    }
}

/// Who answers.
pub struct Answerer {
    own: NodeKey,
    sessions: VecDeque<Session>,
    cookies: Cookies,
    unproven: Bucket,
    calls: Bucket,
    /// Which hosts have called, with a cookie, and may call how often.
    hosts: VecDeque<([u8; 16], Bucket)>,
}

struct Session {
    from: Source,
    number: u64,
    begun: Instant,
    /// Its call had a cookie.
    is_proven: bool,
    key: PublicKey,
    keys: StatelessTransportState,
    /// The call, but for the mark that is made with a cookie, and its answer.
    called: [Vec<u8>; 2],
    /// The question and its reply.
    asked: Option<[Vec<u8>; 2]>,
    /// How often it was sent again.
    repeats: u8,
}

impl Answerer {
    /// Nobody has asked anything yet. `entropy` is random.
    pub fn new(own: NodeKey, now: Instant, entropy: [u8; 32]) -> Self {
        Self {
            own,
            sessions: VecDeque::new(),
            cookies: Cookies::new(&entropy),
            unproven: Bucket::full(UNPROVEN_CALLS, UNPROVEN_EVERY, now),
            calls: Bucket::full(CALLS, CALL_EVERY, now),
            hosts: VecDeque::new(),
        }
    }

    /// A datagram has come; returns what goes back. `act` does what a question of this node asks for, once, and says
    /// what came of it, of which [`ERRAND_MAX`] bytes are sent at most. `entropy` is random.
    ///
    /// # Errors
    /// Nothing goes back: for whoever counts.
    pub fn handle(
        &mut self,
        now: Instant,
        from: Source,
        datagram: &[u8],
        entropy: [u8; 32],
        act: &mut dyn FnMut(&PublicKey, &[u8]) -> Vec<u8>,
    ) -> Result<Vec<u8>, Dropped> {
        self.sessions.retain(|it| now.since(it.begun) < LIFE);
        if let Some((number, _)) = open(datagram, CALL) {
            return self.answer(now, from, number, datagram, entropy);
        }
        let (number, sealed) = open(datagram, QUESTION).ok_or(Dropped::Malformed)?;
        let mut sessions = self.sessions.iter_mut();
        let session = sessions.find(|it| (it.from, it.number) == (from, number)).ok_or(Dropped::Astray)?;
        match &session.asked {
            Some([question, _]) if question != datagram => Err(Dropped::Astray),
            Some(_) if session.repeats >= REPEATS => Err(Dropped::TooOften),
            Some([_, reply]) => {
                session.repeats += 1;
                Ok(reply.clone())
            }
            None => {
                let question = unseal(&session.keys, sealed).ok_or(Dropped::Unsealed)?;
                let mut text = act(&session.key, &question);
                text.truncate(ERRAND_MAX);
                let reply = seal(&session.keys, REPLY, number, &text).ok_or(Dropped::Unsealed)?;
                session.asked = Some([datagram.to_vec(), reply.clone()]);
                Ok(reply)
            }
        }
    }

    fn answer(
        &mut self,
        now: Instant,
        from: Source,
        number: u64,
        call: &[u8],
        entropy: [u8; 32],
    ) -> Result<Vec<u8>, Dropped> {
        let marked = call.get(..MARKED).filter(|_| call.len() == CALL_LEN).ok_or(Dropped::Malformed)?;
        if !is_marked(&self.own.public(), marked) {
            return Err(Dropped::OtherKey);
        }
        if let Some(known) = self.sessions.iter().find(|it| (it.from, it.number) == (from, number)) {
            let is_again = known.called[0] == marked;
            return is_again.then(|| known.called[1].clone()).ok_or(Dropped::Astray);
        }
        let is_proven = self.cookies.is_proven(now, call, &from.address);
        if is_proven {
            if !self.may_call(now, from.host) || !self.calls.take(now) {
                return Err(Dropped::TooOften);
            }
        } else if self.sessions.iter().filter(|it| !it.is_proven).count() == UNPROVEN_MAX
            || !self.unproven.take(now)
        {
            // It takes no place, and is forgotten.
            let bound = associated(number, call);
            let mut cookie = begin(COOKIE, number);
            cookie.extend(self.cookies.seal(now, &self.own.public(), &from.address, &bound));
            return Ok(cookie);
        }
        let (key, keys, answer) = self.accept(number, call, entropy).ok_or(Dropped::Unsealed)?;
        if is_proven {
            self.make_room(from.host);
        }
        let called = [marked.to_vec(), answer.clone()];
        self.sessions.push_back(Session {
            from,
            number,
            begun: now,
            is_proven,
            key,
            keys,
            called,
            asked: None,
            repeats: 0,
        });
        assert!(self.sessions.len() <= SESSIONS_MAX, "there was a place, or one was made");
        Ok(answer)
    }

    /// Who calls, the keys of its errand, and the answer.
    fn accept(
        &self,
        number: u64,
        call: &[u8],
        entropy: [u8; 32],
    ) -> Option<(PublicKey, StatelessTransportState, Vec<u8>)> {
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
        Some((key, state.into_stateless_transport_mode().ok()?, answer))
    }

    /// Whether this host, which is where it says, has called so seldom that it is heard.
    fn may_call(&mut self, now: Instant, host: [u8; 16]) -> bool {
        // Those that have not called for long are as if they never had.
        self.hosts.retain_mut(|(_, calls)| calls.left(now) < HOST_CALLS);
        if let Some((_, calls)) = self.hosts.iter_mut().find(|(it, _)| *it == host) {
            return calls.take(now);
        }
        if self.hosts.len() == HOSTS_MAX {
            self.hosts.pop_front();
        }
        let mut calls = Bucket::full(HOST_CALLS, HOST_EVERY, now);
        let may = calls.take(now);
        self.hosts.push_back((host, calls));
        may
    }

    /// One more of this host has a place: at its own cost, or at the cost of who has most of them.
    fn make_room(&mut self, host: [u8; 16]) {
        let proven = || self.sessions.iter().filter(|it| it.is_proven);
        let has = |host| proven().filter(|it| it.from.host == host).count();
        let from = if has(host) >= HOST_MAX {
            Some(host)
        } else if proven().count() >= PROVEN_MAX {
            // The last one of several is who has the oldest.
            proven().rev().map(|it| it.from.host).max_by_key(|host| has(*host))
        } else {
            None
        };
        let oldest = self.sessions.iter().position(|it| it.is_proven && Some(it.from.host) == from);
        if let Some(oldest) = oldest {
            self.sessions.remove(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::cookies::COOKIE_LIFE;

    const NOW: Instant = Instant::ZERO;

    fn answerer() -> Answerer {
        Answerer::new(NodeKey::numbered(1), NOW, [5; 32])
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

    /// A port of a host.
    fn at(host: u32, port: u32) -> u32 {
        host << 16 | port
    }

    fn source(from: u32) -> Source {
        let mut source = Source { address: [0; ADDRESS_BYTES], host: [(from >> 16) as u8; 16] };
        source.host[..2].copy_from_slice(&((from >> 16) as u16).to_le_bytes());
        source.address[..4].copy_from_slice(&from.to_le_bytes());
        source
    }

    /// One that writes down what it is asked.
    fn try_hear(
        answerer: &mut Answerer,
        from: u32,
        datagram: &[u8],
        done: &mut Vec<Vec<u8>>,
    ) -> Result<Vec<u8>, Dropped> {
        answerer.handle(NOW, source(from), datagram, [9; 32], &mut |key, question| {
            assert_eq!(*key, NodeKey::numbered(2).public());
            done.push(question.to_vec());
            format!("done {}", done.len()).into_bytes()
        })
    }

    fn hear(answerer: &mut Answerer, from: u32, datagram: &[u8], done: &mut Vec<Vec<u8>>) -> Option<Vec<u8>> {
        try_hear(answerer, from, datagram, done).ok()
    }

    /// Asks from there until nothing comes back or there is a reply: whether there is.
    fn ask(answerer: &mut Answerer, from: u32, asker: &mut Asker) -> bool {
        let mut heard = Heard::Answer;
        while heard == Heard::Answer {
            let said = asker.saying().to_vec();
            let Some(back) = hear(answerer, from, &said, &mut Vec::new()) else { return false };
            heard = asker.handle(&back);
        }
        matches!(heard, Heard::Reply(_))
    }

    #[test]
    fn a_recorded_call_from_everywhere_shuts_nobody_out() {
        let (mut answerer, mut done) = (answerer(), Vec::new());
        let call = asker(7).saying().to_vec();
        let mut waits = asker(6);
        let answer = hear(&mut answerer, at(1, 1), waits.saying(), &mut done).unwrap();
        assert_eq!(waits.handle(&answer), Heard::Answer);
        for host in 2..1000 {
            let back = hear(&mut answerer, at(host, 1), &call, &mut done);
            assert!(back.is_none_or(|back| back.len() <= call.len()));
        }
        assert!(ask(&mut answerer, at(1, 2), &mut asker(8)));
        let reply = hear(&mut answerer, at(1, 1), waits.saying(), &mut done).unwrap();
        assert_eq!(waits.handle(&reply), Heard::Reply(b"done 1".to_vec()), "it had its place before");
        assert!(answerer.sessions.len() <= SESSIONS_MAX);
    }

    #[test]
    fn who_is_where_it_says_takes_only_a_share() {
        let (mut answerer, mut done) = (answerer(), Vec::new());
        let mut waits = asker(6);
        let answer = hear(&mut answerer, at(1, 1), waits.saying(), &mut done).unwrap();
        assert_eq!(waits.handle(&answer), Heard::Answer);
        for number in 100..1100 {
            let mut asker = asker(number);
            // It calls, and once more with a cookie.
            for _ in 0..2 {
                let said = asker.saying().to_vec();
                let back = hear(&mut answerer, at(2, number as u32), &said, &mut done);
                back.map(|back| asker.handle(&back));
            }
        }
        assert!(ask(&mut answerer, at(3, 1), &mut asker(8)));
        let reply = hear(&mut answerer, at(1, 1), waits.saying(), &mut done).unwrap();
        assert!(matches!(waits.handle(&reply), Heard::Reply(_)));
        assert!(answerer.sessions.len() <= SESSIONS_MAX);
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
        let mut later = Answerer::new(NodeKey::numbered(1), NOW, [6; 32]);
        let other = later.handle(NOW, source(1), &call, [8; 32], &mut |_, _| unreachable!()).unwrap();
        assert_ne!(other, answer);
        assert_eq!(hear(&mut later, 1, &question, &mut done), None);
        assert_eq!(done.len(), 1);
    }

    #[test]
    fn who_does_not_know_the_key_gets_no_answer_and_what_is_changed_is_nothing() {
        let (mut answerer, mut done) = (answerer(), Vec::new());
        let mut asker = asker(7);
        let call = asker.saying().to_vec();
        for at in (0..MARKED).filter(|at| *at != crate::frame::ROUTE) {
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

    /// Calls until it is answered, or nothing comes back: whether it is.
    fn call(answerer: &mut Answerer, (now, from): (Instant, Source), asker: &mut Asker) -> bool {
        for _ in 0..2 {
            let said = asker.saying().to_vec();
            let back = answerer.handle(now, from, &said, [9; 32], &mut |_, _| unreachable!());
            if back.is_ok_and(|back| asker.handle(&back) == Heard::Answer)
                && open(asker.saying(), QUESTION).is_some()
            {
                return true;
            }
        }
        false
    }

    #[test]
    fn whatever_is_not_answered_is_dropped_for_a_reason() {
        let (mut answerer, mut done) = (answerer(), Vec::new());
        let mut why = |answerer: &mut Answerer, from, datagram: &[u8]| {
            try_hear(answerer, from, datagram, &mut done).err()
        };
        let mut asker = asker(7);
        let call = asker.saying().to_vec();
        for rubbish in [&[][..], &[1; 200], &call[..CALL_LEN - 1], &begin(ANSWER, 7)] {
            assert_eq!(why(&mut answerer, 1, rubbish), Some(Dropped::Malformed));
        }
        let other = NodeKey::numbered(3).public();
        let stranger = Asker::new(&NodeKey::numbered(2), other, Vec::new(), (1, [1; 32])).unwrap();
        assert_eq!(why(&mut answerer, 1, stranger.saying()), Some(Dropped::OtherKey));
        // The mark is anybody's who knows the key; what is sealed under it is not.
        let mut forged = call[..MARKED].to_vec();
        forged[HEAD + 32] ^= 1;
        mark(&NodeKey::numbered(1).public(), &mut forged);
        forged.extend_from_slice(&[0; TAG_LEN]);
        assert_eq!(why(&mut answerer, 1, &forged), Some(Dropped::Unsealed));
        let answer = try_hear(&mut answerer, 1, &call, &mut Vec::new()).unwrap();
        assert_eq!(asker.handle(&answer), Heard::Answer);
        let mut question = asker.saying().to_vec();
        question[HEAD] ^= 1;
        assert_eq!(why(&mut answerer, 1, &question), Some(Dropped::Unsealed));
        question[HEAD] ^= 1;
        assert_eq!(why(&mut answerer, 2, &question), Some(Dropped::Astray), "from elsewhere");
        assert_eq!(why(&mut answerer, 1, &question), None);
        let again: Vec<_> = (0..=REPEATS).map(|_| why(&mut answerer, 1, &question)).collect();
        assert_eq!(again.iter().filter(|it| it.is_none()).count(), REPEATS.into());
        assert_eq!(again.last(), Some(&Some(Dropped::TooOften)));
        question[HEAD] ^= 1;
        assert_eq!(why(&mut answerer, 1, &question), Some(Dropped::Astray));
    }

    #[test]
    fn calls_are_bounded_in_number_and_time() {
        let mut answerer = answerer();
        let answered = |answerer: &mut Answerer, now, first: u32, host: fn(u32) -> u32| {
            let is_answered = |number: &u32| {
                let from = source(at(host(*number), *number));
                call(answerer, (now, from), &mut asker(u64::from(*number)))
            };
            (first..first + 500).filter(is_answered).count()
        };
        // One host: those that need no cookie, and its share of the others.
        assert_eq!(answered(&mut answerer, NOW, 0, |_| 1), (UNPROVEN_CALLS + HOST_CALLS) as usize);
        assert_eq!(answerer.sessions.len(), UNPROVEN_MAX + HOST_MAX);
        assert_eq!(answered(&mut answerer, NOW + HOST_EVERY, 500, |_| 1), 1);
        // All together.
        let mut answerer = self::answerer();
        assert_eq!(answered(&mut answerer, NOW, 0, |number| number), (UNPROVEN_CALLS + CALLS) as usize);
        assert_eq!((answerer.sessions.len(), answerer.hosts.len()), (SESSIONS_MAX, HOSTS_MAX));
        let later = NOW + CALL_EVERY;
        assert!(call(&mut answerer, (later, source(at(2000, 1))), &mut asker(2000)));
        assert_eq!(answerer.sessions.len(), SESSIONS_MAX);
        let nothing = answerer.handle(later + LIFE, source(1), &[], [1; 32], &mut |_, _| Vec::new());
        assert_eq!(nothing, Err(Dropped::Malformed));
        assert!(answerer.sessions.is_empty());
    }

    #[test]
    fn a_place_is_taken_from_who_has_most_of_them() {
        let mut answerer = answerer();
        let begins = |answerer: &mut Answerer, host, number| {
            assert!(call(answerer, (NOW, source(at(host, 1))), &mut asker(number)));
        };
        let of = |answerer: &Answerer, host| {
            answerer
                .sessions
                .iter()
                .filter(|it| it.is_proven && it.from.host == source(at(host, 1)).host)
                .count()
        };
        (0..UNPROVEN_MAX as u64).for_each(|number| begins(&mut answerer, 100, number));
        begins(&mut answerer, 1, 500);
        for host in 2..10 {
            (0..8).for_each(|number| begins(&mut answerer, host, 1000 * u64::from(host) + number));
        }
        assert_eq!((of(&answerer, 1), of(&answerer, 2), of(&answerer, 9)), (1, 7, 8), "64 together");
        begins(&mut answerer, 3, 600);
        assert_eq!((of(&answerer, 1), of(&answerer, 2), of(&answerer, 3)), (1, 7, 8), "it is full itself");
        begins(&mut answerer, 11, 700);
        assert_eq!((of(&answerer, 1), of(&answerer, 3), of(&answerer, 11)), (1, 7, 1));
        assert_eq!(of(&answerer, 4), 8, "the oldest of those with most has made room");
    }

    #[test]
    fn a_cookie_is_good_for_one_address_and_some_time() {
        let (mut answerer, mut done) = (answerer(), Vec::new());
        let plain = asker(7).saying().to_vec();
        (100..100 + u32::from(REPEATS))
            .for_each(|host| drop(hear(&mut answerer, at(host, 1), &plain, &mut done)));
        let mut asker = asker(8);
        let first = asker.saying().to_vec();
        let cookie = hear(&mut answerer, at(1, 1), &first, &mut done).unwrap();
        assert!(open(&cookie, COOKIE).is_some() && cookie.len() <= first.len());
        for at in 0..cookie.len() {
            let mut other = cookie.clone();
            other[at] ^= 1;
            assert_eq!(asker.handle(&other), Heard::Nothing, "byte {at}");
            assert_eq!(asker.handle(&cookie[..at]), Heard::Nothing);
        }
        let for_another = hear(&mut answerer, at(1, 1), &plain, &mut done).unwrap();
        assert_eq!(asker.handle(&for_another), Heard::Nothing, "it answers another call");
        assert_eq!(asker.handle(&cookie), Heard::Answer);
        assert_eq!(asker.handle(&cookie), Heard::Nothing, "the same");
        let said = asker.saying().to_vec();
        assert_eq!((said.len(), &said[..MARKED]), (first.len(), &first[..MARKED]));
        let is_cookie = |back: Option<Vec<u8>>| back.is_some_and(|back| open(&back, COOKIE).is_some());
        for from in [at(1, 2), at(2, 1)] {
            assert!(is_cookie(hear(&mut answerer, from, &said, &mut done)), "from elsewhere");
        }
        let mut other = said.clone();
        other[CALL_LEN - 1] ^= 1;
        assert!(is_cookie(hear(&mut answerer, at(1, 1), &other, &mut done)));
        let answer = hear(&mut answerer, at(1, 1), &said, &mut done).unwrap();
        assert_eq!(
            hear(&mut answerer, at(1, 1), &first, &mut done),
            Some(answer.clone()),
            "it was under way"
        );
        assert_eq!(asker.handle(&answer), Heard::Answer);
        assert_eq!(asker.handle(&cookie), Heard::Nothing, "it comes late");
        // Both secrets have gone, and the call is as one without a cookie: there are places for those again.
        let late = NOW + 2 * COOKIE_LIFE;
        for number in 0..UNPROVEN_MAX as u64 {
            let other = self::asker(1000 + number).saying().to_vec();
            answerer.handle(late, source(at(1, 9)), &other, [9; 32], &mut |_, _| Vec::new()).unwrap();
        }
        let back = answerer.handle(late, source(at(1, 1)), &said, [9; 32], &mut |_, _| Vec::new());
        assert!(is_cookie(back.ok()));
    }
}
