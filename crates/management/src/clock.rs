//! The clocks of the machine, as the core wants them.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use manager::Now;
use manager::model::WallTime;

/// What the wall says.
pub fn wall() -> WallTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallTime(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A clock that never goes back, and that began with this.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    /// Begins.
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    /// Both clocks.
    pub(crate) fn now(&self) -> Now {
        let nanos = u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Now { clock: base::Instant::from_nanos(nanos), wall: wall() }
    }

    /// When that is, by the system.
    pub(crate) fn instant(&self, at: base::Instant) -> Instant {
        self.0 + core::time::Duration::from_nanos(at.as_nanos())
    }
}
