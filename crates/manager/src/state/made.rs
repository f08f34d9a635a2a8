//! Functions that are made at nodes, by what was decided and by what lenders say.

use std::collections::BTreeSet;

use base::ids::NodeId;

use super::{Corruption, State};
use crate::canary::{self, Rule};
use crate::model::{
    Function, FunctionName, Loan, MADE_PER_NODE_MAX, Made, MadeId, MadeList, Making, Name, Refused, Shape,
    UNMADE_MAX, Unmade, Wanted,
};

impl State {
    /// What is decided of the functions that are made at a node; `None`: nothing was ever.
    pub fn making(&self, node: NodeId) -> Option<&Making> {
        self.making.get(&node)
    }

    /// Whether a function is one that was made, and is to be there no more.
    pub fn is_unwanted(&self, function: &crate::model::Function) -> bool {
        let making = self.making(function.key.node);
        let wanted = making.and_then(|making| making.functions.get(&function.name)).map(|wanted| wanted.id);
        function.resource.made.is_some() && function.resource.made != wanted
    }

    /// Who decides has this id, so what is decided later has a greater one.
    fn made_id(&self) -> MadeId {
        MadeId { epoch: self.epoch, index: self.index }
    }

    /// What is decided of a node has changed by the present entry.
    fn change_making(&mut self, node: NodeId) -> &mut Making {
        let (id, version) = (self.made_id(), self.index);
        let making = self.making.entry(node).or_insert_with(|| Making::new(id));
        (making.id, making.version) = (id, version);
        making
    }

    pub(super) fn make_function(
        &mut self,
        node: NodeId,
        name: &Name,
        shape: &Shape,
    ) -> Result<(), Corruption> {
        let owner = self.joined(node).ok_or(Corruption::NoNode(node))?.name.clone();
        if self.function_called(&FunctionName { node: owner, function: name.clone() }).is_some() {
            return Err(Corruption::NameTaken(name.clone()));
        }
        let making = self.change_making(node);
        if making.functions.contains_key(name) || making.leaving.contains_key(name) {
            return Err(Corruption::NameTaken(name.clone()));
        }
        if making.functions.len() + making.leaving.len() >= MADE_PER_NODE_MAX {
            return Err(Corruption::TooMany("functions"));
        }
        making.refused.remove(name);
        let wanted = Wanted { id: making.id, shape: shape.clone(), is_made: false };
        making.functions.insert(name.clone(), wanted);
        Ok(())
    }

    pub(super) fn delete_function(&mut self, node: NodeId, name: &Name) -> Result<(), Corruption> {
        let owner = self.joined(node).ok_or(Corruption::NoNode(node))?.name.clone();
        let present = self.function_called(&FunctionName { node: owner, function: name.clone() });
        if let Some(function) = present.filter(|function| function.loan != Loan::Free)
            && !canary::is_off(Rule::DeleteFree)
        {
            return Err(Corruption::InUse(function.key));
        }
        let making = self.change_making(node);
        making.functions.remove(name).ok_or_else(|| Corruption::NotMade(name.clone()))?;
        making.leaving.insert(name.clone(), making.id);
        Ok(())
    }

    /// What is lent of what is wanted was made, whatever else the lender has yet to make.
    pub(super) fn note_lent(&mut self, node: NodeId) {
        // Said of each function that a node reports, and hardly ever of one that is waited for.
        let waits = |making: &Making| making.functions.values().any(|wanted| !wanted.is_made);
        if !self.making.get(&node).is_some_and(waits) {
            return;
        }
        let of = |function: &Function| Some((function.name.clone(), function.resource.made?));
        let is_there = |function: &&Function| function.resource.bytes > 0;
        let lent: BTreeSet<(Name, MadeId)> =
            self.functions_of(node).filter(is_there).filter_map(of).collect();
        let version = self.index;
        let Some(making) = self.making.get_mut(&node) else { return };
        for (name, wanted) in making.functions.iter_mut().filter(|(_, wanted)| !wanted.is_made) {
            if lent.contains(&(name.clone(), wanted.id)) {
                (wanted.is_made, making.version) = (true, version);
            }
        }
    }

    /// The lender has applied a list, but for what it cannot make: that was never there, so it is no part of the list.
    /// What it has yet to clear places for is made when it is lent.
    pub(super) fn made(&mut self, node: NodeId, id: MadeId, refused: &[Unmade]) -> Result<(), Corruption> {
        let (next, version) = (self.made_id(), self.index);
        let making = self.making.get_mut(&node).ok_or(Corruption::Making(node))?;
        if making.id != id && !canary::is_off(Rule::CheckMade) {
            return Err(Corruption::Making(node));
        }
        (making.applied, making.version) = (Some(making.id), version);
        making.leaving.clear();
        for Unmade { name, why } in refused {
            let Some(wanted) = making.functions.get(name).filter(|it| !it.is_made) else { continue };
            let of = wanted.id;
            making.functions.remove(name);
            if making.refused.len() >= UNMADE_MAX {
                let oldest = making.refused.iter().min_by_key(|(_, it)| it.id).map(|(name, _)| name.clone());
                oldest.into_iter().for_each(|name| drop(making.refused.remove(&name)));
            }
            making.refused.insert(name.clone(), Refused { id: of, why: why.clone() });
            making.id = next;
        }
        if canary::is_off(Rule::SeeMade) {
            making.functions.values_mut().for_each(|it| it.is_made = true);
        }
        self.note_lent(node);
        Ok(())
    }

    pub(super) fn adopt_made(&mut self, node: NodeId, list: &MadeList) -> Result<(), Corruption> {
        if list.functions.len() > MADE_PER_NODE_MAX {
            return Err(Corruption::TooMany("functions"));
        }
        if self.making(node).is_some_and(|known| known.lacks(list)) {
            return self.add_made(node, list);
        }
        if self.making(node).is_some_and(|known| known.id >= list.id) {
            return Err(Corruption::Making(node));
        }
        // What of it the lender could not make it says next.
        let wanted =
            |it: &Made| (it.name.clone(), Wanted { id: it.id, shape: it.shape.clone(), is_made: false });
        let functions = list.functions.iter().map(wanted).collect();
        let making = Making { functions, version: self.index, ..Making::new(list.id) };
        self.making.insert(node, making);
        Ok(())
    }

    /// What a lender has brought with it is listed beside what was decided here, as far as there is room.
    fn add_made(&mut self, node: NodeId, list: &MadeList) -> Result<(), Corruption> {
        let making = self.change_making(node);
        for Made { name, id, shape } in &list.functions {
            let is_known = making.functions.contains_key(name) || making.leaving.contains_key(name);
            if !is_known && making.functions.len() + making.leaving.len() < MADE_PER_NODE_MAX {
                let wanted = Wanted { id: *id, shape: shape.clone(), is_made: false };
                making.functions.insert(name.clone(), wanted);
            }
        }
        Ok(())
    }
}
