//! VERSION: what the two sides agree upon (vfio-user 0.1 §VFIO_USER_VERSION).

use core::fmt::Write;

use serde::Deserialize;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Start of the payload of VERSION and of its reply, 4 bytes; JSON and a NUL may follow ([`Capabilities`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct VersionHeader {
    /// Major version: both sides have the same.
    pub major: U16,
    /// Minor version: the reply's is not greater than the command's.
    pub minor: U16,
}

const _: () = assert!(size_of::<VersionHeader>() == 4);

/// The capabilities of one side. `None` where it says nothing: [`Capabilities::DEFAULT`] tells what the other side then
/// assumes. What this crate does not know is passed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Capabilities {
    /// Most descriptors that it receives with one message.
    #[serde(default)]
    pub max_msg_fds: Option<u64>,
    /// Most bytes of data of one access to a region or to memory that it receives.
    #[serde(default)]
    pub max_data_xfer_size: Option<u64>,
    /// Sizes of pages of DMA maps, or'ed together.
    #[serde(default)]
    pub pgsizes: Option<u64>,
    /// Most DMA maps at a time.
    #[serde(default)]
    pub max_dma_maps: Option<u64>,
    /// It knows REGION_WRITE_MULTI.
    #[serde(default)]
    pub write_multiple: Option<bool>,
}

/// The whole of the version data.
#[derive(Default, Deserialize)]
struct VersionData {
    #[serde(default)]
    capabilities: Option<Capabilities>,
}

/// The version data are no JSON that fits the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the version data of {length} bytes are no JSON object with capabilities")]
pub struct VersionError {
    /// Bytes of the version data.
    pub length: usize,
}

impl Capabilities {
    /// What is assumed of a side that says nothing.
    pub const DEFAULT: Self = Self {
        max_msg_fds: Some(1),
        max_data_xfer_size: Some(1 << 20),
        pgsizes: Some(4096),
        max_dma_maps: Some(65535),
        write_multiple: Some(false),
    };

    /// Reads the version data, what stands behind the [`VersionHeader`]: nothing, or JSON that ends with a NUL.
    pub fn parse(data: &[u8]) -> Result<Self, VersionError> {
        let error = VersionError { length: data.len() };
        let Some((end, json)) = data.split_last() else { return Ok(Self::default()) };
        if *end != 0 {
            return Err(error);
        }
        let data: VersionData = serde_json::from_slice(json).map_err(|_| error)?;
        Ok(data.capabilities.unwrap_or_default())
    }

    /// The version data, with their NUL.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::from("{\"capabilities\":{");
        let numbers = [
            ("max_msg_fds", self.max_msg_fds),
            ("max_data_xfer_size", self.max_data_xfer_size),
            ("pgsizes", self.pgsizes),
            ("max_dma_maps", self.max_dma_maps),
        ];
        let mut separator = "";
        for (name, value) in numbers.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            write!(text, "{separator}\"{name}\":{value}").expect("writing to a string cannot fail");
            separator = ",";
        }
        if let Some(value) = self.write_multiple {
            write!(text, "{separator}\"write_multiple\":{value}").expect("writing to a string cannot fail");
        }
        text.push_str("}}\0");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What QEMU 11.1 proposes.
    const QEMU: &[u8] =
        b"{\"capabilities\": {\"migration\": {\"max_bitmap_size\": 268435456, \"pgsize\": 4096}, \
        \"max_msg_fds\": 16, \"max_data_xfer_size\": 1048576, \"pgsizes\": 4096, \"max_dma_maps\": 65535, \
        \"write_multiple\": true}}\0";

    #[test]
    fn a_real_proposal_is_understood() {
        let seen = Capabilities::parse(QEMU).unwrap();
        let expected =
            Capabilities { max_msg_fds: Some(16), write_multiple: Some(true), ..Capabilities::DEFAULT };
        assert_eq!(seen, expected);
        assert_eq!(Capabilities::parse(b""), Ok(Capabilities::default()));
        assert_eq!(Capabilities::parse(b"{}\0"), Ok(Capabilities::default()));
    }

    #[test]
    fn nonsense_is_refused() {
        let deep = [vec![b'['; 10_000], vec![0]].concat();
        for bytes in [
            &b"{}"[..],
            b"\0",
            b"[]]\0",
            b"{\"capabilities\": 1}\0",
            b"{\"capabilities\":{\"pgsizes\":-1}}\0",
            &deep,
        ] {
            assert_eq!(Capabilities::parse(bytes), Err(VersionError { length: bytes.len() }));
        }
    }

    #[test]
    fn golden_capabilities() {
        let none = Capabilities::default();
        assert_eq!(none.encode(), "{\"capabilities\":{}}\0");
        let some = Capabilities { pgsizes: Some(4096), write_multiple: Some(true), ..none };
        assert_eq!(some.encode(), "{\"capabilities\":{\"pgsizes\":4096,\"write_multiple\":true}}\0");
    }

    proptest! {
        #[test]
        fn capabilities_round_trip(
            fds: Option<u64>,
            size: Option<u64>,
            pages: Option<u64>,
            maps: Option<u64>,
            multi: Option<bool>,
        ) {
            let built = Capabilities {
                max_msg_fds: fds,
                max_data_xfer_size: size,
                pgsizes: pages,
                max_dma_maps: maps,
                write_multiple: multi,
            };
            prop_assert_eq!(Capabilities::parse(built.encode().as_bytes()), Ok(built));
        }

        #[test]
        fn any_bytes_are_answered(bytes: Vec<u8>) {
            let _ = Capabilities::parse(&bytes);
        }
    }
}
