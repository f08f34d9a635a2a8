//! Namespace Management and Attachment, and the controller list (NVMe 2.0 §5.22, §5.23, §4.4.1).

use super::command::{AdminOpcode, SubmissionEntry};
use super::identify::{CommandSetId, SIZE};
use crate::fields::open_values;

open_values! {
    /// Select (SEL) of Namespace Management.
    pub struct NamespaceManagementSelect(u8) {
        /// Create; the data are as an Identify Namespace.
        CREATE = 0;
        /// Delete.
        DELETE = 1;
    }
}

open_values! {
    /// Select (SEL) of Namespace Attachment.
    pub struct NamespaceAttachmentSelect(u8) {
        /// Controller Attach.
        ATTACH = 0;
        /// Controller Detach.
        DETACH = 1;
    }
}

/// Namespace Management (NVMe 2.0 §5.23). The identifier of a created namespace returns in the completion's dword 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceManagement {
    /// What to do.
    pub select: NamespaceManagementSelect,
    /// The namespace to delete; 0 where one is created.
    pub nsid: u32,
    /// Command set of the new namespace.
    pub csi: CommandSetId,
}

impl NamespaceManagement {
    /// Reads the command.
    #[must_use]
    pub fn parse(entry: &SubmissionEntry) -> Self {
        Self {
            select: NamespaceManagementSelect(entry.cdw10.get() as u8 & 0xf),
            nsid: entry.nsid.get(),
            csi: CommandSetId((entry.cdw11.get() >> 24) as u8),
        }
    }

    /// Builds the command, without its data pointer.
    #[must_use]
    pub fn entry(&self, cid: u16) -> SubmissionEntry {
        let mut entry = SubmissionEntry::admin(AdminOpcode::NAMESPACE_MANAGEMENT, cid, self.nsid);
        entry.cdw10 = u32::from(self.select.0 & 0xf).into();
        entry.cdw11 = (u32::from(self.csi.0) << 24).into();
        entry
    }
}

/// Namespace Attachment (NVMe 2.0 §5.22). The data are a [`ControllerList`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceAttachment {
    /// What to do.
    pub select: NamespaceAttachmentSelect,
    /// The namespace.
    pub nsid: u32,
}

impl NamespaceAttachment {
    /// Reads the command.
    #[must_use]
    pub fn parse(entry: &SubmissionEntry) -> Self {
        Self { select: NamespaceAttachmentSelect(entry.cdw10.get() as u8 & 0xf), nsid: entry.nsid.get() }
    }

    /// Builds the command, without its data pointer.
    #[must_use]
    pub fn entry(&self, cid: u16) -> SubmissionEntry {
        let mut entry = SubmissionEntry::admin(AdminOpcode::NAMESPACE_ATTACHMENT, cid, self.nsid);
        entry.cdw10 = u32::from(self.select.0 & 0xf).into();
        entry
    }
}

/// A controller list: a count and up to 2047 identifiers in ascending order, 16 bits each.
#[derive(Clone, Copy, Debug)]
pub struct ControllerList<'a>(&'a [u8; SIZE]);

impl<'a> ControllerList<'a> {
    /// Most identifiers.
    pub const MAX: usize = SIZE / 2 - 1;

    /// Reads a list.
    #[must_use]
    pub fn new(bytes: &'a [u8; SIZE]) -> Self {
        Self(bytes)
    }

    /// Writes a list. Those behind the most a list can have are left out.
    #[must_use]
    pub fn encode(controllers: impl Iterator<Item = u16>) -> [u8; SIZE] {
        let mut list = [0; SIZE];
        let mut count = 0_u16;
        for controller in controllers.take(Self::MAX) {
            count += 1;
            let at = usize::from(count) * 2;
            list[at..at + 2].copy_from_slice(&controller.to_le_bytes());
        }
        list[..2].copy_from_slice(&count.to_le_bytes());
        list
    }

    /// How many identifiers it claims to have; more than [`Self::MAX`] is not valid.
    #[must_use]
    pub fn count(&self) -> usize {
        usize::from(self.word(0))
    }

    /// The identifiers.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (1..=self.count().min(Self::MAX)).map(|place| self.word(place))
    }

    fn word(&self, place: usize) -> u16 {
        u16::from_le_bytes([self.0[place * 2], self.0[place * 2 + 1]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_commands_and_list() {
        let select = NamespaceManagementSelect::DELETE;
        let entry = NamespaceManagement { select, nsid: 3, csi: CommandSetId::NVM }.entry(1);
        assert_eq!((entry.opcode, entry.cdw10.get(), entry.nsid.get()), (0x0d, 1, 3));
        let detach = NamespaceAttachment { select: NamespaceAttachmentSelect::DETACH, nsid: 3 };
        assert_eq!(NamespaceAttachment::parse(&detach.entry(2)), detach);
        let list = ControllerList::encode([1, 0x203].into_iter());
        assert_eq!(list[..6], [2, 0, 1, 0, 3, 2]);
        assert_eq!(ControllerList::new(&list).iter().collect::<Vec<_>>(), [1, 0x203]);
        assert_eq!(ControllerList::new(&[0xff; SIZE]).iter().count(), ControllerList::MAX);
    }
}
