//! Orders to a switch and their answers: what two ends say to each other reaches them changed, late, twice or not at
//! all, from any place, beside anything else.
#![no_main]

use base::Instant;
use core::time::Duration;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use link::NodeKey;
use node::errand::{Answerer, Asker, ERRAND_MAX, Heard, Source};

#[derive(Arbitrary, Debug)]
enum Step {
    /// A new errand in this place.
    Begin {
        place: u8,
        question: u8,
    },
    /// What the asker in this place says comes to the answerer from there, with these changes, and the answer back.
    Say {
        place: u8,
        from: u8,
        changes: Vec<(u16, u8)>,
        is_lost: bool,
    },
    /// What was answered last comes to another one.
    Repeat {
        place: u8,
    },
    /// To the answerer, or to an asker.
    Raw {
        place: Option<u8>,
        from: u8,
        bytes: Vec<u8>,
    },
    Wait {
        millis: u16,
    },
}

const PLACES: usize = 4;

fn source(from: u8) -> Source {
    Source { address: [from; 28], host: [from >> 2; 16] }
}

fuzz_target!(|steps: Vec<Step>| {
    let own = NodeKey::numbered(1);
    let mut now = Instant::ZERO;
    let mut answerer = Answerer::new(own.clone(), now, [5; 32]);
    let asker = |place: usize, number: u64, question: u8| {
        let key = NodeKey::numbered(2 + place as u64);
        Asker::new(&key, own.public(), vec![question; usize::from(question)], (number, [3; 32])).unwrap()
    };
    let mut askers: Vec<Asker> = (0..PLACES).map(|place| asker(place, place as u64, 1)).collect();
    let (mut count, mut last) = (PLACES as u64, Vec::new());
    for step in steps {
        match step {
            Step::Begin { place, question } => {
                count += 1;
                let place = usize::from(place) % PLACES;
                askers[place] = asker(place, count, question);
            }
            Step::Say { place, from, changes, is_lost } => {
                let asker = &mut askers[usize::from(place) % PLACES];
                let mut said = asker.saying().to_vec();
                for &(at, value) in &changes {
                    let at = usize::from(at) % said.len();
                    said[at] ^= value;
                }
                let act = &mut |_: &_, question: &[u8]| {
                    assert!(question.len() <= ERRAND_MAX);
                    question.to_vec()
                };
                let Ok(back) = answerer.handle(now, source(from), &said, [9; 32], act) else { continue };
                assert!(back.len() <= ERRAND_MAX + 1024);
                if !is_lost && let Heard::Reply(reply) = asker.handle(&back) {
                    assert!(reply.len() <= ERRAND_MAX);
                }
                last = back;
            }
            Step::Repeat { place } => _ = askers[usize::from(place) % PLACES].handle(&last),
            Step::Raw { place: Some(place), bytes, .. } => {
                let heard = askers[usize::from(place) % PLACES].handle(&bytes);
                assert!(!matches!(heard, Heard::Reply(_)), "nobody has sealed it");
            }
            Step::Raw { place: None, from, bytes } => {
                let act = &mut |_: &_, _: &[u8]| unreachable!("nobody has asked that");
                let back = answerer.handle(now, source(from), &bytes, [9; 32], act);
                assert!(back.iter().all(|back| back.len() <= bytes.len()), "it is amplified");
            }
            Step::Wait { millis } => now += Duration::from_millis(millis.into()),
        }
    }
});
