//! Set Features and Get Features (NVMe 2.0 §5.27, §5.15).

use core::ops::Range;

use spec::nvme::feature::{
    FeatureCapabilities, InterruptVectorConfiguration, NumberOfQueues, TemperatureThreshold,
};
use spec::nvme::{FeatureId, FeatureSelect, GetFeatures, NSID_ALL, SetFeatures, Status, SubmissionEntry};

use crate::nvme::Controller;
use crate::nvme::cells::{IO_QUEUES, VECTORS};
use crate::nvme::command::Work;

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

/// Whether completed writes may wait for a flush: there is a cache that the host sees, and has not turned off.
pub(crate) fn write_cache(controller: &Controller<'_>) -> bool {
    controller.shows_cache() && controller.feature_word(WRITE_CACHE_WORD) != 0
}

/// Which events the host wants to be told of.
pub(crate) fn event_configuration(controller: &Controller<'_>) -> u32 {
    controller.feature_word(EVENTS_WORD)
}

impl Controller<'_> {
    fn feature_word(&self, word: usize) -> u32 {
        self.cells.features[word].get() ^ FEATURES[word].default
    }

    /// Milliseconds in which the host has to send a Keep Alive; 0 for no timer.
    pub(crate) fn keep_alive_timer(&self) -> u32 {
        self.feature_word(KEEP_ALIVE_WORD)
    }

    /// Whether the temperature, which never changes, is beyond a threshold.
    pub(crate) fn is_too_hot_or_cold(&self) -> bool {
        let over = self.feature_word(TEMPERATURE_WORD);
        let under = self.cells.features[UNDER_TEMPERATURE_WORD].get() ^ UNDER_TEMPERATURE;
        u32::from(TEMPERATURE) >= over || u32::from(TEMPERATURE) <= under
    }

    /// Get Features.
    pub(super) fn get_features(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<(), Status> {
        let get = GetFeatures::parse(entry);
        // There is no one value of what each namespace has for itself (NVMe 2.0 §5.15).
        if get.fid == FeatureId::ERROR_RECOVERY && get.nsid == NSID_ALL {
            return Err(Status::INVALID_NAMESPACE_OR_FORMAT);
        }
        self.check_feature_namespace(get.fid, get.nsid)?;
        let capabilities = get.select == FeatureSelect::SUPPORTED_CAPABILITIES;
        if let Some(len) = self.feature_bytes(get.fid, get.dw11).filter(|_| !capabilities) {
            if get.select.0 > FeatureSelect::SUPPORTED_CAPABILITIES.0 {
                return Err(Status::INVALID_FIELD);
            }
            return self.begin_transfer(slot, Work::Report, len);
        }
        let result = self.get_feature(&get)?;
        self.complete(slot, result, Status::SUCCESS);
        Ok(())
    }

    /// Set Features.
    pub(super) fn set_features(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<(), Status> {
        let set = SetFeatures::parse(entry);
        if !self.has_feature(set.fid) {
            return Err(Status::INVALID_FIELD);
        } else if set.save && !self.is_saveable(set.fid) {
            return Err(Status::FEATURE_NOT_SAVEABLE);
        }
        self.check_feature_namespace(set.fid, set.nsid)?;
        if let Some(len) = self.feature_bytes(set.fid, set.dw11) {
            return self.begin_transfer(slot, Work::Admin, len);
        }
        let result = self.set_feature(set.fid, set.dw11)?;
        if set.save {
            let saved = &self.subsystem.controller(self.index).saved;
            for word in self.words_of(set.fid).chain(self.under_temperature(set.fid)) {
                saved[word].set(self.journal, self.cells.features[word].get());
            }
            self.complete_kept(slot, result);
        } else {
            self.complete(slot, result, Status::SUCCESS);
        }
        Ok(())
    }

    /// Features are the controller's, but for Error Recovery: that is a namespace's, and all of them have the same.
    fn check_feature_namespace(&self, id: FeatureId, nsid: u32) -> Result<(), Status> {
        let is_of_namespaces = id == FeatureId::ERROR_RECOVERY;
        match nsid {
            0 if is_of_namespaces => Err(Status::INVALID_NAMESPACE_OR_FORMAT),
            0 | NSID_ALL => Ok(()),
            _ => {
                self.active_namespace(nsid)?;
                if is_of_namespaces { Ok(()) } else { Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC) }
            }
        }
    }

    /// Whether a value can be kept over resets, where the owner keeps state.
    fn is_saveable(&self, id: FeatureId) -> bool {
        self.config.keeps_state && !self.words_of(id).is_empty() && id != FeatureId::KEEP_ALIVE_TIMER
    }

    /// The stored words of a feature.
    fn words_of(&self, id: FeatureId) -> Range<usize> {
        match id {
            FeatureId::INTERRUPT_VECTOR_CONFIGURATION => VECTOR_WORDS..VECTOR_WORDS + 2,
            _ => match FEATURES.iter().position(|feature| feature.id == id) {
                Some(word) => word..word + 1,
                None => 0..0,
            },
        }
    }

    /// The second word of the temperature thresholds.
    fn under_temperature(&self, id: FeatureId) -> Option<usize> {
        (id == FeatureId::TEMPERATURE_THRESHOLD).then_some(UNDER_TEMPERATURE_WORD)
    }

    /// Forgets what was set and not saved.
    pub(crate) fn reset_features(&mut self) {
        let saved = &self.subsystem.controller(self.index).saved;
        for (word, saved) in self.cells.features.iter().zip(saved) {
            word.set(self.journal, saved.get());
        }
    }

    pub(crate) fn has_feature(&self, id: FeatureId) -> bool {
        match id {
            FeatureId::NUMBER_OF_QUEUES
            | FeatureId::INTERRUPT_VECTOR_CONFIGURATION
            | FeatureId::TIMESTAMP
            | FeatureId::HOST_IDENTIFIER
            | FeatureId::HOST_BEHAVIOR_SUPPORT => true,
            FeatureId::VOLATILE_WRITE_CACHE => self.shows_cache(),
            _ => FEATURES.iter().any(|feature| feature.id == id),
        }
    }

    fn get_feature(&self, get: &GetFeatures) -> Result<u32, Status> {
        if !self.has_feature(get.fid) {
            return Err(Status::INVALID_FIELD);
        }
        match get.select {
            FeatureSelect::SUPPORTED_CAPABILITIES => Ok(FeatureCapabilities(0)
                .with_changeable(true)
                .with_saveable(self.is_saveable(get.fid))
                .with_namespace_specific(get.fid == FeatureId::ERROR_RECOVERY)
                .0),
            FeatureSelect::DEFAULT => self.value(get.fid, get.dw11, |_| 0),
            // What was never saved is the default (NVMe 2.0 §5.15).
            FeatureSelect::SAVED => {
                let saved = &self.subsystem.controller(self.index).saved;
                self.value(get.fid, get.dw11, |word| saved[word].get())
            }
            FeatureSelect::CURRENT => self.value(get.fid, get.dw11, |word| self.cells.features[word].get()),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// A feature's value from its stored words.
    fn value(&self, id: FeatureId, dw11: u32, stored: impl Fn(usize) -> u32) -> Result<u32, Status> {
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

    fn set_feature(&mut self, id: FeatureId, dw11: u32) -> Result<u32, Status> {
        match id {
            FeatureId::NUMBER_OF_QUEUES => {
                let wanted = NumberOfQueues(dw11);
                let illegal = wanted.nsq0() == u16::MAX || wanted.ncq0() == u16::MAX;
                // The number is agreed upon before the first of them is made (NVMe 2.0 §5.27.1.5).
                return match (self.has_io_queues(), illegal) {
                    (true, _) => Err(Status::COMMAND_SEQUENCE_ERROR),
                    (false, true) => Err(Status::INVALID_FIELD),
                    (false, false) => Ok(queues()),
                };
            }
            FeatureId::INTERRUPT_VECTOR_CONFIGURATION => {
                let vector = checked_vector(dw11)?;
                let (word, bit) = (VECTOR_WORDS + vector / 32, 1 << (vector % 32));
                let disable = InterruptVectorConfiguration(dw11).cd();
                self.cells.features[word]
                    .update(self.journal, |set| if disable { set | bit } else { set & !bit });
            }
            FeatureId::TEMPERATURE_THRESHOLD => {
                let (word, default) = threshold(dw11)?;
                self.cells.features[word].set(self.journal, dw11 & 0xffff ^ default);
                self.check_temperature();
            }
            // There is one power state (NPSS).
            FeatureId::POWER_MANAGEMENT if dw11 & 0x1f != 0 => return Err(Status::INVALID_FIELD),
            _ => {
                let word = FEATURES.iter().position(|feature| feature.id == id);
                let word = word.ok_or(Status::INVALID_FIELD)?;
                let feature = &FEATURES[word];
                self.cells.features[word].set(self.journal, dw11 & feature.mask ^ feature.default);
                match id {
                    FeatureId::ASYNC_EVENT_CONFIGURATION => self.check_temperature(),
                    FeatureId::KEEP_ALIVE_TIMER => self.alive_at = Some(self.now),
                    _ => {}
                }
            }
        }
        Ok(0)
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
