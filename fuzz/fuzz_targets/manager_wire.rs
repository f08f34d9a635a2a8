//! What a manager and a node say to each other: any bytes are a message or an error, and a message comes back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use management::wire::{FromNode, ToNode};

fn again<M>(bytes: &[u8])
where
    M: serde::Serialize + for<'de> serde::Deserialize<'de> + PartialEq + core::fmt::Debug,
{
    let Ok(message) = serde_json::from_slice::<M>(bytes) else { return };
    let written = serde_json::to_vec(&message).expect("a message can be written");
    assert_eq!(serde_json::from_slice::<M>(&written).expect("and read"), message);
}

fuzz_target!(|bytes: &[u8]| {
    again::<ToNode>(bytes);
    again::<FromNode>(bytes);
});
