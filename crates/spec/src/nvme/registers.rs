//! Controller properties in the function's first memory space (NVMe 2.0 §3.1.3) and the doorbells behind them
//! (NVMe PCIe 1.0 §3.1.2).

use crate::fields::{bitfields, open_values};

/// Controller Capabilities, 64 bits: [`Cap`].
pub const CAP: u64 = 0x00;
/// Version, 32 bits: [`Version`].
pub const VS: u64 = 0x08;
/// Interrupt Mask Set, 32 bits. Undefined when MSI-X is enabled.
pub const INTMS: u64 = 0x0c;
/// Interrupt Mask Clear, 32 bits. Undefined when MSI-X is enabled.
pub const INTMC: u64 = 0x10;
/// Controller Configuration, 32 bits: [`Cc`].
pub const CC: u64 = 0x14;
/// Controller Status, 32 bits: [`Csts`].
pub const CSTS: u64 = 0x1c;
/// NVM Subsystem Reset, 32 bits: acts when [`NSSR_MAGIC`] is written.
pub const NSSR: u64 = 0x20;
/// Admin Queue Attributes, 32 bits: [`Aqa`].
pub const AQA: u64 = 0x24;
/// Admin Submission Queue Base Address, 64 bits; bits 11:0 are reserved.
pub const ASQ: u64 = 0x28;
/// Admin Completion Queue Base Address, 64 bits; bits 11:0 are reserved.
pub const ACQ: u64 = 0x30;
/// Controller Memory Buffer Location, 32 bits: [`CmbLoc`].
pub const CMBLOC: u64 = 0x38;
/// Controller Memory Buffer Size, 32 bits: [`CmbSz`].
pub const CMBSZ: u64 = 0x3c;
/// Boot Partition Information, 32 bits.
pub const BPINFO: u64 = 0x40;
/// Boot Partition Read Select, 32 bits.
pub const BPRSEL: u64 = 0x44;
/// Boot Partition Memory Buffer Location, 64 bits.
pub const BPMBL: u64 = 0x48;
/// Controller Memory Buffer Memory Space Control, 64 bits: [`CmbMsc`].
pub const CMBMSC: u64 = 0x50;
/// Controller Memory Buffer Status, 32 bits: [`CmbSts`].
pub const CMBSTS: u64 = 0x58;
/// Controller Memory Buffer Elasticity Buffer Size, 32 bits.
pub const CMBEBS: u64 = 0x5c;
/// Controller Memory Buffer Sustained Write Throughput, 32 bits.
pub const CMBSWTP: u64 = 0x60;
/// NVM Subsystem Shutdown, 32 bits: [`NSSD_NORMAL`] or [`NSSD_ABRUPT`] start it.
pub const NSSD: u64 = 0x64;
/// Controller Ready Timeouts, 32 bits: [`Crto`].
pub const CRTO: u64 = 0x68;
/// Persistent Memory Region Capabilities, 32 bits.
pub const PMRCAP: u64 = 0xe00;
/// Persistent Memory Region Control, 32 bits.
pub const PMRCTL: u64 = 0xe04;
/// Persistent Memory Region Status, 32 bits.
pub const PMRSTS: u64 = 0xe08;
/// Persistent Memory Region Elasticity Buffer Size, 32 bits.
pub const PMREBS: u64 = 0xe0c;
/// Persistent Memory Region Sustained Write Throughput, 32 bits.
pub const PMRSWTP: u64 = 0xe10;
/// Persistent Memory Region Memory Space Control Lower, 32 bits.
pub const PMRMSCL: u64 = 0xe14;
/// Persistent Memory Region Memory Space Control Upper, 32 bits.
pub const PMRMSCU: u64 = 0xe18;
/// The first doorbell: the tail of the admin submission queue.
pub const DOORBELLS: u64 = 0x1000;

/// Host Keeps, 32 bits, vendor specific, behind all doorbells: bit 0 says that the host keeps what it has written until
/// it is flushed, and writes it again to a controller that was reset. A controller that offers it
/// ([`super::identify::HOST_KEEPS_OFFERED`]) has a volatile write cache for such a host. A controller level reset
/// clears it.
pub const HOST_KEEPS: u64 = 0x2000;

/// The value that resets the NVM subsystem when written to [`NSSR`]: `NVMe` in ASCII.
pub const NSSR_MAGIC: u32 = 0x4e56_4d65;
/// Written to [`NSSD`]: normal shutdown of the NVM subsystem, `Nrml` in ASCII.
pub const NSSD_NORMAL: u32 = 0x4e72_6d6c;
/// Written to [`NSSD`]: abrupt shutdown of the NVM subsystem, `Abrt` in ASCII.
pub const NSSD_ABRUPT: u32 = 0x4162_7274;

/// The offset of a queue's doorbell: the tail of submission queue `queue`, or with `is_cq` the head of completion
/// queue `queue`. `dstrd` is [`Cap::dstrd`]; only its four bits count.
#[must_use]
pub const fn doorbell(queue: u16, is_cq: bool, dstrd: u8) -> u64 {
    // `From` is not const; both casts widen.
    #[allow(clippy::cast_lossless)]
    let index = 2 * queue as u64 + is_cq as u64;
    DOORBELLS + index * doorbell_stride(dstrd)
}

/// The inverse of [`doorbell`]: the queue and whether its completion side is meant; `None` where no doorbell begins.
#[must_use]
pub const fn doorbell_queue(offset: u64, dstrd: u8) -> Option<(u16, bool)> {
    let Some(distance) = offset.checked_sub(DOORBELLS) else { return None };
    let stride = doorbell_stride(dstrd);
    let index = distance / stride;
    if !distance.is_multiple_of(stride) || index > 0x1_ffff {
        return None;
    }
    Some(((index / 2) as u16, index % 2 == 1))
}

const fn doorbell_stride(dstrd: u8) -> u64 {
    4 << (dstrd & 0xf)
}

bitfields! {
    /// Controller Capabilities (NVMe 2.0 §3.1.3.1).
    pub struct Cap(u64) {
        /// Maximum Queue Entries Supported, less one. At least 1.
        mqes, with_mqes: u16 = 15:0;
        /// Contiguous Queues Required.
        cqr, with_cqr: bool = 16;
        /// Weighted Round Robin with Urgent Priority Class arbitration is supported.
        ams_weighted, with_ams_weighted: bool = 17;
        /// A vendor specific arbitration is supported.
        ams_vendor, with_ams_vendor: bool = 18;
        /// Timeout: the longest the host waits for `CSTS.RDY` to follow `CC.EN`, in units of 500 ms.
        to, with_to: u8 = 31:24;
        /// Doorbell Stride: 2^(2 + DSTRD) bytes.
        dstrd, with_dstrd: u8 = 35:32;
        /// NVM Subsystem Reset Supported.
        nssrs, with_nssrs: bool = 36;
        /// The NVM command set is supported.
        css_nvm, with_css_nvm: bool = 37;
        /// One or more I/O command sets are selected by the I/O Command Set profile.
        css_iocs, with_css_iocs: bool = 43;
        /// No I/O command set: admin commands only.
        css_none, with_css_none: bool = 44;
        /// Boot Partition Support.
        bps, with_bps: bool = 45;
        /// Controller Power Scope: 0 not reported, 1 controller, 2 domain, 3 NVM subsystem.
        cps, with_cps: u8 = 47:46;
        /// Memory Page Size Minimum: 2^(12 + MPSMIN) bytes.
        mpsmin, with_mpsmin: u8 = 51:48;
        /// Memory Page Size Maximum: 2^(12 + MPSMAX) bytes.
        mpsmax, with_mpsmax: u8 = 55:52;
        /// Persistent Memory Region Supported.
        pmrs, with_pmrs: bool = 56;
        /// Controller Memory Buffer Supported: CMBLOC and CMBSZ may be enabled by CMBMSC.
        cmbs, with_cmbs: bool = 57;
        /// NVM Subsystem Shutdown Supported.
        nsss, with_nsss: bool = 58;
        /// Controller Ready With Media Support.
        crwms, with_crwms: bool = 59;
        /// Controller Ready Independent of Media Support.
        crims, with_crims: bool = 60;
    }
}

bitfields! {
    /// Version of the specification the controller complies with (NVMe 2.0 §3.1.3.2).
    pub struct Version(u32) {
        /// Tertiary version number.
        tertiary, with_tertiary: u8 = 7:0;
        /// Minor version number.
        minor, with_minor: u8 = 15:8;
        /// Major version number.
        major, with_major: u16 = 31:16;
    }
}

impl Version {
    /// NVMe 1.4.
    pub const V1_4: Self = Self(0x0001_0400);
    /// NVMe 2.0.
    pub const V2_0: Self = Self(0x0002_0000);
}

bitfields! {
    /// Controller Configuration (NVMe 2.0 §3.1.3.5).
    pub struct Cc(u32) {
        /// Enable. The transition from set to cleared is a Controller Reset.
        en, with_en: bool = 0;
        /// I/O Command Set Selected: a [`CommandSetSelected`] code.
        css, with_css: u8 = 6:4;
        /// Memory Page Size: 2^(12 + MPS) bytes.
        mps, with_mps: u8 = 10:7;
        /// Arbitration Mechanism Selected: an [`ArbitrationMechanism`] code.
        ams, with_ams: u8 = 13:11;
        /// Shutdown Notification: a [`ShutdownNotification`] code.
        shn, with_shn: u8 = 15:14;
        /// I/O Submission Queue Entry Size: 2^IOSQES bytes.
        iosqes, with_iosqes: u8 = 19:16;
        /// I/O Completion Queue Entry Size: 2^IOCQES bytes.
        iocqes, with_iocqes: u8 = 23:20;
        /// Controller Ready Independent of Media Enable.
        crime, with_crime: bool = 24;
    }
}

impl Cc {
    /// Memory page size in bytes, 4 KiB to 128 MiB.
    #[must_use]
    pub const fn page_size(self) -> u64 {
        4096 << self.mps()
    }
}

open_values! {
    /// Values of [`Cc::css`].
    pub struct CommandSetSelected(u8) {
        /// NVM command set.
        NVM = 0;
        /// All supported I/O command sets of the I/O Command Set profile.
        ALL = 6;
        /// Admin command set only.
        ADMIN_ONLY = 7;
    }
}

open_values! {
    /// Values of [`Cc::ams`].
    pub struct ArbitrationMechanism(u8) {
        /// Round robin.
        ROUND_ROBIN = 0;
        /// Weighted round robin with urgent priority class.
        WEIGHTED_ROUND_ROBIN = 1;
        /// Vendor specific.
        VENDOR = 7;
    }
}

open_values! {
    /// Values of [`Cc::shn`].
    pub struct ShutdownNotification(u8) {
        /// No notification.
        NONE = 0;
        /// Normal shutdown.
        NORMAL = 1;
        /// Abrupt shutdown: power is about to go.
        ABRUPT = 2;
    }
}

bitfields! {
    /// Controller Status (NVMe 2.0 §3.1.3.6).
    pub struct Csts(u32) {
        /// Ready.
        rdy, with_rdy: bool = 0;
        /// Controller Fatal Status.
        cfs, with_cfs: bool = 1;
        /// Shutdown Status: a [`ShutdownStatus`] code.
        shst, with_shst: u8 = 3:2;
        /// NVM Subsystem Reset Occurred; written with 1 to clear.
        nssro, with_nssro: bool = 4;
        /// Processing Paused.
        pp, with_pp: bool = 5;
        /// Shutdown Type: the status is of an NVM Subsystem Shutdown, else of this controller's.
        st, with_st: bool = 6;
    }
}

open_values! {
    /// Values of [`Csts::shst`].
    pub struct ShutdownStatus(u8) {
        /// Normal operation, no shutdown has been requested.
        NORMAL = 0;
        /// Shutdown processing occurs.
        OCCURRING = 1;
        /// Shutdown processing is complete.
        COMPLETE = 2;
    }
}

bitfields! {
    /// Admin Queue Attributes (NVMe 2.0 §3.1.3.8).
    pub struct Aqa(u32) {
        /// Admin Submission Queue Size in entries, less one. At least 1.
        asqs, with_asqs: u16 = 11:0;
        /// Admin Completion Queue Size in entries, less one. At least 1.
        acqs, with_acqs: u16 = 27:16;
    }
}

bitfields! {
    /// Controller Memory Buffer Location (NVMe 2.0 §3.1.3.11).
    pub struct CmbLoc(u32) {
        /// Base Indicator Register: the BAR that holds the buffer (0, 2, 3, 4 or 5).
        bir, with_bir: u8 = 2:0;
        /// Queue Mixed Memory Support: a queue may lie partly in the buffer.
        cqmms, with_cqmms: bool = 3;
        /// Queue Physically Discontiguous Support.
        cqpds, with_cqpds: bool = 4;
        /// Data Pointer Mixed Locations Support.
        cdpmls, with_cdpmls: bool = 5;
        /// Data Pointer and Command Independent Locations Support.
        cdpcils, with_cdpcils: bool = 6;
        /// Data Metadata Mixed Memory Support.
        cdmmms, with_cdmmms: bool = 7;
        /// Queue Dword Alignment: queues need only dword alignment.
        cqda, with_cqda: bool = 8;
        /// Offset inside the BAR, in multiples of [`CmbSz::unit`].
        ofst, with_ofst: u32 = 31:12;
    }
}

bitfields! {
    /// Controller Memory Buffer Size (NVMe 2.0 §3.1.3.12).
    pub struct CmbSz(u32) {
        /// Submission Queue Support.
        sqs, with_sqs: bool = 0;
        /// Completion Queue Support.
        cqs, with_cqs: bool = 1;
        /// PRP and SGL List Support.
        lists, with_lists: bool = 2;
        /// Read Data Support: data a command returns may lie in the buffer.
        rds, with_rds: bool = 3;
        /// Write Data Support: data a command takes may lie in the buffer.
        wds, with_wds: bool = 4;
        /// Size Units: 4 KiB × 16^SZU; 7 and above are reserved.
        szu, with_szu: u8 = 11:8;
        /// Size in units; 0 means that there is no buffer.
        sz, with_sz: u32 = 31:12;
    }
}

impl CmbSz {
    /// The unit of size and offset in bytes, 4 KiB to 64 GiB; `None` where [`Self::szu`] is reserved.
    #[must_use]
    pub const fn unit(self) -> Option<u64> {
        let szu = self.szu();
        if szu > 6 { None } else { Some(4096 << (4 * szu)) }
    }

    /// The size of the buffer in bytes; `None` where [`Self::szu`] is reserved.
    #[must_use]
    pub const fn bytes(self) -> Option<u64> {
        // `From` is not const. At most 2^20 units of 2^36 bytes, so the product fits.
        #[allow(clippy::cast_lossless)]
        match self.unit() {
            Some(unit) => Some(unit * self.sz() as u64),
            None => None,
        }
    }
}

bitfields! {
    /// Controller Memory Buffer Memory Space Control (NVMe 2.0 §3.1.3.16).
    pub struct CmbMsc(u64) {
        /// Capabilities Registers Enabled: CMBLOC and CMBSZ read other than zero.
        cre, with_cre: bool = 0;
        /// Controller Memory Space Enable: `cba` is valid.
        cmse, with_cmse: bool = 1;
        /// Controller Base Address in units of 4 KiB: see [`Self::base_address`].
        cba, with_cba: u64 = 63:12;
    }
}

impl CmbMsc {
    /// The address by which commands name the first byte of the buffer; a multiple of 4 KiB.
    #[must_use]
    pub const fn base_address(self) -> u64 {
        self.cba() << 12
    }
}

bitfields! {
    /// Controller Memory Buffer Status (NVMe 2.0 §3.1.3.17).
    pub struct CmbSts(u32) {
        /// Controller Base Address Invalid.
        cbai, with_cbai: bool = 0;
    }
}

bitfields! {
    /// Controller Ready Timeouts (NVMe 2.0 §3.1.3.21).
    pub struct Crto(u32) {
        /// Controller Ready With Media Timeout in units of 500 ms.
        crwmt, with_crwmt: u16 = 15:0;
        /// Controller Ready Independent of Media Timeout in units of 500 ms.
        crimt, with_crimt: u16 = 31:16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_capabilities() {
        // 2048 entries, contiguous, 20 * 500 ms, stride 4, subsystem reset, NVM and I/O command sets, 4 KiB to 64 MiB
        // pages.
        let cap = Cap(0x00e0_0830_1401_07ff);
        assert_eq!((cap.mqes(), cap.cqr(), cap.to(), cap.dstrd()), (0x7ff, true, 20, 0));
        assert!(cap.nssrs() && cap.css_nvm() && cap.css_iocs() && !cap.css_none());
        assert_eq!((cap.mpsmin(), cap.mpsmax()), (0, 14));
        let built = Cap(0)
            .with_mqes(0x7ff)
            .with_cqr(true)
            .with_to(20)
            .with_nssrs(true)
            .with_css_nvm(true)
            .with_css_iocs(true)
            .with_mpsmax(14);
        assert_eq!(built, cap);
    }

    #[test]
    fn golden_configuration() {
        // What a driver writes to enable a controller: 64-byte and 16-byte entries, 4 KiB pages.
        let cc = Cc(0x0046_0001);
        assert_eq!((cc.en(), cc.css(), cc.mps(), cc.ams(), cc.shn()), (true, 0, 0, 0, 0));
        assert_eq!((cc.iosqes(), cc.iocqes(), cc.page_size()), (6, 4, 4096));
        assert_eq!(Cc(0).with_en(true).with_iosqes(6).with_iocqes(4), cc);
        assert_eq!(Cc(0x0046_4001).shn(), ShutdownNotification::NORMAL.0);
        assert_eq!(Cc(0x0046_0061).css(), CommandSetSelected::ALL.0);
        assert_eq!(Csts(0x9).shst(), ShutdownStatus::COMPLETE.0);
    }

    #[test]
    fn golden_admin_queues_and_version() {
        assert_eq!(Aqa(0).with_asqs(31).with_acqs(63), Aqa(0x003f_001f));
        assert_eq!(Version(0).with_major(1).with_minor(4), Version::V1_4);
        assert_eq!(NSSR_MAGIC.to_be_bytes(), *b"NVMe");
        assert_eq!(NSSD_NORMAL.to_be_bytes(), *b"Nrml");
        assert_eq!(NSSD_ABRUPT.to_be_bytes(), *b"Abrt");
    }

    #[test]
    fn golden_memory_buffer() {
        // 64 MiB in 1 MiB units that takes everything, at BAR 4.
        let size = CmbSz(0x0004_021f);
        assert_eq!(
            (size.sz(), size.szu(), size.unit(), size.bytes()),
            (64, 2, Some(1 << 20), Some(64 << 20))
        );
        assert!(size.sqs() && size.cqs() && size.lists() && size.rds() && size.wds());
        assert_eq!(CmbSz(0x0000_1700).bytes(), None);
        assert_eq!(CmbLoc(0).with_bir(4).with_cqda(true), CmbLoc(0x104));
        assert_eq!(CmbMsc(0x0000_0001_2345_6003).base_address(), 0x1_2345_6000);
    }

    #[test]
    fn golden_doorbells() {
        assert_eq!(doorbell(0, false, 0), 0x1000);
        assert_eq!(doorbell(0, true, 0), 0x1004);
        assert_eq!(doorbell(3, false, 0), 0x1018);
        assert_eq!(doorbell(1, true, 2), 0x1030);
        assert_eq!(doorbell_queue(0xffc, 0), None);
        assert_eq!(doorbell_queue(0x1002, 0), None);
        assert_eq!(doorbell_queue(0x1004, 1), None);
        assert_eq!(doorbell_queue(doorbell(u16::MAX, true, 0) + 4, 0), None);
    }

    proptest! {
        #[test]
        fn doorbells_round_trip(queue: u16, is_cq: bool, dstrd in 0u8..16) {
            prop_assert_eq!(doorbell_queue(doorbell(queue, is_cq, dstrd), dstrd), Some((queue, is_cq)));
        }

        #[test]
        fn any_offset_is_answered(offset: u64, dstrd: u8) {
            if let Some((queue, is_cq)) = doorbell_queue(offset, dstrd) {
                prop_assert_eq!(doorbell(queue, is_cq, dstrd), offset);
            }
        }

        #[test]
        fn any_register_value_is_kept(raw: u64, word: u32) {
            let cap = Cap(raw);
            prop_assert_eq!(cap.with_to(cap.to()).with_mpsmax(cap.mpsmax()).with_cps(cap.cps()), cap);
            let size = CmbSz(word);
            prop_assert_eq!(size.with_sz(size.sz()).with_szu(size.szu()), size);
            let _ = (size.bytes(), Cc(word).page_size(), CmbMsc(raw).base_address());
        }
    }
}
