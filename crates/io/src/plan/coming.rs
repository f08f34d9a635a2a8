//! What a card that runs is told of drives: it travels as a plan does, since it has keys in it and may be long.

use std::io;
use std::os::fd::OwnedFd;

use base::ids::NodeId;
use base::ledger::Layout;
use serde::{Deserialize, Serialize};

use super::{DrivePlan, LoanPlan, take_text, write_text};

/// A drive that is lent from now on, with the loans of its functions and their places. Its image travels beside it.
#[derive(Clone, Serialize, Deserialize, Layout)]
pub(crate) struct DriveComing {
    pub(crate) drive: DrivePlan,
    pub(crate) loans: Vec<PlacedLoan>,
}

/// A loan with its place.
#[derive(Clone, Serialize, Deserialize, Layout)]
pub(crate) struct PlacedLoan {
    pub(crate) place: usize,
    pub(crate) loan: LoanPlan,
}

/// The nodes that may have what a drive lends; `None`: all that have its line.
#[derive(Clone, Serialize, Deserialize, Layout)]
pub(crate) struct AllowedPlan {
    pub(crate) nodes: Option<Vec<[u8; NodeId::BYTES]>>,
}

impl DriveComing {
    /// In memory of its own.
    ///
    /// # Errors
    /// What making that returned.
    pub(crate) fn write(&self, node: NodeId) -> io::Result<OwnedFd> {
        write_text(node, self)
    }

    /// Reads it, and wipes it.
    ///
    /// # Errors
    /// It is none of this program, or cannot be mapped.
    pub(crate) fn take(fd: OwnedFd) -> io::Result<Self> {
        Ok(take_text(fd)?.1)
    }
}

impl AllowedPlan {
    /// As of [`DriveComing::write`].
    ///
    /// # Errors
    /// The same.
    pub(crate) fn write(&self, node: NodeId) -> io::Result<OwnedFd> {
        write_text(node, self)
    }

    /// As of [`DriveComing::take`].
    ///
    /// # Errors
    /// The same.
    pub(crate) fn take(fd: OwnedFd) -> io::Result<Self> {
        Ok(take_text(fd)?.1)
    }
}
