use core::time::Duration;
use std::collections::BTreeMap;

use base::Instant;
use base::ids::NodeId;

use super::{Manager, Now};
use crate::entry::{Change, Entry, News, Who};
use crate::model::NODES_MAX;

/// How long what is noted of somebody is only counted when it comes again.
pub(super) const NOTES_EVERY: Duration = Duration::from_secs(60);
/// Different things that are noted of one in this time. All others are counted together.
pub(super) const NOTES_OF_ONE_MAX: usize = 4;
/// Those of whom something is noted in this time. What is beyond that is counted together.
pub(super) const NOTED_AT_ONCE_MAX: usize = 32;
/// Entries that a node causes by itself which are shown in this time: of as many functions as a lender has, mostly.
pub(super) const NEWS_OF_ONE_MAX: usize = 16;
/// Characters of what is noted, and of what came of it.
const TEXT_MAX: usize = 400;
/// What comes of what nodes cause.
const NEWS_RESULT: &str = "done";

/// Refusals, and what people should know of nodes, on their way to the log: whoever is refused in a loop fills neither
/// the disk nor what is remembered, and a lender that ever knows better who has what pushes out nothing else. Each
/// thing is noted when it happens first, then once for all times that it happens again within [`NOTES_EVERY`]. What was
/// counted and not noted dies with the manager.
#[derive(Debug)]
pub(super) struct Notes {
    /// Different things of one, and how many there may be of whom something is noted.
    of_one_max: usize,
    at_once_max: usize,
    /// What came of whatever there was no room for.
    result: &'static str,
    of: BTreeMap<Who, Noted>,
    /// Of those for whom there was no room.
    others: u64,
    others_until: Option<Instant>,
}

#[derive(Debug)]
struct Noted {
    until: Instant,
    /// What, what came of it, and how often again.
    all: BTreeMap<(String, String), u64>,
    /// Whatever there was no room for.
    more: u64,
}

impl Notes {
    /// Of refusals and alarms.
    pub(super) fn of_refusals() -> Self {
        Self::new(NOTES_OF_ONE_MAX, NOTED_AT_ONCE_MAX, "refused, or an alarm")
    }

    /// Of what nodes cause: after a restore by all of them at once.
    pub(super) fn of_news() -> Self {
        Self::new(NEWS_OF_ONE_MAX, NODES_MAX, NEWS_RESULT)
    }

    fn new(of_one_max: usize, at_once_max: usize, result: &'static str) -> Self {
        Self { of_one_max, at_once_max, result, of: BTreeMap::new(), others: 0, others_until: None }
    }

    /// Whether this is to be noted now.
    fn is_new(&mut self, now: Instant, who: &Who, what: &str, result: &str) -> bool {
        let is_full = self.of.len() >= self.at_once_max;
        if is_full && !self.of.contains_key(who) {
            self.others += 1;
            self.others_until.get_or_insert(now + NOTES_EVERY);
            return false;
        }
        let empty = || Noted { until: now + NOTES_EVERY, all: BTreeMap::new(), more: 0 };
        let noted = self.of.entry(who.clone()).or_insert_with(empty);
        let is_full = noted.all.len() >= self.of_one_max;
        match noted.all.get_mut(&(what.to_owned(), result.to_owned())) {
            Some(count) => *count += 1,
            None if is_full => noted.more += 1,
            None => {
                noted.all.insert((what.to_owned(), result.to_owned()), 0);
                return true;
            }
        }
        false
    }

    pub(super) fn timeout(&self) -> Option<Instant> {
        self.of.values().map(|noted| noted.until).chain(self.others_until).min()
    }

    /// What was counted of those whose time is over: who, what, what came of it, how often.
    fn take_counted(&mut self, now: Instant) -> Vec<(Who, String, String, u64)> {
        let mut counted = Vec::new();
        let over = self.of.iter().filter(|(_, noted)| noted.until <= now).map(|(who, _)| who.clone());
        for who in over.collect::<Vec<_>>() {
            let Some(noted) = self.of.remove(&who) else { continue };
            let again = noted.all.into_iter().filter(|(_, count)| *count > 0);
            counted.extend(again.map(|((what, result), count)| (who.clone(), what, result, count)));
            if noted.more > 0 {
                counted.push((who, "other things".to_owned(), self.result.to_owned(), noted.more));
            }
        }
        if self.others_until.take_if(|until| *until <= now).is_some() {
            let (what, result) = ("things of others".to_owned(), self.result.to_owned());
            counted.push((Who::Manager, what, result, core::mem::take(&mut self.others)));
        }
        counted
    }
}

impl Manager {
    /// Somebody was refused something, or people should know something of a node: it is noted in the log.
    /// Whether that is new: else it was noted lately, and is counted.
    pub fn handle_note(&mut self, now: Now, who: Who, what: &str, result: &str) -> bool {
        let cut = |text: &str| text.chars().take(TEXT_MAX).collect::<String>();
        let (what, result) = (cut(what), cut(result));
        let is_new = self.notes.is_new(now.clock, &who, &what, &result);
        if is_new {
            self.append_note(now, who, what, result, 1);
        }
        is_new
    }

    /// Whether whatever is noteworthy of what a node causes was in an entry before, lately: then it is counted.
    pub(super) fn is_again(&mut self, now: Now, node: NodeId, news: &[News]) -> bool {
        let (mut is_noteworthy, mut is_new) = (false, false);
        for what in news.iter().filter_map(|news| news.text(&self.state, node)) {
            is_noteworthy = true;
            is_new |= self.news.is_new(now.clock, &Who::Node { id: node }, &what, NEWS_RESULT);
        }
        is_noteworthy && !is_new
    }

    /// What has happened again is noted.
    pub(super) fn note_repeated(&mut self, now: Now) {
        let mut counted = self.notes.take_counted(now.clock);
        counted.extend(self.news.take_counted(now.clock));
        for (who, what, result, count) in counted {
            self.append_note(now, who, what, result, count);
        }
    }

    fn append_note(&mut self, now: Now, who: Who, what: String, result: String, count: u64) {
        let at = self.state.clamp(now.wall);
        self.append(Entry { at, who, request: None, change: Change::Noted { what, result, count } });
    }
}
