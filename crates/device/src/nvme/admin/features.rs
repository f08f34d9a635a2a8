//! Set Features and Get Features (NVMe 2.0 §5.27, §5.15).

use core::ops::Range;

use base::ledger::{Cell, Journal};
use spec::nvme::feature::{
    AsyncEventConfiguration, FeatureCapabilities, InterruptVectorConfiguration, NumberOfQueues,
    TemperatureThreshold,
};
use spec::nvme::{FeatureId, FeatureSelect, GetFeatures, Status};

use crate::nvme::Subsystem;
use crate::nvme::cells::{IO_QUEUES, VECTORS};

/// A feature that is a word.
struct Feature {
    id: FeatureId,
    default: u32,
    /// Bits that can be set.
    mask: u32,
}

/// Kelvins of a drive that has no temperature: 40 °C.
pub(super) const TEMPERATURE: u16 = 313;
/// Kelvins from which on a drive without a thermometer would be too hot: the specification asks for a default.
const OVER_TEMPERATURE: u32 = 343;
const UNDER_TEMPERATURE: u32 = 1;
const ERROR_RECOVERY_TIME: u32 = 0xffff;

/// The features with a value of their own. In the ledger each is stored relative to its default, so that zeroes are the
/// state after power-on.
const FEATURES: [Feature; 9] = [
    Feature { id: FeatureId::ARBITRATION, default: 0, mask: 0xffff_ff07 },
    Feature { id: FeatureId::TEMPERATURE_THRESHOLD, default: OVER_TEMPERATURE, mask: 0xffff },
    Feature { id: FeatureId::ERROR_RECOVERY, default: 0, mask: ERROR_RECOVERY_TIME },
    Feature { id: FeatureId::VOLATILE_WRITE_CACHE, default: 1, mask: 1 },
    Feature { id: FeatureId::INTERRUPT_COALESCING, default: 0, mask: 0xffff },
    Feature { id: FeatureId::WRITE_ATOMICITY, default: 0, mask: 1 },
    Feature { id: FeatureId::ASYNC_EVENT_CONFIGURATION, default: 0, mask: 0x1ff },
    Feature { id: FeatureId::POWER_MANAGEMENT, default: 0, mask: 0xff },
    Feature { id: FeatureId::KEEP_ALIVE_TIMER, default: 0, mask: u32::MAX },
];
/// Words of storage: the table's, then one for the under temperature threshold, then two of vectors without coalescing.
pub(crate) const COUNT: usize = FEATURES.len() + 3;
const UNDER_TEMPERATURE_WORD: usize = FEATURES.len();
const VECTOR_WORDS: usize = UNDER_TEMPERATURE_WORD + 1;
const TEMPERATURE_WORD: usize = 1;
const WRITE_CACHE_WORD: usize = 3;
const EVENTS_WORD: usize = 6;
const KEEP_ALIVE_WORD: usize = 8;
const _: () = assert!(FEATURES[WRITE_CACHE_WORD].id.0 == FeatureId::VOLATILE_WRITE_CACHE.0 && VECTORS <= 64);
const _: () = assert!(FEATURES[TEMPERATURE_WORD].id.0 == FeatureId::TEMPERATURE_THRESHOLD.0);
const _: () = assert!(FEATURES[EVENTS_WORD].id.0 == FeatureId::ASYNC_EVENT_CONFIGURATION.0);
const _: () = assert!(FEATURES[KEEP_ALIVE_WORD].id.0 == FeatureId::KEEP_ALIVE_TIMER.0);

/// The words of the features, and those that are kept over resets.
pub(crate) struct Features<'m> {
    words: &'m [Cell<u32>; COUNT],
    saved: &'m [Cell<u32>; COUNT],
    journal: Journal<'m>,
    /// Whether values can be saved.
    keeps_state: bool,
}

impl<'m> Features<'m> {
    pub(crate) fn new(words: &'m [Cell<u32>; COUNT], subsystem: &Subsystem<'m>, index: u16) -> Self {
        let saved = &subsystem.controller(index).saved;
        Self { words, saved, journal: subsystem.journal, keeps_state: subsystem.config.keeps_state }
    }

    fn word(&self, word: usize) -> u32 {
        self.words[word].get() ^ FEATURES[word].default
    }

    /// Whether the write cache, if the host sees one, is turned on.
    pub(crate) fn write_cache(&self) -> bool {
        self.word(WRITE_CACHE_WORD) != 0
    }

    /// Which events the host wants to be told of.
    pub(crate) fn events(&self) -> AsyncEventConfiguration {
        AsyncEventConfiguration(self.word(EVENTS_WORD))
    }

    /// Milliseconds in which the host has to send a Keep Alive; 0 for no timer.
    pub(crate) fn keep_alive_timer(&self) -> u32 {
        self.word(KEEP_ALIVE_WORD)
    }

    /// Whether the temperature, which never changes, is beyond a threshold.
    pub(crate) fn is_too_hot_or_cold(&self) -> bool {
        let over = self.word(TEMPERATURE_WORD);
        let under = self.words[UNDER_TEMPERATURE_WORD].get() ^ UNDER_TEMPERATURE;
        u32::from(TEMPERATURE) >= over || u32::from(TEMPERATURE) <= under
    }

    /// Keeps the value of a feature over resets.
    pub(super) fn save(&self, id: FeatureId) {
        let under = (id == FeatureId::TEMPERATURE_THRESHOLD).then_some(UNDER_TEMPERATURE_WORD);
        for word in words_of(id).chain(under) {
            self.saved[word].set(self.journal, self.words[word].get());
        }
    }

    /// Whether a value can be kept over resets, where the owner keeps state.
    pub(super) fn is_saveable(&self, id: FeatureId) -> bool {
        self.keeps_state && !words_of(id).is_empty() && id != FeatureId::KEEP_ALIVE_TIMER
    }

    /// Forgets what was set and not saved.
    pub(crate) fn reset(&self) {
        self.words.iter().zip(self.saved).for_each(|(word, saved)| word.set(self.journal, saved.get()));
    }

    /// Whether a feature exists, for a host that is shown a volatile write cache or not.
    pub(crate) fn has(id: FeatureId, shows_cache: bool) -> bool {
        match id {
            FeatureId::NUMBER_OF_QUEUES
            | FeatureId::INTERRUPT_VECTOR_CONFIGURATION
            | FeatureId::TIMESTAMP
            | FeatureId::HOST_IDENTIFIER
            | FeatureId::HOST_BEHAVIOR_SUPPORT => true,
            FeatureId::VOLATILE_WRITE_CACHE => shows_cache,
            _ => FEATURES.iter().any(|feature| feature.id == id),
        }
    }

    /// Dword 0 of the completion of a Get Features.
    pub(super) fn get(&self, get: &GetFeatures) -> Result<u32, Status> {
        match get.select {
            FeatureSelect::SUPPORTED_CAPABILITIES => Ok(FeatureCapabilities(0)
                .with_changeable(true)
                .with_saveable(self.is_saveable(get.fid))
                .with_namespace_specific(get.fid == FeatureId::ERROR_RECOVERY)
                .0),
            FeatureSelect::DEFAULT => value(get.fid, get.dw11, |_| 0),
            // What was never saved is the default (NVMe 2.0 §5.15).
            FeatureSelect::SAVED => value(get.fid, get.dw11, |word| self.saved[word].get()),
            FeatureSelect::CURRENT => value(get.fid, get.dw11, |word| self.words[word].get()),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Sets a value; those of Number of Queues are agreed upon elsewhere.
    pub(super) fn set(&self, id: FeatureId, dw11: u32) -> Result<(), Status> {
        match id {
            FeatureId::INTERRUPT_VECTOR_CONFIGURATION => {
                let vector = checked_vector(dw11)?;
                let (word, bit) = (VECTOR_WORDS + vector / 32, 1 << (vector % 32));
                let disable = InterruptVectorConfiguration(dw11).cd();
                self.words[word].update(self.journal, |set| if disable { set | bit } else { set & !bit });
            }
            FeatureId::TEMPERATURE_THRESHOLD => {
                let (word, default) = threshold(dw11)?;
                self.words[word].set(self.journal, dw11 & 0xffff ^ default);
            }
            // There is one power state (NPSS).
            FeatureId::POWER_MANAGEMENT if dw11 & 0x1f != 0 => return Err(Status::INVALID_FIELD),
            _ => {
                let word = FEATURES.iter().position(|feature| feature.id == id);
                let word = word.ok_or(Status::INVALID_FIELD)?;
                let feature = &FEATURES[word];
                self.words[word].set(self.journal, dw11 & feature.mask ^ feature.default);
            }
        }
        Ok(())
    }
}

/// The stored words of a feature.
fn words_of(id: FeatureId) -> Range<usize> {
    match id {
        FeatureId::INTERRUPT_VECTOR_CONFIGURATION => VECTOR_WORDS..VECTOR_WORDS + 2,
        _ => match FEATURES.iter().position(|feature| feature.id == id) {
            Some(word) => word..word + 1,
            None => 0..0,
        },
    }
}

/// A feature's value from its stored words.
fn value(id: FeatureId, dw11: u32, stored: impl Fn(usize) -> u32) -> Result<u32, Status> {
    match id {
        FeatureId::NUMBER_OF_QUEUES => Ok(queues()),
        FeatureId::INTERRUPT_VECTOR_CONFIGURATION => {
            let vector = checked_vector(dw11)?;
            let disabled = stored(VECTOR_WORDS + vector / 32) >> (vector % 32) & 1 == 1;
            Ok(InterruptVectorConfiguration(0).with_iv(vector as u16).with_cd(disabled).0)
        }
        FeatureId::TEMPERATURE_THRESHOLD => match threshold(dw11)? {
            (UNDER_TEMPERATURE_WORD, default) => Ok(stored(UNDER_TEMPERATURE_WORD) ^ default),
            (word, default) => Ok(stored(word) ^ default),
        },
        _ => {
            let word = FEATURES.iter().position(|feature| feature.id == id);
            let word = word.ok_or(Status::INVALID_FIELD)?;
            Ok(stored(word) ^ FEATURES[word].default)
        }
    }
}

/// Number of Queues: agreed upon before the first of them is made (NVMe 2.0 §5.27.1.5).
pub(super) fn agree_on_queues(dw11: u32, has_queues: bool) -> Result<u32, Status> {
    let wanted = NumberOfQueues(dw11);
    let illegal = wanted.nsq0() == u16::MAX || wanted.ncq0() == u16::MAX;
    match (has_queues, illegal) {
        (true, _) => Err(Status::COMMAND_SEQUENCE_ERROR),
        (false, true) => Err(Status::INVALID_FIELD),
        (false, false) => Ok(queues()),
    }
}

fn queues() -> u32 {
    NumberOfQueues::from_counts(IO_QUEUES as u32, IO_QUEUES as u32).0
}

fn checked_vector(dw11: u32) -> Result<usize, Status> {
    let vector = usize::from(InterruptVectorConfiguration(dw11).iv());
    if vector < VECTORS { Ok(vector) } else { Err(Status::INVALID_FIELD) }
}

/// The word and default of a temperature threshold. Only the composite temperature has one.
fn threshold(dw11: u32) -> Result<(usize, u32), Status> {
    let which = TemperatureThreshold(dw11);
    let word = FEATURES.iter().position(|feature| feature.id == FeatureId::TEMPERATURE_THRESHOLD);
    match (word, which.tmpsel(), which.thsel()) {
        (Some(word), 0 | 15, 0) => Ok((word, OVER_TEMPERATURE)),
        (_, 0 | 15, 1) => Ok((UNDER_TEMPERATURE_WORD, UNDER_TEMPERATURE)),
        _ => Err(Status::INVALID_FIELD),
    }
}
