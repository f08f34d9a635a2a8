//! The first thing that a guest's driver does with a function: it reads a register of it.
//!
//! As a virtual machine monitor does it: VERSION, the function's memory space is enabled, and a read of its first base
//! address register, by the vfio-user protocol, over the slot's socket.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use spec::vfio_user::{
    Capabilities, Command, HEADER_BYTES, MessageHeader, RegionAccess, RegionIndex, VersionHeader,
};
use zerocopy::IntoBytes;

/// Whoever takes longer for an answer has none.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest answer: a version with its capabilities.
const ANSWER_MAX: usize = 4096;
/// The command register in configuration space, and its bits for memory space and bus mastering (PCIe 6.0 §7.5.1.1.3).
const COMMAND_REGISTER: u64 = 4;
const ENABLED: u16 = 0b110;
/// Controller Capabilities (NVMe 2.0 §3.1.3.1).
const CAP: u64 = 0;
/// What nobody answers is read as ones.
const NOBODY: u64 = u64::MAX;

/// Reads what the NVMe controller in a slot is capable of.
///
/// # Errors
/// Nothing is there, or it does not answer as a controller does.
pub(super) fn read_capabilities(socket: &Path) -> io::Result<u64> {
    let mut client = UnixStream::connect(socket)?;
    client.set_read_timeout(Some(PATIENCE))?;
    let version = VersionHeader { major: 0.into(), minor: 0.into() };
    let version = [version.as_bytes(), Capabilities::DEFAULT.encode().as_bytes()].concat();
    ask(&mut client, Command::VERSION, &version)?;
    let command = access(RegionIndex::CONFIG, COMMAND_REGISTER, 2);
    ask(&mut client, Command::REGION_WRITE, &[command.as_bytes(), &ENABLED.to_le_bytes()].concat())?;
    let read = access(RegionIndex::BAR_0, CAP, 8);
    let answer = ask(&mut client, Command::REGION_READ, read.as_bytes())?;
    match answer.last_chunk().map(|bytes| u64::from_le_bytes(*bytes)) {
        Some(NOBODY) | None => Err(ErrorKind::NotConnected.into()),
        Some(capabilities) => Ok(capabilities),
    }
}

fn access(region: RegionIndex, offset: u64, count: u32) -> RegionAccess {
    RegionAccess { offset: offset.into(), region: region.0.into(), count: count.into() }
}

/// The payload of the reply to a command.
fn ask(client: &mut UnixStream, command: Command, payload: &[u8]) -> io::Result<Vec<u8>> {
    let header = MessageHeader::request(1, command, payload.len() as u32);
    client.write_all(&[header.as_bytes(), payload].concat())?;
    let mut header = [0; HEADER_BYTES];
    client.read_exact(&mut header)?;
    let header = MessageHeader::view(&header);
    let length =
        (header.size.get() as usize).checked_sub(HEADER_BYTES).filter(|length| *length <= ANSWER_MAX);
    let mut answer = vec![0; length.ok_or(ErrorKind::InvalidData)?];
    client.read_exact(&mut answer)?;
    match header.error() {
        None => Ok(answer),
        Some(_) => Err(ErrorKind::NotConnected.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::guests::local_device::LocalDevice;
    use super::*;

    #[test]
    fn a_register_of_a_device_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.sock");
        assert_eq!(read_capabilities(&path).unwrap_err().kind(), ErrorKind::NotFound);
        let device = LocalDevice::start(&path).unwrap();
        assert_eq!(read_capabilities(&path).unwrap(), 0x5a5a_5a5a_5a5a_5a5a);
        drop(device);
    }
}
