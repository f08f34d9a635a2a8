//! The two numbers that name a transaction: who asked (BDF) and which of its requests (tag).

use std::fmt;
use std::str::FromStr;

use crate::spec::TAG_COUNT;

/// Bus, device and function number: the id of a requester or completer (PCIe 6.0 §2.2.4.2).
///
/// Bits 15:8 are the bus, 7:3 the device, 2:0 the function. Written `BB:DD.F` in hexadecimal, as Linux does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bdf(pub u16);

impl Bdf {
    /// Builds an id from its parts; `None` if `device` is above 31 or `function` above 7.
    #[inline]
    pub const fn new(bus: u8, device: u8, function: u8) -> Option<Self> {
        if device > 31 || function > 7 {
            return None;
        }
        Some(Self((bus as u16) << 8 | (device as u16) << 3 | function as u16))
    }

    /// The bus number.
    #[inline]
    pub const fn bus(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// The device number, 0 to 31.
    #[inline]
    pub const fn device(self) -> u8 {
        (self.0 >> 3) as u8 & 0x1f
    }

    /// The function number, 0 to 7.
    #[inline]
    pub const fn function(self) -> u8 {
        self.0 as u8 & 0x7
    }
}

impl fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}:{:02x}.{}", self.bus(), self.device(), self.function())
    }
}

/// Why a text is no BDF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a function as BB:DD.F in hexadecimal (bus 00-ff, device 00-1f, function 0-7), such as 03:00.0"
)]
pub struct BdfParseError;

impl FromStr for Bdf {
    type Err = BdfParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (bus, rest) = text.split_once(':').ok_or(BdfParseError)?;
        let (device, function) = rest.split_once('.').ok_or(BdfParseError)?;
        Self::new(hex(bus, 2)?, hex(device, 2)?, hex(function, 1)?).ok_or(BdfParseError)
    }
}

/// Reads one to `digits_max` hexadecimal digits; a sign, which `from_str_radix` would take, is no digit.
fn hex(text: &str, digits_max: usize) -> Result<u8, BdfParseError> {
    if text.len() > digits_max || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(BdfParseError);
    }
    u8::from_str_radix(text, 16).map_err(|_| BdfParseError)
}

/// The number that ties completions to their request: 10 bits (PCIe 6.0 §2.2.6.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(u16);

impl Tag {
    /// Tag 0, which posted requests carry when they need none.
    pub const ZERO: Self = Self(0);

    /// A tag of this value; `None` above 1023.
    #[inline]
    pub const fn new(value: u16) -> Option<Self> {
        if value < TAG_COUNT { Some(Self(value)) } else { None }
    }

    /// The value, 0 to 1023.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Joins T9:T8 of the first dword with the eight bits of the second or third.
    #[inline]
    pub(crate) const fn from_halves(high: u16, low: u8) -> Self {
        Self((high & 0x3) << 8 | low as u16)
    }

    /// The low eight bits, as they stand in a header.
    #[inline]
    pub(crate) const fn low(self) -> u32 {
        self.0 as u32 & 0xff
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bdf_text_round_trips_for_every_value() {
        for value in 0..=u16::MAX {
            assert_eq!(Bdf(value).to_string().parse(), Ok(Bdf(value)));
        }
        assert_eq!(Bdf(0x03fa).to_string(), "03:1f.2");
        assert_eq!(Bdf::new(3, 31, 2), Some(Bdf(0x03fa)));
    }

    #[test]
    fn bdf_refuses_what_is_no_function() {
        for text in
            ["", "3", "3:0", "3.0", "00:20.0", "00:00.8", "100:00.0", "00:00.", ":00.0", "+1:00.0", "0:0.0 "]
        {
            assert_eq!(text.parse::<Bdf>(), Err(BdfParseError), "{text:?}");
        }
    }

    #[test]
    fn tag_has_ten_bits() {
        assert_eq!(Tag::new(1023).map(Tag::get), Some(1023));
        assert_eq!(Tag::new(1024), None);
    }
}
