//! Set Features and Get Features (NVMe 2.0 §5.27, §5.15).

use spec::nvme::feature::{
    FeatureCapabilities, InterruptVectorConfiguration, NumberOfQueues, TemperatureThreshold,
};
use spec::nvme::{
    AdminOpcode, FeatureId, FeatureSelect, GetFeatures, NSID_ALL, SetFeatures, Status, SubmissionEntry,
};

use super::Controller;
use super::cells::{IO_QUEUES, VECTORS};
use super::io_commands::NAMESPACE;

/// A feature that is a word.
struct Feature {
    id: FeatureId,
    default: u32,
    /// Bits that can be set.
    mask: u32,
}

/// Kelvins from which on a drive without a thermometer would be too hot: the specification asks for a default.
const OVER_TEMPERATURE: u32 = 343;
const UNDER_TEMPERATURE: u32 = 1;
const ERROR_RECOVERY_TIME: u32 = 0xffff;

/// The features with a value of their own. In the ledger each is stored relative to its default, so that zeroes are the state
/// after power-on.
const FEATURES: [Feature; 8] = [
    Feature { id: FeatureId::ARBITRATION, default: 0, mask: 0xffff_ff07 },
    Feature { id: FeatureId::TEMPERATURE_THRESHOLD, default: OVER_TEMPERATURE, mask: 0xffff },
    Feature { id: FeatureId::ERROR_RECOVERY, default: 0, mask: ERROR_RECOVERY_TIME },
    Feature { id: FeatureId::VOLATILE_WRITE_CACHE, default: 1, mask: 1 },
    Feature { id: FeatureId::INTERRUPT_COALESCING, default: 0, mask: 0xffff },
    Feature { id: FeatureId::WRITE_ATOMICITY, default: 0, mask: 1 },
    Feature { id: FeatureId::ASYNC_EVENT_CONFIGURATION, default: 0, mask: 0xff },
    Feature { id: FeatureId::POWER_MANAGEMENT, default: 0, mask: 0xff },
];
/// Words of storage: the table's, then one for the under temperature threshold, then two of vectors without coalescing.
pub(super) const COUNT: usize = FEATURES.len() + 3;
const UNDER_TEMPERATURE_WORD: usize = FEATURES.len();
const VECTOR_WORDS: usize = UNDER_TEMPERATURE_WORD + 1;
const WRITE_CACHE_WORD: usize = 3;
const _: () = assert!(FEATURES[WRITE_CACHE_WORD].id.0 == FeatureId::VOLATILE_WRITE_CACHE.0 && VECTORS <= 64);

/// Whether completed writes may wait for a flush.
pub(super) fn write_cache(controller: &Controller<'_>) -> bool {
    controller.cells.features[WRITE_CACHE_WORD].get() ^ FEATURES[WRITE_CACHE_WORD].default != 0
}

impl Controller<'_> {
    /// Executes the command; returns dword 0 of its completion.
    pub(super) fn features(&mut self, entry: &SubmissionEntry) -> Result<u32, Status> {
        let nsid = entry.nsid.get();
        if entry.admin_opcode() == AdminOpcode::GET_FEATURES {
            return self.get_feature(&GetFeatures::parse(entry));
        }
        let set = SetFeatures::parse(entry);
        if set.save {
            return Err(Status::FEATURE_NOT_SAVEABLE);
        } else if !self.has_feature(set.fid) {
            return Err(Status::INVALID_FIELD);
        } else if ![0, NSID_ALL, NAMESPACE].contains(&nsid) {
            return Err(Status::INVALID_NAMESPACE_OR_FORMAT);
        } else if nsid == NAMESPACE && set.fid != FeatureId::ERROR_RECOVERY {
            return Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC);
        }
        self.set_feature(set.fid, set.dw11)
    }

    /// Forgets everything that was set: none is saved over a reset.
    pub(super) fn reset_features(&mut self) {
        self.cells.features.iter().for_each(|word| word.set(self.journal, 0));
    }

    pub(super) fn has_feature(&self, id: FeatureId) -> bool {
        match id {
            FeatureId::NUMBER_OF_QUEUES | FeatureId::INTERRUPT_VECTOR_CONFIGURATION => true,
            FeatureId::VOLATILE_WRITE_CACHE => self.config.volatile_cache,
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
                .with_namespace_specific(get.fid == FeatureId::ERROR_RECOVERY)
                .0),
            // Nothing is saved, so the saved value is the default (NVMe 2.0 §5.15).
            FeatureSelect::DEFAULT | FeatureSelect::SAVED => self.value(get.fid, get.dw11, |_| 0),
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
                return if illegal { Err(Status::INVALID_FIELD) } else { Ok(queues()) };
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
            }
            // There is one power state (NPSS).
            FeatureId::POWER_MANAGEMENT if dw11 & 0x1f != 0 => return Err(Status::INVALID_FIELD),
            _ => {
                let word = FEATURES.iter().position(|feature| feature.id == id);
                let word = word.ok_or(Status::INVALID_FIELD)?;
                let feature = &FEATURES[word];
                self.cells.features[word].set(self.journal, dw11 & feature.mask ^ feature.default);
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
