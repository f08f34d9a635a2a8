//! What a node is composed of today: which devices it can lend, and which driver it has for those that it borrows.
//!
//! Nobody else here says what they are. The ledger has their cells, [`crate::endpoint::compose`] puts them together,
//! and a slot shows a guest what their class asks for.

pub use device::nvme::{
    COMMANDS as MEDIA_WORK, Config as DriveConfig, ConfigError as DriveConfigError,
    DATA_PAGES as MEDIA_SPANS, FUNCTIONS_MAX, MadeFunction, MadeNamespace, NamespaceConfig,
    NvmeCells as FunctionCells, Persist, SubsystemCells as DriveCells, WriteCache,
};
pub(crate) use device::nvme::{Controller, FairShare, Subsystem};
pub(crate) use host::nvme::guest_view::{self, GuestView, GuestViewCells};
pub use host::nvme::{Driver as DriveDriver, DriverCells};
pub(crate) use host::nvme::{DriverConfig, FunctionError as DriveError, QUEUE_MEMORY_SIZE};
