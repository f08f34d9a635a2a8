//! What a guest's driver asks for, and how it judges the answers.

use spec::nvme::registers::doorbell;
use spec::nvme::{AdminOpcode, CompletionEntry, Status, SubmissionEntry};
use zerocopy::FromBytes;

use super::{BUFFER_BYTES, BUFFERS, DMA_BASE, ENTRIES, Guest, Memories, Phase, QUEUES};
use crate::checkers::names;
use crate::client::{Finding, Kind, Request, Shared};
use crate::disk::pattern;
use crate::media::{Asks, Failure};

impl Guest {
    /// Makes requests up to its depth. True if it did.
    pub(crate) fn ask(&mut self, shared: &mut Shared, memory: &Memories<'_>) -> bool {
        let mut any = false;
        while self.phase == Phase::Running && self.left > 0 && self.asked.len() < self.depth {
            self.left -= 1;
            self.ask_one(shared, memory);
            any = true;
        }
        if self.phase == Phase::Running && self.is_done() {
            self.phase = Phase::Leaving;
            any = true;
        }
        any
    }

    fn ask_one(&mut self, shared: &mut Shared, memory: &Memories<'_>) {
        shared.tick += 1;
        shared.begin_request(self.who);
        let (request, start) = (shared.requests, shared.tick);
        let kind = match self.random.below(100) {
            0..45 => Kind::Read,
            45..88 => Kind::Write,
            88..94 => Kind::Flush,
            _ => Kind::Zeroes,
        };
        let (first, count) = if kind == Kind::Flush { (0, 0) } else { self.place() };
        let fua = kind == Kind::Write && self.random.chance(150);
        let free = (1..).find(|cid| !self.asked.contains_key(cid));
        let cid = free.expect("fewer are asked than there are numbers");
        let buffer = BUFFERS + usize::from(cid) * BUFFER_BYTES;
        let asked = Request { id: request, kind, fua, first, count, start };
        // Nothing comes of what is asked of a drive that is no more.
        if self.gone_since.is_none() {
            asked.begin(shared);
        }
        if kind == Kind::Read {
            memory.write(self.loan, buffer, &[0xee; BUFFER_BYTES]);
        } else if kind == Kind::Write {
            let mut block = vec![0; self.drive.block as usize];
            for (lba, at) in asked.blocks().zip((buffer..).step_by(block.len())) {
                pattern(request, lba, &mut block);
                memory.write(self.loan, at, &block);
            }
        }
        self.asked.insert(cid, asked);
        self.submit_request(cid, &asked, memory);
    }

    fn submit_request(&mut self, cid: u16, asked: &Request, memory: &Memories<'_>) {
        let (nsid, first, blocks) = (self.nsid, asked.first, asked.count as u32);
        let entry = match asked.kind {
            Kind::Read => SubmissionEntry::read(cid, nsid, first, blocks),
            Kind::Write => SubmissionEntry::write(cid, nsid, first, blocks),
            Kind::Zeroes | Kind::Trim => SubmissionEntry::write_zeroes(cid, nsid, first, blocks, false),
            Kind::Flush => SubmissionEntry::flush(cid, nsid),
        };
        let entry = if asked.fua { entry.with_fua() } else { entry };
        let page = DMA_BASE + (BUFFERS + usize::from(cid) * BUFFER_BYTES) as u64;
        let second = if asked.count * self.drive.block > 0x1000 { page + 0x1000 } else { 0 };
        let has_data = matches!(asked.kind, Kind::Read | Kind::Write);
        let entry = if has_data { entry.with_prps(page, second) } else { entry };
        self.submit(1, entry, memory);
    }

    fn place(&mut self) -> (u64, u64) {
        let most = (BUFFER_BYTES as u64 / self.drive.block).min(self.drive.blocks);
        let blocks = self.random.range(1, most);
        let end = if self.random.chance(500) { 4 } else { self.drive.blocks - blocks + 1 };
        (self.random.below(end.min(self.drive.blocks - blocks + 1)), blocks)
    }

    /// One of its eventfds was signalled.
    pub(crate) fn interrupt(
        &mut self,
        descriptor: u32,
        now: u64,
        shared: &mut Shared,
        memory: &Memories<'_>,
    ) -> Result<(), Finding> {
        let Some(queue) = descriptor.checked_sub(self.descriptor + 1).map(|queue| queue as usize) else {
            return Ok(());
        };
        if queue >= QUEUES.len() || matches!(self.phase, Phase::Away | Phase::Disable | Phase::Enable) {
            return Ok(());
        }
        let before = self.completions;
        while self.phase != Phase::Disable
            && let Some(entry) = self.next_completion(queue, memory)
        {
            self.completed(queue, &entry, shared, memory)?;
        }
        // What it has begun anew has no queues for the moment.
        if self.completions > before && self.phase != Phase::Disable {
            self.heard = now;
            self.interrupts += 1;
            let head = self.queues[queue].head;
            self.write(0, doorbell(queue as u16, true, 0), &u32::from(head).to_le_bytes());
        }
        Ok(())
    }

    fn next_completion(&mut self, queue: usize, memory: &Memories<'_>) -> Option<CompletionEntry> {
        let this = &mut self.queues[queue];
        let at = QUEUES[queue] + 0x1000 + usize::from(this.head) * 16;
        let entry = CompletionEntry::read_from_bytes(&memory.read(self.loan, at, 16)).ok()?;
        if entry.phase() != this.turns.is_multiple_of(2) {
            return None;
        }
        this.head = (this.head + 1) % ENTRIES;
        this.turns += u16::from(this.head == 0);
        self.completions += 1;
        Some(entry)
    }

    fn completed(
        &mut self,
        queue: usize,
        entry: &CompletionEntry,
        shared: &mut Shared,
        memory: &Memories<'_>,
    ) -> Result<(), Finding> {
        if entry.status() == Status::DATA_TRANSFER_ERROR && queue == 1 {
            // The controller had no answer in time. A driver would ask for this request again; here for all.
            self.begin_anew(shared);
            return Ok(());
        }
        if queue == 1 && self.fails_by_medium(entry, shared) {
            return Ok(());
        }
        if !entry.status().is_success() {
            let what = format!("queue {queue}: command {} failed: {:?}", entry.cid, entry.status());
            return Err((names::COMPLETIONS, what));
        }
        match (queue, self.phase) {
            (0, Phase::CreateCompletions) => {
                let mut entry = SubmissionEntry::admin(AdminOpcode::CREATE_IO_SQ, 2, 0);
                (entry.cdw10, entry.cdw11) =
                    ((u32::from(ENTRIES - 1) << 16 | 1).into(), (1 << 16 | 1).into());
                self.phase = Phase::CreateSubmissions;
                self.submit(0, entry.with_prps(DMA_BASE + QUEUES[1] as u64, 0), memory);
                Ok(())
            }
            (0, Phase::CreateSubmissions) => {
                self.phase = Phase::Running;
                self.enabled = shared.tick;
                for (cid, asked) in self.asked.clone() {
                    self.submit_request(cid, &asked, memory);
                }
                Ok(())
            }
            (1, _) => self.end(entry.cid.get(), shared, memory),
            _ => Err((names::COMPLETIONS, format!("a completion in queue {queue} while {:?}", self.phase))),
        }
    }

    /// Whether a request has failed, as the medium explains.
    fn fails_by_medium(&mut self, entry: &CompletionEntry, shared: &mut Shared) -> bool {
        let cid = entry.cid.get();
        let Some(asked) = self.asked.get(&cid).copied() else { return false };
        let failure = match entry.status().code() {
            Status::WRITE_FAULT | Status::UNRECOVERED_READ_ERROR => Failure::Error,
            Status::CAPACITY_EXCEEDED => Failure::Full,
            _ => return false,
        };
        let asks = match asked.kind {
            Kind::Flush => Asks::Flush,
            Kind::Read => Asks::Else,
            _ => Asks::Both,
        };
        let is_explained = shared.trouble.explains(asks, asked.start, failure);
        if is_explained {
            self.asked.remove(&cid);
            self.ended += 1;
            shared.tick += 1;
            asked.fail(shared);
        }
        is_explained
    }

    fn end(&mut self, cid: u16, shared: &mut Shared, memory: &Memories<'_>) -> Result<(), Finding> {
        let Some(asked) = self.asked.remove(&cid) else {
            let what = format!("command {cid} has ended, though it was not under way");
            return Err((names::COMPLETIONS, what));
        };
        shared.tick += 1;
        self.ended += 1;
        self.has_used = true;
        let bytes = asked.count * self.drive.block;
        shared.bytes += bytes;
        if let Some(since) = self.gone_since {
            return self.end_behind_loss(since, &asked, shared);
        }
        self.served_of = self.served_of.max(asked.start);
        let is_promise =
            asked.kind == Kind::Flush || asked.kind != Kind::Read && (asked.fua || !self.flushes);
        if is_promise {
            shared.trouble.flushed = Some(asked.start);
            asked.must_not_fail(shared)?;
        }
        match asked.kind {
            Kind::Read => {
                let at = BUFFERS + usize::from(cid) * BUFFER_BYTES;
                let data = memory.read(self.loan, at, bytes as usize);
                asked.check_read(self.drive.block, &data, shared)
            }
            Kind::Flush => {
                shared.model.flush_ended(asked.start);
                Ok(())
            }
            _ => {
                // To who is shown no volatile cache what was answered is durable, flushed or not.
                let is_durable = asked.fua || !self.flushes;
                shared.model.write_ended(asked.id, is_durable, asked.blocks(), shared.tick);
                if !self.flushes {
                    shared.tick += 1;
                    shared.model.flush_ended(shared.tick);
                }
                Ok(())
            }
        }
    }

    /// A request has ended of a drive that is no more since `since`: so it was asked of it before.
    fn end_behind_loss(&self, since: u64, asked: &Request, shared: &mut Shared) -> Result<(), Finding> {
        if asked.kind == Kind::Read {
            shared.model.read_abandoned(asked.start);
        }
        let submitted = asked.start.max(self.enabled);
        if submitted < since {
            return Ok(());
        }
        let what = format!(
            "request {} was submitted at {submitted} and has succeeded, though the drive is another one \
             since {since}",
            asked.id
        );
        Err((names::DURABILITY, what))
    }
}
