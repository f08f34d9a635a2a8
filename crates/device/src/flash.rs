//! How long a flash card would take: a model of channels and service times. It moves no data and knows no clock.
//!
//! A request occupies channels, as many as it has flash pages, so that large ones use the whole card even alone. What
//! it costs all channels together is the card's rate for its kind: requests per second or bytes per second, whichever
//! is slower. It ends no sooner than the card's latency after it began.

use core::fmt;
use core::time::Duration;

use base::Instant;
use base::ledger::Layout;
use serde::{Deserialize, Serialize};

use crate::MediaKind;

/// Bytes that lie on one channel.
const FLASH_PAGE: u64 = 4096;
/// Most channels of a card.
pub const CHANNELS_MAX: usize = 64;
/// Longest request, for judging whether rates make sense.
const REQUEST_MAX: u64 = 128 << 10;
/// Requests of a full queue.
const QUEUE: u64 = crate::nvme::COMMANDS as u64;
/// How long a full queue may take. It is less than what drivers give a single command.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a card can do with one kind of request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Layout, Serialize, Deserialize)]
pub struct FlashRates {
    /// Requests per second.
    pub iops: u64,
    /// Bytes per second.
    pub bytes_per_s: u64,
    /// From the beginning of a request to its end, when the card has nothing else to do.
    pub latency: Duration,
}

/// What a card can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Layout, Serialize, Deserialize)]
pub struct FlashConfig {
    /// Reads.
    pub read: FlashRates,
    /// Writes; zeroing and deallocation cost no more than the smallest of them.
    pub write: FlashRates,
    /// What works in parallel.
    pub channels: usize,
}

impl Default for FlashConfig {
    /// The card of the PCI-Express-over-Ethernet paper, by its maker's figures.
    fn default() -> Self {
        let rates = |iops, bytes_per_s, latency| FlashRates {
            iops,
            bytes_per_s,
            latency: Duration::from_micros(latency),
        };
        Self {
            read: rates(186_000, 1_500_000_000, 50),
            write: rates(167_000, 1_400_000_000, 25),
            channels: 4,
        }
    }
}

/// Why a card makes no sense. The message says what would.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlashError {
    /// There are no channels, or more than [`CHANNELS_MAX`].
    Channels(usize),
    /// A rate is so low that a full queue of requests of this kind would take longer than drivers wait.
    TooSlow(&'static str),
    /// A latency is longer than a second.
    Latency(Duration),
}

impl fmt::Display for FlashError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Channels(channels) => {
                write!(f, "{channels} channels are not possible; 1 to {CHANNELS_MAX} are")
            }
            Self::TooSlow(kind) => write!(
                f,
                "it takes more than {} s for a full queue of {kind}s ({QUEUE} of 128 KiB), and would be taken for \
                 dead; raise its rates, or lower what divides them",
                PATIENCE.as_secs()
            ),
            Self::Latency(latency) => write!(f, "a latency of {latency:?} is longer than a second"),
        }
    }
}

impl FlashConfig {
    /// The same card with its rates divided.
    pub fn scaled(self, divisor: u64) -> Self {
        let slower = |rates: FlashRates| FlashRates {
            iops: rates.iops / divisor.max(1),
            bytes_per_s: rates.bytes_per_s / divisor.max(1),
            ..rates
        };
        Self { read: slower(self.read), write: slower(self.write), ..self }
    }

    /// Whether such a card is possible.
    ///
    /// # Errors
    /// What is not.
    pub fn check(&self) -> Result<(), FlashError> {
        if !(1..=CHANNELS_MAX).contains(&self.channels) {
            return Err(FlashError::Channels(self.channels));
        }
        for (kind, rates) in [("read", self.read), ("write", self.write)] {
            let enough = |rate: u64, queue: u64| rate.saturating_mul(PATIENCE.as_secs()) >= queue;
            if !enough(rates.iops, QUEUE) || !enough(rates.bytes_per_s, QUEUE * REQUEST_MAX) {
                return Err(FlashError::TooSlow(kind));
            }
            if rates.latency > Duration::from_secs(1) {
                return Err(FlashError::Latency(rates.latency));
            }
        }
        Ok(())
    }
}

/// A card at work.
#[derive(Clone, Debug)]
pub struct FlashModel {
    config: FlashConfig,
    /// When each channel is free again.
    free_at: [Instant; CHANNELS_MAX],
}

impl FlashModel {
    /// A card that has nothing to do.
    ///
    /// # Panics
    /// If [`FlashConfig::check`] was not heeded.
    pub fn new(config: FlashConfig) -> Self {
        assert!(config.check().is_ok(), "whoever reads a configuration checks it");
        Self { config, free_at: [Instant::ZERO; CHANNELS_MAX] }
    }

    /// Accepts a request of `len` bytes and says when it ends.
    pub fn submit(&mut self, now: Instant, kind: MediaKind, len: u64) -> Instant {
        let (rates, len) = match kind {
            MediaKind::Read => (self.config.read, len),
            MediaKind::Write => (self.config.write, len),
            MediaKind::Trim | MediaKind::Zero { .. } => (self.config.write, 0),
            // A flush is about writes that have ended, and those are on flash: there is no cache.
            MediaKind::Flush => return now,
        };
        let channels = &mut self.free_at[..self.config.channels];
        let count = (len.div_ceil(FLASH_PAGE).max(1) as usize).min(channels.len());
        let cost = cost_ns(rates, len) * channels.len() as u64 / count as u64;
        // The card's own layer spreads its load: the channels that are free first are taken.
        channels.sort_unstable();
        let mut end = now;
        for channel in &mut channels[..count] {
            let begin = (*channel).max(now);
            *channel = begin + Duration::from_nanos(cost);
            end = end.max(*channel).max(begin + rates.latency);
        }
        end
    }
}

/// What a request costs the whole card.
fn cost_ns(rates: FlashRates, len: u64) -> u64 {
    const SECOND: u64 = 1_000_000_000;
    let by_count = SECOND / rates.iops;
    let by_bytes = (u128::from(len) * u128::from(SECOND) / u128::from(rates.bytes_per_s)) as u64;
    by_count.max(by_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests per second with `depth` of them under way.
    fn rate(config: FlashConfig, kind: MediaKind, len: u64, depth: usize) -> f64 {
        let mut model = FlashModel::new(config);
        let mut ends: Vec<Instant> = (0..depth).map(|_| model.submit(Instant::ZERO, kind, len)).collect();
        const REQUESTS: usize = 20_000;
        for _ in 0..REQUESTS {
            let (at, now) = ends.iter().copied().enumerate().min_by_key(|(_, end)| *end).unwrap();
            ends[at] = model.submit(now, kind, len);
        }
        REQUESTS as f64 * 1e9 / ends.iter().min().unwrap().as_nanos() as f64
    }

    fn assert_near(found: f64, wanted: f64) {
        assert!((found / wanted - 1.0).abs() < 0.02, "{found} instead of {wanted}");
    }

    #[test]
    fn deep_queues_reach_the_cards_rates() {
        let card = FlashConfig::default();
        assert_near(rate(card, MediaKind::Read, 512, 64), 186_000.0);
        assert_near(rate(card, MediaKind::Write, 512, 64), 167_000.0);
        assert_near(rate(card, MediaKind::Read, 65_536, 64) * 65_536.0, 1.5e9);
        assert_near(rate(card, MediaKind::Write, 65_536, 64) * 65_536.0, 1.4e9);
        assert_near(rate(card.scaled(4), MediaKind::Read, 512, 64), 46_500.0);
    }

    #[test]
    fn alone_a_request_takes_the_latency() {
        let card = FlashConfig::default();
        assert_near(rate(card, MediaKind::Read, 4096, 1), 1e6 / 50.0);
        assert_near(rate(card, MediaKind::Write, 512, 1), 1e6 / 25.0);
        assert_near(rate(card, MediaKind::Read, 65_536, 1), 1e6 / 50.0);
    }

    #[test]
    fn two_hosts_get_what_one_got() {
        let card = FlashConfig::default();
        assert_near(rate(card, MediaKind::Read, 4096, 128), rate(card, MediaKind::Read, 4096, 64));
    }

    #[test]
    fn cards_that_make_no_sense_are_named() {
        let card = FlashConfig::default();
        assert_eq!(FlashConfig { channels: 0, ..card }.check(), Err(FlashError::Channels(0)));
        assert_eq!(card.scaled(200_000).check(), Err(FlashError::TooSlow("read")));
        assert_eq!(card.scaled(400).check(), Ok(()));
        let crawling = FlashRates { bytes_per_s: 3_300_000, ..card.write };
        assert_eq!(FlashConfig { write: crawling, ..card }.check(), Err(FlashError::TooSlow("write")));
        let slow = FlashRates { latency: Duration::from_secs(2), ..card.write };
        assert!(matches!(FlashConfig { write: slow, ..card }.check(), Err(FlashError::Latency(_))));
        assert_eq!(card.scaled(0), card);
    }
}
