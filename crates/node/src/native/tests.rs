//! Both halves in one thread, with a medium that is a vector.

use base::Instant;
use base::ledger::{Arena, PAGE_SIZE, Span};
use device::MediaKind;
use device::nvme::Config;
use host::{BlockKind, BlockRequest};

use super::*;

const BLOCKS: u64 = 1024;
const NOW: Instant = Instant::from_nanos(1);

/// The host's pages, reached through its own pool.
struct Memory<'a, 'm>(&'a NativeHost<'m>);

impl HostMemory for Memory<'_, '_> {
    fn write(&self, offset: u64, bytes: Span<'_>) {
        let mut copy = vec![0; bytes.len()];
        bytes.read(&mut copy);
        let (pages, page) = (self.0.pages(), page(offset));
        pages.write(page, offset as usize % PAGE_SIZE, &copy);
    }

    fn read(&self, offset: u64, len: usize, take: &mut dyn FnMut(&[u8])) {
        let mut copy = vec![0; len];
        self.0.pages().read(page(offset), offset as usize % PAGE_SIZE, &mut copy);
        take(&copy);
    }
}

fn page(offset: u64) -> base::ledger::PageIndex {
    base::ledger::PageIndex((offset / PAGE_SIZE as u64) as u16)
}

struct Pair<'m> {
    host: NativeHost<'m>,
    device: NativeDevice<'m>,
    medium: Vec<u8>,
}

impl<'m> Pair<'m> {
    fn new(arena: &'m Arena) -> Self {
        let host = NativeHost::new(arena.zeroed::<NativeHostCells>(), NOW);
        let device = NativeDevice::new(arena.zeroed::<NativeDeviceCells>(), Config::new(BLOCKS, 512, 1));
        Self { host, device, medium: vec![0; BLOCKS as usize * 512] }
    }

    /// Moves messages until nobody says anything more; returns what has completed.
    fn run(&mut self, requests: &[BlockRequest<'_>]) -> Vec<u32> {
        let (mut requests, mut ended) = (Some(requests), Vec::new());
        let mut to_host = Vec::new();
        for turn in 0..1000 {
            // Timers of the initialisation come due.
            let now = NOW + core::time::Duration::from_millis(turn);
            let mut to_device = Vec::new();
            let incoming = core::mem::take(&mut to_host);
            self.host.step(
                now,
                incoming,
                |driver, _| {
                    if driver.is_ready() {
                        requests
                            .take()
                            .into_iter()
                            .flatten()
                            .for_each(|request| driver.submit(now, *request));
                    }
                    while let Some((id, result)) = driver.poll_completion() {
                        assert_eq!(result, Ok(()));
                        ended.push(id);
                    }
                },
                &mut to_device,
            );
            self.device.step(now, to_device, &Memory(&self.host), &mut to_host);
            while let Some(work) = self.device.poll_media() {
                self.execute(&work);
                self.device.handle_media(now, work.id, Ok(()), &Memory(&self.host), &mut to_host);
            }
        }
        assert!(requests.is_none(), "the driver never was ready");
        ended
    }

    fn execute(&mut self, work: &crate::MediaWork<'_>) {
        let mut at = work.offset as usize;
        for span in work.spans() {
            let part = &mut self.medium[at..at + span.len()];
            at += span.len();
            match work.kind {
                MediaKind::Write => span.read(part),
                MediaKind::Read => self.device.fill(span, part),
                _ => {}
            }
        }
    }
}

#[test]
fn what_is_written_arrives_and_is_read_again() {
    let arena = Arena::default();
    let mut pair = Pair::new(&arena);
    let pages: Vec<_> = (0..34).map(|_| pair.host.pages().alloc().unwrap()).collect();
    let (written, read) = pages.split_at(17);
    for (number, page) in (1..).zip(written) {
        pair.host.pages().write(*page, 0, &[number; PAGE_SIZE]);
    }
    let request = |id, kind, lba, pages| BlockRequest { id, kind, lba, blocks: 17 * 8, fua: false, pages };
    assert_eq!(pair.run(&[request(7, BlockKind::Write, 8, written)]), [7]);
    assert!((0..17).all(|page| pair.medium[(page + 1) * PAGE_SIZE] == page as u8 + 1));
    assert_eq!(pair.run(&[request(8, BlockKind::Read, 8, read)]), [8]);
    for (number, page) in (1..).zip(read) {
        let mut bytes = [0; PAGE_SIZE];
        pair.host.pages().read(*page, 0, &mut bytes);
        assert_eq!(bytes, [number; PAGE_SIZE]);
    }
}

#[test]
fn a_write_behind_reads_is_served_while_the_medium_has_them() {
    let arena = Arena::default();
    let mut pair = Pair::new(&arena);
    pair.run(&[]);
    let pages: Vec<_> = (0..10).map(|_| pair.host.pages().alloc().unwrap()).collect();
    let now = NOW + core::time::Duration::from_secs(1);
    let request = |id: usize| BlockRequest {
        id: id as u32,
        kind: if id < 9 { BlockKind::Read } else { BlockKind::Write },
        lba: id as u64,
        blocks: 1,
        fua: false,
        pages: &pages[id..=id],
    };
    let mut requests = (0..10).map(request);
    let (mut to_host, mut kinds) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let mut to_device = Vec::new();
        let incoming = core::mem::take(&mut to_host);
        let submit = |driver: &mut host::nvme::Driver<'_>, _| {
            requests.by_ref().for_each(|request| driver.submit(now, request));
        };
        pair.host.step(now, incoming, submit, &mut to_device);
        // As whoever drives it does: a step where something has come or is due.
        if !to_device.is_empty() || pair.device.poll_timeout().is_some_and(|at| at <= now) {
            pair.device.step(now, to_device, &Memory(&pair.host), &mut to_host);
        }
        kinds.extend(std::iter::from_fn(|| pair.device.poll_media()).map(|work| work.kind));
    }
    let count = |wanted| kinds.iter().filter(|kind| **kind == wanted).count();
    assert_eq!((count(MediaKind::Read), count(MediaKind::Write)), (9, 1), "{kinds:?}");
}

#[test]
fn many_requests_of_few_blocks_end_each_once() {
    let arena = Arena::default();
    let mut pair = Pair::new(&arena);
    let pages: Vec<_> = (0..200).map(|_| pair.host.pages().alloc().unwrap()).collect();
    let request = |id: u32| BlockRequest {
        id,
        kind: if id.is_multiple_of(3) { BlockKind::Write } else { BlockKind::Read },
        lba: u64::from(id),
        blocks: 1,
        fua: false,
        pages: &pages[id as usize..=id as usize],
    };
    let requests: Vec<_> = (0..200).map(request).collect();
    let mut ended = pair.run(&requests);
    ended.sort_unstable();
    assert_eq!(ended, (0..200).collect::<Vec<_>>());
}
