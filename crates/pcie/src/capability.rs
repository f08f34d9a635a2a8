//! Capabilities: finding them in any function's configuration space, and one file for each this crate can build.
//!
//! [`find`] and [`find_extended`] serve drivers, whose device is somebody else's: a chain that loops or points
//! anywhere ends the search.

pub mod aer;
pub mod express;
pub mod msix;
pub(crate) mod power;
pub(crate) mod serial_number;
pub mod sriov;

use crate::spec::capability::{END, EXTENDED_FIRST, EXTENDED_NEXT_SHIFT, FIRST};
use crate::spec::header::{CAPABILITIES_POINTER, COMMAND, CONFIG_BYTES, STATUS_CAPABILITIES};

/// Byte offset of the first capability with this id. `read` returns a dword by its byte offset.
pub fn find(read: impl Fn(u16) -> u32, id: u8) -> Option<u16> {
    if (read(COMMAND) >> 16) as u16 & STATUS_CAPABILITIES == 0 {
        return None;
    }
    let mut offset = read(CAPABILITIES_POINTER) as u16 & 0xfc;
    // No chain has more links than dwords.
    for _ in 0..(END - FIRST) / 4 {
        if offset < FIRST {
            return None;
        }
        let head = read(offset);
        if head as u8 == id {
            return Some(offset);
        }
        offset = (head >> 8) as u16 & 0xfc;
    }
    None
}

/// Byte offset of the first extended capability with this id. `read` returns a dword by its byte offset.
pub fn find_extended(read: impl Fn(u16) -> u32, id: u16) -> Option<u16> {
    let mut offset = EXTENDED_FIRST;
    for _ in 0..(CONFIG_BYTES as u16 - EXTENDED_FIRST) / 4 {
        let head = read(offset);
        // Zero ends an empty chain; all ones is what an absent function reads as.
        if head == 0 || head == u32::MAX {
            return None;
        }
        if head as u16 == id {
            return Some(offset);
        }
        offset = (head >> EXTENDED_NEXT_SHIFT) as u16 & 0xffc;
        if offset < EXTENDED_FIRST {
            return None;
        }
    }
    None
}
