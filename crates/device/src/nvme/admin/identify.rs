//! Identify: what the controller, the drive and its namespaces are (NVMe 2.0 §5.17).

use spec::nvme::feature::AsyncEventConfiguration;
use spec::nvme::identify::{
    Dlfeat, Flbas, HOST_KEEPS_OFFERED, Lpa, NamespaceIdType, Nsfeat, Oacs, Oncs, SIZE, Sgls, Vwc, fill_ascii,
};
use spec::nvme::registers::Version;
use spec::nvme::{
    AdminOpcode, Cns, CommandSetId, ControllerList, Identify, IdentifyController, IdentifyNamespace,
    LbaFormat, NSID_ALL, NamespaceIdentifiers, NvmIdentifyController, NvmOpcode, Status,
};
use zerocopy::{FromZeros, IntoBytes};

use super::format::formats;
use super::namespaces::SHARED;
use super::{Admin, HostView};
use crate::nvme::cells::{ASYNC_EVENT_REQUESTS, DATA_MAX, DATA_PAGES, ERRORS};
use crate::nvme::config::WriteCache;
use crate::nvme::io::{COPY_RANGES, FUSED_MAX, copy_blocks, has_command};
use crate::nvme::subsystem::Namespace;

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
/// CMIC: there are other controllers; this one is of a virtual function.
const MANY_CONTROLLERS: u8 = 1 << 1;
const VIRTUAL_FUNCTION: u8 = 1 << 2;
/// CTRATT: host identifiers may have 16 bytes.
const LONG_HOST_IDENTIFIERS: u32 = 1;
/// FRMW: one slot, read-only.
const FIRMWARE_SLOTS: u8 = 0x3;
/// VWC: a flush may name all namespaces.
const FLUSH_ALL: u8 = 3;
/// FNA: no format of all namespaces at once.
const NO_FORMAT_OF_ALL: u8 = 1 << 3;
/// KAS: keep alive timers are kept to a tenth of a second.
const KEEP_ALIVE_GRANULARITY: u16 = 1;
/// FUSES: compare and write.
const COMPARE_AND_WRITE: u16 = 1;
/// CDFS: descriptor format 0.
const COPY_FORMATS: u16 = 1;
/// DSTO: one self-test at a time, of the whole drive.
const ONE_SELF_TEST: u8 = 1;
/// EDSTT: at least a minute, which an extended self-test never takes.
const SELF_TEST_MINUTES: u16 = 1;
/// SGLS: aligned to dwords.
const SGL_DWORDS: u8 = 2;
/// The controller gives no limit of ranges, nor of their length, but the specification's.
const DEALLOCATE_RANGES: u8 = 255;
/// DLFEAT: deallocated blocks read as nothing in particular, or as zeroes.
const READS_ANYTHING: u8 = 0;
const READS_ZEROES: u8 = 1;
/// WZSL: 32 MiB, which is all that a command can name in blocks of 512 bytes.
const ZEROES_LIMIT: u8 = 13;
/// NSATTR: write protected now.
const WRITE_PROTECTED: u8 = 1;
/// NSTAT of the I/O command set independent structure: ready.
const NAMESPACE_READY: u8 = 1;
/// Abort Command Limit, less one: an abort is over before the next is looked at.
const ABORT_LIMIT: u8 = 3;

impl Admin<'_> {
    /// Refuses what cannot be reported.
    pub(super) fn check_identify(&self, identify: &Identify) -> Result<(), Status> {
        let nsid = identify.nsid;
        let list = || if nsid >= NSID_ALL - 1 { Err(Status::INVALID_NAMESPACE_OR_FORMAT) } else { Ok(()) };
        let set = || if identify.csi == CommandSetId::NVM { Ok(()) } else { Err(Status::INVALID_FIELD) };
        let managed = || if self.subsystem.config.keeps_state { Ok(()) } else { Err(Status::INVALID_FIELD) };
        match identify.cns {
            Cns::CONTROLLER | Cns::IO_COMMAND_SETS => Ok(()),
            // What all namespaces have in common, where they can be made (NVMe 2.0 §5.17.2.1).
            Cns::NAMESPACE if nsid == NSID_ALL && self.subsystem.config.keeps_state => Ok(()),
            Cns::NAMESPACE | Cns::NAMESPACE_DESCRIPTORS | Cns::INDEPENDENT_NAMESPACE => self.check_nsid(nsid),
            Cns::ACTIVE_NAMESPACES => list(),
            Cns::IO_NAMESPACE => set().and_then(|()| self.check_nsid(nsid)),
            Cns::IO_CONTROLLER => set(),
            Cns::IO_ACTIVE_NAMESPACES => set().and_then(|()| list()),
            Cns::ALLOCATED_NAMESPACES => managed().and_then(|()| list()),
            Cns::IO_ALLOCATED_NAMESPACES => managed().and_then(|()| set()).and_then(|()| list()),
            Cns::ALLOCATED_NAMESPACE => managed().and_then(|()| self.check_nsid(nsid)),
            Cns::IO_ALLOCATED_NAMESPACE => {
                managed().and_then(|()| set()).and_then(|()| self.check_nsid(nsid))
            }
            Cns::NAMESPACE_CONTROLLERS => managed().and_then(|()| self.check_nsid(nsid)),
            Cns::SUBSYSTEM_CONTROLLERS => managed(),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Refuses a number that no namespace can have; one that a namespace could have, but has not, reads as zeroes.
    fn check_nsid(&self, nsid: u32) -> Result<(), Status> {
        let valid = (1..=self.subsystem.last_nsid()).contains(&nsid);
        if valid { Ok(()) } else { Err(Status::INVALID_NAMESPACE_OR_FORMAT) }
    }

    pub(super) fn identify(&self, identify: &Identify, host: &HostView<'_>) -> [u8; SIZE] {
        let mut data = [0; SIZE];
        let (nsid, subsystem) = (identify.nsid, &self.subsystem);
        let active = subsystem.namespace(nsid).filter(|_| subsystem.is_attached(nsid, self.index));
        match (identify.cns, active) {
            (Cns::CONTROLLER, _) => data.copy_from_slice(self.controller(host).as_bytes()),
            (Cns::NAMESPACE, None) if nsid == NSID_ALL => {
                data.copy_from_slice(self.capabilities_of_all().as_bytes());
            }
            (Cns::NAMESPACE, Some(namespace)) => data.copy_from_slice(self.namespace(&namespace).as_bytes()),
            (Cns::ALLOCATED_NAMESPACE, _) => {
                if let Some(namespace) = subsystem.namespace(nsid) {
                    data.copy_from_slice(self.namespace(&namespace).as_bytes());
                }
            }
            (Cns::ACTIVE_NAMESPACES | Cns::IO_ACTIVE_NAMESPACES, _) => {
                list(&mut data, nsid, |nsid| subsystem.is_attached(nsid, self.index), subsystem.allocated());
            }
            (Cns::ALLOCATED_NAMESPACES | Cns::IO_ALLOCATED_NAMESPACES, _) => {
                list(&mut data, nsid, |_| true, subsystem.allocated());
            }
            (Cns::NAMESPACE_CONTROLLERS, _) => {
                data = ControllerList::encode(subsystem.attached(nsid).filter(|id| *id >= identify.cntid));
            }
            (Cns::SUBSYSTEM_CONTROLLERS, _) => {
                data = ControllerList::encode(identify.cntid..subsystem.controllers());
            }
            (Cns::NAMESPACE_DESCRIPTORS, Some(namespace)) => data = self.descriptors(&namespace),
            // No vendor, protection or storage tags: the NVM command set's part of a namespace is zero.
            (Cns::IO_CONTROLLER, _) => {
                let mut controller = NvmIdentifyController::new_zeroed();
                controller.dmrl = DEALLOCATE_RANGES;
                controller.wzsl = ZEROES_LIMIT;
                data.copy_from_slice(controller.as_bytes());
            }
            (Cns::INDEPENDENT_NAMESPACE, Some(namespace)) => {
                // NMIC, NSATTR and NSTAT (NVMe 2.0 §5.17.2.8).
                data[1] = if namespace.shared { SHARED } else { 0 };
                data[4] = if namespace.read_only { WRITE_PROTECTED } else { 0 };
                data[14] = NAMESPACE_READY;
            }
            // One combination, of the NVM command set alone.
            (Cns::IO_COMMAND_SETS, _) => data[0] = 1,
            _ => {}
        }
        data
    }

    fn descriptors(&self, namespace: &Namespace) -> [u8; SIZE] {
        let (nguid, eui64) = (self.subsystem.nguid(namespace.serial), self.subsystem.eui64(namespace.serial));
        let (uuid, csi) = (self.subsystem.uuid(namespace.serial), [CommandSetId::NVM.0]);
        let mut descriptors = vec![
            (NamespaceIdType::NGUID, &nguid[..]),
            (NamespaceIdType::UUID, &uuid[..]),
            (NamespaceIdType::CSI, &csi[..]),
        ];
        if let Some(eui64) = &eui64 {
            descriptors.insert(0, (NamespaceIdType::EUI64, &eui64[..]));
        }
        NamespaceIdentifiers::encode(&descriptors).unwrap_or([0; SIZE])
    }

    fn controller(&self, host: &HostView<'_>) -> IdentifyController {
        let mut data = IdentifyController::new_zeroed();
        let ids = host.config_space.read(pcie::spec::header::ID);
        let subsystem = host.config_space.read(pcie::spec::header::SUBSYSTEM);
        data.vid = (ids as u16).into();
        data.ssvid = (subsystem as u16).into();
        fill_ascii(&mut data.sn, &format!("{:016x}", self.subsystem.config.shown_id()));
        fill_ascii(&mut data.mn, &self.subsystem.config.model);
        fill_ascii(&mut data.fr, &self.subsystem.config.firmware);
        let many = if self.subsystem.controllers() > 1 { MANY_CONTROLLERS } else { 0 };
        data.cmic = many | if self.index > 0 { VIRTUAL_FUNCTION } else { 0 };
        data.mdts = DATA_PAGES.ilog2() as u8;
        data.cntlid = self.index.into();
        data.ver = Version::V2_0.0.into();
        data.rtd3e = SHUTDOWN_LATENCY_US.into();
        data.oaes = AsyncEventConfiguration(0).with_namespace_attribute(true).0.into();
        data.ctratt = LONG_HOST_IDENTIFIERS.into();
        data.cntrltype = IO_CONTROLLER;
        data.oacs = Oacs(0)
            .with_format(self.has_command(AdminOpcode::FORMAT_NVM))
            .with_namespace_management(self.manages_namespaces())
            .with_self_test(true)
            .with_doorbell_buffer(self.subsystem.config.doorbell_buffer)
            .0
            .into();
        data.acl = ABORT_LIMIT;
        data.aerl = (ASYNC_EVENT_REQUESTS - 1) as u8;
        data.frmw = FIRMWARE_SLOTS;
        data.lpa = Lpa(0).with_command_effects(true).with_extended_data(true).with_supported_pages(true).0;
        data.elpe = (ERRORS - 1) as u8;
        data.wctemp = WARNING_TEMPERATURE.into();
        data.cctemp = CRITICAL_TEMPERATURE.into();
        data.edstt = SELF_TEST_MINUTES.into();
        data.dsto = ONE_SELF_TEST;
        data.kas = KEEP_ALIVE_GRANULARITY.into();
        if self.subsystem.config.keeps_state {
            data.tnvmcap = u128::from(self.subsystem.cells.capacity.get()).into();
            data.unvmcap = u128::from(self.subsystem.unallocated()).into();
        }
        self.fill_io_abilities(&mut data, host);
        let name = format!("nqn.2026-01.io.causeway:{:016x}", self.subsystem.config.shown_id());
        data.subnqn[..name.len()].copy_from_slice(name.as_bytes());
        data
    }

    fn fill_io_abilities(&self, data: &mut IdentifyController, host: &HostView<'_>) {
        data.sqes = SQES;
        data.cqes = CQES;
        data.nn = self.subsystem.last_nsid().into();
        data.mnan = self.subsystem.last_nsid().into();
        data.oncs = Oncs(0)
            .with_compare(true)
            .with_write_uncorrectable(has_command(NvmOpcode::WRITE_UNCORRECTABLE, &self.subsystem))
            .with_dataset_management(true)
            .with_write_zeroes(true)
            .with_save_features(self.subsystem.config.keeps_state)
            .with_timestamp(true)
            .with_verify(true)
            .with_copy(true)
            .0
            .into();
        data.fuses = COMPARE_AND_WRITE.into();
        data.fna = NO_FORMAT_OF_ALL;
        data.vwc = Vwc(0).with_present(host.registers.shows_cache()).with_flush_all(FLUSH_ALL).0;
        if self.subsystem.config.cache == WriteCache::Hidden {
            data.vendor[..HOST_KEEPS_OFFERED.len()].copy_from_slice(&HOST_KEEPS_OFFERED);
        }
        // In blocks of the smallest size, less one; namespaces tell their own.
        data.acwu = 0.into();
        data.cdfs = COPY_FORMATS.into();
        data.sgls = Sgls(0).with_support(SGL_DWORDS).with_longer(true).0.into();
    }

    /// The format of blocks of `1 << shift` bytes.
    fn format_index(&self, shift: u32) -> usize {
        let formats = formats(&self.subsystem.config);
        formats.iter().position(|format| u32::from(*format) == shift).unwrap_or(0)
    }

    fn capabilities_of_all(&self) -> IdentifyNamespace {
        let mut data = IdentifyNamespace::new_zeroed();
        data.nlbaf = formats(&self.subsystem.config).len() as u8 - 1;
        for (format, shift) in data.lbaf.iter_mut().zip(formats(&self.subsystem.config)) {
            *format = LbaFormat { lbads: *shift, ..LbaFormat::default() };
        }
        data.nmic = SHARED;
        let read = if self.subsystem.config.zeroes_deallocated { READS_ZEROES } else { READS_ANYTHING };
        data.dlfeat = Dlfeat(0).with_read(read).with_write_zeroes(true).0;
        data
    }

    fn namespace(&self, namespace: &Namespace) -> IdentifyNamespace {
        let mut data = self.capabilities_of_all();
        data.flbas = Flbas(0).with_index_low(self.format_index(namespace.shift) as u8).0;
        for blocks in [&mut data.nsze, &mut data.ncap, &mut data.nuse] {
            *blocks = namespace.blocks().into();
        }
        data.nvmcap = u128::from(namespace.bytes).into();
        data.nsfeat = Nsfeat(0).with_nsabp(true).with_uidreuse(true).0;
        data.nmic = if namespace.shared { SHARED } else { 0 };
        data.nacwu = ((FUSED_MAX >> namespace.shift) as u16 - 1).into();
        let most = copy_blocks(namespace.shift);
        data.mssrl = (most as u16).into();
        data.mcl = most.into();
        data.msrc = (COPY_RANGES - 1) as u8;
        data.nsattr = if namespace.read_only { WRITE_PROTECTED } else { 0 };
        data.nguid = self.subsystem.nguid(namespace.serial);
        data.eui64 = self.subsystem.eui64(namespace.serial).unwrap_or_default();
        data
    }
}

/// Writes the numbers above `above` of those namespaces that `wanted` names.
fn list(
    data: &mut [u8; SIZE],
    above: u32,
    wanted: impl Fn(u32) -> bool,
    namespaces: impl Iterator<Item = Namespace>,
) {
    let numbers = namespaces.map(|namespace| namespace.nsid).filter(|nsid| *nsid > above && wanted(*nsid));
    for (place, nsid) in data.chunks_exact_mut(4).zip(numbers) {
        place.copy_from_slice(&nsid.to_le_bytes());
    }
}

const _: () = assert!(COPY_RANGES <= 256 && DATA_MAX >> 9 <= u16::MAX as u32);
