//! Chance that parts of a world have of their own: what comes of it changes nothing else in the world of a seed.

use base::Random;

/// Whose it is, as a number that is mixed into the seed.
#[derive(Clone, Copy)]
#[repr(u64)]
pub(crate) enum Chance {
    Carriers = 0xca_441e_0000,
    CommonDrive = 0x5a5a,
    Contest = 0xc0_7e57_0000,
    Guests = 0x9e57_0000_0000,
    GuestsOfRival = 0x9e57_2000_0000,
    Identity = 0x1de_0000_0000,
    Impatient = 0x1a7e_0000_0000,
    Media = 0x3ed1_a000_0000,
    Neighbours = 0x5a4d_0000_0000,
    Protection = 0x9207_ec70_0000,
    RailMode = 0x3a11_0000_0000,
    Rails = 0x4a11_0000_0000,
    Replaced = 0x9e91_ace0_0000,
    Rest = 0x4e57_0000_0000,
    Shared = 0x5a_aed0_0000,
    Spoofer = 0x5b00_f000_0000,
    Volatile = 0x0f1a_7700_0000,
}

impl Chance {
    pub(crate) fn of(self, seed: u64) -> Random {
        Random::new(seed ^ self as u64)
    }
}
