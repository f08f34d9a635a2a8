//! Machines that are kept from being saved and migrated: as long as they have the device, and no longer.
//!
//! QEMU does not say when a device is gone, be it let go of late or taken out by hand. So a machine in which no driver
//! has the device is asked now and then whether it still has it, and one whose driver is back is held again.

use std::time::{Duration, Instant};

/// Between two questions whether a machine still has a device that nobody uses.
const PAUSE: Duration = Duration::from_secs(5);

/// Whether the machine of a slot is held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Hold {
    /// It may go.
    Free,
    /// It is held, or may be, from an earlier life of the node. When it was looked at last.
    Held { looked: Instant },
}

/// What is to be done about that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    Hold,
    /// Unless it still has the device.
    Release,
}

impl Hold {
    /// Held from now on.
    pub(super) fn begin() -> Self {
        Self::Held { looked: Instant::now() }
    }

    /// What follows from whether a driver has the device.
    pub(super) fn follow(&mut self, is_used: bool, now: Instant) -> Option<Change> {
        let change = match *self {
            Self::Free if is_used => Change::Hold,
            Self::Held { looked } if !is_used && now >= looked + PAUSE => Change::Release,
            _ => return None,
        };
        *self = Self::Held { looked: now };
        Some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_asked_again_until_the_device_is_gone() {
        let (mut hold, begin) = (Hold::begin(), Instant::now());
        let after = |hold: &mut Hold, is_used, seconds| hold.follow(is_used, begin + seconds * PAUSE);
        assert_eq!(after(&mut hold, true, 2), None, "it is used");
        assert_eq!(after(&mut hold, false, 3), Some(Change::Release));
        assert_eq!(after(&mut hold, false, 3), None, "a while has to pass");
        assert_eq!(after(&mut hold, false, 4), Some(Change::Release), "it was still there");
        hold = Hold::Free;
        assert_eq!(after(&mut hold, false, 6), None);
        assert_eq!(after(&mut hold, true, 6), Some(Change::Hold), "somebody has plugged it in again");
        assert_eq!(after(&mut hold, true, 9), None);
    }
}
