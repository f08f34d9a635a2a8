//! Users and groups of this machine by their names, as the system's name service knows them.

use std::ffi::{CStr, CString};
use std::ptr;

/// Room for what a name service says of one name; more than it needs.
const ROOM: usize = 64 << 10;

/// The number of a user: the name may be a number itself.
#[must_use]
pub fn user_id(name: &str) -> Option<u32> {
    name.parse().ok().or_else(|| {
        look_up(name, |name, room| {
            // SAFETY: plain C data for which zero bytes are a value.
            let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
            let mut found = ptr::null_mut();
            // SAFETY: the name ends with a zero byte; entry, room and result live across the call, and the room's
            // length is given.
            unsafe {
                libc::getpwnam_r(name.as_ptr(), &mut entry, room.as_mut_ptr().cast(), room.len(), &mut found)
            };
            (!found.is_null()).then_some(entry.pw_uid)
        })
    })
}

/// The number of a group: the name may be a number itself.
#[must_use]
pub fn group_id(name: &str) -> Option<u32> {
    name.parse().ok().or_else(|| {
        look_up(name, |name, room| {
            // SAFETY: plain C data for which zero bytes are a value.
            let mut entry: libc::group = unsafe { std::mem::zeroed() };
            let mut found = ptr::null_mut();
            // SAFETY: as for a user.
            unsafe {
                libc::getgrnam_r(name.as_ptr(), &mut entry, room.as_mut_ptr().cast(), room.len(), &mut found)
            };
            (!found.is_null()).then_some(entry.gr_gid)
        })
    })
}

fn look_up(name: &str, find: impl FnOnce(&CStr, &mut [u8]) -> Option<u32>) -> Option<u32> {
    find(&CString::new(name).ok()?, &mut vec![0; ROOM])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_found() {
        assert_eq!((user_id("root"), group_id("root")), (Some(0), Some(0)));
        assert_eq!((user_id("1234"), group_id("1234")), (Some(1234), Some(1234)));
        assert_eq!((user_id("no such user"), group_id("no\0group")), (None, None));
    }
}
