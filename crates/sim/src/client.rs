//! An NBD client: real bytes, several requests at a time, and a judgement of every answer.

mod request;
mod shared;

use std::collections::BTreeMap;

use base::Random;
use spec::nbd::{
    ChunkHeader, ChunkType, ClientFlags, Command, CommandFlags, InfoRequest, NbdError, OptionCode,
    OptionHeader, OptionReplyHeader, OptionReplyType, RequestHeader, ServerHello, SimpleReply,
};
use zerocopy::IntoBytes;

pub(crate) use self::request::{Kind, Request};
pub(crate) use self::shared::{Excuse, Orphan, Shared};
use crate::checkers::names;
use crate::checkers::single_owner::Life;
use crate::disk::pattern;
use crate::media::{Asks, Failure};

/// What a checker has found: its name, and what is wrong.
pub(crate) type Finding = (&'static str, String);

/// The drive as its clients know it.
#[derive(Clone, Copy)]
pub(crate) struct Drive {
    pub(crate) blocks: u64,
    pub(crate) block: u64,
    /// Requests fail that take too long.
    pub(crate) impatient: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// No connection.
    Away,
    Hello,
    Structured,
    Go,
    Ready,
    /// Has said goodbye.
    Leaving,
}

/// A request, and the data of a read as far as it has come in chunks.
#[derive(Clone, Debug)]
struct Asked {
    what: Request,
    data: Vec<u8>,
}

/// Where a client sits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seat {
    pub(crate) node: usize,
    pub(crate) loan: usize,
    /// The loan whose blocks it is about: its own, or in a namespace that both have together the other, which it only
    /// reads.
    pub(crate) area: usize,
}

/// One client.
pub(crate) struct Client {
    random: Random,
    drive: Drive,
    /// Where the drive's blocks begin in its namespace, in bytes.
    base: u64,
    only_reads: bool,
    /// On so few blocks half of all requests meet.
    hot_blocks: u64,
    phase: Phase,
    wants_structured: bool,
    depth: usize,
    /// Requests still to be sent.
    pub(crate) left: u32,
    pub(crate) ended: u32,
    /// Of these, without an error.
    pub(crate) served: u32,
    /// The tick at which the newest request was asked that was served.
    pub(crate) served_of: u64,
    /// Bytes on their way to the server.
    pub(crate) outbox: Vec<u8>,
    inbox: Vec<u8>,
    asked: BTreeMap<u64, Asked>,
    excuse: Excuse,
}

impl Client {
    pub(crate) fn new(mut random: Random, drive: Drive, requests: u32) -> Self {
        let depth = random.range(1, 8) as usize;
        let wants_structured = random.chance(500);
        Self {
            random,
            drive,
            base: 0,
            only_reads: false,
            hot_blocks: 6,
            phase: Phase::Away,
            wants_structured,
            depth,
            left: requests,
            ended: 0,
            served: 0,
            served_of: 0,
            outbox: Vec::new(),
            inbox: Vec::new(),
            asked: BTreeMap::new(),
            excuse: Excuse { before: 0, flushes: false },
        }
    }

    /// In a namespace of several loans: its blocks begin at `base`, and are written by itself and its like, or by
    /// others.
    pub(crate) fn sharing(self, base: u64, only_reads: bool) -> Self {
        Self { base, only_reads, hot_blocks: 2, depth: 8, ..self }
    }

    pub(crate) fn is_away(&self) -> bool {
        self.phase == Phase::Away
    }

    pub(crate) fn is_done(&self) -> bool {
        self.left == 0 && self.asked.is_empty()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.asked.len()
    }

    pub(crate) fn connected(&mut self) {
        self.phase = Phase::Hello;
    }

    /// The connection is gone: what was asked gets no answer.
    pub(crate) fn disconnected(&mut self, shared: &mut Shared, who: Life) {
        self.phase = Phase::Away;
        self.outbox.clear();
        self.inbox.clear();
        for (_, asked) in core::mem::take(&mut self.asked) {
            self.ended += 1;
            asked.what.abandon(shared, who);
        }
    }

    /// Another borrower has the drive: what is under way happens before that one is served, or never.
    pub(crate) fn abandon_writes(&self, shared: &mut Shared, who: Life) {
        self.asked.values().for_each(|asked| asked.what.abandon_write(shared, who));
    }

    /// It wants nothing any more.
    pub(crate) fn give_up(&mut self) {
        self.ended += core::mem::take(&mut self.left);
    }

    /// Sends requests up to its depth. True if it did.
    pub(crate) fn ask(&mut self, shared: &mut Shared, who: Life) -> bool {
        let mut any = false;
        while self.phase == Phase::Ready && self.left > 0 && self.asked.len() < self.depth {
            self.left -= 1;
            self.ask_one(shared, who);
            any = true;
        }
        if self.phase == Phase::Ready && self.is_done() {
            self.phase = Phase::Leaving;
            let header = RequestHeader::new(Command::DISC, CommandFlags(0), 0, 0, 0);
            self.outbox.extend_from_slice(header.as_bytes());
            any = true;
        }
        any
    }

    fn ask_one(&mut self, shared: &mut Shared, who: Life) {
        shared.tick += 1;
        shared.begin_request(who);
        let (request, start) = (shared.requests, shared.tick);
        let kind = match self.random.below(100) {
            0..45 => Kind::Read,
            45..86 => Kind::Write,
            86..92 => Kind::Flush,
            92..96 => Kind::Trim,
            _ => Kind::Zeroes,
        };
        let kind = if self.only_reads { Kind::Read } else { kind };
        let (first, count) = if kind == Kind::Flush { (0, 0) } else { self.place() };
        let fua = !matches!(kind, Kind::Read | Kind::Flush) && self.random.chance(150);
        let start_byte = if kind == Kind::Flush { 0 } else { self.base + first * self.drive.block };
        let length = count * self.drive.block;
        let flags = CommandFlags(0).with_fua(fua);
        let header = RequestHeader::new(command(kind), flags, request, start_byte, length as u32);
        self.outbox.extend_from_slice(header.as_bytes());
        let what = Request { id: request, kind, fua, first, count, start };
        what.begin(shared);
        if kind == Kind::Write {
            let mut block = vec![0; self.drive.block as usize];
            for lba in what.blocks() {
                pattern(request, lba, &mut block);
                self.outbox.extend_from_slice(&block);
            }
        }
        self.asked.insert(request, Asked { what, data: Vec::new() });
    }

    /// Half of all requests meet on few blocks.
    fn place(&mut self) -> (u64, u64) {
        let drive = self.drive;
        if self.random.chance(500) {
            let first = self.random.below(self.hot_blocks);
            return (first, self.random.range(1, 3));
        }
        let most = match self.random.below(20) {
            0 => (200 << 10) / drive.block,
            1..5 => (24 << 10) / drive.block,
            _ => 4,
        };
        let blocks = self.random.range(1, most.min(drive.blocks));
        (self.random.below(drive.blocks - blocks + 1), blocks)
    }

    /// Bytes have come from the server. True if requests have ended.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        shared: &mut Shared,
        excuse: Excuse,
    ) -> Result<bool, Finding> {
        self.excuse = excuse;
        self.inbox.extend_from_slice(bytes);
        let before = self.ended;
        let mut taken = 0;
        while let Some(len) = self.take(taken, shared)? {
            taken += len;
        }
        self.inbox.drain(..taken);
        Ok(self.ended > before)
    }

    /// Understands one message at `at` of the inbox: its length, or `None` if it is not there yet.
    fn take(&mut self, at: usize, shared: &mut Shared) -> Result<Option<usize>, Finding> {
        match self.phase {
            Phase::Away => Ok(None),
            Phase::Hello => Ok(self.take_hello(at)),
            Phase::Structured | Phase::Go => self.take_option(at),
            Phase::Ready | Phase::Leaving => self.take_reply(at, shared),
        }
    }

    fn take_hello(&mut self, at: usize) -> Option<usize> {
        let hello = self.inbox[at..].first_chunk::<18>()?;
        ServerHello::parse(hello).ok()?;
        let flags = ClientFlags(0).with_fixed_newstyle(true).with_no_zeroes(true);
        self.outbox.extend_from_slice(&flags.0.to_be_bytes());
        self.phase = if self.wants_structured { Phase::Structured } else { Phase::Go };
        self.send_option();
        Some(18)
    }

    fn send_option(&mut self) {
        let (option, mut payload) = (self.option(), Vec::new());
        if option == OptionCode::GO {
            InfoRequest::encode("", &[], &mut payload);
        }
        self.outbox.extend_from_slice(OptionHeader::new(option, payload.len() as u32).as_bytes());
        self.outbox.extend_from_slice(&payload);
    }

    fn option(&self) -> OptionCode {
        if self.phase == Phase::Structured { OptionCode::STRUCTURED_REPLY } else { OptionCode::GO }
    }

    fn take_option(&mut self, at: usize) -> Result<Option<usize>, Finding> {
        let Some(bytes) = self.inbox[at..].first_chunk::<20>() else { return Ok(None) };
        let reply =
            OptionReplyHeader::parse(bytes).map_err(|_| broken("an option reply without its magic"))?;
        let (code, len) = (reply.reply(), 20 + reply.length.get() as usize);
        if self.inbox.len() - at < len {
            return Ok(None);
        }
        if code.is_error() || reply.option() != self.option() {
            return Err(broken("an option was refused"));
        }
        if code == OptionReplyType::ACK {
            let more = self.phase == Phase::Structured;
            self.phase = if more { Phase::Go } else { Phase::Ready };
            if more {
                self.send_option();
            }
        }
        Ok(Some(len))
    }

    fn take_reply(&mut self, at: usize, shared: &mut Shared) -> Result<Option<usize>, Finding> {
        if self.wants_structured { self.take_chunk(at, shared) } else { self.take_simple(at, shared) }
    }

    fn take_simple(&mut self, at: usize, shared: &mut Shared) -> Result<Option<usize>, Finding> {
        let Some(bytes) = self.inbox[at..].first_chunk::<16>() else { return Ok(None) };
        let reply = SimpleReply::parse(bytes).map_err(|_| broken("a reply without its magic"))?;
        let (request, error) = (reply.cookie.get(), reply.error());
        let asked = self.asked.get_mut(&request).ok_or_else(|| unasked(request))?;
        if error != NbdError::OK {
            let failed = failed(&asked.what, error);
            return self.time_out(request, error, shared).then_some(Some(16)).ok_or(failed);
        }
        let is_read = asked.what.kind == Kind::Read;
        let data = if is_read { (asked.what.count * self.drive.block) as usize } else { 0 };
        if self.inbox.len() - at < 16 + data {
            return Ok(None);
        }
        asked.data.extend_from_slice(&self.inbox[at + 16..at + 16 + data]);
        self.end(request, shared)?;
        Ok(Some(16 + data))
    }

    fn take_chunk(&mut self, at: usize, shared: &mut Shared) -> Result<Option<usize>, Finding> {
        let Some(bytes) = self.inbox[at..].first_chunk::<20>() else { return Ok(None) };
        let header = *ChunkHeader::parse(bytes).map_err(|_| broken("a chunk without its magic"))?;
        let len = 20 + header.length.get() as usize;
        if self.inbox.len() - at < len {
            return Ok(None);
        }
        let request = header.cookie.get();
        let asked = self.asked.get_mut(&request).ok_or_else(|| unasked(request))?;
        let payload = &self.inbox[at + 20..at + len];
        match header.chunk() {
            ChunkType::NONE => {}
            ChunkType::OFFSET_DATA if payload.len() >= 8 => asked.data.extend_from_slice(&payload[8..]),
            chunk => {
                let error = NbdError(payload.first_chunk().map_or(0, |code| u32::from_be_bytes(*code)));
                let failed = failed(&asked.what, error);
                let timed_out = chunk == ChunkType::ERROR && self.time_out(request, error, shared);
                return timed_out.then_some(Some(len)).ok_or(failed);
            }
        }
        if header.is_done() {
            self.end(request, shared)?;
        }
        Ok(Some(len))
    }

    /// A request failed, and may have: what it wrote has happened before whatever is asked from now on, or never will.
    /// False if it may not fail.
    fn time_out(&mut self, request: u64, error: NbdError, shared: &mut Shared) -> bool {
        let excuse = self.excuse;
        let is_excused = |asked: &Request| {
            // A trim that is to be durable ends with a flush.
            let flushes = asked.kind == Kind::Flush || asked.fua;
            asked.start < excuse.before || (flushes && excuse.flushes)
        };
        let Some(asked) = self.asked.get(&request).map(|asked| asked.what) else { return false };
        let may_fail = self.drive.impatient || is_excused(&asked);
        let by_medium = failed_by_medium(&asked, error, may_fail, shared);
        let is_known = matches!(error, NbdError::EIO | NbdError::ESHUTDOWN);
        if !(by_medium || may_fail && is_known) {
            return false;
        }
        self.asked.remove(&request);
        self.ended += 1;
        shared.tick += 1;
        if by_medium {
            asked.fail(shared);
            return true;
        }
        shared.timeouts += u64::from(!is_excused(&asked));
        match asked.kind {
            Kind::Read => shared.model.read_abandoned(asked.start),
            Kind::Flush => {}
            _ => {
                shared.model.write_abandoned(request, asked.blocks());
                shared.model.abandoned_ended(request, asked.blocks(), shared.tick);
            }
        }
        true
    }

    fn end(&mut self, request: u64, shared: &mut Shared) -> Result<(), Finding> {
        let Some(Asked { what, data }) = self.asked.remove(&request) else { return Err(unasked(request)) };
        shared.tick += 1;
        self.ended += 1;
        self.served += 1;
        self.served_of = self.served_of.max(what.start);
        let bytes = what.count * self.drive.block;
        shared.bytes += bytes;
        match what.kind {
            Kind::Read if data.len() as u64 != bytes => {
                Err((names::COMPLETIONS, format!("read {request} brought {} bytes", data.len())))
            }
            Kind::Read => what.check_read(self.drive.block, &data, shared),
            Kind::Flush => {
                shared.model.flush_ended(what.start);
                shared.trouble.has_lost = false;
                shared.trouble.flushed = Some(what.start);
                what.must_not_fail(shared)
            }
            _ => {
                shared.model.write_ended(request, what.fua, what.blocks(), shared.tick);
                if what.fua { what.must_not_fail(shared) } else { Ok(()) }
            }
        }
    }

    /// What is still unanswered, for a report.
    pub(crate) fn unanswered(&self) -> String {
        let list: Vec<_> = self.asked.values().map(|asked| asked.what).collect();
        format!("{:?}, {} to send, unanswered {list:?}", self.phase, self.left)
    }
}

fn command(kind: Kind) -> Command {
    match kind {
        Kind::Read => Command::READ,
        Kind::Write => Command::WRITE,
        Kind::Zeroes => Command::WRITE_ZEROES,
        Kind::Trim => Command::TRIM,
        Kind::Flush => Command::FLUSH,
    }
}

/// Whether the medium explains that a request has failed.
fn failed_by_medium(asked: &Request, error: NbdError, may_be_late: bool, shared: &mut Shared) -> bool {
    let asks = match asked.kind {
        Kind::Flush => Asks::Flush,
        _ if asked.fua => Asks::Both,
        _ => Asks::Else,
    };
    let failure = match error {
        NbdError::ENOSPC => Failure::Full,
        NbdError::EIO if may_be_late => Failure::ErrorOrLate,
        NbdError::EIO => Failure::Error,
        _ => return false,
    };
    shared.trouble.explains(asks, asked.start, failure)
}

fn broken(what: &str) -> Finding {
    (names::COMPLETIONS, format!("the server broke the protocol: {what}"))
}

fn unasked(request: u64) -> Finding {
    (names::COMPLETIONS, format!("request {request} has ended, though it was not under way"))
}

fn failed(asked: &Request, error: NbdError) -> Finding {
    (names::COMPLETIONS, format!("{asked:?} failed: {error:?}"))
}
