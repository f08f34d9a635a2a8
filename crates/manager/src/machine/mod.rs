//! The manager as a machine that is driven: what happens goes in by `handle_*`, what is to be done comes out of
//! [`Manager::poll_effect`], until there is nothing.

mod answers;
mod contact;
#[cfg(test)]
mod made_tests;
mod memories;
mod notes;
mod rails;
mod reports;
#[cfg(test)]
mod tests;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::Instant;
use base::ids::NodeId;

use crate::canary::{self, Rule};
use crate::command::Asked;
use crate::decide::decide;
use crate::entry::{Answer, Change, Entry, Who};
use crate::model::{FunctionKey, MadeList, WallTime};
use crate::refusal::Refusal;
use crate::report::{Alarm, DeadRail, Event, Order, Preset, PresetsId};
use crate::state::State;
use answers::{Answers, Subject};
use contact::Contact;
use memories::Memories;
pub(crate) use memories::Slots;
use notes::Notes;
use rails::Rails;
pub use rails::Verdict;

/// Requests that wait for their answers.
pub const WAITING_MAX: usize = 4096;
/// Events that nobody has taken; of more the oldest are lost, and counted.
pub const EVENTS_MAX: usize = 1024;
/// Orders in one message.
pub const ORDERS_MAX: usize = 64;
/// Entries in one record of the log.
pub const BATCH_MAX: usize = 256;
/// Dead rails that count of what one node says. One that has found out more has a dead rail itself.
pub const RAILS_SAID_MAX: usize = 16;
/// Dead rails in one notice.
pub const RAILS_TOLD_MAX: usize = 64;
/// Between two notices of dead rails.
pub const RAILS_TOLD_EVERY: Duration = Duration::from_millis(100);
/// How long a request waits for its lender before its client hears that it is pending.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// First wait before a node that has not answered is told again; doubles up to [`RETELL_MAX`].
pub const RETELL: Duration = Duration::from_millis(500);
/// Longest wait.
pub const RETELL_MAX: Duration = Duration::from_secs(8);
/// By how much the epoch grows when a restored manager starts: more than managers can have started since the backup.
pub const RESTORE_EPOCHS: u64 = 1 << 16;

/// Both clocks: one that never goes back, and one for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// By which things wait.
    pub clock: Instant,
    /// Which entries carry.
    pub wall: WallTime,
}

/// How a client finds its answer: the driver's own number for a request that waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(pub u64);

/// What was done, and how far it has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// What the entry says.
    pub answer: Answer,
    /// The index of the entry that did it; `None`: it was so already.
    pub index: Option<u64>,
    /// How far it has come.
    pub progress: Progress,
}

/// How far something has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// It is so everywhere.
    Done,
    /// It is decided, and happens when this lender is heard; it may be under way there.
    Pending {
        /// Which lender.
        lender: NodeId,
        /// Whether it is silent.
        is_silent: bool,
    },
    /// Somebody has decided something else since.
    Overtaken,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Append these entries as one record of the log, make it durable, and say so by [`Manager::handle_durable`]. There
    /// is no other one before. If it fails, this core is good for nothing: start another one from the log.
    Append {
        /// The index of the first.
        first: u64,
        /// The entries: [`BATCH_MAX`] at most.
        entries: Vec<Entry>,
    },
    /// Answer a request.
    Answer {
        /// Which one.
        ticket: Ticket,
        /// Its answer.
        reply: Result<Reply, Refusal>,
    },
    /// Tell a node which manager speaks. It makes the epoch durable, if that is not smaller than the one it has, and
    /// answers with its inventory.
    Greet {
        /// Whom.
        node: NodeId,
        /// The epoch.
        epoch: u64,
    },
    /// Ask a node what it remembers of other managers, while this one, which was restored, listens.
    Recall {
        /// Whom.
        node: NodeId,
        /// The manager's epoch.
        epoch: u64,
    },
    /// Tell a lender what it shall have in its table.
    TellLender {
        /// Whom.
        node: NodeId,
        /// The manager's epoch: a node refuses one that is smaller than what it has heard.
        epoch: u64,
        /// The changes: [`ORDERS_MAX`] at most.
        orders: Vec<Order>,
    },
    /// Tell a borrower all that is in its slots.
    TellBorrower {
        /// Whom.
        node: NodeId,
        /// Which list; its epoch is the manager's.
        id: PresetsId,
        /// The slots that are not empty.
        presets: Vec<Preset>,
    },
    /// Tell a lender which functions are to be made there.
    TellMaker {
        /// Whom.
        node: NodeId,
        /// The manager's epoch.
        epoch: u64,
        /// All of them.
        list: MadeList,
    },
    /// Tell these nodes, by one notice to all of them, that rails seem to be dead. They use others until those have
    /// answered, which they are asked to do at once: so one that gets lost, is late or wrong does no harm.
    TellRails {
        /// Whom: all that are heard.
        nodes: Vec<NodeId>,
        /// The rails: [`RAILS_TOLD_MAX`] at most.
        rails: Vec<DeadRail>,
    },
    /// Show this to people.
    Event(Event),
}

/// How a manager starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// From its own log.
    Plain,
    /// From a backup: lenders may know of assignments that it does not. If it ends before its first entry is durable,
    /// the next one starts from a backup, too.
    Restored {
        /// Whether certificates count whose time is over, or has not come: whoever shows one has proven its key.
        any_time: bool,
    },
}

/// The core of a manager.
#[derive(Debug)]
pub struct Manager {
    /// What is decided, also what is not durable yet.
    state: State,
    /// Everything up to this entry is durable.
    durable: u64,
    /// Entries that are not in the log yet.
    unappended: VecDeque<Entry>,
    /// The last entry of the record that is being made durable.
    appending: Option<u64>,
    contacts: BTreeMap<NodeId, Contact>,
    /// The index of the entry by which the present epoch began.
    epoch_index: u64,
    /// Contacts that there may be something to tell.
    ready: BTreeSet<NodeId>,
    /// Those that there is when it is durable.
    held: BTreeSet<NodeId>,
    /// When contacts are told again.
    due: BTreeSet<(Instant, NodeId)>,
    /// Functions that entries have changed which are not durable yet.
    touched: VecDeque<(u64, Subject)>,
    answers: Answers,
    rails: Rails,
    notes: Notes,
    /// What nodes cause.
    news: Notes,
    memories: Memories,
    events: VecDeque<Event>,
    lost_events: u64,
}

impl Manager {
    /// Starts with the state that the log gave, all of which is durable.
    pub fn start(now: Now, state: State, start: Start) -> Self {
        let durable = state.index();
        let mut manager = Self {
            state,
            durable,
            unappended: VecDeque::new(),
            appending: None,
            contacts: BTreeMap::new(),
            epoch_index: 0,
            ready: BTreeSet::new(),
            held: BTreeSet::new(),
            due: BTreeSet::new(),
            touched: VecDeque::new(),
            answers: Answers::default(),
            rails: Rails::default(),
            notes: Notes::of_refusals(),
            news: Notes::of_news(),
            memories: Memories::default(),
            events: VecDeque::new(),
            lost_events: 0,
        };
        let by = match start {
            _ if canary::is_off(Rule::RaiseEpoch) => u64::from(manager.state.epoch() == 0),
            Start::Plain => 1,
            Start::Restored { .. } => RESTORE_EPOCHS,
        };
        let (restored, any_time) = match start {
            Start::Plain => (false, false),
            Start::Restored { any_time } => (true, any_time),
        };
        manager.begin_epoch(now, manager.state.epoch().saturating_add(by), restored, any_time);
        manager
    }

    /// What is decided. Whoever shows something of it waits until [`Manager::durable`] has come to its index.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The index of the last entry that is durable.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Events that were lost because nobody took them.
    pub fn lost_events(&self) -> u64 {
        self.lost_events
    }

    /// Whether a node is heard.
    pub fn is_reachable(&self, node: NodeId) -> bool {
        self.contacts.get(&node).is_some_and(|contact| contact.is_reachable)
    }

    /// What is wrong with a node, as it was last raised.
    pub fn alarms(&self, node: NodeId) -> impl Iterator<Item = &Alarm> {
        self.contacts.get(&node).into_iter().flat_map(|contact| contact.alarms.values())
    }

    /// Somebody asks for something, and is answered under this ticket, which nobody else has at present.
    pub fn handle_command(&mut self, now: Now, ticket: Ticket, asked: &Asked) {
        if self.answers.len() >= WAITING_MAX {
            return self.answers.refuse(ticket, Refusal::Busy);
        }
        let fingerprint = asked.fingerprint();
        if let Some(again) = self.answers.recall(asked.request, fingerprint)
            && !canary::is_off(Rule::RememberAnswers)
        {
            return self.answers.wait(self.state.index(), ticket, again, now.clock + PATIENCE);
        }
        let outcome = decide(&self.state, now.wall, asked);
        if asked.command.ends_restore() && outcome.as_ref().is_ok_and(|decision| decision.entry.is_some()) {
            self.remove_again(now);
        }
        let outcome = outcome.map(|decision| {
            let appended = decision.entry.map(|entry| self.append(entry));
            (decision.answer, appended.or(decision.done_at))
        });
        if !matches!(outcome, Ok((_, Some(_)))) {
            self.answers.remember(asked.request, fingerprint, &outcome);
        }
        self.answers.wait(self.state.index(), ticket, outcome, now.clock + PATIENCE);
        self.answer_durable();
    }

    /// Everything up to this entry is durable.
    pub fn handle_durable(&mut self, index: u64) {
        // Of what was not asked for nobody can say that it is durable.
        let Some(appending) = self.appending.filter(|last| index >= *last) else { return };
        (self.durable, self.appending) = (appending, None);
        let is_durable =
            |touched: &Self| touched.touched.front().is_some_and(|(index, _)| *index <= appending);
        while is_durable(self)
            && let Some((_, key)) = self.touched.pop_front()
        {
            self.answers.look_again(key);
        }
        self.ready.append(&mut self.held);
        self.answer_durable();
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Now) {
        while let Some((at, node)) = self.due.pop_first() {
            if at > now.clock {
                self.due.insert((at, node));
                break;
            }
            if let Some(contact) = self.contacts.get_mut(&node) {
                contact.tell_again();
                self.ready.insert(node);
            }
        }
        self.answers.run_out(now.clock);
        self.note_repeated(now);
        self.answer_durable();
    }

    /// When [`Manager::handle_timeout`] is to be called at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = self.due.first().map(|(at, _)| *at);
        let notes = [self.notes.timeout(), self.news.timeout()].into_iter().flatten().min();
        let others = [self.answers.timeout(), self.rails.timeout(), notes];
        others.into_iter().chain([due]).flatten().min()
    }

    /// What is to be done next. To be called until there is nothing, after each `handle_*`.
    pub fn poll_effect(&mut self, now: Now) -> Option<Effect> {
        if let Some(append) = self.next_record() {
            return Some(append);
        }
        if let Some((ticket, reply)) = self.answers.next() {
            return Some(Effect::Answer { ticket, reply });
        }
        while let Some(node) = self.ready.first().copied() {
            match self.tell(now.clock, node) {
                Some(effect) => return Some(effect),
                None => self.ready.remove(&node),
            };
        }
        if let Some(effect) = self.tell_rails(now.clock) {
            return Some(effect);
        }
        self.events.pop_front().map(Effect::Event)
    }

    fn next_record(&mut self) -> Option<Effect> {
        if self.appending.is_some() || self.unappended.is_empty() {
            return None;
        }
        let first = self.durable + 1;
        let batch = self.unappended.len().min(BATCH_MAX);
        let entries: Vec<Entry> = self.unappended.drain(..batch).collect();
        self.appending = Some(self.durable + entries.len() as u64);
        Some(Effect::Append { first, entries })
    }

    /// Decides an entry. Returns its index.
    fn append(&mut self, entry: Entry) -> u64 {
        let index = self.state.index() + 1;
        let mut affected = self.state.affected(&entry.change);
        let mut borrowers: BTreeSet<NodeId> =
            affected.iter().filter_map(|key| self.borrower_of(*key)).collect();
        self.state.apply(index, &entry).expect("what is decided fits to the state it was decided by");
        borrowers.extend(affected.iter().filter_map(|key| self.borrower_of(*key)));
        borrowers.into_iter().for_each(|node| self.presets_changed(node, index));
        affected.sort_unstable();
        for key in affected {
            self.touched.push_back((index, Subject::Function(key)));
            self.order_changed(key);
        }
        if let Some(node) = entry.change.made_at() {
            self.touched.push_back((index, Subject::Making(node)));
            self.making_changed(node);
        }
        if let Some(node) = entry.change.lent_at() {
            self.touched.push_back((index, Subject::Making(node)));
        }
        match entry.change {
            Change::NodeRemoved { id, .. } | Change::NodeDisplaced { id } => {
                self.contacts.remove(&id);
                self.forget_rails(id);
            }
            // Whoever was only listened to is told now.
            Change::RestoreEnded => {
                self.memories = Memories::default();
                self.ready.extend(self.contacts.keys());
            }
            Change::NodeAdopted { .. } => self.ask_unheard(),
            _ => {}
        }
        self.unappended.push_back(entry);
        index
    }

    fn begin_epoch(&mut self, now: Now, epoch: u64, restored: bool, any_time: bool) {
        let at = self.state.clamp(now.wall);
        let change = Change::EpochBegun { epoch, restored, any_time };
        self.epoch_index = self.append(Entry { at, who: Who::Manager, request: None, change });
        // Nobody has promised anything to this epoch.
        self.contacts.values_mut().for_each(Contact::forget_promise);
    }

    /// Who has a function, or is to have it.
    fn borrower_of(&self, key: FunctionKey) -> Option<NodeId> {
        self.state.function(key).and_then(|function| function.loan.assigned()).map(|to| to.borrower)
    }

    fn event(&mut self, event: Event) {
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
            self.lost_events += 1;
        }
        self.events.push_back(event);
    }

    fn answer_durable(&mut self) {
        let durable = if canary::is_off(Rule::AnswerDurable) { u64::MAX } else { self.durable };
        let (state, contacts) = (&self.state, &self.contacts);
        let is_silent = |node: &NodeId| !contacts.get(node).is_some_and(|contact| contact.is_reachable);
        self.answers.settle(state, durable, is_silent);
    }
}
