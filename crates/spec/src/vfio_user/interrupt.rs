//! Kinds of interrupts and what is done with them (vfio-user 0.1 §VFIO_USER_DEVICE_GET_IRQ_INFO,
//! §VFIO_USER_DEVICE_SET_IRQS).

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::fields::{bitfields, open_values};

/// Payload of DEVICE_GET_IRQ_INFO and of its reply, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IrqInfo {
    /// In the command the most bytes of the reply's payload, in the reply those it needs.
    pub argsz: U32,
    /// [`IrqFlags`].
    pub flags: U32,
    /// [`IrqIndex`].
    pub index: U32,
    /// Interrupts of this kind; 0 of one that the device does not have.
    pub count: U32,
}

const _: () = assert!(size_of::<IrqInfo>() == 16);

bitfields! {
    /// How a kind of interrupt behaves.
    pub struct IrqFlags(u32) {
        /// It is signalled by eventfds.
        eventfd, with_eventfd: bool = 0;
        /// It can be masked and unmasked by DEVICE_SET_IRQS.
        maskable, with_maskable: bool = 1;
        /// It masks itself when it is signalled.
        automasked, with_automasked: bool = 2;
        /// Interrupts are set up all at once: more of them need all disabled before.
        noresize, with_noresize: bool = 3;
    }
}

open_values! {
    /// Kinds of interrupts of a PCI device, as Linux's VFIO numbers them.
    pub struct IrqIndex(u32) {
        /// The legacy interrupt pin.
        INTX = 0;
        /// MSI.
        MSI = 1;
        /// MSI-X.
        MSIX = 2;
        /// The device has an uncorrectable error. QEMU stops the whole machine.
        ERR = 3;
        /// The server wants the device back.
        REQ = 4;
    }
}

impl IrqIndex {
    /// Kinds that every PCI device answers for.
    pub const COUNT: u32 = 5;
}

/// Payload of DEVICE_SET_IRQS, 20 bytes; with booleans a byte for each interrupt follows. Descriptors come beside the
/// message: one for each interrupt, or none, which takes those back that were set. The reply has no payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IrqSet {
    /// Bytes of this structure with what follows.
    pub argsz: U32,
    /// [`IrqSetFlags`].
    pub flags: U32,
    /// [`IrqIndex`].
    pub index: U32,
    /// First interrupt.
    pub start: U32,
    /// Interrupts. 0 with a start of 0, no data and the action trigger disables all.
    pub count: U32,
}

const _: () = assert!(size_of::<IrqSet>() == 20);

impl IrqSet {
    /// What to do.
    #[must_use]
    pub fn flags(&self) -> IrqSetFlags {
        IrqSetFlags(self.flags.get())
    }
}

bitfields! {
    /// One kind of data and one action.
    pub struct IrqSetFlags(u32) {
        /// No data: for every interrupt of the range.
        data_none, with_data_none: bool = 0;
        /// A boolean for each: for those that are not 0.
        data_bool, with_data_bool: bool = 1;
        /// Descriptors: signalled when the action happens.
        data_eventfd, with_data_eventfd: bool = 2;
        /// Mask.
        action_mask, with_action_mask: bool = 3;
        /// Unmask.
        action_unmask, with_action_unmask: bool = 4;
        /// Trigger.
        action_trigger, with_action_trigger: bool = 5;
    }
}

/// The data of a DEVICE_SET_IRQS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqData {
    /// None.
    None,
    /// Booleans.
    Bool,
    /// Descriptors.
    Eventfd,
}

/// The action of a DEVICE_SET_IRQS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqAction {
    /// Mask.
    Mask,
    /// Unmask.
    Unmask,
    /// Trigger, or with descriptors: set what is signalled.
    Trigger,
}

impl IrqSetFlags {
    /// Data and action, if there is exactly one of each and nothing reserved.
    #[must_use]
    pub const fn decode(self) -> Option<(IrqData, IrqAction)> {
        let data = match self.0 & 0x7 {
            0x1 => IrqData::None,
            0x2 => IrqData::Bool,
            0x4 => IrqData::Eventfd,
            _ => return None,
        };
        match self.0 >> 3 {
            0x1 => Some((data, IrqAction::Mask)),
            0x2 => Some((data, IrqAction::Unmask)),
            0x4 => Some((data, IrqAction::Trigger)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_set() {
        let bytes = b"\x14\0\0\0\x24\0\0\0\x02\0\0\0\x01\0\0\0\x03\0\0\0";
        let set = IrqSet::read_from_bytes(bytes).unwrap();
        assert_eq!((set.index.get(), set.start.get(), set.count.get()), (IrqIndex::MSIX.0, 1, 3));
        assert_eq!(set.flags().decode(), Some((IrqData::Eventfd, IrqAction::Trigger)));
    }

    #[test]
    fn flags_exclude_each_other() {
        let decodable = (0..=u16::MAX).filter(|bits| IrqSetFlags((*bits).into()).decode().is_some());
        assert_eq!(decodable.collect::<Vec<_>>(), [0x09, 0x0a, 0x0c, 0x11, 0x12, 0x14, 0x21, 0x22, 0x24]);
        assert_eq!(IrqSetFlags(0x8000_0009).decode(), None);
    }
}
