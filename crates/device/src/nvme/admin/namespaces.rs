//! Namespace Management and Namespace Attachment (NVMe 2.0 §5.22, §5.23), which the physical function alone has.

use base::ledger::PAGE_SIZE;
use spec::nvme::identify::{Flbas, SIZE};
use spec::nvme::{
    CommandSetId, ControllerList, IdentifyNamespace, NSID_ALL, NamespaceAttachment,
    NamespaceAttachmentSelect, NamespaceManagement, NamespaceManagementSelect, Status, SubmissionEntry,
};
use zerocopy::{FromZeros, IntoBytes};

use crate::function::MediaKind;
use crate::nvme::Controller;
use crate::nvme::command::{Target, Work};
use crate::nvme::subsystem::cells::{NAMESPACES, flag};

/// NMIC: it may be attached to several controllers.
pub(super) const SHARED: u8 = 1;

impl Controller<'_> {
    pub(super) fn manage_namespace(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<(), Status> {
        let command = NamespaceManagement::parse(entry);
        match command.select {
            NamespaceManagementSelect::CREATE if command.csi != CommandSetId::NVM => {
                Err(Status::IO_COMMAND_SET_NOT_SUPPORTED)
            }
            NamespaceManagementSelect::CREATE => self.begin_transfer(slot, Work::Admin, SIZE as u32),
            NamespaceManagementSelect::DELETE if command.nsid == NSID_ALL => {
                self.delete_next(slot, true);
                Ok(())
            }
            NamespaceManagementSelect::DELETE => {
                self.check_allocated(command.nsid)?;
                self.begin_delete(slot, command.nsid);
                Ok(())
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Refuses a number that no namespace has.
    pub(super) fn check_allocated(&self, nsid: u32) -> Result<(), Status> {
        if nsid == 0 || nsid > self.subsystem.last_nsid() {
            return Err(Status::INVALID_NAMESPACE_OR_FORMAT);
        }
        self.subsystem.namespace(nsid).map(|_| ()).ok_or(Status::INVALID_FIELD)
    }

    fn read_data(&self, slot: u16) -> [u8; SIZE] {
        const { assert!(SIZE == PAGE_SIZE) };
        let mut data = [0; SIZE];
        self.pages.read(self.command(slot).page(0), 0, &mut data);
        data
    }

    pub(super) fn create_namespace(&mut self, slot: u16) -> Result<(), Status> {
        let mut wanted = IdentifyNamespace::new_zeroed();
        wanted.as_mut_bytes().copy_from_slice(&self.read_data(slot));
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
        self.complete_kept(slot, nsid);
        Ok(())
    }

    /// Begins a deletion: when the namespace is this command's alone and the medium has no work for it, it goes.
    fn begin_delete(&mut self, slot: u16, nsid: u32) {
        let Some(namespace) = self.subsystem.namespace(nsid) else {
            return self.complete(slot, 0, Status::INVALID_FIELD.with_dnr());
        };
        let command = self.command(slot);
        self.set_work(slot, Work::Delete);
        command.target.set(self.journal, Target { nsid, ..Target::default() });
        command.epoch.set(self.journal, namespace.epoch);
        command.exclusive.set(self.journal, 1);
        self.begin_media(slot, MediaKind::Trim, namespace.start, 0);
    }

    /// The namespace is this command's alone.
    pub(crate) fn finish_delete(&mut self, slot: u16) {
        let command = self.command(slot);
        let nsid = command.target.get().nsid;
        self.gate.release(slot, command);
        self.subsystem.remove(nsid);
        command.target.set(self.journal, Target::default());
        let all = command.entry().nsid.get() == NSID_ALL;
        self.delete_next(slot, all);
    }

    /// Deletes the next namespace, if all are to go, or ends the command.
    fn delete_next(&mut self, slot: u16, all: bool) {
        let next = self.subsystem.allocated().next().filter(|_| all);
        match next {
            Some(namespace) => self.begin_delete(slot, namespace.nsid),
            None => self.complete_kept(slot, 0),
        }
    }

    pub(super) fn begin_attachment(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<(), Status> {
        let command = NamespaceAttachment::parse(entry);
        let known = [NamespaceAttachmentSelect::ATTACH, NamespaceAttachmentSelect::DETACH];
        if !known.contains(&command.select) {
            return Err(Status::INVALID_FIELD);
        }
        self.check_allocated(command.nsid)?;
        self.begin_transfer(slot, Work::Admin, SIZE as u32)
    }

    pub(super) fn attach_namespace(
        &mut self,
        slot: u16,
        command: &NamespaceAttachment,
    ) -> Result<(), Status> {
        let data = self.read_data(slot);
        let list = ControllerList::new(&data);
        let count = list.count();
        let ascending = list.iter().zip(list.iter().skip(1)).all(|(this, next)| this < next);
        let known = list.iter().all(|controller| controller < self.subsystem.controllers());
        if count == 0 || count > ControllerList::MAX || !ascending || !known {
            return Err(Status::CONTROLLER_LIST_INVALID);
        }
        self.check_allocated(command.nsid)?;
        let nsid = command.nsid;
        if command.select == NamespaceAttachmentSelect::ATTACH {
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
        self.complete_kept(slot, 0);
        Ok(())
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
