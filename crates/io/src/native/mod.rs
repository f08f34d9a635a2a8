//! A driver and its drive on two threads of one process: what a borrowed drive is compared with.
//!
//! [`run`] has a load on the very driver and controller that nodes use, with [`node::native`] instead of a fabric
//! between them: two queues of this process carry register accesses and completions, the device's thread moves data
//! between its pages and the host's, once for each byte, and does the medium's system calls. [`run_plain`] does the
//! same load with the system calls alone, on one thread.

mod queue;
mod system_calls;

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::Instant;
use base::ledger::{LedgerRoot, Pages, RawMemory, Span};
use node::native::{
    HostMemory, NativeDevice, NativeDeviceCells, NativeHost, NativeHostCells, ToDevice, ToHost,
};
use node::{DriveConfig, DriveDriver, FlashConfig, FlashModel, MediaWork, WriteCache};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

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
const SPIN: u32 = 1000;
/// How long the driver may take to find its drive, and requests to end when the load is over.
const PATIENCE: Duration = Duration::from_secs(10);

/// A drive to be run natively.
#[derive(Clone, Copy)]
pub struct NativeDrive<'a> {
    /// The medium, in memory.
    pub image: &'a Image,
    /// The flash card it is as slow as.
    pub flash: Option<FlashConfig>,
}

/// Runs a load on each of some drives at once: all drivers on this thread, all controllers on another. One result a
/// drive.
///
/// # Errors
/// When memory or a thread cannot be had, when a driver does not come up, or when a load does not end.
pub fn run(drives: &[NativeDrive<'_>], spec: LoadSpec, seed: u64) -> io::Result<Vec<LoadResult>> {
    let memory = |bytes, name| drives.iter().map(|_| anonymous(bytes, name)).collect::<io::Result<Vec<_>>>();
    let host_memory = memory(LedgerRoot::<NativeHostCells>::SIZE, "causeway-host")?;
    let device_memory = memory(LedgerRoot::<NativeDeviceCells>::SIZE, "causeway-device")?;
    let (mut hosts, mut ends) = (Vec::new(), Vec::new());
    for (index, memory) in host_memory.iter().enumerate() {
        let (to_device, from_host) = queue(SLOTS);
        let (to_host, from_device) = queue(SLOTS);
        // SAFETY: new zeroed memory that lives longer than the host and that only this thread uses, but for pages of
        // running commands.
        let host = NativeHost::new(unsafe { raw(memory) }, now());
        ends.push((Window::new(host.memory()), from_host, to_host));
        let out = Vec::with_capacity(SLOTS);
        let seed = seed.wrapping_add(index as u64 * 2);
        hosts.push(HostLane { host, to_device, from_device, out, spec, seed, run: None, result: None });
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let devices = std::thread::Builder::new().name("device".into()).spawn_scoped(scope, || {
            let parts = drives.iter().zip(&device_memory).zip(ends);
            let lanes = parts.map(|((drive, memory), (window, from_host, to_host))| {
                // SAFETY: new zeroed memory that lives longer than this thread, which alone uses it.
                let device = NativeDevice::new(unsafe { raw(memory) }, drive_config(drive.image));
                let flash = Flash::new(vec![drive.flash.map(FlashModel::new)], vec![Some(0)]);
                let out = Vec::with_capacity(SLOTS);
                DeviceLane { device, image: drive.image, flash, window, from_host, to_host, out }
            });
            serve(lanes.collect(), &over);
        })?;
        let results = {
            let _over = Over(&over);
            load(hosts, Duration::from_millis(spec.duration_ms) + PATIENCE)
        };
        match devices.join() {
            Ok(()) => results,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Says when it goes, even by a panic, that the other thread is to end.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The two threads wait for each other: on one core each would have to wait for the other's time slice. Best effort.
fn stay_on_core(place: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let Some(core) = cores.get(place).filter(|_| cores.len() > 1) else { return };
    let mut one = CpuSet::new();
    one.set(*core);
    let _ = sched_setaffinity(None, &one);
}

/// Drives the controllers until it is over.
fn serve(mut lanes: Vec<DeviceLane<'_>>, over: &AtomicBool) {
    stay_on_core(1);
    let mut idle = Idle::default();
    while !over.load(Ordering::Relaxed) {
        let now = now();
        let busy = lanes.iter_mut().fold(false, |busy, lane| lane.turn(now) | busy);
        idle.turn(busy);
    }
}

/// Drives the drivers until all loads have ended.
fn load(mut lanes: Vec<HostLane<'_>>, patience: Duration) -> io::Result<Vec<LoadResult>> {
    let allowed = sched_getaffinity(None);
    stay_on_core(0);
    let results = drive(&mut lanes, patience);
    // The thread is the caller's, and goes on.
    if let Ok(allowed) = allowed {
        let _ = sched_setaffinity(None, &allowed);
    }
    results?;
    Ok(lanes.into_iter().filter_map(|lane| lane.result).collect())
}

fn drive(lanes: &mut [HostLane<'_>], patience: Duration) -> io::Result<()> {
    let deadline = now() + patience;
    let mut idle = Idle::default();
    while lanes.iter().any(|lane| lane.result.is_none()) {
        let now = now();
        let busy = lanes.iter_mut().fold(false, |busy, lane| lane.turn(now) | busy);
        idle.turn(busy);
        if now > deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the drive does not answer"));
        }
    }
    Ok(())
}

fn drive_config(image: &Image) -> DriveConfig {
    let mut config = DriveConfig::new(image.info().bytes / 512, 512, 1);
    config.read_only = image.info().read_only;
    if image.info().memory_backed {
        config.cache = WriteCache::Absent;
    }
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

// SAFETY: whoever has a window accesses the pages that the driver names in a running command, and those the host leaves
// alone.
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
        // SAFETY: both are inside of their memory, which is not the same; the driver leaves pages of a running read
        // alone.
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

/// A driver with its load.
struct HostLane<'m> {
    host: NativeHost<'m>,
    to_device: Sender<ToDevice>,
    from_device: Receiver<ToHost>,
    out: Vec<ToDevice>,
    spec: LoadSpec,
    seed: u64,
    run: Option<Run>,
    result: Option<LoadResult>,
}

impl HostLane<'_> {
    /// True if there was anything to do.
    fn turn(&mut self, now: Instant) -> bool {
        let due = self.host.driver().poll_timeout().is_some_and(|deadline| deadline <= now);
        if !self.from_device.has_any() && !due && self.out.is_empty() && self.run.is_some() {
            return false;
        }
        let (run, spec, seed) = (&mut self.run, self.spec, self.seed);
        let act = |driver: &mut DriveDriver<'_>, pages: Pages<'_>| match run {
            Some(run) => run.go_on(driver, pages, now),
            None if driver.is_ready() && driver.geometry().is_some() => {
                *run = Some(Run::begin(spec, seed, driver, pages, now));
            }
            None => {}
        };
        self.host.step(now, self.from_device.receive(STEP_MESSAGES), act, &mut self.out);
        self.to_device.send(&mut self.out);
        if self.result.is_none() {
            self.result = self.run.as_ref().and_then(|run| run.result(now));
        }
        true
    }
}

/// A controller with its medium.
struct DeviceLane<'m> {
    device: NativeDevice<'m>,
    image: &'m Image,
    flash: Flash<'m>,
    window: Window,
    from_host: Receiver<ToDevice>,
    to_host: Sender<ToHost>,
    out: Vec<ToHost>,
}

impl DeviceLane<'_> {
    /// True if there was anything to do.
    fn turn(&mut self, now: Instant) -> bool {
        let mut busy = self.take_in(now);
        // What has ended is told before the next begins, so that nobody waits for more than one piece of work.
        for _ in 0..STEP_MESSAGES {
            let Some(work) = self.device.poll_media() else { break };
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

    fn execute(&mut self, now: Instant, work: &MediaWork<'_>) {
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
            let drives = [NativeDrive { image: &image, flash: None }; 2];
            let mut results = run(&drives, spec, 7).unwrap();
            assert_eq!(results.len(), 2);
            results.push(run_plain(&image, spec, 7).unwrap());
            for result in results {
                assert!(result.requests > 0 && result.errors == 0, "{spec:?}: {result:?}");
                assert_eq!(result.latencies.iter().map(|(_, count)| count).sum::<u64>(), result.requests);
            }
        }
    }

    #[test]
    fn a_flash_card_takes_its_time() {
        let image = Image::ram(8 << 20).unwrap();
        let drive = NativeDrive { image: &image, flash: Some(FlashConfig::default()) };
        let result = run(&[drive], spec(4096, 1, 0), 7).unwrap().remove(0);
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
