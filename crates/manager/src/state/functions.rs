use base::ids::{LoanGeneration, NodeId};

use super::{Corruption, State};
use crate::canary::{self, Rule};
use crate::entry::News;
use crate::model::{
    Assignment, FUNCTIONS_MAX, FUNCTIONS_PER_NODE_MAX, Function, FunctionKey, Limited, Limits, LimitsId,
    Loan, Name, Resource, SLOT_NUMBERS, WallTime,
};

impl State {
    pub(super) fn assign(
        &mut self,
        key: FunctionKey,
        generation: LoanGeneration,
        to: Assignment,
    ) -> Result<(), Corruption> {
        let function = self.functions.get(&key).ok_or(Corruption::NoFunction(key))?;
        if function.loan != Loan::Free {
            return Err(Corruption::InUse(key));
        }
        follows(function, generation)?;
        self.set_loan(key, generation, Loan::Wanted { to, since: self.at })
    }

    pub(super) fn unassign(
        &mut self,
        key: FunctionKey,
        generation: LoanGeneration,
        force: bool,
    ) -> Result<(), Corruption> {
        let function = self.functions.get(&key).ok_or(Corruption::NoFunction(key))?;
        let since = self.at;
        let loan = match (function.loan, force) {
            (Loan::Wanted { to, .. } | Loan::Applied { to, .. }, force) => {
                follows(function, generation)?;
                if force { Loan::Forced { from: to, since } } else { Loan::Leaving { from: to, since } }
            }
            (Loan::Leaving { from, .. }, true) if generation == function.generation => {
                Loan::Forced { from, since }
            }
            _ => return Err(Corruption::OutOfOrder(key)),
        };
        let loan = if canary::is_off(Rule::WaitForLender) { Loan::Free } else { loan };
        self.set_loan(key, generation, loan)
    }

    pub(super) fn learn(&mut self, node: NodeId, news: &News) -> Result<(), Corruption> {
        let key = |number: &u32| FunctionKey { node, number: *number };
        match news {
            News::Seen { number, name, resource, generation, loan } => {
                self.add_function(key(number), name, *resource)?;
                self.note_lent(node);
                self.set_loan(key(number), *generation, *loan)
            }
            News::Described { number, name, resource } => {
                self.check_name(key(number), name)?;
                let version = self.index;
                let function = self.function_mut(key(number))?;
                (function.name, function.resource, function.version) = (name.clone(), *resource, version);
                self.note_lent(node);
                Ok(())
            }
            News::Gone { number } => {
                if self.function_mut(key(number))?.loan != Loan::Free {
                    return Err(Corruption::InUse(key(number)));
                }
                self.functions.remove(&key(number));
                Ok(())
            }
            News::Applied { number, generation } => self.applied(key(number), *generation),
            News::Adopted { number, generation, loan } => {
                let function = self.function_mut(key(number))?;
                let present = function.generation;
                if *generation <= present {
                    return Err(Corruption::Generation { key: key(number), present, found: *generation });
                }
                self.set_loan(key(number), *generation, *loan)
            }
            News::Displaced { key } => {
                let generation = self.function_mut(*key)?.generation;
                self.set_loan(*key, generation, Loan::Free)
            }
            News::LimitsApplied { number, id } => self.limits_applied(key(number), *id),
            News::LimitsAdopted { number, limited } => {
                let function = self.function_mut(key(number))?;
                if function.limits.is_some_and(|known| known.id >= limited.id) {
                    return Err(Corruption::OutOfOrder(key(number)));
                }
                (function.limits, function.limits_applied) = (Some(*limited), Some(limited.id));
                self.touch(key(number))
            }
            News::Made { id, refused } => self.made(node, *id, refused),
            News::MadeAdopted { list } => self.adopt_made(node, list),
            News::HeldOver { number, generation } => self.unassign(key(number), *generation, true),
            News::Heard => {
                let restore = self.restore.as_mut().ok_or(Corruption::NoRestore)?;
                restore.unheard.remove(&node);
                self.forget_restore();
                Ok(())
            }
        }
    }

    /// Who decides has this index, so what is decided later has a greater one.
    pub(super) fn set_limits(&mut self, key: FunctionKey, limits: Limits) -> Result<(), Corruption> {
        let id = LimitsId { epoch: self.epoch, index: self.index };
        self.function_mut(key)?.limits = Some(Limited { id, limits });
        self.touch(key)
    }

    fn limits_applied(&mut self, key: FunctionKey, id: LimitsId) -> Result<(), Corruption> {
        let function = self.function_mut(key)?;
        if function.limits.is_none_or(|limited| limited.id != id) && !canary::is_off(Rule::CheckLimits) {
            return Err(Corruption::OutOfOrder(key));
        }
        function.limits_applied = function.limits.map(|limited| limited.id);
        self.touch(key)
    }

    fn touch(&mut self, key: FunctionKey) -> Result<(), Corruption> {
        let version = self.index;
        self.function_mut(key)?.version = version;
        Ok(())
    }

    fn applied(&mut self, key: FunctionKey, generation: LoanGeneration) -> Result<(), Corruption> {
        let function = self.function_mut(key)?;
        let present = function.generation;
        if generation != present && !canary::is_off(Rule::CheckApplied) {
            return Err(Corruption::Generation { key, present, found: generation });
        }
        let loan = match function.loan {
            Loan::Wanted { to, since } => Loan::Applied { to, since },
            Loan::Leaving { .. } | Loan::Forced { .. } | Loan::Ended { .. } => Loan::Free,
            Loan::Free | Loan::Applied { .. } => return Err(Corruption::OutOfOrder(key)),
        };
        self.set_loan(key, present, loan)
    }

    fn add_function(&mut self, key: FunctionKey, name: &Name, resource: Resource) -> Result<(), Corruption> {
        if self.functions.contains_key(&key) {
            return Err(Corruption::FunctionThere(key));
        }
        self.check_name(key, name)?;
        if self.functions_of(key.node).count() >= FUNCTIONS_PER_NODE_MAX
            || self.functions.len() >= FUNCTIONS_MAX
        {
            return Err(Corruption::TooMany("functions"));
        }
        let (generation, version) = (LoanGeneration(0), self.index);
        let function = Function {
            key,
            name: name.clone(),
            resource,
            generation,
            loan: Loan::Free,
            limits: None,
            limits_applied: None,
            version,
        };
        self.functions.insert(key, function);
        Ok(())
    }

    fn check_name(&self, key: FunctionKey, name: &Name) -> Result<(), Corruption> {
        let taken = self.functions_of(key.node).any(|it| it.name == *name && it.key != key);
        if taken { Err(Corruption::NameTaken(name.clone())) } else { Ok(()) }
    }

    fn function_mut(&mut self, key: FunctionKey) -> Result<&mut Function, Corruption> {
        self.functions.get_mut(&key).ok_or(Corruption::NoFunction(key))
    }

    /// The only place where a loan changes, and with it who is in which slot.
    pub(super) fn set_loan(
        &mut self,
        key: FunctionKey,
        generation: LoanGeneration,
        loan: Loan,
    ) -> Result<(), Corruption> {
        let before = self.function(key).ok_or(Corruption::NoFunction(key))?.loan;
        if let Some(of) = loan.occupied() {
            let other = self.slots.get(&of.place).is_some_and(|other| *other != key);
            if (other && !canary::is_off(Rule::OneFunctionASlot)) || of.place.slot >= SLOT_NUMBERS {
                return Err(Corruption::Slot(of.place));
            }
            let owner = self.node_of_domain(of.place.domain);
            if loan.assigned().is_some() && owner.is_none_or(|owner| owner.id != of.borrower) {
                return Err(Corruption::Slot(of.place));
            }
        }
        if let Some(of) = before.occupied() {
            self.slots.remove(&of.place);
        }
        if let Some(of) = loan.occupied() {
            self.slots.insert(of.place, key);
        }
        let version = self.index;
        let function = self.function_mut(key)?;
        (function.generation, function.loan, function.version) = (generation, loan, version);
        Ok(())
    }

    /// When entries are made: never before the last one.
    pub(crate) fn clamp(&self, now: WallTime) -> WallTime {
        now.max(self.at)
    }
}

fn follows(function: &Function, found: LoanGeneration) -> Result<(), Corruption> {
    let (key, present) = (function.key, function.generation);
    if present.0.checked_add(1) == Some(found.0) || canary::is_off(Rule::RaiseGeneration) {
        Ok(())
    } else {
        Err(Corruption::Generation { key, present, found })
    }
}
