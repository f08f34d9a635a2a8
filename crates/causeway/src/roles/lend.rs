//! What a node lends: images, the keys of their loans, and the lines.

use io::agent::{LoanEnd, LoanSpec, Rail};

use super::image;
use crate::cli::{LendArgs, Source};
use crate::config::Device;
use crate::exit::Failure;
use crate::line::{FunctionName, Key, Line};
use crate::state_dir::StateDir;

/// One function to lend.
pub(super) struct Lent {
    function: FunctionName,
    source: Source,
    read_only: bool,
    block_size: u32,
}

impl Lent {
    pub(super) fn of_device(device: &Device) -> Self {
        Self {
            function: device.function.clone(),
            source: device.source.clone(),
            read_only: device.read_only,
            block_size: device.block_size.bytes(),
        }
    }
}

/// The functions of `causeway lend`: one a source.
pub(super) fn devices(args: &LendArgs) -> Vec<Lent> {
    let sources = args.sources.iter().enumerate();
    sources
        .map(|(index, source)| Lent {
            function: FunctionName::nvme(index),
            source: source.clone(),
            read_only: args.read_only,
            block_size: crate::config::BlockSize::default().bytes(),
        })
        .collect()
}

/// Opens everything that is to be lent. Each function has a key of its own, so that its line opens no other.
pub(super) fn loans(devices: &[Lent], state: &StateDir, insecure: bool) -> Result<Vec<LoanSpec>, Failure> {
    devices
        .iter()
        .map(|device| {
            let key = function_key(state.key(), &device.function);
            Ok(LoanSpec {
                function: device.function.as_str().to_owned(),
                group: group(&key),
                key,
                insecure,
                generation: 0,
                end: LoanEnd::Lend {
                    image: image::open(&device.source, device.read_only, device.block_size)?,
                    block_size: device.block_size,
                    source: image::name(&device.source),
                },
            })
        })
        .collect()
}

/// The lines of what is lent over `rails`.
pub(super) fn lines(loans: &[LoanSpec], rails: &[Rail]) -> Result<Vec<String>, Failure> {
    let addresses: Vec<_> = rails.iter().map(|rail| rail.socket.local()).collect();
    loans
        .iter()
        .map(|loan| {
            let function = loan.function.parse().map_err(Failure::usage)?;
            let line = Line::new(Key::new(loan.key), addresses.clone(), function).map_err(Failure::usage)?;
            Ok(line.reveal())
        })
        .collect()
}

/// How frames name a loan: anyone who has its key can tell, and nobody needs to be asked.
pub(super) fn group(key: &[u8; 32]) -> u32 {
    let [a, b, c, d, ..] = link::derive(key, u64::from_le_bytes(*b"group\0\0\0"));
    u32::from_le_bytes([a, b, c, d])
}

/// The key of one function, from the node's secret and the function's name.
fn function_key(secret: &Key, function: &FunctionName) -> [u8; 32] {
    function.as_str().as_bytes().chunks(8).fold(*secret.reveal(), |key, part| {
        let mut label = [0; 8];
        label[..part.len()].copy_from_slice(part);
        link::derive(&key, u64::from_le_bytes(label))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_keys_and_groups_of_their_own() {
        let secret = Key::new([3; 32]);
        let keys = ["nvme0", "nvme1", "a-longer-name-of-a-function"]
            .map(|name| function_key(&secret, &name.parse().unwrap()));
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && !keys.contains(secret.reveal()));
        assert_ne!(group(&keys[0]), group(&keys[1]));
        assert_eq!(keys[0], function_key(&secret, &"nvme0".parse().unwrap()));
    }
}
