//! Identify: what the controller and its namespace are (NVMe 2.0 §5.17).

use base::ledger::PAGE_SIZE;
use spec::nvme::identify::{Flbas, Lpa, NamespaceIdType, Oncs, SIZE, Vwc, fill_ascii};
use spec::nvme::registers::Version;
use spec::nvme::{
    AdminOpcode, Cns, CommandSetId, GetLogPage, Identify, IdentifyController, IdentifyNamespace, LbaFormat,
    NSID_ALL, NamespaceIdentifiers, NvmIdentifyController, Status,
};
use zerocopy::{FromZeros, IntoBytes};

use super::Controller;
use super::cells::{ASYNC_EVENT_REQUESTS, DATA_PAGES};
use super::command::Event;
use super::io_commands::NAMESPACE;

/// Required and maximum entry sizes, as powers of two.
const SQES: u8 = 0x66;
const CQES: u8 = 0x44;
/// Longest shutdown that a host should wait for, in µs.
const SHUTDOWN_LATENCY_US: u32 = 10_000_000;
/// Kelvins at which a real drive would warn and stop; drivers expect some.
const WARNING_TEMPERATURE: u16 = 343;
const CRITICAL_TEMPERATURE: u16 = 353;
/// CNTRLTYPE of an I/O controller.
const IO_CONTROLLER: u8 = 1;
/// FRMW: one slot, read-only.
const FIRMWARE_SLOTS: u8 = 0x3;
/// VWC: a flush may name all namespaces.
const FLUSH_ALL: u8 = 3;
/// The controller gives no limit of ranges, nor of their length, but the specification's.
const DEALLOCATE_RANGES: u8 = 255;
/// NSATTR: write protected now.
const WRITE_PROTECTED: u8 = 1;
/// NSTAT of the I/O command set independent structure: ready.
const NAMESPACE_READY: u8 = 1;

impl Controller<'_> {
    /// Refuses what cannot be reported.
    pub(super) fn check_identify(&self, identify: &Identify) -> Result<(), Status> {
        let nsid = identify.nsid;
        let namespace = || match nsid {
            NAMESPACE => Ok(()),
            _ => Err(Status::INVALID_NAMESPACE_OR_FORMAT),
        };
        let list = || if nsid >= NSID_ALL - 1 { Err(Status::INVALID_NAMESPACE_OR_FORMAT) } else { Ok(()) };
        let set = || if identify.csi == CommandSetId::NVM { Ok(()) } else { Err(Status::INVALID_FIELD) };
        match identify.cns {
            Cns::CONTROLLER => Ok(()),
            Cns::NAMESPACE | Cns::NAMESPACE_DESCRIPTORS | Cns::INDEPENDENT_NAMESPACE => namespace(),
            Cns::ACTIVE_NAMESPACES => list(),
            Cns::IO_NAMESPACE => set().and_then(|()| namespace()),
            Cns::IO_CONTROLLER => set(),
            Cns::IO_ACTIVE_NAMESPACES => set().and_then(|()| list()),
            Cns::IO_COMMAND_SETS => Ok(()),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Makes the data of an Identify or Get Log Page, whose arguments were checked and whose pages are there.
    pub(super) fn fill_report(&mut self, slot: u16) {
        let entry = self.command(slot).entry();
        if entry.admin_opcode() == AdminOpcode::IDENTIFY {
            let data = self.identify(&Identify::parse(&entry));
            self.write_pages(slot, 0, &data);
        } else {
            let log = GetLogPage::parse(&entry);
            let page = self.log_page(log.lid);
            let len = self.command(slot).counts.get().len as usize;
            let offset = usize::try_from(log.offset).unwrap_or(usize::MAX).min(page.len());
            let part = &page[offset..page.len().min(offset.saturating_add(len))];
            self.write_pages(slot, 0, part);
            // What lies behind the end of the page is zero.
            for position in (part.len()..len).step_by(PAGE_SIZE) {
                self.write_pages(slot, position, &[0; PAGE_SIZE][..(len - position).min(PAGE_SIZE)]);
            }
            self.note_log_read(&log);
        }
        self.step(slot, Event::HaveData);
    }

    fn identify(&self, identify: &Identify) -> [u8; SIZE] {
        let mut data = [0; SIZE];
        match identify.cns {
            Cns::CONTROLLER => data.copy_from_slice(self.controller().as_bytes()),
            Cns::NAMESPACE => data.copy_from_slice(self.namespace().as_bytes()),
            Cns::ACTIVE_NAMESPACES | Cns::IO_ACTIVE_NAMESPACES if identify.nsid < NAMESPACE => {
                data[..4].copy_from_slice(&NAMESPACE.to_le_bytes());
            }
            Cns::NAMESPACE_DESCRIPTORS => {
                let id = self.config.unique_id.to_be_bytes();
                let descriptors =
                    [(NamespaceIdType::EUI64, &id[..]), (NamespaceIdType::CSI, &[CommandSetId::NVM.0])];
                data = NamespaceIdentifiers::encode(&descriptors).unwrap_or(data);
            }
            // No vendor, protection or storage tags: the NVM command set's part of a namespace is zero.
            Cns::IO_CONTROLLER => {
                let mut controller = NvmIdentifyController::new_zeroed();
                controller.dmrl = DEALLOCATE_RANGES;
                data.copy_from_slice(controller.as_bytes());
            }
            Cns::INDEPENDENT_NAMESPACE => {
                // NSATTR and NSTAT (NVMe 2.0 §5.17.2.8).
                data[4] = if self.config.read_only { WRITE_PROTECTED } else { 0 };
                data[14] = NAMESPACE_READY;
            }
            // One combination, of the NVM command set alone.
            Cns::IO_COMMAND_SETS => data[0] = 1,
            _ => {}
        }
        data
    }

    fn controller(&self) -> IdentifyController {
        let mut data = IdentifyController::new_zeroed();
        let ids = self.read_config(pcie::spec::header::ID);
        let subsystem = self.read_config(pcie::spec::header::SUBSYSTEM);
        data.vid = (ids as u16).into();
        data.ssvid = (subsystem as u16).into();
        fill_ascii(&mut data.sn, &self.config.serial);
        fill_ascii(&mut data.mn, &self.config.model);
        fill_ascii(&mut data.fr, &self.config.firmware);
        data.mdts = DATA_PAGES.ilog2() as u8;
        data.ver = Version::V2_0.0.into();
        data.rtd3e = SHUTDOWN_LATENCY_US.into();
        data.cntrltype = IO_CONTROLLER;
        data.aerl = (ASYNC_EVENT_REQUESTS - 1) as u8;
        data.frmw = FIRMWARE_SLOTS;
        data.lpa = Lpa(0).with_command_effects(true).with_extended_data(true).with_supported_pages(true).0;
        data.wctemp = WARNING_TEMPERATURE.into();
        data.cctemp = CRITICAL_TEMPERATURE.into();
        data.sqes = SQES;
        data.cqes = CQES;
        data.nn = NAMESPACE.into();
        data.mnan = NAMESPACE.into();
        data.oncs = Oncs(0).with_dataset_management(true).with_write_zeroes(true).0.into();
        data.vwc = Vwc(0).with_present(self.config.volatile_cache).with_flush_all(FLUSH_ALL).0;
        let name = format!("nqn.2026-01.io.causeway:{:016x}", self.config.unique_id);
        data.subnqn[..name.len()].copy_from_slice(name.as_bytes());
        data
    }

    fn namespace(&self) -> IdentifyNamespace {
        let mut data = IdentifyNamespace::new_zeroed();
        data.flbas = Flbas(0).0;
        data.lbaf[0] = LbaFormat { lbads: self.config.block_shift() as u8, ..LbaFormat::default() };
        for blocks in [&mut data.nsze, &mut data.ncap, &mut data.nuse] {
            *blocks = self.config.blocks.into();
        }
        data.nsattr = if self.config.read_only { WRITE_PROTECTED } else { 0 };
        data.eui64 = self.config.unique_id.to_be_bytes();
        data
    }
}
