//! A small NVMe controller on plain memory, independent of the `device` crate: queues, PRPs and a handful of commands.

use std::collections::VecDeque;

use spec::nvme::feature::AsyncEventConfiguration;
use spec::nvme::identify::{IdentifyController, IdentifyNamespace, Oncs};
use spec::nvme::registers::{self, Aqa, Cap, Cc, CmbLoc, CmbMsc, CmbSz, Csts};
use spec::nvme::{
    AdminOpcode, AsyncEvent, CompletionEntry, CreateIoCompletionQueue, CreateIoSubmissionQueue,
    DatasetManagementRange, NvmOpcode, PCI_CLASS_CODE, Status, SubmissionEntry,
};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::{Access, AccessError, AccessId};

pub(super) const BLOCK: usize = 512;
const CMB_BAR: u8 = 2;
const CMB_BYTES: usize = 192 << 10;
const MSIX_TABLE: u64 = 0x3000;

/// What the controller does to its host.
#[derive(Clone, Debug)]
pub(super) enum Output {
    Answer(AccessId, Result<Vec<u8>, AccessError>),
    Write(u64, Vec<u8>),
}

/// Reads the host's memory.
pub(super) type HostRead<'a> = &'a dyn Fn(u64, &mut [u8]);

#[derive(Clone, Default)]
struct Queue {
    sq: u64,
    cq: u64,
    entries: u16,
    head: u16,
    cq_tail: u16,
    phase: bool,
}

/// The controller.
pub(super) struct Model {
    pub(super) disk: Vec<u8>,
    /// What is left of the disk when the power fails.
    durable: Vec<u8>,
    pub(super) volatile_cache: bool,
    /// The cache is for hosts only that say that they keep what is not flushed.
    pub(super) hides_cache: bool,
    /// The host has said so.
    pub(super) host_keeps: bool,
    /// I/O commands, as opcode, first block and blocks.
    pub(super) log: Vec<(NvmOpcode, usize, usize)>,
    pub(super) with_cmb: bool,
    pub(super) with_msix: bool,
    pub(super) read_only: bool,
    /// Other controllers may have the namespace.
    pub(super) shared: bool,
    /// How the next I/O commands end, instead of with success.
    pub(super) statuses: VecDeque<Status>,
    /// Reads and configuration accesses that are answered with a time-out.
    pub(super) lost: usize,
    /// Commands are fetched and not executed.
    pub(super) hang: bool,
    /// The same, but flushes only.
    pub(super) hang_flushes: bool,
    pub(super) block_shift: u8,
    /// It tells of changes of its namespace.
    pub(super) reports: bool,
    /// The command that it does so with.
    reporter: Option<u16>,
    pub(super) fatal: bool,
    pub(super) shut_down: bool,
    pub(super) flushes: usize,
    pub(super) opcodes: Vec<NvmOpcode>,
    pub(super) doorbells: usize,
    pub(super) vector: Option<(u64, u32)>,
    pub(super) slow_polls: usize,
    cc: u32,
    aqa: u32,
    asq: u64,
    acq: u64,
    cmbmsc: u64,
    command: u32,
    msix_on: bool,
    cmb: Vec<u8>,
    queues: [Queue; 2],
}

impl Model {
    pub(super) fn new(blocks: usize) -> Self {
        Self {
            disk: vec![0; blocks * BLOCK],
            durable: Vec::new(),
            volatile_cache: true,
            hides_cache: false,
            host_keeps: false,
            log: Vec::new(),
            with_cmb: true,
            with_msix: true,
            read_only: false,
            shared: false,
            statuses: VecDeque::new(),
            lost: 0,
            hang: false,
            hang_flushes: false,
            block_shift: 9,
            reports: false,
            reporter: None,
            fatal: false,
            shut_down: false,
            flushes: 0,
            opcodes: Vec::new(),
            doorbells: 0,
            vector: None,
            slow_polls: 0,
            cc: 0,
            aqa: 0,
            asq: 0,
            acq: 0,
            cmbmsc: 0,
            command: 0,
            msix_on: false,
            cmb: vec![0; CMB_BYTES],
            queues: Default::default(),
        }
    }

    /// A function-level reset: the lender's incarnation is new.
    pub(super) fn reset(&mut self) {
        (self.cc, self.command, self.cmbmsc, self.msix_on) = (0, 0, 0, false);
        (self.queues, self.vector) = (Default::default(), None);
        self.cmb.fill(0xee);
        (self.fatal, self.host_keeps) = (false, false);
        self.reporter = None;
    }

    /// Tells that something about its namespace has changed.
    pub(super) fn report(&mut self, out: &mut Vec<Output>) {
        let cid = self.reporter.take().expect("it was asked to tell of that");
        self.complete(0, cid, Status::SUCCESS, AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED.0, out);
    }

    fn complete(&mut self, queue: usize, cid: u16, status: Status, dw0: u32, out: &mut Vec<Output>) {
        let this = &mut self.queues[queue];
        let done = CompletionEntry::new(queue as u16, this.head, cid, status, dw0, this.phase);
        out.push(Output::Write(this.cq + u64::from(this.cq_tail) * 16, done.as_bytes().to_vec()));
        this.cq_tail = (this.cq_tail + 1) % this.entries;
        this.phase ^= this.cq_tail == 0;
    }

    /// What was not durable is gone, and the lender's incarnation is new.
    pub(super) fn lose_power(&mut self) {
        self.durable.resize(self.disk.len(), 0);
        self.disk.clone_from(&self.durable);
        self.reset();
    }

    fn make_durable(&mut self, range: core::ops::Range<usize>) {
        self.durable.resize(self.disk.len(), 0);
        self.durable[range.clone()].copy_from_slice(&self.disk[range]);
    }

    pub(super) fn access(&mut self, access: Access, host: HostRead<'_>, out: &mut Vec<Output>) {
        match access {
            Access::Write { bar, offset, payload } => {
                let base::Payload::Inline(bytes) = payload else { panic!("the driver writes inline") };
                assert!(bytes.as_slice().len().is_multiple_of(4), "whole dwords");
                self.write(bar, offset, bytes.as_slice(), host, out);
            }
            Access::Read { id, .. } | Access::ConfigRead { id, .. } | Access::ConfigWrite { id, .. }
                if self.lost > 0 =>
            {
                self.lost -= 1;
                out.push(Output::Answer(id, Err(AccessError::Timeout)));
            }
            Access::Read { id, bar, offset, len } => {
                assert_eq!(bar, 0);
                assert!(self.command & 2 != 0, "memory space is enabled first");
                let value = self.register(offset).to_le_bytes();
                out.push(Output::Answer(id, Ok(value[..len as usize].to_vec())));
            }
            Access::ConfigRead { id, register } => {
                out.push(Output::Answer(id, Ok(self.config(register).to_le_bytes().to_vec())));
            }
            Access::ConfigWrite { id, register, value, byte_enables } => {
                match (register, byte_enables) {
                    (4, 3) => self.command = value,
                    (0x50, 0b1100) => self.msix_on = value >> 31 != 0,
                    other => panic!("unexpected configuration write {other:?}"),
                }
                out.push(Output::Answer(id, Ok(Vec::new())));
            }
        }
    }

    fn config(&self, register: u16) -> u32 {
        match register {
            0x00 => 0x1234_5678,
            0x04 => 0x0010_0000 | self.command,
            0x08 => PCI_CLASS_CODE << 8,
            0x34 => 0x40,
            0x40 => {
                if self.with_msix {
                    0x0000_5010
                } else {
                    0x0000_4010
                }
            } // in the second case a loop
            0x50 => 0x0003_0011,
            0x54 => MSIX_TABLE as u32,
            other => panic!("unexpected configuration read {other:#x}"),
        }
    }

    fn register(&mut self, offset: u64) -> u64 {
        let enabled = CmbMsc(self.cmbmsc).cre();
        match offset {
            registers::CAP => {
                Cap(0).with_mqes(0xff).with_cqr(true).with_to(4).with_css_nvm(true).with_cmbs(self.with_cmb).0
            }
            registers::CSTS => self.status().0.into(),
            registers::CMBLOC if enabled => CmbLoc(0).with_bir(CMB_BAR).0.into(),
            registers::CMBSZ if enabled => CmbSz(0)
                .with_sqs(true)
                .with_lists(true)
                .with_wds(true)
                .with_sz((CMB_BYTES >> 12) as u32)
                .0
                .into(),
            _ => 0,
        }
    }

    fn status(&mut self) -> Csts {
        let (cc, slow) = (Cc(self.cc), self.slow_polls > 0);
        self.slow_polls = self.slow_polls.saturating_sub(1);
        if cc.shn() != 0 && !slow {
            self.shut_down = true;
            return Csts(0).with_rdy(true).with_cfs(self.fatal).with_shst(if self.fatal { 1 } else { 2 });
        }
        Csts(0).with_rdy(cc.en() != slow).with_cfs(self.fatal)
    }

    fn write(&mut self, bar: u8, offset: u64, bytes: &[u8], host: HostRead<'_>, out: &mut Vec<Output>) {
        let mut wide = [0; 8];
        wide[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
        let value = u64::from_le_bytes(wide);
        match (bar, offset) {
            (CMB_BAR, at) => self.cmb[at as usize..at as usize + bytes.len()].copy_from_slice(bytes),
            (0, MSIX_TABLE) => {
                assert!(self.command & 2 != 0 && bytes.len() == 16);
                self.vector = Some((value, u32::from_le_bytes(bytes[12..].try_into().unwrap())));
            }
            (0, registers::CC) => self.configure(value as u32),
            (0, registers::AQA) => self.aqa = value as u32,
            (0, registers::ASQ) => self.asq = value,
            (0, registers::ACQ) => self.acq = value,
            (0, registers::CMBMSC) => self.cmbmsc = value,
            (0, registers::HOST_KEEPS) => self.host_keeps = value == 1,
            (0, at) => match registers::doorbell_queue(at, 0) {
                Some((queue @ 0..2, false)) => {
                    self.doorbells += usize::from(queue == 1);
                    self.run(queue.into(), value as u16, host, out);
                }
                Some((0..2, true)) => {}
                other => panic!("unexpected write at {at:#x} ({other:?})"),
            },
            other => panic!("unexpected write {other:?}"),
        }
    }

    fn configure(&mut self, cc: u32) {
        let was = Cc(self.cc).en();
        self.cc = cc;
        if !Cc(cc).en() {
            self.queues = Default::default();
        } else if !was {
            let entries = Aqa(self.aqa).asqs() + 1;
            self.queues[0] = Queue { sq: self.asq, cq: self.acq, entries, phase: true, ..Queue::default() };
        }
    }

    fn run(&mut self, queue: usize, tail: u16, host: HostRead<'_>, out: &mut Vec<Output>) {
        while self.queues[queue].head != tail {
            let this = &mut self.queues[queue];
            assert!(this.entries > 0, "a doorbell of a queue that exists");
            let address = this.sq + u64::from(this.head) * 64;
            this.head = (this.head + 1) % this.entries;
            let mut bytes = [0; 64];
            self.fetch(address, &mut bytes, host);
            let entry = SubmissionEntry::read_from_bytes(&bytes).unwrap();
            let is_flush = entry.nvm_opcode() == NvmOpcode::FLUSH;
            if queue == 1 && (self.hang || self.hang_flushes && is_flush) {
                continue;
            }
            if queue == 0 && self.reports && entry.admin_opcode() == AdminOpcode::ASYNC_EVENT_REQUEST {
                self.reporter = Some(entry.cid.get());
                continue;
            }
            let status = if queue == 0 { self.admin(&entry, out) } else { self.io(&entry, host, out) };
            self.complete(queue, entry.cid.get(), status, 0, out);
        }
    }

    fn fetch(&self, address: u64, bytes: &mut [u8], host: HostRead<'_>) {
        let msc = CmbMsc(self.cmbmsc);
        match address.checked_sub(msc.base_address()) {
            Some(at) if msc.cmse() && at < CMB_BYTES as u64 => {
                bytes.copy_from_slice(&self.cmb[at as usize..at as usize + bytes.len()]);
            }
            _ => host(address, bytes),
        }
    }

    fn admin(&mut self, entry: &SubmissionEntry, out: &mut Vec<Output>) -> Status {
        match entry.admin_opcode() {
            AdminOpcode::IDENTIFY if entry.cdw10.get() == 1 => {
                let mut data = IdentifyController::new_zeroed();
                data.mdts = 5;
                data.vwc = (self.volatile_cache && !self.hides_cache).into();
                if self.hides_cache {
                    data.vendor[..8].copy_from_slice(&spec::nvme::identify::HOST_KEEPS_OFFERED);
                }
                data.oaes = AsyncEventConfiguration(0).with_namespace_attribute(self.reports).0.into();
                data.oncs = Oncs(0).with_dataset_management(true).with_write_zeroes(true).0.into();
                self.send(entry, data.as_bytes(), out);
            }
            AdminOpcode::IDENTIFY if entry.cdw10.get() == 2 => self.send(entry, &[1, 0, 0, 0], out),
            AdminOpcode::IDENTIFY => {
                let mut data = IdentifyNamespace::new_zeroed();
                data.nsze = ((self.disk.len() / BLOCK) as u64).into();
                data.nsattr = self.read_only.into();
                data.nmic = self.shared.into();
                data.lbaf[0].lbads = self.block_shift;
                self.send(entry, data.as_bytes(), out);
            }
            AdminOpcode::SET_FEATURES | AdminOpcode::GET_LOG_PAGE => {}
            AdminOpcode::CREATE_IO_CQ => {
                let queue = CreateIoCompletionQueue::parse(entry);
                assert!(queue.contiguous && !queue.interrupts && queue.qid == 1);
                self.queues[1].cq = queue.base;
            }
            AdminOpcode::CREATE_IO_SQ => {
                let queue = CreateIoSubmissionQueue::parse(entry);
                assert!(queue.contiguous && queue.qid == 1 && queue.cqid == 1);
                let cq = self.queues[1].cq;
                self.queues[1] = Queue {
                    sq: queue.base,
                    cq,
                    entries: queue.entries as u16,
                    phase: true,
                    ..Queue::default()
                };
            }
            _ => return Status::INVALID_OPCODE,
        }
        Status::SUCCESS
    }

    /// Identify data, in pieces as a maximum payload would cut them.
    fn send(&self, entry: &SubmissionEntry, data: &[u8], out: &mut Vec<Output>) {
        for (index, piece) in data.chunks(1024).enumerate() {
            out.push(Output::Write(entry.prp1.get() + index as u64 * 1024, piece.to_vec()));
        }
    }

    fn io(&mut self, entry: &SubmissionEntry, host: HostRead<'_>, out: &mut Vec<Output>) -> Status {
        self.opcodes.push(entry.nvm_opcode());
        if let Some(status) = self.statuses.pop_front().filter(|status| !status.is_success()) {
            return status;
        }
        let start = entry.slba() as usize * BLOCK;
        let len = entry.nlb() as usize * BLOCK;
        let ranged = !matches!(entry.nvm_opcode(), NvmOpcode::FLUSH | NvmOpcode::DATASET_MANAGEMENT);
        if ranged && start + len > self.disk.len() {
            return Status::LBA_OUT_OF_RANGE.with_dnr();
        }
        let (first, blocks) = if ranged { (start / BLOCK, len / BLOCK) } else { (0, 0) };
        self.log.push((entry.nvm_opcode(), first, blocks));
        match entry.nvm_opcode() {
            NvmOpcode::FLUSH => {
                self.flushes += 1;
                self.make_durable(0..self.disk.len());
            }
            NvmOpcode::WRITE if self.read_only => return Status::NAMESPACE_WRITE_PROTECTED,
            NvmOpcode::READ => {
                for (address, place) in self.pieces(entry, start, len, host) {
                    out.push(Output::Write(address, self.disk[place].to_vec()));
                }
            }
            NvmOpcode::WRITE => {
                for (address, place) in self.pieces(entry, start, len, host) {
                    host(address, &mut self.disk[place]);
                }
            }
            NvmOpcode::WRITE_ZEROES => self.disk[start..start + len].fill(0),
            NvmOpcode::DATASET_MANAGEMENT => {
                let mut bytes = [0; 16];
                self.fetch(entry.prp1.get(), &mut bytes, host);
                let range = DatasetManagementRange::read_from_bytes(&bytes).unwrap();
                assert!(entry.dsm_attributes().ad() && entry.dsm_ranges() == 1);
                let start = range.slba.get() as usize * BLOCK;
                self.disk[start..start + range.nlb.get() as usize * BLOCK].fill(0xdd);
            }
            _ => return Status::INVALID_OPCODE,
        }
        if ranged && entry.fua() {
            self.make_durable(start..start + len);
        }
        Status::SUCCESS
    }

    /// Where data lie in memory, and which bytes of the disk they are.
    fn pieces(
        &self,
        entry: &SubmissionEntry,
        start: usize,
        len: usize,
        host: HostRead<'_>,
    ) -> Vec<(u64, core::ops::Range<usize>)> {
        let mut at = start;
        let piece = |address: u64| {
            let bytes = (4096 - address as usize % 4096).min(start + len - at);
            at += bytes;
            (address, at - bytes..at)
        };
        self.pages(entry, len, host).into_iter().map(piece).collect()
    }

    fn pages(&self, entry: &SubmissionEntry, len: usize, host: HostRead<'_>) -> Vec<u64> {
        let count = (entry.prp1.get() as usize % 4096 + len).div_ceil(4096);
        let mut pages = vec![entry.prp1.get()];
        if count == 2 {
            pages.push(entry.prp2.get());
        } else if count > 2 {
            let mut list = vec![0; (count - 1) * 8];
            self.fetch(entry.prp2.get(), &mut list, host);
            pages.extend(list.as_chunks().0.iter().map(|entry| u64::from_le_bytes(*entry)));
        }
        pages
    }
}
