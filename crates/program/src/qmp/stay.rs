//! A machine with a borrowed function stays where it is.
//!
//! QEMU's vfio-user client has no state of its device to save, and does not say so: `migrate` and `savevm` succeed, and
//! what comes of them is a machine with a dead device, whose memory moreover lacks what the function has written
//! without QEMU's knowledge. Nothing in the protocol lets a server refuse. But QEMU refuses by itself as long as it has
//! a block node whose format cannot be migrated: `migrate` and `savevm` by its migration blocker, `loadvm` since it is
//! writable and takes no snapshots. So it gets one, which no guest sees, named like the device: an empty image of
//! VirtualBox (VDI) in memory, by descriptor, for QEMU may not be allowed to open a file of ours.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;

use qmp::{Error, Qmp};
use rustix::fs::MemfdFlags;
use serde_json::{Value, json};

use super::{Plug, QmpError};

/// Longest name of a block node.
const NODE_NAME_MAX: usize = 31;
/// Unit of places in an image.
const SECTOR: usize = 512;
/// Bytes of an image without content.
const IMAGE_BYTES: usize = 2 * SECTOR;
/// Bytes of a block of an image; an empty one has a single block that is not there.
const BLOCK: u32 = 1 << 20;
/// Of the header, in bytes: the fields that QEMU checks begin here.
const SIGNATURE_AT: usize = 64;
/// What a block that is not there has in the map.
const ABSENT: u32 = u32::MAX;

impl Plug {
    /// Makes QEMU refuse to save or migrate the machine while it has this device. May be repeated.
    ///
    /// # Errors
    /// [`QmpError::Incoming`] where the machine is just being migrated to.
    pub(crate) fn hold(&self, qmp: &mut Qmp) -> Result<(), QmpError> {
        refuse_incoming(qmp)?;
        let image = image().map_err(|error| QmpError::Image(error.into()))?;
        let set = qmp.execute_with("add-fd", json!({}), Some(image.as_fd()))?;
        let file = format!("/dev/fdset/{}", set["fdset-id"]);
        let added = qmp.execute(
            "blockdev-add",
            json!({
                "driver": "vdi", "node-name": self.node_name(),
                "file": { "driver": "file", "filename": file, "locking": "off" }
            }),
        );
        match added {
            Err(Error::Refused { description, .. }) if description.contains("uplicate") => Ok(()),
            other => Ok(other.map(|_| ())?),
        }
    }

    /// The device is gone, and the machine may go as well.
    pub(crate) fn release(&self, qmp: &mut Qmp) -> Result<(), QmpError> {
        qmp.execute("blockdev-del", json!({ "node-name": self.node_name() }))?;
        Ok(())
    }

    fn node_name(&self) -> &str {
        self.id.get(..NODE_NAME_MAX).unwrap_or(&self.id)
    }
}

/// Refuses a machine that waits for its state: it has been saved with another device, or none.
pub(super) fn refuse_incoming(qmp: &mut Qmp) -> Result<(), QmpError> {
    let status: Value = qmp.execute("query-status", json!({}))?;
    if status["status"] == "inmigrate" { Err(QmpError::Incoming) } else { Ok(()) }
}

/// An image without content.
pub(crate) fn empty_image() -> [u8; IMAGE_BYTES] {
    let mut header = [0; IMAGE_BYTES];
    let fields: [(usize, u32); 9] = [
        (0, 0xbeda_107f),         // signature
        (4, 0x0001_0001),         // version 1.1
        (8, 0x180),               // bytes of the header behind this
        (12, 1),                  // of no fixed size
        (276, SECTOR as u32),     // where the map is
        (280, 2 * SECTOR as u32), // where blocks would be
        (296, SECTOR as u32),     // bytes of a sector
        (304, BLOCK),             // bytes of the drive, lower half
        (312, BLOCK),             // bytes of a block
    ];
    let mut put = |at: usize, value: u32| header[at..at + 4].copy_from_slice(&value.to_le_bytes());
    fields.iter().for_each(|(at, value)| put(SIGNATURE_AT + at, *value));
    put(SIGNATURE_AT + 320, 1); // blocks
    put(SECTOR, ABSENT);
    header
}

/// The same in memory.
fn image() -> rustix::io::Result<File> {
    let memory = rustix::fs::memfd_create("causeway-stays", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(memory);
    file.write_all(&empty_image())
        .map_err(|error| rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO))?;
    Ok(file)
}
