use std::io::{self, IoSlice, IoSliceMut};
use std::time::Duration;

use node::{BlockKind, Geometry};

use crate::card::now;
use crate::files::Image;
use crate::load::{Histogram, LoadResult, LoadSpec, Pattern, cpu_time};

/// Runs a load with `preadv` and `pwritev` alone, one after the other on this thread, whatever depth it has.
///
/// # Errors
/// The first that the image has.
pub fn run_plain(image: &Image, spec: LoadSpec, seed: u64) -> io::Result<LoadResult> {
    let spec = spec.within_bounds();
    let mut buffer = vec![0xa5_u8; spec.bytes as usize];
    let geometry = Geometry {
        block_size: 512,
        blocks: image.info().bytes / 512,
        read_only: false,
        volatile_cache: false,
    };
    let (mut pattern, mut latencies) = (Pattern::new(spec, seed), Histogram::new());
    let (since, cpu) = (now(), cpu_time());
    let (mut requests, mut begun) = (0, since);
    while begun.since(since) < Duration::from_millis(spec.duration_ms) {
        let (kind, lba) = pattern.next(geometry);
        match kind {
            BlockKind::Write => image.write_at(&mut [IoSlice::new(&buffer)], lba * 512)?,
            _ => image.read_at(&mut [IoSliceMut::new(&mut buffer)], lba * 512)?,
        }
        let ended = now();
        latencies.add(ended.since(begun));
        (requests, begun) = (requests + 1, ended);
    }
    let result = LoadResult { requests, ..LoadResult::default() };
    Ok(result.with_times(begun.since(since), cpu_time().saturating_sub(cpu), &latencies))
}
