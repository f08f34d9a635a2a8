use base::ids::LifeId;

use super::*;
use tempfile::TempDir;

fn folder() -> (TempDir, PathBuf) {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("a/b/node");
    (temporary, path)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn the_second_opening_finds_what_the_first_made() {
    let (_temporary, path) = folder();
    let nvme0: FunctionName = "nvme0".parse().unwrap();
    let (node, life) = (NodeId::numbered(u64::MAX - 1), LifeId([0xa5; 16]));
    let tenancy = Tenancy { number: 7, node, life, name: Name::new("a node: näme"), is_held: true };
    let (identity, key) = {
        let mut state = StateDir::open(&path).unwrap();
        assert_eq!((state.incarnation(), state.port()), (1, None));
        assert_eq!(state.tenancy(&nvme0).unwrap(), Tenancy::default());
        state.set_tenancy(&nvme0, tenancy).unwrap();
        state.set_port(7411).unwrap();
        (state.identity().clone(), state.key().clone())
    };
    let state = StateDir::open(&path).unwrap();
    assert_eq!(state.incarnation(), 2);
    assert_eq!(state.identity(), &identity);
    assert_eq!(StateDir::identify(&path).unwrap(), Some(identity.id()), "while it is in use, too");
    assert_eq!(state.key(), &key);
    assert_eq!(state.port(), Some(7411));
    assert_eq!(state.tenancy(&nvme0).unwrap(), tenancy);
    state.set_tenancy(&nvme0, tenancy.given_back()).unwrap();
    assert_eq!(state.tenancy(&nvme0).unwrap(), tenancy.given_back());
    state.set_tenancy(&nvme0, tenancy).unwrap();
    let renewed = state.renew_tenancy(&nvme0).unwrap();
    assert_eq!((renewed.number >> 32, Tenancy { number: 7, ..renewed }), (1, tenancy));
    assert_eq!(state.tenancy(&nvme0).unwrap(), renewed);
}

#[test]
fn a_folder_that_a_lender_knows_better_catches_up() {
    let (_temporary, path) = folder();
    let state = StateDir::open(&path).unwrap();
    assert_eq!(state.raise_above(9).unwrap(), 10);
    assert_eq!(state.raise_above(3).unwrap(), 10, "it is above that");
    assert_eq!(state.raise_above(10).unwrap(), 11);
    assert!(matches!(state.raise_above(u64::MAX), Err(StateError::Implausible { .. })));
    assert_eq!(state.begin_life().unwrap(), 11, "12 now, and it began as 1");
    drop(state);
    assert_eq!(StateDir::open(&path).unwrap().incarnation(), 13);
}

/// As where loans have come and gone for years.
#[test]
fn a_node_has_more_lives_of_its_places_than_32_bits_count() {
    let (_temporary, path) = folder();
    let state = StateDir::open(&path).unwrap();
    write_value(&path, INCARNATION, &(1u64 << 33).to_string()).unwrap();
    assert_eq!(state.begin_life().unwrap(), 1 << 33);
}

#[test]
fn two_nodes_differ() {
    let (_one, one) = folder();
    let (_two, two) = folder();
    let (one, two) = (StateDir::open(&one).unwrap(), StateDir::open(&two).unwrap());
    assert_ne!(one.identity(), two.identity());
    assert_ne!(one.key(), two.key());
}

#[test]
fn an_identity_is_that_of_the_key_beside_it() {
    let (_one, one) = folder();
    let (_two, two) = folder();
    assert_eq!(StateDir::identify(&one).unwrap(), None);
    for path in [&one, &two] {
        StateDir::open(path).unwrap();
    }
    fs::copy(one.join(IDENTITY), two.join(IDENTITY)).unwrap();
    let error = StateDir::open(&two).unwrap_err().to_string();
    assert!(error.contains("identity is damaged (it is the id of another key"), "{error}");
    // As earlier versions wrote it.
    write_value(&two, IDENTITY, "0123456789abcdef").unwrap();
    let error = StateDir::open(&two).unwrap_err().to_string();
    assert!(error.contains("earlier versions were shorter"), "{error}");
}

#[test]
fn everything_is_private() {
    let (temporary, path) = folder();
    let _state = StateDir::open(&path).unwrap();
    assert_eq!(mode(&path), 0o700);
    assert_eq!(mode(&temporary.path().join("a")), 0o700);
    for entry in fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap().path();
        assert_eq!(mode(&entry), 0o600, "{}", entry.display());
    }
}

#[test]
fn a_second_node_is_refused_by_pid() {
    let (_temporary, path) = folder();
    let state = StateDir::open(&path).unwrap();
    let error = StateDir::open(&path).unwrap_err();
    assert!(
        matches!(error, StateError::InUse { pid: Some(pid), .. } if pid == std::process::id()),
        "{error}"
    );
    assert_eq!(Failure::from(error).exit(), Exit::Refused);
    drop(state);
    assert_eq!(StateDir::open(&path).unwrap().incarnation(), 2, "the refused one changed nothing");
}

#[test]
fn folders_of_others_are_refused() {
    let (_temporary, path) = folder();
    fs::create_dir_all(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(StateDir::open(&path), Err(StateError::NotPrivate { .. })));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(StateDir::open(&path).is_ok());

    let file = path.join(KEY);
    assert!(matches!(StateDir::open(&file), Err(StateError::NotFolder { .. })));
}

#[test]
fn every_truncation_and_every_flipped_bit_is_named() {
    let (_temporary, path) = folder();
    let function = "nvme0".parse().unwrap();
    {
        let mut state = StateDir::open(&path).unwrap();
        state.set_port(7411).unwrap();
        state
            .set_tenancy(&function, Tenancy { number: 3, node: NodeId::numbered(5), ..Tenancy::default() })
            .unwrap();
    }
    let open = |path: &Path| {
        let state = StateDir::open(path)?;
        state.tenancy(&function)?;
        Ok::<_, StateError>(state)
    };
    for name in [IDENTITY, KEY, INCARNATION, PORT, "tenancy.nvme0"] {
        let file = path.join(name);
        let whole = fs::read(&file).unwrap();
        let truncated = (0..whole.len()).map(|length| whole[..length].to_vec());
        let flipped = (0..whole.len()).map(|at| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            bytes
        });
        for damaged in truncated.chain(flipped).chain([vec![b'7'; 10_000]]) {
            fs::write(&file, &damaged).unwrap();
            let error = open(&path).unwrap_err().to_string();
            assert!(error.contains(&file.display().to_string()), "{error}");
            assert!(error.contains("is damaged"), "{error}");
        }
        // The incarnation rose with some of the openings above, but never on disk for its own file.
        fs::write(&file, &whole).unwrap();
    }
    open(&path).unwrap();
}

#[test]
fn files_put_in_each_others_place_are_noticed() {
    let (_temporary, path) = folder();
    drop(StateDir::open(&path).unwrap());
    fs::copy(path.join(INCARNATION), path.join(PORT)).unwrap();
    assert!(matches!(StateDir::open(&path), Err(StateError::Damaged { .. })));
}

#[test]
fn a_file_lost_after_the_first_start_is_named_not_made_anew() {
    for name in [KEY, INCARNATION] {
        let (_temporary, path) = folder();
        drop(StateDir::open(&path).unwrap());
        fs::remove_file(path.join(name)).unwrap();
        let error = StateDir::open(&path).unwrap_err();
        assert!(matches!(&error, StateError::Missing { file } if file.ends_with(name)), "{error}");
    }
}

#[test]
fn counters_end_by_name() {
    let (_temporary, path) = folder();
    drop(StateDir::open(&path).unwrap());
    write_value(&path, INCARNATION, &u64::MAX.to_string()).unwrap();
    assert!(matches!(StateDir::open(&path), Err(StateError::UsedUp { .. })));
}

/// Every state the folder passes through during a first and a second opening, made by hand: each prefix of the
/// writes, with each kind of leftover of the write that was cut off.
#[test]
fn a_node_killed_anywhere_starts_again() {
    let order = [INCARNATION, KEY, IDENTITY];
    let (_whole_temporary, whole) = folder();
    drop(StateDir::open(&whole).unwrap());
    for done in 0..=order.len() {
        let next = order.get(done).copied().unwrap_or(INCARNATION);
        for leftover in [&b""[..], b"1", b"12345678 0000"] {
            let (_temporary, path) = folder();
            fs::create_dir_all(&path).unwrap();
            for name in &order[..done] {
                fs::copy(whole.join(name), path.join(name)).unwrap();
            }
            fs::write(path.join(format!(".{next}.tmp")), leftover).unwrap();
            fs::write(path.join(LOCK), "99").unwrap();

            let first = StateDir::open(&path).unwrap();
            let (identity, incarnation) = (first.identity().clone(), first.incarnation());
            assert_eq!(incarnation, if done == 0 { 1 } else { 2 });
            drop(first);
            let second = StateDir::open(&path).unwrap();
            assert_eq!((second.identity(), second.incarnation()), (&identity, incarnation + 1));
        }
    }
}

#[test]
fn leftover_links_are_not_written_through() {
    let (temporary, path) = folder();
    fs::create_dir_all(&path).unwrap();
    let victim = temporary.path().join("victim");
    fs::write(&victim, "untouched").unwrap();
    std::os::unix::fs::symlink(&victim, path.join(".key.tmp")).unwrap();
    StateDir::open(&path).unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
}

#[test]
fn defaults_follow_the_interface() {
    let home = || Some(PathBuf::from("/home/u"));
    assert_eq!(default_base(true, home(), home()), Some("/var/lib".into()));
    assert_eq!(default_base(false, Some("/s".into()), home()), Some("/s".into()));
    assert_eq!(default_base(false, None, home()), Some("/home/u/.local/state".into()));
    assert_eq!(default_base(false, None, None), None);
}
