//! T12: a vfio-user client that is not ours and not QEMU's, the crate `vfio_user`, uses a borrowed drive: it looks at
//! the device, gives it memory, brings the controller up, and has it work with interrupts. What the guest of a virtual
//! machine does, without one.
//!
//! That client passes over the errors of a server: what is refused is tried in `vm_hostile`.

use campaign::causeway::{Lender, STOP_TIMEOUT, Slot, number, start_slot, status};
use campaign::process::poll_until;
use campaign::tools;
use campaign::world::{World, WorldConfig};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vfio_user::Client;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(20);

/// Indices of VFIO (`linux/vfio.h`).
const CONFIG_REGION: u32 = 7;
const MSIX: u32 = 2;
/// The eventfds come with the message, and say that the interrupt has come.
const EVENTFD_TRIGGER: u32 = 1 << 2 | 1 << 5;

/// Registers of an NVMe controller (NVMe 2.0 §3.1.3), all of them in BAR 0.
mod register {
    pub(crate) const CAP: u64 = 0x0;
    pub(crate) const CC: u64 = 0x14;
    pub(crate) const CSTS: u64 = 0x1c;
    pub(crate) const AQA: u64 = 0x24;
    pub(crate) const ASQ: u64 = 0x28;
    pub(crate) const ACQ: u64 = 0x30;
    pub(crate) const DOORBELLS: u64 = 0x1000;
}

/// Where the client has its memory, for the drive, and what lies where in it.
const MEMORY: u64 = 0x7_0000_0000;
const MEMORY_BYTES: u64 = MIB;
/// Submission and completion queue of each queue pair.
const QUEUES: [(u64, u64); 2] = [(0x1000, 0x2000), (0x3000, 0x4000)];
const DATA: u64 = 0x10000;
const ENTRIES: u16 = 16;
const BLOCK: usize = 512;

/// A driver of an NVMe drive, as small as can be, over the crate's client.
struct Driver {
    client: Client,
    memory: File,
    interrupts: [OwnedFd; 2],
    /// By queue: how many entries were submitted, and taken.
    done: [u16; 2],
}

impl Driver {
    fn connect(socket: &Path) -> Self {
        let memory: File = rustix::fs::memfd_create("guest", MemfdFlags::empty()).unwrap().into();
        memory.set_len(MEMORY_BYTES).unwrap();
        let interrupts = [(); 2].map(|()| eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        // Until it is known that the one before has left, others are sent away.
        let client = poll_until("the slot to take a client", LONG, || Ok(Client::new(socket).ok())).unwrap();
        Self { client, memory, interrupts, done: [0; 2] }
    }

    fn read<const N: usize>(&mut self, region: u32, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.client.region_read(region, offset, &mut bytes).unwrap();
        bytes
    }

    fn register(&mut self, offset: u64) -> u32 {
        u32::from_le_bytes(self.read(0, offset))
    }

    fn set_register(&mut self, offset: u64, value: u32) {
        self.client.region_write(0, offset, &value.to_le_bytes()).unwrap();
    }

    /// Gives the drive memory and both vectors, and enables the controller.
    fn bring_up(&mut self) {
        self.client.dma_map(0, MEMORY, MEMORY_BYTES, self.memory.as_raw_fd()).unwrap();
        let descriptors = self.interrupts.each_ref().map(AsRawFd::as_raw_fd);
        self.client.set_irqs(MSIX, EVENTFD_TRIGGER, 0, 2, &descriptors).unwrap();
        // Memory space and bus mastering.
        self.client.region_write(CONFIG_REGION, 4, &6_u16.to_le_bytes()).unwrap();
        let msix = self.capability(0x11).expect("the drive has MSI-X");
        self.client.region_write(CONFIG_REGION, msix + 2, &0x8000_u16.to_le_bytes()).unwrap();

        assert_eq!(self.register(register::CC), 0, "as after a reset");
        assert_eq!(self.register(register::CSTS), 0);
        self.set_register(register::AQA, u32::from(ENTRIES - 1) << 16 | u32::from(ENTRIES - 1));
        for (base, offset) in [(register::ASQ, QUEUES[0].0), (register::ACQ, QUEUES[0].1)] {
            let address = MEMORY + offset;
            self.set_register(base, address as u32);
            self.set_register(base + 4, (address >> 32) as u32);
        }
        // Enabled, entries of 64 and 16 bytes.
        self.set_register(register::CC, 1 | 6 << 16 | 4 << 20);
        poll_until("CSTS.RDY", LONG, || Ok((self.register(register::CSTS) & 1 == 1).then_some(()))).unwrap();
        assert_eq!(self.register(register::CSTS), 1, "ready, and not failed");
    }

    /// Where a capability of configuration space begins.
    fn capability(&mut self, id: u8) -> Option<u64> {
        let [mut at] = self.read(CONFIG_REGION, 0x34);
        for _ in 0..48 {
            let [found, next] = self.read(CONFIG_REGION, at.into());
            match (found == id, next) {
                (true, _) => return Some(at.into()),
                (false, 0) => return None,
                (false, next) => at = next,
            }
        }
        None
    }

    /// Submits a command; `words` are the last six, from CDW10 on.
    fn submit(&mut self, queue: usize, opcode: u8, nsid: u32, address: u64, words: &[u32]) {
        let slot = self.done[queue] % ENTRIES;
        let mut entry = [0; 64];
        entry[..4].copy_from_slice(&(u32::from(opcode) | u32::from(self.done[queue]) << 16).to_le_bytes());
        entry[4..8].copy_from_slice(&nsid.to_le_bytes());
        entry[24..32].copy_from_slice(&address.to_le_bytes());
        for (bytes, word) in entry[40..].chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        self.memory.write_all_at(&entry, QUEUES[queue].0 + 64 * u64::from(slot)).unwrap();
        let tail = (slot + 1) % ENTRIES;
        self.set_register(register::DOORBELLS + 8 * queue as u64, tail.into());
    }

    /// The interrupt comes, and with it the completion of what was submitted last. Returns its status.
    #[track_caller]
    fn complete(&mut self, queue: usize) -> u16 {
        wait_interrupt(&self.interrupts[queue]);
        let (slot, lap) = (self.done[queue] % ENTRIES, self.done[queue] / ENTRIES);
        let mut entry = [0; 16];
        self.memory.read_exact_at(&mut entry, QUEUES[queue].1 + 16 * u64::from(slot)).unwrap();
        let [id, status] = [12, 14].map(|at| u16::from_le_bytes([entry[at], entry[at + 1]]));
        assert_eq!(status & 1, 1 - lap % 2, "the phase bit says that it is new");
        assert_eq!(id, self.done[queue]);
        self.done[queue] += 1;
        let head = (slot + 1) % ENTRIES;
        self.set_register(register::DOORBELLS + 8 * queue as u64 + 4, head.into());
        status >> 1
    }

    #[track_caller]
    fn admin(&mut self, opcode: u8, nsid: u32, address: u64, words: &[u32]) {
        self.submit(0, opcode, nsid, address, words);
        assert_eq!(self.complete(0), 0, "command {opcode:#x}");
    }

    /// One page of Identify data.
    fn identify(&mut self, nsid: u32, cns: u32) -> Vec<u8> {
        self.memory.write_all_at(&[0xee; 4096], DATA).unwrap();
        self.admin(0x06, nsid, MEMORY + DATA, &[cns]);
        self.data(4096)
    }

    fn data(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_exact_at(&mut bytes, DATA).unwrap();
        bytes
    }

    /// A queue pair for reads and writes, with the second vector.
    fn create_queue(&mut self) {
        let size_and_id = u32::from(ENTRIES - 1) << 16 | 1;
        self.admin(0x05, 0, MEMORY + QUEUES[1].1, &[size_and_id, 1 << 16 | 0b11]);
        self.admin(0x01, 0, MEMORY + QUEUES[1].0, &[size_and_id, 1 << 16 | 1]);
    }
}

#[track_caller]
fn wait_interrupt(descriptor: &OwnedFd) {
    let timeout = Timespec { tv_sec: LONG.as_secs() as i64, tv_nsec: 0 };
    let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
    assert_eq!(poll(&mut polled, Some(&timeout)).unwrap(), 1, "no interrupt within {LONG:?}");
    rustix::io::read(descriptor, &mut [0; 8]).unwrap();
}

/// A drive of 16 MiB with a slot, on two machines.
fn start() -> (World, PathBuf, Lender, Slot) {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let image = world.right().dir().join("disk.img");
    tools::empty_image(&image, 16 * MIB).unwrap();
    let (lender, slot) = start_slot(&world, image.to_str().unwrap()).unwrap();
    (world, image, lender, slot)
}

fn denied(world: &World) -> u64 {
    number(&status(world.left(), "slot").unwrap(), "/counters/denied_accesses").unwrap()
}

#[test]
fn t12_another_client_drives_a_borrowed_drive() {
    let (world, image, mut lender, mut slot) = start();
    let mut driver = Driver::connect(&slot.socket);
    look_at_the_device(&mut driver);
    driver.bring_up();

    let [vendor_low, vendor_high]: [u8; 2] = driver.read(CONFIG_REGION, 0);
    let controller = driver.identify(0, 1);
    assert_eq!(controller[..2], [vendor_low, vendor_high], "both name the same vendor");
    assert!(
        controller[4..64].iter().all(|byte| (0x20..0x7f).contains(byte)),
        "serial and model number are text"
    );
    let namespace = driver.identify(1, 0);
    assert_eq!(namespace[..8], (16 * MIB / BLOCK as u64).to_le_bytes());

    driver.create_queue();
    for lap in 0..40_u8 {
        let pattern = [lap ^ 0x5a; 8 * BLOCK];
        driver.memory.write_all_at(&pattern, DATA).unwrap();
        driver.submit(1, 0x01, 1, MEMORY + DATA, &[u32::from(lap) * 8, 0, 7]);
        assert_eq!(driver.complete(1), 0);
        driver.memory.write_all_at(&[0; 8 * BLOCK], DATA).unwrap();
        driver.submit(1, 0x02, 1, MEMORY + DATA, &[u32::from(lap) * 8, 0, 7]);
        assert_eq!(driver.complete(1), 0);
        assert_eq!(driver.data(pattern.len()), pattern);
    }
    driver.submit(1, 0x00, 1, 0, &[]);
    assert_eq!(driver.complete(1), 0, "a flush");
    let mut stored = vec![0; 4096];
    File::open(&image).unwrap().read_exact_at(&mut stored, 39 * 4096).unwrap();
    assert!(stored.iter().all(|byte| *byte == 39 ^ 0x5a), "the lender's image has it");
    assert_eq!(denied(&world), 0);

    what_is_unmapped_is_out_of_reach(&mut driver, &world);
    a_reset_is_one(&mut driver);
    driver.client.shutdown().unwrap();
    drop(driver);
    // Whoever comes next finds nothing of the one before.
    let mut next = Driver::connect(&slot.socket);
    next.bring_up();
    assert_eq!(next.identify(1, 0), namespace);
    assert_eq!(slot.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", slot.process.tail());
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
}

fn look_at_the_device(driver: &mut Driver) {
    // Of each region: bytes, and whether it may be read and written. None may be mapped.
    let regions = (0..9).map(|index| driver.client.region(index).unwrap());
    let regions: Vec<_> =
        regions.map(|region| (region.size, region.flags, region.file_offset.is_some())).collect();
    assert!(regions[0].0 >= 0x2000 && regions[0].1 == 3, "registers and doorbells: {regions:?}");
    assert_eq!(regions[CONFIG_REGION as usize], (4096, 3, false));
    assert!(regions.iter().all(|(_, flags, is_mapped)| flags & 4 == 0 && !is_mapped), "{regions:?}");
    assert_eq!((regions[6].0, regions[8].0), (0, 0), "neither ROM nor VGA");

    let msix = driver.client.get_irq_info(MSIX).unwrap();
    assert!(msix.count >= 2 && msix.flags & 1 == 1, "{msix:?}");
    // No MSI. Error and request interrupts are not even there to be asked for, and this client waits for ever for the
    // rest of an answer that says so.
    assert_eq!(driver.client.get_irq_info(1).unwrap().count, 0);

    let id: [u8; 4] = driver.read(CONFIG_REGION, 0);
    assert!(id != [0; 4] && id != [0xff; 4], "{id:x?}");
    let [_, interface, subclass, class]: [u8; 4] = driver.read(CONFIG_REGION, 8);
    assert_eq!([class, subclass, interface], [1, 8, 2], "NVM Express");
    assert!(driver.capability(0x10).is_some(), "PCI Express");
    let capabilities = u64::from_le_bytes(driver.read(0, register::CAP));
    assert!(capabilities & 0xffff >= 15, "queues of {} entries", (capabilities & 0xffff) + 1);
    assert_eq!(capabilities >> 32 & 0xf, 0, "doorbells lie side by side");
}

/// The drive is told to write where it may not any more.
fn what_is_unmapped_is_out_of_reach(driver: &mut Driver, world: &World) {
    driver.client.dma_unmap(MEMORY, MEMORY_BYTES).unwrap();
    let mut before = vec![0; MEMORY_BYTES as usize];
    driver.memory.read_exact_at(&mut before, 0).unwrap();
    driver.set_register(register::DOORBELLS, u32::from(driver.done[0] + 1));
    poll_until("a denied access", LONG, || Ok((denied(world) > 0).then_some(()))).unwrap();
    let mut after = vec![0; MEMORY_BYTES as usize];
    driver.memory.read_exact_at(&mut after, 0).unwrap();
    assert!(before == after, "nothing of the client's memory was touched");
}

/// A device reset, as virtual machines ask for when they start anew.
fn a_reset_is_one(driver: &mut Driver) {
    driver.client.reset().unwrap();
    assert_eq!(driver.register(register::CC), 0);
    assert_eq!(driver.register(register::CSTS), 0);
    assert_eq!(driver.register(register::AQA), 0);
    let command: [u8; 2] = driver.read(CONFIG_REGION, 4);
    assert_eq!(command, [0; 2], "neither memory space nor bus mastering");
    driver.done = [0; 2];
    driver.memory.write_all_at(&vec![0; DATA as usize], 0).unwrap();
    driver.bring_up();
    driver.create_queue();
    driver.submit(1, 0x02, 1, MEMORY + DATA, &[39 * 8, 0, 7]);
    assert_eq!(driver.complete(1), 0);
    assert!(driver.data(8 * BLOCK).iter().all(|byte| *byte == 39 ^ 0x5a));
}
