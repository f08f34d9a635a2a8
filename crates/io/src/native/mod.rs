//! A driver and its drive on two threads of one process: what a borrowed drive is compared with.
//!
//! [`run`] has a load on the very driver and controller that nodes use, with [`node::native`] instead of a fabric between
//! them: two queues of this process carry register accesses and completions, the device's thread moves data between its pages
//! and the host's, once for each byte, and does the medium's system calls. [`run_plain`] does the same load with the
//! system calls alone, on one thread.

mod queue;
mod system_calls;

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as Clock};

use base::Instant;
use base::ledger::{LedgerRoot, RawMemory, Span};
use node::native::{
    HostMemory, NativeDevice, NativeDeviceCells, NativeHost, NativeHostCells, ToDevice, ToHost,
};
use node::{DriveConfig, FlashConfig, FlashModel};

use crate::card::flash::{Flash, Held};
use crate::card::media::execute_work;
use crate::card::now;
use crate::files::Image;
use crate::load::{LoadResult, LoadSpec, Run};
use crate::memory::Mapping;
use queue::{Receiver, Sender, queue};
pub use system_calls::run_plain;

/// Places of a queue: all commands of a driver several times over.
const SLOTS: usize = 1024;
/// Messages that a step takes in.
const STEP_MESSAGES: usize = 64;
/// How long a thread that finds nothing spins before it yields the processor at every turn.
const SPIN: u32 = 100;
/// How long the driver may take to find its drive, and requests to end when the load is over.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs a load on a driver in front of `image`, which is a medium in memory: as slow as `flash` says, if it says so.
///
/// # Errors
/// When memory or a thread cannot be had, when the driver does not come up, or when the load does not end.
pub fn run(image: &Image, flash: Option<FlashConfig>, spec: LoadSpec, seed: u64) -> io::Result<LoadResult> {
    let host_memory = anonymous(LedgerRoot::<NativeHostCells>::SIZE, "causeway-host")?;
    let device_memory = anonymous(LedgerRoot::<NativeDeviceCells>::SIZE, "causeway-device")?;
    let (to_device, from_host) = queue(SLOTS);
    let (to_host, from_device) = queue(SLOTS);
    let over = AtomicBool::new(false);
    // SAFETY: new zeroed memory that lives longer than the host and that only this thread uses, but for pages of running
    // commands.
    let host = NativeHost::new(unsafe { raw(&host_memory) }, now());
    let window = Window::new(host.memory());
    std::thread::scope(|scope| {
        let device = std::thread::Builder::new().name("device".into()).spawn_scoped(scope, || {
            // SAFETY: new zeroed memory that lives longer than this thread, which alone uses it.
            let device = NativeDevice::new(unsafe { raw(&device_memory) }, drive_config(image));
            let flash = Flash::new(vec![flash.map(FlashModel::new)], vec![Some(0)]);
            let out = Vec::with_capacity(SLOTS);
            DeviceThread { device, image, flash, window, from_host, to_host, out }.run(&over);
        })?;
        let result =
            HostThread { host, to_device, from_device, out: Vec::with_capacity(SLOTS) }.run(spec, seed);
        over.store(true, Ordering::Release);
        match device.join() {
            Ok(()) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn drive_config(image: &Image) -> DriveConfig {
    let mut config = DriveConfig::new(image.info().bytes / 512, 512, 1);
    config.read_only = image.info().read_only;
    config.volatile_cache = !image.info().memory_backed;
    config
}

fn anonymous(bytes: usize, name: &str) -> io::Result<Mapping> {
    use std::os::fd::AsFd;
    let memory = Mapping::shared(crate::memory::create(name, bytes)?.as_fd())?;
    memory.populate()?;
    memory.collapse();
    Ok(memory)
}

/// # Safety
/// As of [`RawMemory::new`].
unsafe fn raw(mapping: &Mapping) -> RawMemory<'_> {
    let base = NonNull::new(mapping.as_ptr()).expect("a mapping does not begin at zero");
    // SAFETY: the mapping is as long as it says; the rest is the caller's.
    unsafe { RawMemory::new(base, mapping.len()) }
}

/// The host's pages, as the device's thread has them.
struct Window {
    start: *mut u8,
    len: usize,
}

// SAFETY: whoever has a window accesses the pages that the driver names in a running command, and those the host leaves alone.
unsafe impl Send for Window {}

impl Window {
    fn new(span: Span<'_>) -> Self {
        Self { start: span.as_ptr(), len: span.len() }
    }

    /// Where `len` bytes from `offset` on lie.
    fn at(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let offset = usize::try_from(offset).ok()?;
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        fits.then(|| self.start.wrapping_add(offset))
    }
}

impl HostMemory for Window {
    fn write(&self, offset: u64, bytes: Span<'_>) {
        let Some(target) = self.at(offset, bytes.len()) else { return };
        // SAFETY: both are inside of their memory, which is not the same; the driver leaves pages of a running read alone.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast_const(), target, bytes.len()) };
    }

    fn read(&self, offset: u64, len: usize, take: &mut dyn FnMut(&[u8])) {
        match self.at(offset, len) {
            // SAFETY: inside of the host's pages; the driver leaves pages of a running write alone.
            Some(start) => take(unsafe { std::slice::from_raw_parts(start, len) }),
            None => take(&vec![0; len]),
        }
    }
}

/// Turns without anything to do.
#[derive(Default)]
struct Idle(u32);

impl Idle {
    fn turn(&mut self, busy: bool) {
        if busy {
            self.0 = 0;
            return;
        }
        self.0 = self.0.saturating_add(1);
        if self.0 < SPIN { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}

struct HostThread<'m> {
    host: NativeHost<'m>,
    to_device: Sender<ToDevice>,
    from_device: Receiver<ToHost>,
    out: Vec<ToDevice>,
}

impl HostThread<'_> {
    fn run(mut self, spec: LoadSpec, seed: u64) -> io::Result<LoadResult> {
        let deadline = Clock::now() + Duration::from_millis(spec.duration_ms) + PATIENCE;
        let (mut run, mut idle, mut turns) = (None, Idle::default(), 0_u32);
        loop {
            let now = now();
            let busy = self.turn(now, spec, seed, &mut run);
            if let Some(result) = run.as_ref().and_then(|run: &Run| run.result(now)) {
                return Ok(result);
            }
            idle.turn(busy);
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(1 << 12) && Clock::now() > deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the drive does not answer"));
            }
        }
    }

    fn turn(&mut self, now: Instant, spec: LoadSpec, seed: u64, run: &mut Option<Run>) -> bool {
        let due = self.host.driver().poll_timeout().is_some_and(|deadline| deadline <= now);
        if self.from_device.has_any() || due || !self.out.is_empty() || run.is_none() {
            let incoming = self.from_device.receive(STEP_MESSAGES);
            let act = |driver: &mut node::DriveDriver<'_>, pages: base::ledger::Pages<'_>| match run {
                Some(run) => run.go_on(driver, pages, now),
                None if driver.is_ready() && driver.geometry().is_some() => {
                    *run = Some(Run::begin(spec, seed, driver, pages, now));
                }
                None => {}
            };
            self.host.step(now, incoming, act, &mut self.out);
            self.to_device.send(&mut self.out);
            return true;
        }
        false
    }
}

struct DeviceThread<'m> {
    device: NativeDevice<'m>,
    image: &'m Image,
    flash: Flash<'m>,
    window: Window,
    from_host: Receiver<ToDevice>,
    to_host: Sender<ToHost>,
    out: Vec<ToHost>,
}

impl DeviceThread<'_> {
    fn run(mut self, over: &AtomicBool) {
        let mut idle = Idle::default();
        while !over.load(Ordering::Relaxed) {
            let busy = self.turn(now());
            idle.turn(busy);
        }
    }

    fn turn(&mut self, now: Instant) -> bool {
        let mut busy = self.take_in(now);
        // The host waits for no more than one piece of work: what has ended is told before the next one begins.
        while let Some(work) = self.device.poll_media() {
            busy = true;
            let due = self.flash.submit(now, &work);
            if due > now {
                self.flash.hold(due, Held::Work(Box::new(work)));
                continue;
            }
            self.execute(now, &work);
            self.take_in(now);
        }
        while let Some(Held::Work(work)) = self.flash.take_due(now) {
            busy = true;
            self.execute(now, &work);
        }
        busy
    }

    fn take_in(&mut self, now: Instant) -> bool {
        let due = self.device.poll_timeout().is_some_and(|deadline| deadline <= now);
        let busy = self.from_host.has_any() || due;
        if busy {
            let incoming = self.from_host.receive(STEP_MESSAGES);
            self.device.step(now, incoming, &self.window, &mut self.out);
        }
        self.to_host.send(&mut self.out);
        busy
    }

    fn execute(&mut self, now: Instant, work: &node::MediaWork<'_>) {
        let result = execute_work(self.image, work);
        self.device.handle_media(now, work.id, result, &self.window, &mut self.out);
        self.to_host.send(&mut self.out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(bytes: u32, depth: u16, write_percent: u8) -> LoadSpec {
        LoadSpec { bytes, depth, write_percent, sequential: false, duration_ms: 30 }
    }

    #[test]
    fn loads_of_all_kinds_end_without_errors() {
        let image = Image::ram(8 << 20).unwrap();
        for spec in [spec(512, 1, 0), spec(4096, 32, 30), spec(65536, 32, 100), spec(65536, 128, 0)] {
            for result in [run(&image, None, spec, 7).unwrap(), run_plain(&image, spec, 7).unwrap()] {
                assert!(result.requests > 0 && result.errors == 0, "{spec:?}: {result:?}");
                assert_eq!(result.latencies.iter().map(|(_, count)| count).sum::<u64>(), result.requests);
            }
        }
    }

    #[test]
    fn a_flash_card_takes_its_time() {
        let image = Image::ram(8 << 20).unwrap();
        let result = run(&image, Some(FlashConfig::default()), spec(4096, 1, 0), 7).unwrap();
        assert!(result.p50_ns >= 50_000 && result.requests <= 30_000_000 / 50_000, "{result:?}");
    }

    #[test]
    fn the_window_has_an_end() {
        let mut bytes = vec![7_u8; 64];
        let window = Window { start: bytes.as_mut_ptr(), len: 64 };
        let read = |offset, len| {
            let mut found = Vec::new();
            window.read(offset, len, &mut |bytes| found.extend_from_slice(bytes));
            found
        };
        assert_eq!((read(60, 4), read(61, 4), read(u64::MAX, 2)), (vec![7; 4], vec![0; 4], vec![0; 2]));
    }
}
