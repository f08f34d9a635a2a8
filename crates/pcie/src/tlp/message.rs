//! Messages (PCIe 6.0 §2.2.8): Msg and MsgD.

use super::common::{AddressType, Attributes, Dword0, FirstFields};
use super::{EncodedHeader, Malformed};
use crate::id::{Bdf, Tag};
use crate::spec::{LENGTH_DW_MAX, TRAFFIC_CLASS_MAX, fmt_type};

/// What a message says. Unknown codes are kept as they came (PCIe 6.0 appendix F).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageCode(pub u8);

impl MessageCode {
    /// PM_Active_State_Nak (PCIe 6.0 §2.2.8.2).
    pub const PM_ACTIVE_STATE_NAK: Self = Self(0x14);
    /// PM_PME.
    pub const PM_PME: Self = Self(0x18);
    /// PME_Turn_Off.
    pub const PME_TURN_OFF: Self = Self(0x19);
    /// PME_TO_Ack.
    pub const PME_TO_ACK: Self = Self(0x1b);
    /// Assert_INTA (PCIe 6.0 §2.2.8.1).
    pub const ASSERT_INTA: Self = Self(0x20);
    /// Assert_INTB.
    pub const ASSERT_INTB: Self = Self(0x21);
    /// Assert_INTC.
    pub const ASSERT_INTC: Self = Self(0x22);
    /// Assert_INTD.
    pub const ASSERT_INTD: Self = Self(0x23);
    /// Deassert_INTA.
    pub const DEASSERT_INTA: Self = Self(0x24);
    /// Deassert_INTB.
    pub const DEASSERT_INTB: Self = Self(0x25);
    /// Deassert_INTC.
    pub const DEASSERT_INTC: Self = Self(0x26);
    /// Deassert_INTD.
    pub const DEASSERT_INTD: Self = Self(0x27);
    /// ERR_COR (PCIe 6.0 §2.2.8.3).
    pub const ERR_COR: Self = Self(0x30);
    /// ERR_NONFATAL.
    pub const ERR_NONFATAL: Self = Self(0x31);
    /// ERR_FATAL.
    pub const ERR_FATAL: Self = Self(0x33);
    /// Set_Slot_Power_Limit, with one dword of data (PCIe 6.0 §2.2.8.5).
    pub const SET_SLOT_POWER_LIMIT: Self = Self(0x50);
    /// Vendor_Defined Type 0: unsupported if unknown (PCIe 6.0 §2.2.8.6).
    pub const VENDOR_DEFINED_0: Self = Self(0x7e);
    /// Vendor_Defined Type 1: ignored if unknown.
    pub const VENDOR_DEFINED_1: Self = Self(0x7f);

    /// Whether the message must use traffic class 0: interrupts, power management,
    /// errors and the slot power limit.
    #[inline]
    pub const fn needs_traffic_class_0(self) -> bool {
        matches!(self.0, 0x14 | 0x18 | 0x19 | 0x1b | 0x20..=0x27 | 0x30 | 0x31 | 0x33 | 0x50)
    }
}

/// Where a message goes: r\[2:0\] (PCIe 6.0 §2.2.8, table "Message Routing").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageRouting {
    /// 000b: to the root complex.
    ToRootComplex,
    /// 001b: by the address in dwords 2 and 3.
    ByAddress,
    /// 010b: by the id in dword 2.
    ById,
    /// 011b: from the root complex to everyone.
    Broadcast,
    /// 100b: ends at the receiver.
    Local,
    /// 101b: gathered, then to the root complex.
    GatherToRootComplex,
    /// 110b or 111b: ends at the receiver.
    Reserved(u8),
}

impl MessageRouting {
    /// From the three bits of the field; higher bits are ignored.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & fmt_type::MESSAGE_ROUTING {
            0 => Self::ToRootComplex,
            1 => Self::ByAddress,
            2 => Self::ById,
            3 => Self::Broadcast,
            4 => Self::Local,
            5 => Self::GatherToRootComplex,
            other => Self::Reserved(other),
        }
    }

    /// The value of the field.
    #[inline]
    pub const fn bits(self) -> u8 {
        match self {
            Self::ToRootComplex => 0,
            Self::ByAddress => 1,
            Self::ById => 2,
            Self::Broadcast => 3,
            Self::Local => 4,
            Self::GatherToRootComplex => 5,
            Self::Reserved(bits) => bits,
        }
    }
}

/// A message with or without data. What dwords 2 and 3 mean depends on code and routing; they are carried as they
/// are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// Who sends it.
    pub requester: Bdf,
    /// No message is answered; most leave it 0.
    pub tag: Tag,
    /// What it says.
    pub code: MessageCode,
    /// Where it goes.
    pub routing: MessageRouting,
    /// Dwords of payload, 1 to 1024, or 0 for a message without data.
    pub length_dw: u16,
    /// The third header dword, as a number.
    pub dw2: u32,
    /// The fourth header dword, as a number.
    pub dw3: u32,
    /// 0 to 7; many codes allow only 0.
    pub traffic_class: u8,
    /// Ordering and snooping.
    pub attributes: Attributes,
    /// The payload is damaged (EP).
    pub poisoned: bool,
}

impl Message {
    /// A message without data, in traffic class 0.
    #[inline]
    pub fn new(requester: Bdf, code: MessageCode, routing: MessageRouting) -> Self {
        Self {
            requester,
            tag: Tag::ZERO,
            code,
            routing,
            length_dw: 0,
            dw2: 0,
            dw3: 0,
            traffic_class: 0,
            attributes: Attributes::NONE,
            poisoned: false,
        }
    }

    /// Whether the first header byte is that of a message.
    #[inline]
    pub(super) fn is_message(fmt_type: u8) -> bool {
        matches!(fmt_type & !fmt_type::MESSAGE_ROUTING, fmt_type::MESSAGE | fmt_type::MESSAGE_DATA)
    }

    #[inline]
    pub(super) fn decode(first: Dword0, fmt_type: u8, [d1, d2, d3]: [u32; 3]) -> Result<Self, Malformed> {
        if first.address_type() != AddressType::Untranslated {
            return Err(Malformed::AddressType);
        }
        let with_data = fmt_type & fmt_type::WITH_DATA != 0;
        if !with_data && first.length_raw() != 0 {
            return Err(Malformed::Length);
        }
        Ok(Self {
            requester: Bdf((d1 >> 16) as u16),
            tag: first.tag((d1 >> 8) as u8),
            code: MessageCode(d1 as u8),
            routing: MessageRouting::from_bits(fmt_type),
            length_dw: if with_data { first.length_dw() } else { 0 },
            dw2: d2,
            dw3: d3,
            traffic_class: first.traffic_class(),
            attributes: first.attributes(),
            poisoned: first.poisoned(),
        })
    }

    #[inline]
    pub(super) fn check(&self) -> Result<(), Malformed> {
        if self.length_dw > LENGTH_DW_MAX {
            return Err(Malformed::Length);
        }
        let class_max = if self.code.needs_traffic_class_0() { 0 } else { TRAFFIC_CLASS_MAX };
        if self.traffic_class > class_max {
            return Err(Malformed::TrafficClass);
        }
        if self.routing == MessageRouting::from_bits(self.routing.bits()) {
            Ok(())
        } else {
            Err(Malformed::Reserved)
        }
    }

    #[inline]
    pub(super) fn encode(&self) -> EncodedHeader {
        let plain = if self.length_dw == 0 { fmt_type::MESSAGE } else { fmt_type::MESSAGE_DATA };
        let fields = FirstFields {
            fmt_type: plain | self.routing.bits(),
            tag: self.tag,
            traffic_class: self.traffic_class,
            attributes: self.attributes,
            address_type: AddressType::Untranslated,
            poisoned: self.poisoned,
            length_dw: self.length_dw,
        };
        let d1 = u32::from(self.requester.0) << 16 | self.tag.low() << 8 | u32::from(self.code.0);
        EncodedHeader::four([fields.encode(), d1, self.dw2, self.dw3])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tlp::Header;

    #[test]
    fn interrupts_and_errors_stay_in_traffic_class_0() {
        let message =
            |code| Message { traffic_class: 1, ..Message::new(Bdf(1), code, MessageRouting::Local) };
        for code in [MessageCode::ASSERT_INTA, MessageCode::DEASSERT_INTD, MessageCode::PME_TO_ACK] {
            assert_eq!(message(code).check(), Err(Malformed::TrafficClass));
        }
        for code in [MessageCode::ERR_COR, MessageCode::ERR_FATAL, MessageCode::SET_SLOT_POWER_LIMIT] {
            assert_eq!(message(code).check(), Err(Malformed::TrafficClass));
        }
        assert_eq!(message(MessageCode::VENDOR_DEFINED_1).check(), Ok(()));
        assert_eq!(message(MessageCode(0xa5)).check(), Ok(()));
    }

    #[test]
    fn field_rules() {
        let good = Message::new(Bdf(1), MessageCode::VENDOR_DEFINED_0, MessageRouting::ById);
        assert_eq!(Message { length_dw: 1025, ..good }.check(), Err(Malformed::Length));
        let misnamed = Message { routing: MessageRouting::Reserved(2), ..good };
        assert_eq!(misnamed.check(), Err(Malformed::Reserved));
        let mut bytes = Header::Message(good).encode().as_bytes().to_vec();
        bytes[3] = 1;
        assert_eq!(Header::decode(&bytes), Err(Malformed::Length.into()), "a length without data");
        bytes[3] = 0;
        bytes[2] = 0x04;
        assert_eq!(Header::decode(&bytes), Err(Malformed::AddressType.into()));
    }
}
