use std::collections::BTreeMap;

use super::history::Record;
use super::{Corruption, Restore, State};
use crate::canary::{self, Rule};
use crate::entry::{Change, Entry};
use crate::model::{API_TOKENS_MAX, ApiToken, JOIN_TOKENS_MAX, JoinToken, Name};

impl State {
    /// What is so after the entry of this index.
    ///
    /// # Errors
    /// It does not fit. The state may have taken a part of it and is good for nothing any more.
    pub fn apply(&mut self, index: u64, entry: &Entry) -> Result<(), Corruption> {
        let next = self.index.saturating_add(1);
        if index != next {
            return Err(Corruption::Index { next, found: index });
        }
        if entry.at < self.at {
            return Err(Corruption::Earlier);
        }
        if let Some(request) = &entry.request
            && self.history.find(request.id).is_some()
            && !canary::is_off(Rule::RememberRequests)
        {
            return Err(Corruption::Request);
        }
        (self.index, self.at) = (index, entry.at);
        self.change(&entry.change)?;
        self.history.push(Record { index, entry: entry.clone() });
        Ok(())
    }

    fn change(&mut self, change: &Change) -> Result<(), Corruption> {
        match change {
            Change::EpochBegun { epoch, restored, any_time } => {
                self.begin_epoch(*epoch, *restored, *any_time)
            }
            Change::RestoreEnded => self.end_restore(),
            Change::ApiTokenSet { name, token } => self.set_api_token(name, *token),
            Change::ApiTokenRemoved { name } => {
                self.api_tokens.remove(name).map(|_| ()).ok_or_else(|| Corruption::ApiToken(name.clone()))
            }
            Change::JoinTokenMade { token } => self.make_join_token(token),
            Change::JoinTokenRemoved { hash } => {
                self.join_tokens.remove(hash).map(|_| ()).ok_or(Corruption::JoinToken(*hash))
            }
            Change::NodeJoined { id, name, key, block, token } => self.join(*id, name, *key, *block, *token),
            Change::NodeAdopted { node, issued } => self.adopt_node(node, *issued),
            Change::NodeDisplaced { id } => self.displace_node(*id),
            Change::NodeRemoved { id, until } => self.remove_node(*id, *until),
            Change::GroupsSet { id, groups } => self.set_groups(*id, groups),
            Change::Assigned { key, generation, to } => self.assign(*key, *generation, *to),
            Change::Unassigned { key, generation, force } => self.unassign(*key, *generation, *force),
            Change::LimitsSet { key, limits } => self.set_limits(*key, *limits),
            Change::FunctionMade { node, name, shape } => self.make_function(*node, name, shape),
            Change::FunctionDeleted { node, name } => self.delete_function(*node, name),
            Change::Reported { id, news, .. } => {
                self.joined(*id).ok_or(Corruption::NoNode(*id))?;
                news.iter().try_for_each(|news| self.learn(*id, news))
            }
            Change::Noted { .. } => Ok(()),
        }
    }

    fn begin_epoch(&mut self, epoch: u64, restored: bool, any_time: bool) -> Result<(), Corruption> {
        if epoch <= self.epoch && !canary::is_off(Rule::RaiseEpoch) {
            return Err(Corruption::Epoch { present: self.epoch, found: epoch });
        }
        self.epoch = epoch;
        if restored {
            let unheard = self.names.values().copied().collect();
            let Restore { adopted, any_time: before, .. } = self.restore.take().unwrap_or_default();
            self.restore = Some(Restore { is_closed: true, unheard, adopted, any_time: any_time || before });
        }
        Ok(())
    }

    fn end_restore(&mut self) -> Result<(), Corruption> {
        let restore = self.restore.as_mut().ok_or(Corruption::NoRestore)?;
        restore.is_closed = false;
        (restore.adopted, restore.any_time) = (BTreeMap::new(), false);
        self.forget_restore();
        Ok(())
    }

    /// A restore is over when it is open and everybody was heard.
    pub(super) fn forget_restore(&mut self) {
        self.restore.take_if(|restore| !restore.is_closed && restore.unheard.is_empty());
    }

    fn set_api_token(&mut self, name: &Name, token: ApiToken) -> Result<(), Corruption> {
        if self.api_tokens.len() >= API_TOKENS_MAX && !self.api_tokens.contains_key(name) {
            return Err(Corruption::TooMany("tokens"));
        }
        self.api_tokens.insert(name.clone(), token);
        Ok(())
    }

    /// Tokens that have expired make room, for they are worth nothing.
    fn make_join_token(&mut self, token: &JoinToken) -> Result<(), Corruption> {
        if self.join_tokens.contains_key(&token.hash) {
            return Err(Corruption::JoinToken(token.hash));
        }
        let now = self.at;
        if self.join_tokens.len() >= JOIN_TOKENS_MAX {
            self.join_tokens.retain(|_, token| token.expires > now);
        }
        if self.join_tokens.len() >= JOIN_TOKENS_MAX {
            return Err(Corruption::TooMany("join tokens"));
        }
        self.join_tokens.insert(token.hash, token.clone());
        Ok(())
    }
}
