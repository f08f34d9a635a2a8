use manager::decide::found;
use manager::entry::{Change, Who};
use manager::model::{TokenHash, WallTime};
use tempfile::TempDir;

use super::*;

const FABRIC: FabricId = FabricId([7; 16]);

fn founded() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let first = found(WallTime(1), "admin".parse().unwrap(), TokenHash([1; 32]));
    begin(dir.path(), FABRIC, &first).unwrap();
    dir
}

fn epoch(epoch: u64) -> Entry {
    let change = Change::EpochBegun { epoch, restored: false, any_time: false };
    Entry { at: WallTime(epoch), who: Who::Manager, request: None, change }
}

fn open(dir: &TempDir) -> (Store, Opened) {
    Store::open(dir.path(), FABRIC).unwrap()
}

fn refused(dir: &TempDir) -> StoreError {
    Store::open(dir.path(), FABRIC).map(drop).unwrap_err()
}

fn append(store: &mut Store, state: &mut State, epochs: core::ops::RangeInclusive<u64>) {
    for number in epochs {
        let entry = epoch(number);
        store.append(core::slice::from_ref(&entry)).unwrap();
        state.apply(state.index() + 1, &entry).unwrap();
    }
}

#[test]
fn what_is_appended_is_there_again() {
    let dir = founded();
    let (mut store, mut opened) = open(&dir);
    append(&mut store, &mut opened.state, 1..=5);
    drop(store);
    let (_store, again) = open(&dir);
    assert_eq!((again.state, again.torn), (opened.state, 0));
}

#[test]
fn a_torn_tail_is_cut_and_nothing_else() {
    let dir = founded();
    let (mut store, mut opened) = open(&dir);
    append(&mut store, &mut opened.state, 1..=2);
    drop(store);
    let path = dir.path().join(LOG);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, [&whole[..], b"cwrc", &[0; 9]].concat()).unwrap();
    let (mut store, again) = open(&dir);
    assert_eq!((again.state.index(), again.torn), (3, 13));
    append(&mut store, &mut opened.state, 3..=3);
    drop(store);
    assert_eq!(open(&dir).1.state, opened.state);
    for at in [0, whole.len() / 2, whole.len() - 5] {
        let mut flipped = std::fs::read(&path).unwrap();
        flipped[at] ^= 1;
        std::fs::write(&path, &flipped).unwrap();
        let error = refused(&dir);
        assert!(matches!(error, StoreError::Damaged { .. }) && !error.may_pass(), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), flipped, "nothing was changed");
        flipped[at] ^= 1;
        std::fs::write(&path, &flipped).unwrap();
    }
}

#[test]
fn damage_is_named_with_file_and_place() {
    let dir = founded();
    let (mut store, mut opened) = open(&dir);
    append(&mut store, &mut opened.state, 1..=2);
    drop(store);
    let path = dir.path().join(LOG);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[HEADER_LEN + 40] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let told = refused(&dir).to_string();
    assert!(told.contains("log") && told.contains("at byte 56: a record is damaged"), "{told}");
    bytes[8] = 9;
    std::fs::write(&path, &bytes).unwrap();
    assert!(refused(&dir).to_string().contains("version 9"));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(refused(&dir), StoreError::Absent { .. }));
}

#[test]
fn a_log_that_has_lost_whole_records_is_noticed() {
    let dir = founded();
    let (mut store, mut opened) = open(&dir);
    let path = dir.path().join(LOG);
    append(&mut store, &mut opened.state, 1..=2);
    let earlier = std::fs::read(&path).unwrap();
    append(&mut store, &mut opened.state, 3..=4);
    drop(store);
    let present = std::fs::read(&path).unwrap();
    std::fs::write(&path, &earlier).unwrap();
    let told = refused(&dir).to_string();
    assert!(told.contains("ends with entry 3, but entry 5 was acknowledged"), "{told}");
    // One of its two places is torn: the other one counts, which is earlier.
    std::fs::write(&path, &present).unwrap();
    let reached = dir.path().join("reached");
    for place in 0..2 {
        let whole = std::fs::read(&reached).unwrap();
        let mut torn = whole.clone();
        torn[place * 16] ^= 1;
        std::fs::write(&reached, &torn).unwrap();
        assert!(Reached::open(dir.path()).unwrap().index() >= 4);
        open(&dir);
        std::fs::write(&reached, &whole).unwrap();
    }
}

#[test]
fn two_managers_never_share_a_folder_and_the_first_is_named() {
    let dir = founded();
    let held = open(&dir);
    let told = refused(&dir).to_string();
    assert!(told.contains(&format!("process {}", std::process::id())), "{told}");
    drop(held);
    open(&dir);
}

#[test]
fn a_long_log_becomes_a_snapshot_and_a_short_log_that_goes_on() {
    let dir = founded();
    let (mut store, mut opened) = open(&dir);
    append(&mut store, &mut opened.state, 1..=3);
    let old = std::fs::read(dir.path().join(LOG)).unwrap();
    store.snapshot(&opened.state).unwrap();
    assert_eq!(store.log_len(), HEADER_LEN as u64);
    append(&mut store, &mut opened.state, 4..=5);
    drop(store);
    assert_eq!(open(&dir).1.state, opened.state);
    // As if it had ended between the two: the snapshot is new, and the log is the old one.
    let other = founded();
    std::fs::write(other.path().join(LOG), old).unwrap();
    std::fs::copy(dir.path().join(SNAPSHOT), other.path().join(SNAPSHOT)).unwrap();
    assert_eq!(open(&other).1.state.index(), 4);
    let mut snapshot = std::fs::read(dir.path().join(SNAPSHOT)).unwrap();
    *snapshot.last_mut().unwrap() ^= 1;
    std::fs::write(dir.path().join(SNAPSHOT), snapshot).unwrap();
    assert!(refused(&dir).to_string().contains("snapshot"));
}

#[test]
fn after_an_error_nothing_is_appended_until_what_may_have_been_written_is_cut() {
    let dir = founded();
    let (mut store, mut opened) = open(&dir);
    append(&mut store, &mut opened.state, 1..=2);
    // A log that takes nothing.
    let log = std::mem::replace(&mut store.log, File::open(dir.path().join(LOG)).unwrap());
    assert!(store.append(&[epoch(3)]).unwrap_err().may_pass() && store.is_broken());
    // What failed may be there after all, whole.
    store.log = log;
    let mut ghost = Writer::new(FABRIC, opened.state.index(), 0);
    (&store.log).write_all(&ghost.record(&[epoch(3)])).unwrap();
    assert!(store.append(&[epoch(3)]).is_err());
    let again = store.recover().unwrap();
    assert_eq!(again.state, opened.state);
    append(&mut store, &mut opened.state, 3..=3);
    drop(store);
    assert_eq!(open(&dir).1.state, opened.state);
}

#[test]
fn a_backup_is_restored_and_the_old_files_are_kept() {
    let dir = founded();
    let (mut store, mut opened) = open(&dir);
    append(&mut store, &mut opened.state, 1..=2);
    drop(store);
    let file = dir.path().join("backup.cw");
    write_backup(&file, &backup(dir.path(), FABRIC).unwrap()).unwrap();
    let (mut store, mut later) = open(&dir);
    append(&mut store, &mut later.state, 3..=4);
    assert!(matches!(restore(dir.path(), FABRIC, &file), Err(StoreError::Locked { .. })));
    drop(store);
    let old = restore(dir.path(), FABRIC, &file).unwrap().unwrap();
    assert!(old.join(LOG).exists() && old.join("reached").exists());
    for _ in 0..2 {
        // It ends before it has begun, and the next one is a restored one, too.
        let (_store, again) = open(&dir);
        assert_eq!((again.state, again.start), (opened.state.clone(), Start::Restored { any_time: false }));
    }
    let (mut store, again) = open(&dir);
    let mut state = again.state;
    append(&mut store, &mut state, 3..=3);
    store.has_begun().unwrap();
    drop(store);
    assert_eq!(open(&dir).1.start, Start::Plain);
    let wrong = restore(dir.path(), FabricId([9; 16]), &file).unwrap_err();
    assert!(matches!(wrong, StoreError::Damaged { damage: Damage::OtherFabric { .. }, .. }));
    // Also where nothing is, as on a new machine.
    let new = tempfile::tempdir().unwrap();
    assert_eq!(restore(&new.path().join("state"), FABRIC, &file).unwrap(), None);
}
