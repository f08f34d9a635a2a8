//! Namespace Management and Namespace Attachment (NVMe 2.0 §5.22, §5.23), which the physical function alone has.

use base::ledger::PAGE_SIZE;
use spec::nvme::identify::{Flbas, SIZE};
use spec::nvme::{
    CommandSetId, ControllerList, IdentifyNamespace, NSID_ALL, NamespaceAttachment,
    NamespaceAttachmentSelect, NamespaceManagement, NamespaceManagementSelect, Status, SubmissionEntry,
};
use zerocopy::{FromZeros, IntoBytes};

use super::Admin;
use crate::function::MediaKind;
use crate::nvme::command::{CommandCells, MediaWork, Next, Work};
use crate::nvme::subsystem::Namespace;
use crate::nvme::subsystem::cells::{NAMESPACES, flag};

/// NMIC: it may be attached to several controllers.
pub(super) const SHARED: u8 = 1;

impl Admin<'_> {
    pub(super) fn manage_namespace(
        &self,
        command: &CommandCells,
        entry: &SubmissionEntry,
    ) -> Result<Next, Status> {
        let management = NamespaceManagement::parse(entry);
        match management.select {
            NamespaceManagementSelect::CREATE if management.csi != CommandSetId::NVM => {
                Err(Status::IO_COMMAND_SET_NOT_SUPPORTED)
            }
            NamespaceManagementSelect::CREATE => Ok(Next::Transfer(Work::Admin, SIZE as u32)),
            NamespaceManagementSelect::DELETE if management.nsid == NSID_ALL => {
                Ok(self.delete_next(command, true))
            }
            NamespaceManagementSelect::DELETE => {
                let namespace = self.allocated(management.nsid)?;
                Ok(self.delete(command, &namespace))
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Refuses a number that no namespace has.
    fn allocated(&self, nsid: u32) -> Result<Namespace, Status> {
        if nsid == 0 || nsid > self.subsystem.last_nsid() {
            return Err(Status::INVALID_NAMESPACE_OR_FORMAT);
        }
        self.subsystem.namespace(nsid).ok_or(Status::INVALID_FIELD)
    }

    fn read_data(&self, command: &CommandCells) -> [u8; SIZE] {
        const { assert!(SIZE == PAGE_SIZE) };
        let mut data = [0; SIZE];
        self.pages.read(command.page(0), 0, &mut data);
        data
    }

    pub(super) fn create_namespace(&self, command: &CommandCells) -> Result<Next, Status> {
        let mut wanted = IdentifyNamespace::new_zeroed();
        wanted.as_mut_bytes().copy_from_slice(&self.read_data(command));
        let shift = self.format_shift(Flbas(wanted.flbas).index()).ok_or(Status::INVALID_FORMAT)?;
        if Flbas(wanted.flbas).extended_metadata() || wanted.dps != 0 || wanted.nmic & !SHARED != 0 {
            return Err(Status::INVALID_FORMAT);
        } else if wanted.nsze != wanted.ncap {
            return Err(Status::THIN_PROVISIONING_NOT_SUPPORTED);
        } else if wanted.nsze.get() == 0 || wanted.nvmsetid.get() != 0 || wanted.anagrpid.get() != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let bytes = wanted.nsze.get().checked_mul(1 << shift);
        let bytes = bytes.ok_or(Status::NAMESPACE_INSUFFICIENT_CAPACITY)?;
        let flags = if wanted.nmic & SHARED != 0 { flag::SHARED } else { 0 };
        let nsid = self.subsystem.create(bytes, shift, flags)?;
        Ok(Next::Keep(nsid))
    }

    /// Begins a deletion: when the namespace is this command's alone and the medium has no work for it, it goes.
    fn delete(&self, command: &CommandCells, namespace: &Namespace) -> Next {
        command.claim(self.journal, Work::Delete, namespace);
        Next::Media(MediaWork::new(MediaKind::Trim, namespace.start, 0))
    }

    /// The namespace was this command's alone: it goes.
    pub(crate) fn end_delete(&self, command: &CommandCells) -> Next {
        self.subsystem.remove(command.target.get().nsid);
        command.target.set(self.journal, Default::default());
        self.delete_next(command, command.entry().nsid.get() == NSID_ALL)
    }

    /// Deletes the next namespace, if all are to go, or ends the command.
    fn delete_next(&self, command: &CommandCells, all: bool) -> Next {
        let next = self.subsystem.allocated().next().filter(|_| all);
        next.map_or(Next::Keep(0), |namespace| self.delete(command, &namespace))
    }

    pub(super) fn check_attachment(&self, entry: &SubmissionEntry) -> Result<Next, Status> {
        let attachment = NamespaceAttachment::parse(entry);
        let known = [NamespaceAttachmentSelect::ATTACH, NamespaceAttachmentSelect::DETACH];
        if !known.contains(&attachment.select) {
            return Err(Status::INVALID_FIELD);
        }
        self.allocated(attachment.nsid)?;
        Ok(Next::Transfer(Work::Admin, SIZE as u32))
    }

    pub(super) fn attach_namespace(&self, command: &CommandCells) -> Result<Next, Status> {
        let NamespaceAttachment { nsid, select, .. } = NamespaceAttachment::parse(&command.entry());
        let data = self.read_data(command);
        let list = ControllerList::new(&data);
        let count = list.count();
        let ascending = list.iter().zip(list.iter().skip(1)).all(|(this, next)| this < next);
        let known = list.iter().all(|controller| controller < self.subsystem.controllers());
        if count == 0 || count > ControllerList::MAX || !ascending || !known {
            return Err(Status::CONTROLLER_LIST_INVALID);
        }
        self.allocated(nsid)?;
        if select == NamespaceAttachmentSelect::ATTACH {
            self.check_attach(nsid, &list)?;
            list.iter().for_each(|controller| self.subsystem.attach(nsid, controller));
        } else {
            if !list.iter().all(|controller| self.subsystem.is_attached(nsid, controller)) {
                return Err(Status::NAMESPACE_NOT_ATTACHED);
            }
            list.iter().for_each(|controller| self.subsystem.detach(nsid, controller));
        }
        for controller in list.iter().filter(|controller| *controller != self.index) {
            self.subsystem.note_change_for(nsid, controller);
        }
        Ok(Next::Keep(0))
    }

    fn check_attach(&self, nsid: u32, list: &ControllerList<'_>) -> Result<(), Status> {
        const { assert!(NAMESPACES <= 1024, "every list of namespaces fits into a page") };
        if list.iter().any(|controller| self.subsystem.is_attached(nsid, controller)) {
            return Err(Status::NAMESPACE_ALREADY_ATTACHED);
        }
        let shared = self.subsystem.namespace(nsid).is_some_and(|namespace| namespace.shared);
        if !shared && (list.count() > 1 || self.subsystem.attached(nsid).next().is_some()) {
            return Err(Status::NAMESPACE_IS_PRIVATE);
        }
        Ok(())
    }
}
