//! A lent drive: what its functions share, and whose turn at the medium it is.

use core::cell::Cell as StdCell;

use base::ledger::{Journal, Owner};

use crate::config::{LendConfig, LoanConfig, LoanRole};
use crate::loan_table::LoanTable;
use crate::parts::{DriveCells, DriveConfig, FairShare, Subsystem};

/// A drive of which at least one function is lent.
pub(crate) struct Drive<'m> {
    /// Whose its cells are.
    pub(crate) owner: Owner,
    pub(crate) cells: &'m DriveCells,
    pub(crate) subsystem: Subsystem<'m>,
    /// The loans of its functions, in the order of the configuration.
    loans: Vec<usize>,
    share: FairShare,
    journal: Journal<'m>,
    /// Whether this card has said that the medium has lost something.
    has_told: bool,
    /// The notes that controllers were left when loans were last looked at for them.
    notes: StdCell<u64>,
}

impl<'m> Drive<'m> {
    /// Drive `index` of a node with `loans`.
    ///
    /// # Panics
    /// If the drive cannot be, or one of its functions is lent twice.
    pub(crate) fn new(
        index: usize,
        (owner, cells): (Owner, &'m DriveCells),
        journal: Journal<'m>,
        config: DriveConfig,
        loans: &[LoanConfig],
    ) -> Self {
        let mut lent = Vec::new();
        let mut functions = Vec::new();
        for (loan, config) in loans.iter().enumerate() {
            if let LoanRole::Lend(LendConfig { drive, controller, .. }) = config.role
                && drive == index
            {
                assert!(!functions.contains(&controller), "a function has one loan");
                functions.push(controller);
                lent.push(loan);
            }
        }
        let share = FairShare::new(lent.len());
        let subsystem = Subsystem::new(cells, journal, config);
        Self {
            owner,
            cells,
            subsystem,
            loans: lent,
            share,
            journal,
            has_told: false,
            notes: StdCell::default(),
        }
    }

    /// The loans of its functions.
    pub(crate) fn loans(&self) -> &[usize] {
        &self.loans
    }

    /// Whether one of its functions may have something to do since the last call because of what happened to another.
    pub(crate) fn take_notes(&self) -> bool {
        let notes = self.subsystem.notes();
        self.notes.replace(notes) != notes
    }

    /// Whether it is to be told now that the medium has lost something: once a card, until it is cleared.
    pub(crate) fn take_fault(&mut self) -> bool {
        let has_fault = !self.loans.is_empty() && self.subsystem.has_fault();
        has_fault && !core::mem::replace(&mut self.has_told, has_fault)
    }

    /// An operator has seen to the medium: see [`Subsystem::clear_fault`].
    pub(crate) fn clear_fault(&mut self, order: u64) {
        self.subsystem.clear_fault(order);
        self.has_told = false;
    }

    /// The loan whose function's work the medium gets next, if any has some. What the card before may have left half
    /// written comes first, of whichever function: any of them may read it. `asked` says whom it asks: what it asks of
    /// one is committed before the next.
    pub(crate) fn pick(&mut self, loans: &mut LoanTable<'m>, asked: &mut usize) -> Option<usize> {
        let Self { loans: own, share, journal, .. } = self;
        for loan in own.iter().filter(|loan| loans.may_work(**loan)) {
            *asked = *loan;
            if loans[*loan].must_redo() {
                return Some(*loan);
            }
        }
        let picked = share.pick(|function| {
            let loan = own[function];
            if !loans.may_work(loan) {
                return None;
            }
            // That is whole by itself; and there may be many with commands to take.
            journal.commit();
            *asked = loan;
            let (cost, has_more) = loans.peek_mut(loan)?.media_cost();
            // Asking takes commands in; who had none is as it was.
            if cost.is_some() || has_more || journal.pending() > 0 {
                loans.note_change(loan);
            }
            if cost.is_none() {
                loans.note_idle(loan);
            }
            cost
        })?;
        Some(own[picked])
    }
}
