//! NVMe 2.0 as a PCIe function with the NVM command set speaks it.
//!
//! A host writes [`SubmissionEntry`] values into queues in its memory and rings doorbells; the controller answers
//! with [`CompletionEntry`] values. Everything else here is what those two carry or point to.

pub mod admin;
pub mod command;
pub mod copy;
pub mod event;
pub mod feature;
pub mod identify;
pub mod log;
pub mod namespace;
pub mod prp;
pub mod registers;
pub mod sgl;
pub mod status;

pub use admin::{
    Abort, CreateIoCompletionQueue, CreateIoSubmissionQueue, DeleteIoQueue, FormatNvm, GetFeatures,
    GetLogPage, Identify, QueuePriority, SetFeatures,
};
pub use command::{
    AdminOpcode, CompletionEntry, DataTransfer, DatasetManagementRange, FusedOperation, IoControl, NvmOpcode,
    SubmissionEntry,
};
pub use copy::{CopyControl, CopyRange};
pub use event::{AsyncEvent, AsyncEventType};
pub use feature::{FeatureId, FeatureSelect};
pub use identify::{
    Cns, CommandSetId, IdentifyController, IdentifyNamespace, LbaFormat, NamespaceIdentifiers,
    NvmIdentifyController, PowerStateDescriptor,
};
pub use log::{
    CommandEffects, CommandsSupportedAndEffects, ErrorLogEntry, FirmwareSlotLog, LogPageId, SelfTestLog,
    SelfTestResult, SmartLog,
};
pub use namespace::{
    ControllerList, NamespaceAttachment, NamespaceAttachmentSelect, NamespaceManagement,
    NamespaceManagementSelect,
};
pub use sgl::{SglDescriptor, SglType};
pub use status::{Status, StatusCodeType};

/// The namespace id that stands for all namespaces a controller has attached (NVMe 2.0 §3.2.1.2).
pub const NSID_ALL: u32 = 0xffff_ffff;

/// The class code of an NVMe I/O controller's PCI function: mass storage, non-volatile memory, NVM Express
/// (NVMe PCIe 1.0 §3.8.1.5).
pub const PCI_CLASS_CODE: u32 = 0x01_08_02;
