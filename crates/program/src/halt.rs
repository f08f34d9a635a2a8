//! Why a command ends before it is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit::Failure;

/// Why a part of a command did not come to its end.
#[derive(Debug)]
pub enum Halt {
    /// Somebody asked it to end.
    Interrupted,
    /// Something did not work.
    Failed(Failure),
}

impl From<Failure> for Halt {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Set by SIGINT, SIGTERM and SIGHUP, which would else leave processes and files behind.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes over the signals of this process.
    pub fn install() -> Result<Self, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&flag))
                .map_err(|error| Failure::io("cannot take over signals", &error))?;
        }
        Ok(Self(flag))
    }

    /// Whether somebody asked the command to end.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether somebody asked since the last call.
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }

    /// The same as an error.
    pub fn check(&self) -> Result<(), Halt> {
        if self.is_set() { Err(Halt::Interrupted) } else { Ok(()) }
    }
}
