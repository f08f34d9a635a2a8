use super::*;
use crate::entry::Entry;
use crate::model::FabricId;
use crate::state::State;
use crate::testing::{FABRIC, T0, assign, by, fabric, founded, request, unassign};

/// Entries as a manager makes them, and the state after each.
fn story() -> (Vec<Entry>, Vec<State>) {
    let end = {
        let mut state = fabric();
        let asked =
            [assign("store/nvme0", 33, 0), unassign("store/nvme0", false), unassign("store/nvme0", true)];
        for (number, command) in (100..).zip(asked) {
            crate::testing::run(&mut state, by("op", number, command));
        }
        state
    };
    let mut entries = vec![crate::decide::found(T0, crate::testing::name("root"), crate::testing::hash(1))];
    // What was reported is in no request.
    entries.extend(end.history().filter(|record| record.index < 8).map(|record| record.entry.clone()));
    let mut state = State::new(FABRIC);
    let mut states = vec![state.clone()];
    for (index, entry) in (1..).zip(&entries) {
        state.apply(index, entry).unwrap();
        states.push(state.clone());
    }
    (entries, states)
}

/// A log of records of one or two entries, and where each record ends with which entry.
fn written() -> (Vec<u8>, Vec<(usize, u64)>, Vec<State>) {
    let (entries, states) = story();
    let mut writer = Writer::new(FABRIC, 0, 0);
    let mut bytes = writer.header();
    let mut ends = vec![(bytes.len(), 0)];
    let mut rest = &entries[..];
    for len in [1, 2, 1].into_iter().cycle() {
        let (batch, behind) = rest.split_at(len.min(rest.len()));
        if batch.is_empty() {
            break;
        }
        bytes.extend(writer.record(batch));
        ends.push((bytes.len(), writer.index()));
        rest = behind;
    }
    assert_eq!(writer.index(), entries.len() as u64);
    (bytes, ends, states)
}

#[test]
fn a_log_is_read_as_it_was_written_and_goes_on() {
    let (bytes, ends, states) = written();
    let whole = read(&bytes, Base::new(FABRIC), 7).unwrap();
    assert_eq!((whole.len, whole.torn, &whole.state), (bytes.len(), 0, states.last().unwrap()));
    assert_eq!(ends.last().unwrap().1, whole.writer.index());
    let asked = by("op", 900, assign("store/nvme1", 33, 1));
    // Of the story nobody has reported a function, so a token has to do.
    assert!(crate::decide::decide(&whole.state, T0, &asked).is_err());
    let token = crate::testing::join_token(77, 4);
    let entry = crate::decide::decide(&whole.state, T0, &by("root", 901, token)).unwrap().entry.unwrap();
    let mut writer = whole.writer;
    let longer = [bytes, writer.record(&[entry])].concat();
    let again = read(&longer, Base::new(FABRIC), 0).unwrap();
    assert_eq!((again.state.index(), again.writer), (whole.state.index() + 1, writer));
    assert!(again.state.done(request(901)).is_some());
}

#[test]
fn a_log_that_is_cut_anywhere_gives_a_state_that_was_or_says_what_is_missing() {
    let (bytes, ends, states) = written();
    for cut in 0..bytes.len() {
        let found = read(&bytes[..cut], Base::new(FABRIC), 0);
        if cut < HEADER_LEN {
            assert_eq!(found, Err(Damage::Short { len: cut }));
            continue;
        }
        let (len, last) = *ends.iter().rfind(|(end, _)| *end <= cut).unwrap();
        let found = found.unwrap();
        assert_eq!((found.len, found.torn, &found.state), (len, cut - len, &states[last as usize]), "{cut}");
        // Whoever knows what was acknowledged is told.
        let missing = Damage::Missing { last, acknowledged: last + 1 };
        assert_eq!(read(&bytes[..cut], Base::new(FABRIC), last + 1), Err(missing));
    }
}

#[test]
fn a_log_with_any_bit_or_byte_flipped_is_named() {
    let (bytes, _, states) = written();
    for at in 0..bytes.len() {
        for flip in [1, 2, 4, 8, 16, 32, 64, 128, 0xff, bytes[at]] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            if flip == 0 {
                continue;
            }
            match read(&damaged, Base::new(FABRIC), 0) {
                Ok(found) => panic!("byte {at} by {flip:x}: {:?}", found.state == *states.last().unwrap()),
                Err(Damage::Flipped { offset, .. } | Damage::Chain { offset, .. }) => assert!(offset <= at),
                Err(Damage::NotOurs { .. }) => assert!(at < 8),
                Err(Damage::Newer { .. }) => assert!((8..12).contains(&at)),
                Err(other) => panic!("byte {at} by {flip:x}: {other}"),
            }
        }
    }
}

#[test]
fn a_tail_that_was_never_written_is_cut_and_a_hole_before_it_is_named() {
    let (bytes, ends, states) = written();
    let (start, last) = ends[ends.len() - 2];
    let sectors = (start / SECTOR..bytes.len().div_ceil(SECTOR))
        .map(|at| (at * SECTOR).max(start)..((at + 1) * SECTOR).min(bytes.len()));
    let sectors: Vec<_> = sectors.collect();
    // Any of the last record's sectors may be missing.
    for missing in 1..1_u32 << sectors.len() {
        let mut torn = bytes.clone();
        for (_, range) in sectors.iter().enumerate().filter(|(at, _)| missing & 1 << at != 0) {
            torn[range.clone()].fill(0);
        }
        let found = read(&torn, Base::new(FABRIC), 0).unwrap();
        assert_eq!((found.len, &found.state), (start, &states[last as usize]), "{missing:b}");
    }
    // Zeros behind the end are nothing.
    let longer = [&bytes[..], &[0; 1000]].concat();
    assert_eq!(read(&longer, Base::new(FABRIC), 0).unwrap().state, *states.last().unwrap());
    // A hole where others follow is no tear.
    for (begin, end) in ends.windows(2).map(|pair| (pair[0].0, pair[1].0)).take(ends.len() - 2) {
        let mut holed = bytes.clone();
        holed[begin..end].fill(0);
        assert!(
            matches!(read(&holed, Base::new(FABRIC), 0), Err(Damage::Flipped { offset, .. }) if offset == begin)
        );
    }
}

#[test]
fn records_are_not_left_out_swapped_or_taken_from_another_log() {
    let (bytes, ends, _) = written();
    let part = |at: usize| &bytes[ends[at].0..ends[at + 1].0];
    let header = &bytes[..HEADER_LEN];
    for order in [vec![0, 2, 3], vec![0, 0, 1], vec![1, 0], vec![0, 2, 1]] {
        let parts: Vec<&[u8]> = order.iter().map(|at| part(*at)).collect();
        let mixed = [header, &parts.concat()[..]].concat();
        assert!(matches!(read(&mixed, Base::new(FABRIC), 0), Err(Damage::Chain { .. })), "{order:?}");
    }
    // The same entries by another history.
    let (entries, _) = story();
    let mut other = Writer::new(FABRIC, 0, 0);
    let mixed = [header, &other.record(&entries[..2])[..], part(2)].concat();
    assert!(matches!(read(&mixed, Base::new(FABRIC), 0), Err(Damage::Chain { .. })));
    // Whole records of what cannot be.
    let mut writer = Writer::new(FABRIC, 0, 0);
    let wrong = [writer.header(), writer.record(&[entries[0].clone(), entries[4].clone()])].concat();
    let error = read(&wrong, Base::new(FABRIC), 0).unwrap_err();
    assert!(matches!(error, Damage::Entry { index: 2, .. }), "{error}");
    let elsewhere = FabricId([8; 16]);
    assert_eq!(read(&bytes, Base::new(elsewhere), 0), Err(Damage::OtherFabric { found: FABRIC }));
    let mut newer = bytes.clone();
    newer[8..12].copy_from_slice(&2_u32.to_le_bytes());
    assert_eq!(read(&newer, Base::new(FABRIC), 0).unwrap_err(), Damage::Newer { version: 2 });
}

#[test]
fn a_snapshot_is_what_the_log_comes_to_and_the_log_goes_on_from_it() {
    let (bytes, ends, states) = written();
    let end = states.last().unwrap();
    for (len, index) in &ends {
        let part = read(&bytes[..*len], Base::new(FABRIC), 0).unwrap();
        let saved = snapshot(&part.state, &part.writer);
        let base = read_snapshot(&saved, FABRIC).unwrap();
        assert_eq!((&base.state, base.writer), (&states[*index as usize], part.writer));
        // On the same log, and on one that begins there.
        assert_eq!(read(&bytes, base.clone(), 0).unwrap().state, *end);
        let rest = [&part.writer.header()[..], &bytes[*len..]].concat();
        assert_eq!(read(&rest, base.clone(), 0).unwrap().state, *end);
        if *index > 0 {
            let missing = Damage::Begin { log: *index, state: 0 };
            assert_eq!(read(&rest, Base::new(FABRIC), 0).unwrap_err(), missing);
            let other = Base { writer: Writer::new(FABRIC, *index, 5), ..base };
            assert!(matches!(read(&bytes, other, 0), Err(Damage::Chain { .. })));
        }
    }
}

#[test]
fn a_snapshot_that_is_cut_or_flipped_anywhere_is_named() {
    let whole = fabric();
    let saved = snapshot(&whole, &Writer::new(FABRIC, whole.index(), 9));
    assert_eq!(read_snapshot(&saved, FABRIC).unwrap().state, whole);
    assert_ne!(founded(), whole);
    for at in 0..saved.len() {
        assert!(read_snapshot(&saved[..at], FABRIC).is_err(), "{at}");
        let mut flipped = saved.clone();
        flipped[at] ^= 1 << (at % 8);
        assert!(read_snapshot(&flipped, FABRIC).is_err(), "{at}");
    }
    assert!(read_snapshot(&[&saved[..], b"x"].concat(), FABRIC).is_err());
    let mut newer = saved.clone();
    newer[8..12].copy_from_slice(&7_u32.to_le_bytes());
    assert_eq!(read_snapshot(&newer, FABRIC).unwrap_err(), Damage::Newer { version: 7 });
    let other = FabricId([1; 16]);
    assert_eq!(read_snapshot(&saved, other).unwrap_err(), Damage::OtherFabric { found: FABRIC });
}

proptest::proptest! {
    #[test]
    fn bytes_of_all_kinds_are_no_log_and_no_panic(mut bytes: Vec<u8>, head in 0_usize..60) {
        let _ = read(&bytes, Base::new(FABRIC), 0);
        let _ = read_snapshot(&bytes, FABRIC);
        let (log, ..) = written();
        bytes.splice(0..0, log[..head].iter().copied());
        let _ = read(&bytes, Base::new(FABRIC), 0);
    }
}
