//! A local vfio-user device, to compare register reads with: a PCI function that another process of the same machine
//! has, and that answers from its memory.
//!
//! It does as little as such a device can: it sleeps until a message comes, receives it in one system call and answers
//! in another. The servers of libraries do the same or more.

use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use program::exit::Failure;
use rustix::io::Errno as SystemErrno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags};
use spec::vfio_user::{
    Capabilities, Command, DeviceFlags, DeviceInfo, DmaUnmap, Errno, HEADER_BYTES, IrqIndex, IrqInfo,
    MessageHeader, RegionAccess, RegionFlags, RegionIndex, RegionInfo, VersionHeader,
};
use zerocopy::{FromBytes, IntoBytes};

/// Vendor and device id: QEMU's own device for tests, which no driver binds.
pub(in crate::bench) const IDS: [u16; 2] = [0x1b36, 0x0005];
/// Bytes of its first base address register.
const BAR_BYTES: usize = 64 << 10;
const CONFIG_BYTES: usize = 256;
const COMMAND_REGISTER: u64 = 4;
/// Longest message that is understood, in bytes.
const MESSAGE_BYTES: usize = 64 << 10;
/// Descriptors that come with a message, all of which are closed again.
const DESCRIPTORS: usize = 16;

/// The device, with one client in its life. Its thread ends with the client, or with it if there was none.
pub(in crate::bench) struct LocalDevice {
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl LocalDevice {
    /// Listens at `path`.
    pub(in crate::bench) fn start(path: &Path) -> Result<Self, Failure> {
        let failure = |error: std::io::Error| Failure::io("cannot have a local vfio-user device", &error);
        let listener = UnixListener::bind(path).map_err(failure)?;
        let serve = move || {
            if let Ok((client, _)) = listener.accept() {
                // One that leaves in the middle of a message has left.
                let _ = Server::new(client).run();
            }
        };
        let thread = std::thread::Builder::new().name("local device".to_owned()).spawn(serve);
        Ok(Self { path: path.to_owned(), thread: Some(thread.map_err(failure)?) })
    }
}

impl Drop for LocalDevice {
    /// The client has to be gone.
    fn drop(&mut self) {
        // Whoever still waits for one gets this, which says nothing.
        drop(UnixStream::connect(&self.path));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Server {
    client: UnixStream,
    config: [u8; CONFIG_BYTES],
    bar: Vec<u8>,
    received: Vec<u8>,
}

/// Payload of a reply, or why there is none.
type Answer = Result<Vec<u8>, Errno>;

impl Server {
    fn new(client: UnixStream) -> Self {
        let mut config = [0; CONFIG_BYTES];
        for (bytes, id) in config.chunks_mut(2).zip(IDS) {
            bytes.copy_from_slice(&id.to_le_bytes());
        }
        // Class code: unassigned. Its BAR is of 32 bits.
        config[11] = 0xff;
        Self { client, config, bar: vec![0x5a; BAR_BYTES], received: Vec::new() }
    }

    /// Serves until the client leaves or says what makes no sense.
    fn run(&mut self) -> std::io::Result<()> {
        loop {
            while let Some(message) = self.next_message()? {
                self.handle(&message)?;
            }
            if !self.receive()? {
                return Ok(());
            }
        }
    }

    /// Takes the first message, if it is there as a whole.
    fn next_message(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        let Some(header) = self.received.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let size = MessageHeader::view(header).size.get() as usize;
        if !(HEADER_BYTES..=MESSAGE_BYTES).contains(&size) {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        Ok((self.received.len() >= size).then(|| self.received.drain(..size).collect()))
    }

    /// Receives what there is, and closes descriptors that came with it. False when the client has left.
    fn receive(&mut self) -> std::io::Result<bool> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 4096];
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(&self.client, &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => {
                let count = received.bytes;
                self.received.extend_from_slice(&bytes[..count]);
                Ok(count > 0)
            }
            Err(SystemErrno::INTR) => Ok(true),
            Err(errno) => Err(errno.into()),
        }
    }

    fn handle(&mut self, message: &[u8]) -> std::io::Result<()> {
        let Some((header, payload)) = message.split_first_chunk::<HEADER_BYTES>() else { return Ok(()) };
        let header = MessageHeader::view(header);
        let (id, command) = (header.id.get(), header.command());
        let answer = self.answer(command, payload);
        if header.flags().no_reply() {
            return Ok(());
        }
        let reply = match answer {
            Ok(payload) => {
                [MessageHeader::reply(id, command, payload.len() as u32).as_bytes(), &payload].concat()
            }
            Err(errno) => MessageHeader::error_reply(id, command, errno).as_bytes().to_vec(),
        };
        self.client.write_all(&reply)
    }

    fn answer(&mut self, command: Command, payload: &[u8]) -> Answer {
        match command {
            Command::VERSION => {
                let version = VersionHeader { major: 0.into(), minor: 0.into() };
                Ok([version.as_bytes(), Capabilities::DEFAULT.encode().as_bytes()].concat())
            }
            Command::DMA_MAP | Command::DEVICE_SET_IRQS | Command::DEVICE_RESET => Ok(Vec::new()),
            Command::DMA_UNMAP => Ok(payload[..payload.len().min(size_of::<DmaUnmap>())].to_vec()),
            Command::DEVICE_GET_INFO => {
                let info = DeviceInfo {
                    argsz: (size_of::<DeviceInfo>() as u32).into(),
                    flags: DeviceFlags(0).with_pci(true).with_reset(true).0.into(),
                    num_regions: RegionIndex::COUNT.into(),
                    num_irqs: IrqIndex::COUNT.into(),
                };
                Ok(info.as_bytes().to_vec())
            }
            Command::DEVICE_GET_REGION_INFO => region_info(payload),
            Command::DEVICE_GET_IRQ_INFO => {
                let asked = IrqInfo::read_from_prefix(payload).map_err(|_| Errno::EINVAL)?.0;
                Ok(IrqInfo { flags: 0.into(), count: 0.into(), ..asked }.as_bytes().to_vec())
            }
            Command::REGION_READ => self.read(payload),
            Command::REGION_WRITE => self.write(payload),
            _ => Err(Errno::ENOSYS),
        }
    }

    fn read(&mut self, payload: &[u8]) -> Answer {
        let access = RegionAccess::read_from_prefix(payload).map_err(|_| Errno::EINVAL)?.0;
        let bytes = self.bytes(access)?;
        Ok([access.as_bytes(), bytes].concat())
    }

    fn write(&mut self, payload: &[u8]) -> Answer {
        let (access, data) = RegionAccess::read_from_prefix(payload).map_err(|_| Errno::EINVAL)?;
        let is_command =
            access.region.get() == RegionIndex::CONFIG.0 && access.offset.get() == COMMAND_REGISTER;
        let bytes = self.bytes(access)?;
        if data.len() != bytes.len() {
            return Err(Errno::EINVAL);
        }
        // Whatever else is written is not kept.
        if is_command {
            bytes.copy_from_slice(data);
        }
        Ok(access.as_bytes().to_vec())
    }

    /// What an access is about.
    fn bytes(&mut self, access: RegionAccess) -> Result<&mut [u8], Errno> {
        let region = match RegionIndex(access.region.get()) {
            RegionIndex::CONFIG => &mut self.config[..],
            RegionIndex::BAR_0 => &mut self.bar[..],
            _ => return Err(Errno::EINVAL),
        };
        let start = usize::try_from(access.offset.get()).map_err(|_| Errno::EINVAL)?;
        let end = start.checked_add(access.count.get() as usize).ok_or(Errno::EINVAL)?;
        region.get_mut(start..end).ok_or(Errno::EINVAL)
    }
}

fn region_info(payload: &[u8]) -> Answer {
    let asked = RegionInfo::read_from_prefix(payload).map_err(|_| Errno::EINVAL)?.0;
    let size = match RegionIndex(asked.index.get()) {
        RegionIndex::CONFIG => CONFIG_BYTES,
        RegionIndex::BAR_0 => BAR_BYTES,
        _ => 0,
    };
    let flags = RegionFlags(0).with_read(size > 0).with_write(size > 0).0;
    let info = RegionInfo {
        argsz: (size_of::<RegionInfo>() as u32).into(),
        flags: flags.into(),
        index: asked.index,
        cap_offset: 0.into(),
        size: (size as u64).into(),
        offset: 0.into(),
    };
    Ok(info.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn access(offset: u64, count: u32) -> RegionAccess {
        RegionAccess { offset: offset.into(), region: RegionIndex::BAR_0.0.into(), count: count.into() }
    }

    #[test]
    fn reads_are_answered_one_by_one_though_they_come_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.sock");
        let device = LocalDevice::start(&path).unwrap();
        let mut client = UnixStream::connect(&path).unwrap();
        let mut both = Vec::new();
        for (id, access) in [(7, access(0, 4)), (8, access(BAR_BYTES as u64 - 2, 4))] {
            both.extend_from_slice(MessageHeader::request(id, Command::REGION_READ, 16).as_bytes());
            both.extend_from_slice(access.as_bytes());
        }
        client.write_all(&both).unwrap();
        let mut answer = [0; 16 + 16 + 4];
        client.read_exact(&mut answer).unwrap();
        let header = MessageHeader::view(answer.first_chunk().unwrap());
        assert_eq!((header.id.get(), header.error(), &answer[32..]), (7, None, &[0x5a; 4][..]));
        client.read_exact(&mut answer[..16]).unwrap();
        let header = MessageHeader::view(answer.first_chunk().unwrap());
        assert_eq!((header.id.get(), header.error()), (8, Some(Errno::EINVAL)));
        drop(client);
        drop(device);
    }

    #[test]
    fn a_device_without_a_client_ends_too() {
        let folder = tempfile::tempdir().unwrap();
        drop(LocalDevice::start(&folder.path().join("d.sock")).unwrap());
    }

    #[test]
    fn nonsense_ends_the_connection() {
        let (client, mut other) = UnixStream::pair().unwrap();
        other.write_all(&[0xff; 64]).unwrap();
        assert!(Server::new(client).run().is_err());
    }
}
