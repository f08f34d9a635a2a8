//! Peers that hold the key of a loan and lie.

use sim::liars::{Dice, Liar, lie, run_liar};

/// Of each role; the number of seeds can be raised by `CAUSEWAY_LIARS`.
const SEEDS: u64 = 60;

#[test]
fn who_lies_about_one_loan_hurts_no_other() {
    let count = std::env::var("CAUSEWAY_LIARS").ok().and_then(|count| count.parse().ok()).unwrap_or(SEEDS);
    let (mut failures, mut told, mut verified) = (0, [0; 3], 0);
    let mut usable = [0; 3];
    for seed in 0..3 * count {
        match run_liar(seed, 300) {
            Ok((liar, lies)) => {
                told[liar as usize] += lies.told;
                usable[liar as usize] += lies.usable;
                verified += lies.verified;
            }
            Err(failure) => {
                failures += 1;
                eprintln!("seed {}: {}: {}", failure.seed, failure.checker, failure.what);
            }
        }
    }
    eprintln!("told {told:?}, usable {usable:?}, verified {verified}");
    assert_eq!(failures, 0);
    assert!(told.iter().all(|told| *told > 5 * count), "{told:?} lies");
    assert!(verified > 50 * count, "{verified} blocks were compared");
    let usable_again = |liar: Liar| usable[liar as usize] > count / 2;
    assert!(
        usable_again(Liar::Borrower) && usable_again(Liar::Lender),
        "{usable:?}: lies are told at every stage"
    );
}

#[test]
fn the_same_liar_says_the_same() {
    for seed in 0..3 {
        assert_eq!(run_liar(seed, 100).unwrap(), run_liar(seed, 100).unwrap());
    }
}

/// Dice that fall as a fuzzer has found.
struct Found(std::vec::IntoIter<u8>);

impl Dice for Found {
    fn below(&mut self, limit: u64) -> u64 {
        let len = (limit.max(2) - 1).ilog2() as usize / 8 + 1;
        if self.0.len() < len {
            return limit - 1;
        }
        let mut value = [0; 8];
        value[..len].iter_mut().zip(&mut self.0).for_each(|(to, byte)| *to = byte);
        u64::from_le_bytes(value) % limit
    }
}

/// A lender says that its function has registers where none can be asked for.
#[test]
fn registers_that_cannot_be_asked_for_are_refused() {
    let text = "0a8585858500008585858585858585858585ff0c45ae85858585858585858585858585858585858585858585858585850d0d\
        0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d\
        0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d8585858585\
        8585854c00000000000000858585858585e3fe00000000000085858585858585858585858585858585858585858585858585\
        858585858585858585858585858585858585858585";
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..text.len()).step_by(2).map(digit).collect();
    let turns = bytes.len() as u32 / 8;
    lie(Liar::Lender, &mut Found(bytes.into_iter()), turns).unwrap();
}
