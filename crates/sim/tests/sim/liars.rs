//! Peers that hold the key of a loan and lie.

use sim::liars::{Liar, run_liar};

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
