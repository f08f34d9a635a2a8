//! Lent drives that take the time of a flash card, as a borrower sees them.

use std::time::{Duration, Instant};

use io::files::{Image, ImageOptions};
use io::load::{LoadResult, LoadSpec};
use node::{FlashConfig, FlashRates};

use crate::cases::pattern;
use crate::client::Client;
use crate::disk::Scratch;
use crate::pair::{Pair, measure};

const MIB: u64 = 1 << 20;

fn run(flash: FlashConfig, bytes: u32, write_percent: u8, depth: u16) -> LoadResult {
    let load = LoadSpec { bytes, write_percent, sequential: false, depth, duration_ms: 600 };
    let result = measure(64 * MIB, flash, load);
    assert_eq!(result.errors, 0);
    result
}

/// A card never does better than its model; how much worse it may look on a machine that does other things is stated
/// here.
pub(crate) fn takes_its_time() {
    let card = FlashConfig::default();
    let slow =
        |rates: FlashRates, latency_ms| FlashRates { latency: Duration::from_millis(latency_ms), ..rates };
    // Alone, a request takes the latency.
    let patient = FlashConfig { read: slow(card.read, 5), write: slow(card.write, 10), ..card };
    for (write_percent, latency_ms) in [(0, 5), (100, 10)] {
        let found = run(patient, 4096, write_percent, 1);
        let [median_ms, max_ms] = [found.p50_ns, found.max_ns].map(|ns| ns as f64 / 1e6);
        let least = latency_ms as f64;
        assert!(
            (least..2.0 * least).contains(&median_ms) && max_ms >= median_ms,
            "{latency_ms} ms: {found:?}"
        );
        assert!(found.requests <= found.elapsed_ns / (latency_ms * 1_000_000) + 1, "{found:?}");
    }
    // As many large writes as there may be are done as well.
    assert!(run(FlashConfig { channels: 64, ..card }, 65_536, 100, 64).requests > 64);
    // Many at once get what the card's rates allow.
    for (divisor, bytes, write_percent, rate) in [
        (93, 512, 0, 2000.0),
        (93, 4096, 100, 167_000.0 / 93.0),
        (30, 65_536, 0, 50e6 / 65_536.0),
        (28, 65_536, 100, 50e6 / 65_536.0),
    ] {
        let found = run(card.scaled(divisor), bytes, write_percent, 32);
        let share = found.requests as f64 * 1e9 / found.elapsed_ns as f64 / rate;
        assert!((0.75..1.02).contains(&share), "{bytes} bytes: {share} of {rate} a second, {found:?}");
    }
}

pub(crate) fn of_memory_survives_its_card() {
    let place = Scratch::new("flash");
    survives_its_card(Image::ram(8 * MIB).unwrap(), &place);
}

pub(crate) fn of_a_disk_survives_its_card() {
    let place = Scratch::new("flash-disk");
    let options = ImageOptions { direct: true, ..ImageOptions::default() };
    survives_its_card(Image::open(&place.image(8 * MIB), &options).unwrap(), &place);
}

/// A card that is killed while its flash card works loses what is held back, and its successor does it again.
fn survives_its_card(image: Image, place: &Scratch) {
    const LATENCY: Duration = Duration::from_millis(150);
    const BYTES: usize = 65_536;
    const CLIENTS: u64 = 4;
    let card = FlashConfig::default();
    let slow = |rates: FlashRates| FlashRates { latency: LATENCY, ..rates };
    let flash = FlashConfig { read: slow(card.read), write: slow(card.write), ..card };
    let pair = Pair::start_with(image, Some(flash), &place.path(""));
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(&pair.socket)).collect();
    let mut seen = 0;
    for round in 0..4 {
        let place_of = |at: u64| (round * CLIENTS + at) * BYTES as u64;
        let began = Instant::now();
        for (at, client) in clients.iter_mut().enumerate() {
            client.begin_write(place_of(at as u64), &pattern(round * CLIENTS + at as u64, BYTES));
        }
        // The moments of the kills spread over the time that the flash card takes.
        while began.elapsed() < LATENCY * round as u32 / 4 {
            std::thread::yield_now();
        }
        let killed = Instant::now();
        pair.lender.kill_card();
        assert!(clients.iter_mut().all(|client| client.reply() == 0));
        if killed.duration_since(began) < LATENCY {
            assert!(killed.elapsed() >= LATENCY, "a successor's flash card begins anew");
            seen += 1;
        }
        pair.lender.wait_until("the card was replaced", |record| {
            record.running && u64::from(record.restarts) == round + 1
        });
        for (at, client) in clients.iter_mut().enumerate() {
            let wanted = pattern(round * CLIENTS + at as u64, BYTES);
            assert!(client.read(place_of(at as u64), BYTES) == wanted, "write {at} of round {round}");
        }
    }
    assert!(seen > 0, "this machine stood still whenever a card was to be killed");
}
