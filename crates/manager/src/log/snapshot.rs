use super::bytes::{Reader, is_whole, seal};
use super::{Base, Damage, SNAPSHOT_MAGIC, VERSION, Writer};
use crate::model::FabricId;
use crate::state::{State, Stored};

const HEAD_LEN: usize = 64;

/// The bytes of a snapshot of `state`, of which everything is durable, `writer` having written the last of it. The file
/// is to be durable before it has its name.
pub fn snapshot(state: &State, writer: &Writer) -> Vec<u8> {
    // Types of this crate have string keys only and no errors of their own.
    let body = serde_json::to_vec(&Stored::from(state)).expect("a state can be written as JSON");
    let mut bytes = Vec::with_capacity(HEAD_LEN + body.len());
    bytes.extend(SNAPSHOT_MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(state.fabric().0);
    bytes.extend(state.index().to_le_bytes());
    bytes.extend(writer.chain().to_le_bytes());
    bytes.extend((body.len() as u64).to_le_bytes());
    bytes.extend(crc32c::crc32c(&body).to_le_bytes());
    seal(&mut bytes);
    bytes.extend(body);
    bytes
}

/// The state of a snapshot, the whole file, and what goes on from there.
///
/// # Errors
/// It is damaged, however: a snapshot has its name only when it is whole.
pub fn read_snapshot(bytes: &[u8], fabric: FabricId) -> Result<Base, Damage> {
    let Some(head) = bytes.get(..HEAD_LEN) else { return Err(Damage::Short { len: bytes.len() }) };
    let mut reader = Reader(head);
    if reader.take() != SNAPSHOT_MAGIC {
        return Err(Damage::NotOurs { what: "snapshot" });
    }
    let version = reader.u32();
    if version > VERSION {
        return Err(Damage::Newer { version });
    }
    if !is_whole(head) || version != VERSION {
        return Err(Damage::Flipped { offset: 0, what: "the header" });
    }
    let _zero: [u8; 4] = reader.take();
    let found = FabricId(reader.take());
    if found != fabric {
        return Err(Damage::OtherFabric { found });
    }
    let (index, chain, len, sum) = (reader.u64(), reader.u64(), reader.u64(), reader.u32());
    let body = &bytes[HEAD_LEN..];
    if body.len() as u64 != len || crc32c::crc32c(body) != sum {
        return Err(Damage::Flipped { offset: HEAD_LEN, what: "the state" });
    }
    let unreadable = |why: String| Damage::Unreadable { offset: HEAD_LEN, why };
    let stored: Stored = serde_json::from_slice(body).map_err(|error| unreadable(error.to_string()))?;
    let state = State::try_from(stored).map_err(|why| Damage::Entry { offset: HEAD_LEN, index, why })?;
    if state.index() != index || state.fabric() != fabric {
        return Err(unreadable("its header is another one's".to_owned()));
    }
    Ok(Base { state, writer: Writer::new(fabric, index, chain) })
}
