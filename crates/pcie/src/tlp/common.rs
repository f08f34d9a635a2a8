//! The first header dword, which all kinds share (PCIe 6.0 §2.2.1.1).

use std::ops::BitOr;

use super::{Malformed, ParseError};
use crate::id::Tag;
use crate::spec::{LENGTH_DW_MAX, dword0};

/// Attr\[2:0\]: ordering and snooping (PCIe 6.0 §2.2.6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes(u8);

impl Attributes {
    /// Default ordering, snooped.
    pub const NONE: Self = Self(0);
    /// NS: coherency is not asked for.
    pub const NO_SNOOP: Self = Self(1);
    /// RO: may pass earlier posted writes.
    pub const RELAXED_ORDERING: Self = Self(2);
    /// IDO: unordered towards other requesters.
    pub const ID_ORDERING: Self = Self(4);

    /// The value of the three bits, IDO RO NS; `None` above 7.
    #[inline]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits < 8 { Some(Self(bits)) } else { None }
    }

    /// The three bits, IDO RO NS.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether all attributes of `other` are set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Attributes {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// AT: what the address of a memory request is (PCIe 6.0 §2.2.4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AddressType {
    /// An address of the requester's address space.
    #[default]
    Untranslated,
    /// A read that asks for translations (PCIe 6.0 §10.2.2).
    TranslationRequest,
    /// An address that a translation gave.
    Translated,
    /// 11b, which no packet may use.
    Reserved,
}

impl AddressType {
    /// From the two bits of the field; higher bits are ignored.
    #[inline]
    pub(super) const fn from_bits(bits: u32) -> Self {
        match bits & 0x3 {
            0 => Self::Untranslated,
            1 => Self::TranslationRequest,
            2 => Self::Translated,
            _ => Self::Reserved,
        }
    }
}

/// The decoded first dword without Fmt and Type, which choose who reads the rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dword0 {
    raw: u32,
}

impl Dword0 {
    #[inline]
    pub(super) fn decode(raw: u32) -> Self {
        Self { raw }
    }

    /// Refuses what no supported kind may use.
    #[inline]
    pub(super) fn check(self, fmt_type: u8) -> Result<(), ParseError> {
        if self.raw & (dword0::PROCESSING_HINT | dword0::DIGEST) != 0 {
            return Err(ParseError::Unsupported { fmt_type });
        }
        if self.raw & dword0::RESERVED != 0 {
            return Err(Malformed::Reserved.into());
        }
        Ok(())
    }

    #[inline]
    pub(super) fn traffic_class(self) -> u8 {
        (self.raw >> dword0::TRAFFIC_CLASS_SHIFT) as u8 & 0x7
    }

    #[inline]
    pub(super) fn attributes(self) -> Attributes {
        let low = (self.raw >> dword0::ATTRIBUTE_SHIFT) as u8 & 0x3;
        let high = if self.raw & dword0::ATTRIBUTE_2 != 0 { 0x4 } else { 0 };
        Attributes(high | low)
    }

    #[inline]
    pub(super) fn address_type(self) -> AddressType {
        AddressType::from_bits(self.raw >> dword0::ADDRESS_TYPE_SHIFT)
    }

    #[inline]
    pub(super) fn poisoned(self) -> bool {
        self.raw & dword0::POISONED != 0
    }

    /// T9 and T8 joined with the low bits, which stand in a later dword.
    #[inline]
    pub(super) fn tag(self, low: u8) -> Tag {
        let nine = u16::from(self.raw & dword0::TAG_9 != 0);
        let eight = u16::from(self.raw & dword0::TAG_8 != 0);
        Tag::from_halves(nine << 1 | eight, low)
    }

    /// The Length field where it counts a payload or a read: 0 stands for 1024.
    #[inline]
    pub(super) fn length_dw(self) -> u16 {
        match self.length_raw() {
            0 => LENGTH_DW_MAX,
            length => length,
        }
    }

    /// The Length field as it stands.
    #[inline]
    pub(super) fn length_raw(self) -> u16 {
        (self.raw & dword0::LENGTH_MASK) as u16
    }
}

/// The values of a first dword that is to be encoded.
#[derive(Clone, Copy)]
pub(super) struct FirstFields {
    pub(super) fmt_type: u8,
    pub(super) tag: Tag,
    pub(super) traffic_class: u8,
    pub(super) attributes: Attributes,
    pub(super) address_type: AddressType,
    pub(super) poisoned: bool,
    /// 1024 becomes 0, by the width of the field.
    pub(super) length_dw: u16,
}

impl FirstFields {
    #[inline]
    pub(super) fn encode(self) -> u32 {
        let attributes = u32::from(self.attributes.0);
        let mut raw = u32::from(self.fmt_type) << dword0::FMT_TYPE_SHIFT
            | u32::from(self.traffic_class) << dword0::TRAFFIC_CLASS_SHIFT
            | (attributes & 0x3) << dword0::ATTRIBUTE_SHIFT
            | (self.address_type as u32) << dword0::ADDRESS_TYPE_SHIFT
            | u32::from(self.length_dw) & dword0::LENGTH_MASK;
        raw |= if self.tag.get() & 0x200 != 0 { dword0::TAG_9 } else { 0 };
        raw |= if self.tag.get() & 0x100 != 0 { dword0::TAG_8 } else { 0 };
        raw |= if attributes & 0x4 != 0 { dword0::ATTRIBUTE_2 } else { 0 };
        raw |= if self.poisoned { dword0::POISONED } else { 0 };
        raw
    }
}
