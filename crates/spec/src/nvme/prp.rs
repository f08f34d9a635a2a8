//! Physical Region Pages: how a command names its data (NVMe 2.0 §4.1.1).
//!
//! A PRP entry is an address of one memory page, with an offset into it in the first entry only. Data that fit into
//! one page need PRP1; into two, PRP1 and PRP2; more, and PRP2 points to a list whose last slot in a page points to
//! the next page of the list when more than one entry remains.

/// The size of a PRP entry in bytes.
pub const ENTRY_SIZE: usize = 8;

/// Bits of a PRP entry's address that must be zero: entries are dword aligned.
pub const ALIGNMENT_MASK: u64 = 0x3;

/// Bits that must be zero in the address of a PRP list: lists are qword aligned.
pub const LIST_ALIGNMENT_MASK: u64 = 0x7;

/// The bytes of an entry's page that lie at and behind its address. `page_size` is a power of two.
#[must_use]
pub const fn bytes_in_page(entry: u64, page_size: u64) -> u64 {
    assert!(page_size.is_power_of_two(), "page sizes are powers of two");
    page_size - (entry & (page_size - 1))
}

/// The number of pages that `length` bytes touch whose first byte has the address `entry`; 0 for no bytes.
/// `page_size` is a power of two.
#[must_use]
pub const fn pages(entry: u64, length: u64, page_size: u64) -> u64 {
    let first = bytes_in_page(entry, page_size);
    if length == 0 {
        0
    } else if length <= first {
        1
    } else {
        1 + (length - first).div_ceil(page_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_data() {
        assert_eq!(bytes_in_page(0x1ff0, 4096), 16);
        assert_eq!(bytes_in_page(0x1000, 4096), 4096);
        assert_eq!(pages(0x1ff0, 0, 4096), 0);
        assert_eq!(pages(0x1ff0, 16, 4096), 1);
        assert_eq!(pages(0x1ff0, 17, 4096), 2);
        assert_eq!(pages(0x1ff0, 16 + 4096, 4096), 2);
        assert_eq!(pages(u64::MAX, u64::MAX, 4096), (1 << 52) + 1);
    }
}
