//! The fabric that a world begins with: four nodes that have joined, three functions each.

use base::ids::DomainId;

use crate::command::{Asked, Asker, Command};
use crate::log::{Base, Writer, read};
use crate::model::{FabricId, Name, PublicKey};
use crate::state::State;
use crate::testing::{FABRIC, T0, by, hash, join_token, name, node_id, request, try_run};

/// Nodes at the beginning.
pub(super) const NODES: u64 = 4;
/// Functions of each node.
pub(super) const FUNCTIONS: u32 = 3;
/// Domains of each node.
pub(super) const DOMAINS: u32 = 16;

pub(super) fn node_name(id: u64) -> Name {
    name(&format!("node{id}"))
}

pub(super) fn public_key(id: u64) -> PublicKey {
    PublicKey([id as u8; 32])
}

/// A join token by number, and its hash.
pub(super) fn token_hash(number: u64) -> crate::model::TokenHash {
    let mut bytes = [9; 32];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    crate::model::TokenHash(bytes)
}

pub(super) fn joining(token: crate::model::TokenHash, id: u64) -> (Asker, Command) {
    let command = Command::Join { id: node_id(id), name: node_name(id), key: public_key(id) };
    (Asker::Joiner(token), command)
}

/// The log of the beginning.
pub(super) fn first_log() -> Vec<u8> {
    let mut state = State::new(FABRIC);
    let founded = crate::decide::found(T0, name("root"), hash(1));
    state.apply(1, &founded).unwrap();
    let mut entries = vec![founded];
    let mut asked: Vec<Asked> = Vec::new();
    for id in 1..=NODES {
        asked.push(by("root", 1_000_000 + id, join_token(100 + id as u8, DOMAINS)));
        let (who, command) = joining(hash(100 + id as u8), id);
        asked.push(Asked { request: request(2_000_000 + id), who, if_version: None, command });
    }
    for asked in asked {
        entries.extend(try_run(&mut state, T0, &asked).unwrap().entry);
    }
    let mut writer = Writer::new(FABRIC, 0, 0);
    let mut log = writer.header();
    log.extend(writer.record(&entries));
    log
}

pub(super) fn load(log: &[u8]) -> State {
    read(log, Base::new(FABRIC), 0).unwrap().state
}

/// The domain that a client asks for: one of few, so that clients meet.
pub(super) fn domain(base: u32, number: u64) -> DomainId {
    DomainId(base + number as u32)
}

pub(super) const fn fabric() -> FabricId {
    FABRIC
}
