//! Who has which partition of a switch, and which ports are in it: the file `partitions`, there from the first time
//! that one is taken.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::file::{Named, read_long_value, write_value};
use super::{StateDir, StateError};
use crate::status::SwitchPartition;

const PARTITIONS: &str = "partitions";
/// Who was told to be behind a port.
const PEERS: &str = "peers";
/// 256 ports and 64 partitions with the longest names take less.
const BYTES_MAX: u64 = 64 << 10;

/// What was kept; `None`: nothing yet.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub fn read(state: &StateDir) -> Result<Option<Vec<SwitchPartition>>, StateError> {
    let Some(Named { file, value }) = read_long_value(&state.path, PARTITIONS, BYTES_MAX)? else {
        return Ok(None);
    };
    let why = "it has no partitions of a switch that this version knows";
    serde_json::from_str(&value).map(Some).map_err(|_| StateError::Damaged { file, why })
}

/// Keeps that in place of what was kept, durably.
///
/// # Errors
/// The system said no; what was kept still is, but for [`StateError::Unsettled`].
pub fn write(state: &StateDir, partitions: &[SwitchPartition]) -> Result<(), StateError> {
    // Names and ids have no blanks, so the text has none.
    let text = serde_json::to_string(partitions).expect("partitions are plain structs, which serialise");
    write_value(&state.path, PARTITIONS, &text)
}

/// Who was told to be behind which port: names and addresses.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub fn read_peers(state: &StateDir) -> Result<BTreeMap<String, SocketAddr>, StateError> {
    let Some(Named { file, value }) = read_long_value(&state.path, PEERS, BYTES_MAX)? else {
        return Ok(BTreeMap::new());
    };
    let why = "it has no peers of a switch that this version knows";
    serde_json::from_str(&value).map_err(|_| StateError::Damaged { file, why })
}

/// Keeps that in place of what was kept, durably.
///
/// # Errors
/// The system said no; what was kept still is, but for [`StateError::Unsettled`].
pub fn write_peers(state: &StateDir, peers: &BTreeMap<String, SocketAddr>) -> Result<(), StateError> {
    let text = serde_json::to_string(peers).expect("names and addresses serialise");
    write_value(&state.path, PEERS, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_come_back_and_what_is_damaged_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let state = StateDir::open(&path).unwrap();
        assert_eq!(read(&state).unwrap(), None);
        let many = |at: usize| SwitchPartition {
            name: format!("{at:032}"),
            owner: Some("9".repeat(32)),
            epoch: u64::MAX,
            ports: (0..4).map(|port| format!("{:032}", at * 4 + port)).collect(),
        };
        let all: Vec<SwitchPartition> = (0..64).map(many).collect();
        write(&state, &all).unwrap();
        assert_eq!(read(&state).unwrap(), Some(all.clone()), "as many as there can be");
        write(&state, &all[..1]).unwrap();
        assert_eq!(read(&state).unwrap().unwrap().len(), 1);
        let file = path.join(PARTITIONS);
        let text = std::fs::read_to_string(&file).unwrap();
        for cut in [0, 1, text.len() / 2, text.len() - 1] {
            std::fs::write(&file, &text[..cut]).unwrap();
            let said = read(&state).unwrap_err().to_string();
            assert!(said.contains("partitions"), "{said}");
        }
        assert!(read_peers(&state).unwrap().is_empty());
        let peers = BTreeMap::from([("a".to_owned(), "[fd00::1]:7411".parse().unwrap())]);
        write_peers(&state, &peers).unwrap();
        assert_eq!(read_peers(&state).unwrap(), peers);
        std::fs::write(path.join(PEERS), "{").unwrap();
        assert!(read_peers(&state).unwrap_err().to_string().contains("peers"));
    }
}
