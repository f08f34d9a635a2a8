//! A lent drive: what its functions share, and whose turn at the medium it is.

use base::ledger::Journal;
use device::nvme::{FairShare, Subsystem, SubsystemCells};

use crate::config::{LoanConfig, LoanRole};
use crate::loan::Loan;

/// A drive of which at least one function is lent.
pub(crate) struct Drive<'m> {
    pub(crate) subsystem: Subsystem<'m>,
    /// The loans of its functions, in the order of the configuration.
    loans: Vec<usize>,
    share: FairShare,
    journal: Journal<'m>,
}

impl<'m> Drive<'m> {
    /// Drive `index` of a node with `loans`.
    ///
    /// # Panics
    /// If the drive cannot be, or one of its functions is lent twice.
    pub(crate) fn new(
        index: usize,
        cells: &'m SubsystemCells,
        journal: Journal<'m>,
        config: device::nvme::Config,
        loans: &[LoanConfig],
    ) -> Self {
        let mut lent = Vec::new();
        let mut functions = Vec::new();
        for (loan, config) in loans.iter().enumerate() {
            if let LoanRole::Lend { drive, controller, .. } = config.role
                && drive == index
            {
                assert!(!functions.contains(&controller), "a function has one loan");
                functions.push(controller);
                lent.push(loan);
            }
        }
        let share = FairShare::new(lent.len());
        Self { subsystem: Subsystem::new(cells, journal, config), loans: lent, share, journal }
    }

    /// The loan whose function's work the medium gets next, if any has some.
    pub(crate) fn pick(&mut self, loans: &mut [Loan<'m>]) -> Option<usize> {
        let Self { loans: own, share, journal, .. } = self;
        let picked = share.pick(|function| {
            // What it asks of one function is whole by itself, and there may be many with commands to take.
            if !journal.has_room() {
                journal.commit();
            }
            loans[own[function]].media_cost()
        })?;
        Some(own[picked])
    }
}
