mod health;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use base::Instant;
use node::{Card, DriveConfig, FlashModel, LoanConfig, MediaError, MediaId, MediaKind, MediaWork};

use self::health::{Health, Told};
use super::flash::{Flash, Held};
use super::flushes::Flushes;
use super::token;
use crate::files::{Collapser, Image, LastWrites};
use crate::messages::ToAgent;
use crate::plan::{MediumKind, MediumPlan, Plan, SharedCells, descriptor};
use crate::process::inherited;
use crate::ring::{Completion, Request, Ring};
use crate::wait::{Interest, Waiter, WakeUp};

/// Threads for disks where io_uring is forbidden, and for what it cannot do.
const THREADS: usize = 4;
/// Interrupted attempts in a row after which a disk is taken to have failed.
const IDLE_ATTEMPTS: u8 = 100;
/// When requests are submitted again that the kernel refused for want of memory or room.
const RESUBMIT: Duration = Duration::from_millis(1);
/// Pieces of work that disks have at a time while functions share one: what waits here is given out fairly, what a disk
/// has is served as it likes.
const SHARED_DEPTH: usize = 64;
/// Bits of the user data of a request whose failure may mean that something is lost that was answered before: a flush,
/// and a write into the system's own memory.
const FLUSH: u64 = 1 << 63;
const BUFFERED: u64 = 1 << 62;

/// The media behind the lent functions of a card.
pub(super) struct Media<'m> {
    images: Vec<Option<(Arc<Image>, MediumKind)>>,
    /// By loan which drive is lent.
    drives: Vec<Option<usize>>,
    /// By drive.
    flushes: Vec<Flushes<(MediaWork<'m>, Instant)>>,
    ring: Option<Ring>,
    /// What the ring has, by its user data.
    in_ring: BTreeMap<u64, InRing<'m>>,
    threads: Option<Threads>,
    /// Requests that found the ring full, at most all that the controllers can have out.
    waiting: VecDeque<InRing<'m>>,
    /// Most pieces of work that ring and threads have at a time.
    depth: usize,
    flash: Flash<'m>,
    /// By drive.
    health: Vec<Health>,
    told: Told,
    last_writes: LastWrites,
    /// Makes huge pages of images in memory, once there is one.
    collapser: Option<Collapser>,
}

/// A request of the ring.
struct InRing<'m> {
    work: MediaWork<'m>,
    /// Its result is not handed in before.
    due: Instant,
    progress: Progress,
}

/// How far a request has come.
struct Progress {
    /// What is left to be moved.
    pieces: Vec<libc::iovec>,
    /// Bytes moved by earlier attempts.
    moved: u64,
    /// Attempts in a row that moved nothing and were no failure.
    idle_attempts: u8,
}

/// What follows from the end of a request.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Done(Result<(), MediaError>),
    /// The rest is to be submitted again.
    Again,
}

/// A job for a thread: plain addresses of ledger memory, which belong to the job until its result is in.
struct Job {
    loan: usize,
    id: MediaId,
    kind: MediaKind,
    offset: u64,
    len: u32,
    pieces: Vec<(usize, usize)>,
    image: Arc<Image>,
    /// Of a flush: which drive's.
    flushes: Option<usize>,
    /// Its result is not handed in before.
    due: Instant,
}

/// Work that a disk has ended.
struct Ended {
    loan: usize,
    id: MediaId,
    kind: MediaKind,
    /// Its result is not handed in before.
    due: Instant,
    result: Result<(), MediaError>,
}

struct Threads {
    /// At most as many wait as the controllers of all loans can have out.
    jobs: Sender<Job>,
    results: Receiver<Ended>,
    wake_up: Arc<WakeUp>,
    out: usize,
}

impl<'m> Media<'m> {
    /// With the images of the plan's drives, in its order.
    pub(super) fn take_over(
        plan: &Plan,
        given: impl Iterator<Item = OwnedFd>,
        shared: &'m SharedCells,
        waiter: &Waiter,
    ) -> io::Result<Self> {
        let places = plan.card.drives.len();
        let mut drives: Vec<_> = (0..places).map(|_| None).collect();
        let mut models: Vec<_> = (0..places).map(|_| None).collect();
        let mut health: Vec<_> = (0..places).map(|place| Health::new(place, 0, 512)).collect();
        let (mut collapser, mut told) = (None, Told::new());
        // SAFETY: the agent gives the page at this number; nothing else in this process owns it.
        let last_writes = LastWrites::of_fd(unsafe { inherited(descriptor::LAST_WRITES)? })?;
        for ((index, drive, medium), image) in plan.drives().zip(given) {
            last_writes.take_over(index);
            health[index] = Health::new(index, drive.blocks, drive.block_size);
            let image = open(image, medium.kind, &mut collapser, &mut health[index], &mut told)?;
            drives[index] = Some((Arc::new(image), medium.kind));
            models[index] = medium.flash.map(FlashModel::new);
        }
        let lent_drive = |loan: &LoanConfig| Some(loan.role.lent()?.drive).filter(|drive| *drive < places);
        let by_loan: Vec<Option<usize>> = plan.card.loans.iter().map(lent_drive).collect();
        let images: Vec<_> =
            by_loan.iter().map(|drive| drive.and_then(|drive| drives[drive].clone())).collect();
        let depth = depth_of(&by_loan);
        let ring = if plan.has_ring { Some(attach_ring(shared, waiter)?) } else { None };
        let disks = images.iter().flatten().any(|(_, medium)| *medium != MediumKind::Inline);
        let threads = if disks { Some(Threads::start(waiter, &last_writes)?) } else { None };
        let flushes = drives.iter().map(|_| Flushes::default()).collect();
        let flash = Flash::new(models, by_loan.clone());
        let (in_ring, waiting) = (BTreeMap::new(), VecDeque::new());
        let drives = by_loan;
        Ok(Self {
            images,
            drives,
            flushes,
            health,
            told,
            last_writes,
            ring,
            in_ring,
            threads,
            waiting,
            depth,
            flash,
            collapser,
        })
    }

    /// There is another place for a loan, behind the others.
    pub(super) fn append_place(&mut self) {
        self.images.push(None);
        self.drives.push(None);
        self.flash.lend(self.drives.len() - 1, None);
    }

    /// A drive with this image is lent from now on, its functions by these loans.
    pub(super) fn come(
        &mut self,
        drive: usize,
        (config, medium): (&DriveConfig, &MediumPlan),
        image: OwnedFd,
        loans: &[usize],
        waiter: &Waiter,
    ) -> io::Result<()> {
        let mut health = Health::new(drive, config.blocks, config.block_size);
        let image = open(image, medium.kind, &mut self.collapser, &mut health, &mut self.told)?;
        let image = Arc::new(image);
        // One that has found no ring at its start has none.
        let kind = match medium.kind {
            MediumKind::Ring if self.ring.is_none() => MediumKind::Threads,
            kind => kind,
        };
        if kind != MediumKind::Inline && self.threads.is_none() {
            self.threads = Some(Threads::start(waiter, &self.last_writes)?);
        }
        self.last_writes.take_over(drive);
        for place in self.health.len()..=drive {
            self.health.push(Health::new(place, 0, 512));
            self.flushes.push(Flushes::default());
        }
        self.health[drive] = health;
        self.flushes[drive] = Flushes::default();
        self.flash.come(drive, medium.flash.map(FlashModel::new));
        for &loan in loans {
            self.images[loan] = Some((Arc::clone(&image), kind));
            self.drives[loan] = Some(drive);
            self.flash.lend(loan, Some(drive));
        }
        self.depth = depth_of(&self.drives);
        Ok(())
    }

    /// A drive is lent no more, and its medium has nothing of it.
    pub(super) fn go(&mut self, drive: usize) {
        for loan in 0..self.drives.len() {
            if self.drives[loan] == Some(drive) {
                (self.images[loan], self.drives[loan]) = (None, None);
                self.flash.lend(loan, None);
            }
        }
        self.flash.come(drive, None);
        self.depth = depth_of(&self.drives);
    }

    /// Takes note of what predecessors were told by the ring or the system, and may not have told anybody. Their
    /// requests are submitted again by whoever has no result for them, but an error of a flush is told once, and the
    /// next flush succeeds.
    pub(super) fn heed_predecessors(&mut self, plan: &Plan, card: &mut Card<'m>, now: Instant) {
        for (index, _, medium) in plan.drives() {
            // Of what was before, whatever is known by now is of after it.
            card.clear_fault(now, index, medium.cleared);
            if medium.has_lost {
                card.note_fault(now, index);
            }
        }
        let Some(ring) = &mut self.ring else { return };
        let mut heed = |completion: Completion| {
            let drive = lost_by(&completion).and_then(|loan| self.drives.get(loan).copied().flatten());
            if let Some(drive) = drive {
                card.note_fault(now, drive);
            }
        };
        while ring.reap(&mut heed).is_some() {}
    }

    /// Does, or begins, what the functions ask for. Inline work is done one piece at a time: the next one is asked for
    /// only when the result of the one before is committed. True if anything was done.
    pub(super) fn drive(&mut self, card: &mut Card<'m>, now: Instant) -> io::Result<bool> {
        let mut busy = self.push_waiting();
        while self.waiting.is_empty()
            && self.under_way() < self.depth
            && let Some(work) = card.poll_media()
        {
            let Some((image, medium)) = &self.images[work.loan] else { continue };
            if let Some(health) = self.drives[work.loan].map(|drive| &mut self.health[drive])
                && let what = (work.kind, work.offset, work.len)
                && let Some(error) = health.refuses(now, image, what, &mut self.told)
            {
                card.handle_media(now, work.loan, work.id, Err(error));
                busy = true;
                continue;
            }
            let due = self.flash.submit(now, &work);
            match (medium, work.kind) {
                // What may be half written is not left so while others read, however long a flash card would take for
                // it.
                (MediumKind::Inline, _) if work.redo && due > now => {
                    self.note_write(&work);
                    let result = execute_work(image, &work);
                    self.note(now, work.loan, result);
                    self.flash.hold(due, Held::Result(work.loan, work.id, result));
                }
                (MediumKind::Inline, _) if due > now => self.flash.hold(due, Held::Work(Box::new(work))),
                (MediumKind::Inline, _) => self.execute_inline(card, now, &work),
                (_, MediaKind::Flush) => self.ask_flush(work, due)?,
                _ => self.begin(work, due)?,
            }
            busy = true;
        }
        busy |= self.end_held(card, now);
        // Also what an earlier call could not hand over, because the kernel was short of something.
        if let Some(ring) = &mut self.ring
            && ring.has_pushed()
        {
            match ring.submit() {
                Err(error) if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {
                    return Err(error);
                }
                _ => {}
            }
        }
        Ok(busy)
    }

    /// A disk that has a flush already is given the next one behind it, for all who wait.
    fn ask_flush(&mut self, work: MediaWork<'m>, due: Instant) -> io::Result<()> {
        match self.drives[work.loan] {
            Some(drive) if !self.flushes[drive].ask((work, due)) => Ok(()),
            _ => self.begin(work, due),
        }
    }

    /// Gives a disk a piece of work.
    fn begin(&mut self, work: MediaWork<'m>, due: Instant) -> io::Result<()> {
        if let Some(drive) = self.drives[work.loan].filter(|_| changes(work.kind)) {
            self.last_writes.begin_write(drive);
        }
        if let Some(drive) = self.drives[work.loan].filter(|_| work.kind == MediaKind::Flush) {
            self.last_writes.begin_flush(drive);
        }
        let Some((image, medium)) = &self.images[work.loan] else { return Ok(()) };
        match (medium, work.kind) {
            (MediumKind::Ring, MediaKind::Read | MediaKind::Write | MediaKind::Flush) => {
                self.push(InRing::new(work, due));
                Ok(())
            }
            _ => self.hand_over(&work, Arc::clone(image), due),
        }
    }

    /// A disk has ended a piece of work. What it flushed may be for many, and others may wait for the next one.
    fn ended(&mut self, card: &mut Card<'m>, now: Instant, ended: Ended) -> io::Result<()> {
        let Ended { loan, id, kind, due, result } = ended;
        if let Some(drive) = self.drives[loan].filter(|_| changes(kind)) {
            self.last_writes.end_write(drive);
        }
        self.note(now, loan, result);
        let Some(drive) = self.drives[loan].filter(|_| kind == MediaKind::Flush) else {
            hand_in(card, &mut self.flash, now, due, (loan, id, result));
            return Ok(());
        };
        self.last_writes.end_flush(drive, result.is_ok());
        for (work, due) in self.flushes[drive].end() {
            hand_in(card, &mut self.flash, now, due, (work.loan, work.id, result));
        }
        match self.flushes[drive].begin() {
            Some((work, due)) => self.begin(work, due),
            None => Ok(()),
        }
    }

    fn execute_inline(&mut self, card: &mut Card<'m>, now: Instant, work: &MediaWork<'m>) {
        self.note_write(work);
        let Some((image, _)) = &self.images[work.loan] else { return };
        let result = execute_work(image, work);
        self.note(now, work.loan, result);
        card.handle_media(now, work.loan, work.id, result);
    }

    /// The image of a drive has grown to so many blocks.
    pub(super) fn grow(&mut self, drive: usize, blocks: u64) {
        if let Some(health) = self.health.get_mut(drive) {
            health.grow(blocks);
        }
    }

    /// The image of a drive was found cut off.
    pub(super) fn cut(&mut self, drive: usize, bytes: u64) {
        if let Some(health) = self.health.get_mut(drive) {
            health.cut(bytes);
        }
    }

    /// What the agent is to be told of images.
    pub(super) fn take_trouble(&mut self) -> Option<ToAgent> {
        self.told.pop_front()
    }

    /// The image is written by this thread, now.
    fn note_write(&self, work: &MediaWork<'m>) {
        if let Some(drive) = self.drives[work.loan].filter(|_| changes(work.kind)) {
            self.last_writes.note(drive);
        }
    }

    fn note(&mut self, now: Instant, loan: usize, result: Result<(), MediaError>) {
        if let (Err(error), Some(drive)) = (result, self.drives[loan]) {
            self.health[drive].note(now, error, &mut self.told);
        }
    }

    /// Ends what flash cards would have ended by now. True if that was anything.
    fn end_held(&mut self, card: &mut Card<'m>, now: Instant) -> bool {
        let mut busy = false;
        while let Some(held) = self.flash.take_due(now) {
            match held {
                Held::Work(work) => self.execute_inline(card, now, &work),
                Held::Result(loan, id, result) => card.handle_media(now, loan, id, result),
            }
            busy = true;
        }
        busy
    }

    /// When [`Media::drive`] has something to do although nobody asks.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.flash.poll_timeout()
    }

    /// Whether an answer of a disk is awaited.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way() > 0 || !self.waiting.is_empty()
    }

    /// Pieces of work that ring and threads have.
    fn under_way(&self) -> usize {
        self.in_ring.len() + self.threads.as_ref().map_or(0, |threads| threads.out)
    }

    /// In how long [`Media::drive`] is to be called although nothing has come: what the kernel refused for the moment
    /// is given to it again.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        self.ring.as_ref().filter(|ring| ring.has_pushed()).map(|_| RESUBMIT)
    }

    /// Takes what the ring has ended, which shows without a system call. True if that was anything.
    pub(super) fn take_ring_results(&mut self, card: &mut Card<'m>, now: Instant) -> io::Result<bool> {
        let mut busy = false;
        let Some(mut ring) = self.ring.take() else { return Ok(false) };
        let mut ended = Ok(());
        // What it has come to is committed before the ring forgets it: an error of a flush is told once.
        while ended.is_ok()
            && let Some(result) = ring.reap(|completion| self.finish(completion, card, now))
        {
            ended = result;
            busy = true;
        }
        self.ring = Some(ring);
        ended.map(|()| busy)
    }

    /// Takes what the threads have ended.
    pub(super) fn take_thread_results(&mut self, card: &mut Card<'m>, now: Instant) -> io::Result<()> {
        if let Some(threads) = &mut self.threads {
            threads.wake_up.take()?;
        }
        while let Some(ended) = self.threads.as_mut().and_then(Threads::take) {
            self.ended(card, now, ended)?;
        }
        Ok(())
    }

    /// Gives the ring what it had no room for. True if it took any.
    fn push_waiting(&mut self) -> bool {
        let waiting = self.waiting.len();
        while let Some(request) = self.waiting.pop_front() {
            if !self.push(request) {
                break;
            }
        }
        self.waiting.len() < waiting
    }

    /// Gives the ring a request, which waits if there is no room. Whether there was.
    fn push(&mut self, request: InRing<'m>) -> bool {
        let work = request.work;
        let Some((image, _)) = &self.images[work.loan] else { return false };
        let Some(ring) = &mut self.ring else {
            // Its results are just being taken.
            self.waiting.push_front(request);
            return false;
        };
        let fd = image.as_fd().as_raw_fd();
        let pieces = &request.progress.pieces;
        let (buffers, count) = (pieces.as_ptr(), pieces.len() as u32);
        let offset = work.offset + request.progress.moved;
        let entry = match work.kind {
            MediaKind::Read => Request::Read { fd, buffers, count, offset },
            MediaKind::Write => Request::Write { fd, buffers, count, offset },
            _ => Request::SyncData { fd },
        };
        let mark = match work.kind {
            MediaKind::Flush => FLUSH,
            MediaKind::Write if is_buffered(image) => BUFFERED,
            _ => 0,
        };
        let user_data = mark | (work.loan as u64) << 32 | u64::from(work.id.0);
        // SAFETY: the pages belong to this work until its result is handed in, and the table lives in `in_ring` until
        // then: moving the request moves no element of its table.
        let pushed = unsafe { ring.push(entry, user_data) }.is_ok();
        if pushed {
            self.in_ring.insert(user_data, request);
        } else {
            self.waiting.push_front(request);
        }
        pushed
    }

    fn finish(&mut self, completion: Completion, card: &mut Card<'m>, now: Instant) -> io::Result<()> {
        let Some(mut request) = self.in_ring.remove(&completion.user_data) else { return Ok(()) };
        let work = request.work;
        let Some((image, _)) = &self.images[work.loan] else { return Ok(()) };
        match request.progress.judge(completion.result, image.info().offset_alignment.into()) {
            Verdict::Done(result) => {
                let result = result.map_err(|error| seen_from(image, work.kind, error));
                let (loan, id, kind, due) = (work.loan, work.id, work.kind, request.due);
                return self.ended(card, now, Ended { loan, id, kind, due, result });
            }
            Verdict::Again => _ = self.push(request),
        }
        Ok(())
    }

    fn hand_over(&mut self, work: &MediaWork<'m>, image: Arc<Image>, due: Instant) -> io::Result<()> {
        let threads = self.threads.as_mut().expect("there are threads wherever there is a disk");
        let (loan, id, kind, offset, len) = (work.loan, work.id, work.kind, work.offset, work.len);
        threads.out += 1;
        let flushes = self.drives[loan].filter(|_| kind == MediaKind::Flush);
        let job = Job { loan, id, kind, offset, len, pieces: addresses(work), image, flushes, due };
        threads.jobs.send(job).map_err(|_| io::Error::other("the disk threads have ended"))
    }
}

/// Whether work of this kind changes the image, and so the time of its last change.
fn changes(kind: MediaKind) -> bool {
    matches!(kind, MediaKind::Write | MediaKind::Trim | MediaKind::Zero { .. })
}

/// Whether what is written goes to the system's own memory first, and to the medium some time later.
fn is_buffered(image: &Image) -> bool {
    !image.info().direct && !image.info().memory_backed
}

/// What an error means: a write into the system's own memory fails for want of room, or because earlier ones could not
/// be written back from there.
fn seen_from(image: &Image, kind: MediaKind, error: MediaError) -> MediaError {
    let writes = matches!(kind, MediaKind::Write | MediaKind::Zero { .. });
    if error == MediaError::Io && writes && is_buffered(image) { MediaError::Lost } else { error }
}

/// The loan for whose function a completion says that something is lost, if it does, and nobody has looked at it.
pub(crate) fn lost_by(completion: &Completion) -> Option<usize> {
    let loan = (completion.user_data & !(FLUSH | BUFFERED)) >> 32;
    tells_loss(completion).then_some(loan as usize)
}

/// Whether a completion that nobody has looked at says that something is lost.
fn tells_loss(completion: &Completion) -> bool {
    let error = -completion.result;
    let is_answer = error > 0 && !matches!(error, libc::EINTR | libc::EAGAIN | libc::ECANCELED);
    // A write that found no room tells of itself only.
    let tells_of_others = || media_error(&io::Error::from_raw_os_error(error)) == MediaError::Io;
    match completion.user_data {
        flush if flush & FLUSH != 0 => is_answer,
        write if write & BUFFERED != 0 => is_answer && tells_of_others(),
        _ => false,
    }
}

/// Hands in what a disk has answered, when it is due; an error at once, because it might be lost with the card.
fn hand_in<'m>(
    card: &mut Card<'m>,
    flash: &mut Flash<'m>,
    now: Instant,
    due: Instant,
    (loan, id, result): (usize, MediaId, Result<(), MediaError>),
) {
    if due > now && result.is_ok() {
        flash.hold(due, Held::Result(loan, id, result));
    } else {
        card.handle_media(now, loan, id, result);
    }
}

impl<'m> InRing<'m> {
    fn new(work: MediaWork<'m>, due: Instant) -> Self {
        let pieces = work
            .spans()
            .map(|span| libc::iovec { iov_base: span.as_ptr().cast(), iov_len: span.len() })
            .collect();
        Self { work, due, progress: Progress::new(pieces) }
    }
}

impl Progress {
    fn new(pieces: Vec<libc::iovec>) -> Self {
        Self { pieces, moved: 0, idle_attempts: 0 }
    }

    /// Takes note of what an attempt came to: bytes moved, or a negative errno. A medium that wants positions to be
    /// multiples of `alignment` gets the rest from such a position on; moving a few bytes twice changes nothing.
    fn judge(&mut self, result: i32, alignment: u64) -> Verdict {
        match result {
            failed if failed < 0 && !matches!(-failed, libc::EINTR | libc::EAGAIN) => {
                return Verdict::Done(Err(media_error(&io::Error::from_raw_os_error(-failed))));
            }
            moved if moved >= 0 => {
                let left: usize = self.pieces.iter().map(|piece| piece.iov_len).sum();
                if moved as usize >= left {
                    return Verdict::Done(Ok(()));
                }
                let kept = moved as u64 / alignment * alignment;
                if kept == 0 {
                    // The image has become too short, or takes nothing more.
                    return Verdict::Done(Err(MediaError::Io));
                }
                self.moved += kept;
                advance(&mut self.pieces, kept as usize);
                self.idle_attempts = 0;
            }
            _ => {
                self.idle_attempts += 1;
                if self.idle_attempts == IDLE_ATTEMPTS {
                    return Verdict::Done(Err(MediaError::Io));
                }
            }
        }
        Verdict::Again
    }
}

/// Takes `bytes` off the front of a table.
fn advance(pieces: &mut Vec<libc::iovec>, mut bytes: usize) {
    let whole = pieces.iter().take_while(|piece| {
        let fits = piece.iov_len <= bytes;
        bytes -= if fits { piece.iov_len } else { 0 };
        fits
    });
    let whole = whole.count();
    pieces.drain(..whole);
    if let Some(first) = pieces.first_mut() {
        first.iov_base = first.iov_base.wrapping_byte_add(bytes);
        first.iov_len -= bytes;
    }
}

/// Most pieces of work that ring and threads have at a time, where by loan these drives are lent.
fn depth_of(drives: &[Option<usize>]) -> usize {
    let mut seen = std::collections::BTreeSet::new();
    let is_shared = drives.iter().flatten().any(|drive| !seen.insert(*drive));
    if is_shared { SHARED_DEPTH } else { usize::MAX }
}

/// The image of a drive.
fn open(
    fd: OwnedFd,
    kind: MediumKind,
    collapser: &mut Option<Collapser>,
    health: &mut Health,
    told: &mut Told,
) -> io::Result<Image> {
    let mut image = Image::from_fd(fd)?;
    // Where it cannot be mapped, system calls do as well.
    if kind == MediumKind::Inline
        && let Err(error) = map(&mut image, collapser)
    {
        health.note_unmapped(&error, told);
    }
    Ok(image)
}

/// Maps an image in memory.
fn map(image: &mut Image, collapser: &mut Option<Collapser>) -> io::Result<()> {
    match collapser {
        Some(collapser) => image.map(collapser),
        None => Collapser::start().and_then(|started| image.map(collapser.insert(started))),
    }
}

fn attach_ring(shared: &SharedCells, waiter: &Waiter) -> io::Result<Ring> {
    // SAFETY: the agent gives its ring at this number, with these parameters, and has reaped the card that used it
    // before.
    let ring = unsafe { Ring::attach(inherited(descriptor::RING)?, shared.ring)? };
    // SAFETY: the number stays open as long as the ring, which lives as long as this process.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor::RING) };
    waiter.register(fd, token::RING, Interest::READ)?;
    Ok(ring)
}

impl Threads {
    /// The next result.
    fn take(&mut self) -> Option<Ended> {
        let ended = self.results.try_recv().ok()?;
        self.out -= 1;
        Some(ended)
    }

    fn start(waiter: &Waiter, last_writes: &LastWrites) -> io::Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let (done, results) = channel();
        let wake_up = Arc::new(WakeUp::new()?);
        waiter.register(wake_up.as_fd(), token::THREADS, Interest::READ)?;
        let queue = Arc::new(std::sync::Mutex::new(queue));
        for _ in 0..THREADS {
            let (queue, done, wake_up) = (Arc::clone(&queue), done.clone(), Arc::clone(&wake_up));
            let last_writes = LastWrites::of_fd(last_writes.as_fd().try_clone_to_owned()?)?;
            let serve = move || serve(&queue, &last_writes, &done, &wake_up);
            std::thread::Builder::new().name("disk".into()).spawn(serve)?;
        }
        Ok(Self { jobs, results, wake_up, out: 0 })
    }
}

fn serve(
    queue: &std::sync::Mutex<Receiver<Job>>,
    last_writes: &LastWrites,
    done: &Sender<Ended>,
    wake_up: &WakeUp,
) {
    loop {
        let job = queue.lock().ok().and_then(|queue| queue.recv().ok());
        let Some(job) = job else { return };
        let result = execute(&job.image, job.kind, job.offset, job.len, &job.pieces);
        // The kernel has said it now, and says it once: whoever follows a card that dies here is to know.
        if let Some(drive) = job.flushes {
            last_writes.end_flush(drive, result.is_ok());
        }
        let Job { loan, id, kind, due, .. } = job;
        if done.send(Ended { loan, id, kind, due, result }).is_err() || wake_up.signal().is_err() {
            return;
        }
    }
}

fn addresses(work: &MediaWork<'_>) -> Vec<(usize, usize)> {
    work.spans().map(|span| (span.as_ptr().expose_provenance(), span.len())).collect()
}

/// Does work with plain system calls, from this thread.
pub(crate) fn execute_work(image: &Image, work: &MediaWork<'_>) -> Result<(), MediaError> {
    let mut spans = work.spans();
    // Nearly always the pages lie behind each other: no table is needed then.
    let (first, second) = (spans.next(), spans.next());
    match first.filter(|_| second.is_none()) {
        Some(span) => {
            let pieces = [(span.as_ptr().expose_provenance(), span.len())];
            execute(image, work.kind, work.offset, work.len, &pieces)
        }
        None => execute(image, work.kind, work.offset, work.len, &addresses(work)),
    }
}

/// The same from any thread, by plain addresses.
fn execute(
    image: &Image,
    kind: MediaKind,
    offset: u64,
    len: u32,
    pieces: &[(usize, usize)],
) -> Result<(), MediaError> {
    // SAFETY: the pages of a read belong to it alone until its result is handed in.
    let to = |&(start, len): &(usize, usize)| unsafe {
        IoSliceMut::new(std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(start), len))
    };
    // SAFETY: the pages of a write are not changed until its result is handed in.
    let from = |&(start, len): &(usize, usize)| unsafe {
        IoSlice::new(std::slice::from_raw_parts(std::ptr::with_exposed_provenance(start), len))
    };
    let result = match (kind, pieces) {
        (MediaKind::Read, [one]) => image.read_at(&mut [to(one)], offset),
        (MediaKind::Read, _) => image.read_at(&mut pieces.iter().map(to).collect::<Vec<_>>(), offset),
        (MediaKind::Write, [one]) => image.write_at(&mut [from(one)], offset),
        (MediaKind::Write, _) => image.write_at(&mut pieces.iter().map(from).collect::<Vec<_>>(), offset),
        (MediaKind::Flush, _) => image.sync_data(),
        (MediaKind::Trim, _) => image.trim(offset, len.into()).map(|_| ()),
        (MediaKind::Zero { deallocate }, _) => image.zero(offset, len.into(), deallocate),
    };
    result.map_err(|error| seen_from(image, kind, media_error(&error)))
}

fn media_error(error: &io::Error) -> MediaError {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => MediaError::NoSpace,
        Some(libc::EROFS | libc::EPERM | libc::EBADF) => MediaError::ReadOnly,
        _ => MediaError::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = 4096;

    fn table(memory: &mut [u8]) -> Vec<libc::iovec> {
        let pieces = memory.chunks_mut(PIECE);
        pieces
            .map(|piece| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() })
            .collect()
    }

    fn lengths(pieces: &[libc::iovec]) -> Vec<usize> {
        pieces.iter().map(|piece| piece.iov_len).collect()
    }

    #[test]
    fn the_rest_of_a_short_request_begins_where_it_stopped() {
        let mut memory = vec![0; 3 * PIECE];
        let start = memory.as_ptr() as usize;
        let mut progress = Progress::new(table(&mut memory));
        assert_eq!(progress.judge(PIECE as i32 + 100, 1), Verdict::Again);
        assert_eq!(
            (progress.moved, lengths(&progress.pieces)),
            (PIECE as u64 + 100, vec![PIECE - 100, PIECE])
        );
        assert_eq!(progress.pieces[0].iov_base as usize, start + PIECE + 100);
        assert_eq!(progress.judge(-libc::EINTR, 1), Verdict::Again);
        assert_eq!(progress.judge((PIECE - 100) as i32, 1), Verdict::Again);
        assert_eq!((progress.moved, lengths(&progress.pieces)), (2 * PIECE as u64, vec![PIECE]));
        assert_eq!(progress.judge(PIECE as i32, 1), Verdict::Done(Ok(())));
    }

    #[test]
    fn the_rest_keeps_the_alignment_of_the_medium() {
        let mut memory = vec![0; 2 * PIECE];
        let mut progress = Progress::new(table(&mut memory));
        assert_eq!(progress.judge(1000, 512), Verdict::Again);
        assert_eq!((progress.moved, lengths(&progress.pieces)), (512, vec![PIECE - 512, PIECE]));
        // What ends within a block ends the image.
        assert_eq!(progress.judge(100, 512), Verdict::Done(Err(MediaError::Io)));
    }

    #[test]
    fn requests_end_with_the_answer_of_the_medium() {
        let mut memory = vec![0; PIECE];
        let ends = [
            (0, Err(MediaError::Io)),
            (-libc::ENOSPC, Err(MediaError::NoSpace)),
            (-libc::EROFS, Err(MediaError::ReadOnly)),
            (-libc::EIO, Err(MediaError::Io)),
            (PIECE as i32, Ok(())),
        ];
        for (result, expected) in ends {
            assert_eq!(Progress::new(table(&mut memory)).judge(result, 1), Verdict::Done(expected));
        }
        // A flush has nothing to move.
        let mut flush = Progress::new(Vec::new());
        assert_eq!(flush.judge(-libc::EINTR, 1), Verdict::Again);
        assert_eq!(flush.judge(0, 1), Verdict::Done(Ok(())));
    }

    #[test]
    fn a_medium_that_is_always_interrupted_has_failed() {
        let mut progress = Progress::new(Vec::new());
        let again = (0..1000).take_while(|_| progress.judge(-libc::EAGAIN, 1) == Verdict::Again).count();
        assert_eq!(again, usize::from(IDLE_ATTEMPTS) - 1);
    }
}
