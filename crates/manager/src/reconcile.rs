//! What follows from a node's report: a function of the state and of the report.

use std::collections::{BTreeMap, BTreeSet};

use base::ids::{LoanGeneration, NodeId};

use crate::canary::{self, Rule};
use crate::entry::News;
use crate::machine::Slots;
use crate::model::{
    Assignment, FUNCTIONS_MAX, FUNCTIONS_PER_NODE_MAX, Function, FunctionKey, GENERATION_LAST,
    GENERATION_STRIDE, Loan, MADE_PER_NODE_MAX, MadeList, Name, Place, SLOT_NUMBERS, SLOTS_PER_NODE_MAX,
    Unmade, WHY_MAX, WallTime,
};
use crate::report::{Alarm, Holder, MadeSaid, Reported};
use crate::state::State;

/// What follows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Verdict {
    /// What is new, for the log.
    pub(crate) news: Vec<News>,
    /// What people should know.
    pub(crate) alarms: Vec<Alarm>,
    /// Functions of which the lender does not have what is decided.
    pub(crate) behind: Vec<u32>,
    /// Functions of which it has.
    pub(crate) settled: Vec<u32>,
    /// Whether it does not have what is decided of the functions that are made there.
    pub(crate) is_making_behind: bool,
}

/// Judges reports of one node about its functions.
pub(crate) struct Judge<'a> {
    state: &'a State,
    node: NodeId,
    now: WallTime,
    verdict: Verdict,
    /// Slots that this report has taken already.
    taken: BTreeSet<Place>,
    /// Names that this report has given already, and to which number.
    names: BTreeMap<Name, u32>,
    /// Functions that are not in their slots any more by this report.
    vacated: BTreeSet<FunctionKey>,
    /// Functions that this report has added.
    added: usize,
    /// What borrowers say is in their slots, while a manager that was restored listens.
    slots: Option<&'a Slots>,
    /// Whether something is left to be taken over, when the node has reported that it is about.
    is_deferred: bool,
}

impl<'a> Judge<'a> {
    pub(crate) fn new(state: &'a State, node: NodeId, now: WallTime) -> Self {
        Self {
            state,
            node,
            now,
            verdict: Verdict::default(),
            taken: BTreeSet::new(),
            names: BTreeMap::new(),
            vacated: BTreeSet::new(),
            added: 0,
            slots: None,
            is_deferred: false,
        }
    }

    /// Of two lenders who say that theirs is in a slot its borrower decides by these.
    pub(crate) fn with_slots(self, slots: &'a Slots) -> Self {
        Self { slots: Some(slots), ..self }
    }

    /// What follows from all that a node lends.
    pub(crate) fn inventory(mut self, functions: &[Reported], made: Option<&MadeSaid>) -> Verdict {
        let listed = made.map_or(0, |said| said.list.functions.len());
        if functions.len() > FUNCTIONS_PER_NODE_MAX || listed > MADE_PER_NODE_MAX {
            self.alarm(Alarm::TooMany { most: FUNCTIONS_PER_NODE_MAX });
            return self.verdict;
        }
        let functions = self.each_once(functions);
        let known: Vec<Function> = self.state.functions_of(self.node).cloned().collect();
        // What leaves slots and frees names comes before what takes them.
        let is_there = |function: &&Function| functions.iter().any(|it| it.number == function.key.number);
        for function in known.iter().filter(|it| !is_there(it)) {
            self.missing(function, made);
        }
        functions.iter().for_each(|reported| self.leave_slot(reported));
        let is_new =
            |it: &&&Reported| self.known(it.number).is_none_or(|known| known.generation < it.generation);
        let (new, old): (Vec<&Reported>, Vec<&Reported>) = functions.iter().partition(is_new);
        old.into_iter().chain(new).for_each(|reported| self.function(reported));
        self.making(made);
        if !self.state.is_heard(self.node) && !self.is_deferred {
            self.verdict.news.push(News::Heard);
        }
        self.into_verdict()
    }

    /// Whether what the lender was told of functions that are made there counts: it is what is decided, or newer. Who
    /// was heard knows what was decided: what it claims beyond that leaves it pending. Nobody has decided anything in
    /// the name of a manager before that began.
    fn is_believed(&self, said: &MadeSaid) -> bool {
        let is_of_before = said.list.id.epoch < self.state.epoch();
        match self.state.making(self.node) {
            Some(known) if known.id >= said.list.id => known.id == said.list.id,
            known => is_of_before && (known.is_none() || self.may_know_better()),
        }
    }

    /// Which functions it was told to make, and how far it is.
    fn making(&mut self, said: Option<&MadeSaid>) {
        let known = self.state.making(self.node);
        match (known, said) {
            (None, None) => {}
            (Some(known), Some(said)) if known.lacks(&said.list) => {
                self.verdict.news.push(News::MadeAdopted { list: said.list.clone() });
            }
            (known, Some(said)) if known.is_none_or(|known| known.id < said.list.id) => {
                if self.is_believed(said) {
                    self.verdict.news.push(News::MadeAdopted { list: said.list.clone() });
                }
            }
            (Some(known), Some(said)) if said.list.id == known.id || canary::is_off(Rule::CheckMade) => {
                // What it has cleared a place for in vain it cannot make after all.
                let is_wanted = |it: &Unmade| known.functions.get(&it.name).is_some_and(|it| !it.is_made);
                if said.is_done && (!known.is_applied() || said.refused.iter().any(is_wanted)) {
                    let refused = said.refused.iter().take(MADE_PER_NODE_MAX).map(shortened);
                    self.verdict.news.push(News::Made { id: said.list.id, refused: refused.collect() });
                }
            }
            _ => self.verdict.is_making_behind = true,
        }
    }

    /// Of two with one number the first counts.
    fn each_once<'r>(&mut self, functions: &'r [Reported]) -> Vec<&'r Reported> {
        let mut numbers = BTreeSet::new();
        let (once, twice): (Vec<_>, Vec<_>) = functions.iter().partition(|it| numbers.insert(it.number));
        for Reported { number, name, .. } in twice {
            self.alarm(Alarm::Twice { number: *number, name: name.clone() });
        }
        once
    }

    /// What follows from how far one function is.
    pub(crate) fn one(mut self, reported: &Reported) -> Verdict {
        if self.known(reported.number).is_some() {
            self.leave_slot(reported);
            self.function(reported);
        }
        self.into_verdict()
    }

    /// A function is settled when it is in all respects.
    fn into_verdict(mut self) -> Verdict {
        let behind: BTreeSet<u32> = self.verdict.behind.iter().copied().collect();
        self.verdict.settled.retain(|number| !behind.contains(number));
        self.verdict
    }

    fn known(&self, number: u32) -> Option<&'a Function> {
        self.state.function(FunctionKey { node: self.node, number })
    }

    fn alarm(&mut self, alarm: Alarm) {
        self.verdict.alarms.push(alarm);
    }

    /// A function that was made is the same one when it is made again, with the same number: its generations go on. A
    /// lender that has yet to make what is decided says nothing by not lending it; of one that has, the device is away.
    fn missing(&mut self, function: &Function, made: Option<&MadeSaid>) {
        let said = made.filter(|said| self.is_believed(said));
        if said.is_some_and(|said| is_deleted(function, &said.list)) {
            return self.deleted(function);
        }
        let is_wanted = function.resource.made.is_some() && !self.state.is_unwanted(function);
        if !is_wanted || said.is_some_and(|said| said.is_done) {
            self.absent(function, is_wanted);
        }
    }

    /// What a node does not lend, nobody has through it.
    fn absent(&mut self, function: &Function, stays: bool) {
        let (number, generation) = (function.key.number, function.generation);
        match function.loan {
            Loan::Free => {}
            Loan::Leaving { .. } | Loan::Forced { .. } | Loan::Ended { .. } => {
                self.verdict.news.push(News::Applied { number, generation });
                self.vacated.insert(function.key);
            }
            // It may come back, as an image on a disk that is not mounted yet.
            Loan::Wanted { .. } | Loan::Applied { .. } => return self.alarm(Alarm::Missing { number }),
        }
        self.verdict.settled.push(number);
        if !stays {
            self.verdict.news.push(News::Gone { number });
        }
    }

    /// A function that was made, and by the list that counts is there no more: nobody has it any more, whatever a
    /// manager that was restored knows.
    fn deleted(&mut self, function: &Function) {
        if function.loan != Loan::Free {
            self.displace(function.key);
        }
        self.verdict.settled.push(function.key.number);
        self.verdict.news.push(News::Gone { number: function.key.number });
    }

    /// A function that is somewhere else by a greater generation is not where it was: all of a report are taken from
    /// their slots before the first is put into one.
    fn leave_slot(&mut self, reported: &Reported) {
        let Some(known) = self.known(reported.number).filter(|it| it.generation < reported.generation) else {
            return;
        };
        let is_over = !is_impossible(known.generation, reported.generation) && !self.has_to_wait(reported);
        if is_over && known.loan.occupied().is_some() && !canary::is_off(Rule::AdoptGreater) {
            self.displace(known.key);
        }
    }

    fn displace(&mut self, key: FunctionKey) {
        if self.vacated.insert(key) {
            self.verdict.news.push(News::Displaced { key });
        }
    }

    /// Whether a restored manager has yet to hear of the borrower: that may have joined since the backup, or is to say
    /// what is in its slot, where another lender says otherwise.
    fn has_to_wait(&self, reported: &Reported) -> bool {
        let of = match reported.holder {
            Holder::Nobody => return false,
            Holder::Assigned(of) | Holder::Leaving { from: of, .. } => of,
        };
        let is_unknown = self.state.node(of.borrower).is_none();
        let has_rival = || self.rival(reported.number, of.place).is_some();
        let may_say = || self.slots.is_some_and(|slots| slots.of(of.borrower, of.place).is_none());
        let is_there = || self.state.joined(of.borrower).is_some();
        self.is_closed() && (is_unknown || (is_there() && may_say() && has_rival()))
    }

    fn is_closed(&self) -> bool {
        self.state.restore().is_some_and(|restore| restore.is_closed)
    }

    /// Another function that is in the slot where one of this node is said to be.
    fn rival(&self, number: u32, place: Place) -> Option<&'a Function> {
        let own = FunctionKey { node: self.node, number };
        // What is known of a lender that was not heard since a restore is older than what another one says.
        let is_older = |it: &Function| it.key.node != self.node && !self.state.is_heard(it.key.node);
        let stays = |it: &&Function| it.key != own && !self.vacated.contains(&it.key) && !is_older(it);
        self.state.in_slot(place).filter(stays)
    }

    /// Whether its borrower says that a function of this node is in the slot.
    fn is_by_borrower(&self, number: u32, of: Assignment) -> bool {
        let own = FunctionKey { node: self.node, number };
        let is_its = self.state.node_of_domain(of.place.domain).is_some_and(|node| node.id == of.borrower);
        is_its && self.slots.and_then(|slots| slots.of(of.borrower, of.place)) == Some(Some(own))
    }

    fn function(&mut self, reported: &Reported) {
        let Reported { number, generation, .. } = *reported;
        let known = self.known(number);
        let present = known.map_or(LoanGeneration(0), |known| known.generation);
        if is_impossible(present, generation) {
            return self.alarm(Alarm::ImpossibleGeneration { number, reported: generation });
        }
        if generation > present && self.has_to_wait(reported) {
            self.is_deferred = true;
            return;
        }
        match known {
            None => {
                if self.seen(reported) {
                    self.limits(None, reported);
                }
            }
            Some(known) => {
                self.described(known, reported);
                match generation.cmp(&present) {
                    core::cmp::Ordering::Less => self.behind(known, reported),
                    core::cmp::Ordering::Equal => self.equal(known, reported),
                    core::cmp::Ordering::Greater => self.greater(known, reported),
                }
                self.limits(Some(known), reported);
            }
        }
    }

    /// Limits of which no manager of this fabric can know are none: the lender is told what is decided.
    fn limits(&mut self, known: Option<&Function>, reported: &Reported) {
        let number = reported.number;
        let decided = known.and_then(|known| known.limits);
        let said = reported.limits.filter(|said| said.id.epoch <= self.state.epoch());
        match (decided, said) {
            (None, None) => {}
            (decided, Some(said)) if decided.is_none_or(|decided| decided.id < said.id) => {
                // Who was heard knows what was decided. What it claims beyond that leaves it pending.
                if decided.is_none() || self.may_know_better() {
                    self.verdict.news.push(News::LimitsAdopted { number, limited: said });
                }
            }
            (Some(decided), said) if said == Some(decided) || canary::is_off(Rule::CheckLimits) => {
                if known.is_some_and(|known| !known.is_limited()) {
                    self.verdict.news.push(News::LimitsApplied { number, id: decided.id });
                }
            }
            _ => self.verdict.behind.push(number),
        }
    }

    /// Whether it is known from now on.
    fn seen(&mut self, reported: &Reported) -> bool {
        let (number, name) = (reported.number, reported.name.clone());
        let gone = self.verdict.news.iter().filter(|news| matches!(news, News::Gone { .. })).count();
        let lent = self.state.functions_of(self.node).count() + self.added - gone;
        let all = self.state.functions().count() + self.added - gone;
        if lent >= FUNCTIONS_PER_NODE_MAX || all >= FUNCTIONS_MAX {
            self.alarm(Alarm::TooMany { most: FUNCTIONS_PER_NODE_MAX });
            return false;
        }
        if !self.may_be_called(number, &name) {
            self.alarm(Alarm::Twice { number, name });
            return false;
        }
        let (generation, loan, refused) = self.taken_over(None, reported);
        if reported.generation.0 > 0 && (refused || loan != Loan::Free) {
            let known = LoanGeneration(0);
            self.alarm(Alarm::GreaterGeneration { number, known, reported: reported.generation, refused });
        }
        self.added += 1;
        self.names.insert(name.clone(), number);
        self.verdict.news.push(News::Seen { number, name, resource: reported.resource, generation, loan });
        self.is_behind(number, generation, reported);
        true
    }

    /// Whether no other function of the node has this name, by what is known or this report.
    fn may_be_called(&self, number: u32, name: &Name) -> bool {
        let gone = |number| self.verdict.news.contains(&News::Gone { number });
        let others =
            self.state.functions_of(self.node).filter(|it| it.key.number != number && it.name == *name);
        let mut others = others.map(|it| it.key.number).filter(|number| !gone(*number));
        others.next().is_none() && self.names.get(name).is_none_or(|other| *other == number)
    }

    fn described(&mut self, known: &Function, reported: &Reported) {
        let (number, name, resource) = (reported.number, reported.name.clone(), reported.resource);
        if known.name == name && known.resource == resource {
            return;
        }
        if !self.may_be_called(number, &name) {
            return self.alarm(Alarm::Twice { number, name });
        }
        self.names.insert(name.clone(), number);
        self.verdict.news.push(News::Described { number, name, resource });
    }

    fn behind(&mut self, known: &Function, reported: &Reported) {
        self.verdict.behind.push(reported.number);
        if canary::is_off(Rule::CheckApplied) && !known.loan.is_settled() {
            self.verdict
                .news
                .push(News::Applied { number: reported.number, generation: reported.generation });
        }
    }

    fn equal(&mut self, known: &Function, reported: &Reported) {
        let Reported { number, generation, holder, .. } = *reported;
        let is_same = |of: Assignment| known.loan.occupied() == Some(of);
        match (known.loan, holder) {
            (Loan::Free, Holder::Nobody) => self.verdict.settled.push(number),
            (Loan::Applied { .. }, Holder::Assigned(to)) if is_same(to) => self.verdict.settled.push(number),
            (Loan::Wanted { .. }, Holder::Assigned(to)) if is_same(to) => self.applied(number, generation),
            (Loan::Leaving { .. } | Loan::Forced { .. } | Loan::Ended { .. }, Holder::Nobody) => {
                self.applied(number, generation);
                self.vacated.insert(known.key);
            }
            // It is told again until it is done: so an answer that gets lost is no harm.
            (Loan::Leaving { .. } | Loan::Forced { .. }, Holder::Leaving { from, .. }) if is_same(from) => {
                self.verdict.behind.push(number);
            }
            (Loan::Free | Loan::Ended { .. }, Holder::Leaving { .. }) => self.verdict.behind.push(number),
            // Somebody has what nobody is to have: after a restore, another one was given its slot.
            (Loan::Free, Holder::Assigned(_)) => {
                self.alarm(Alarm::Diverged { number, generation });
                let (next, loan) =
                    (LoanGeneration(generation.0.saturating_add(1)), Loan::Ended { since: self.now });
                self.verdict.news.push(News::Adopted { number, generation: next, loan });
                self.verdict.behind.push(number);
            }
            _ => self.alarm(Alarm::Diverged { number, generation }),
        }
    }

    fn applied(&mut self, number: u32, generation: LoanGeneration) {
        self.verdict.news.push(News::Applied { number, generation });
        self.verdict.settled.push(number);
    }

    fn greater(&mut self, known: &Function, reported: &Reported) {
        let number = reported.number;
        let (generation, loan, refused) = self.taken_over(Some(known), reported);
        let known = known.generation;
        self.alarm(Alarm::GreaterGeneration { number, known, reported: reported.generation, refused });
        if canary::is_off(Rule::AdoptGreater) {
            return;
        }
        self.verdict.news.push(News::Adopted { number, generation, loan });
        self.is_behind(number, generation, reported);
    }

    fn is_behind(&mut self, number: u32, generation: LoanGeneration, reported: &Reported) {
        let is_leaving = matches!(reported.holder, Holder::Leaving { .. });
        let list = match is_leaving || generation > reported.generation {
            true => &mut self.verdict.behind,
            false => &mut self.verdict.settled,
        };
        list.push(number);
    }

    /// Generation and loan by the lender's word; or one generation more and its end, and `true`, where that cannot be.
    fn taken_over(&mut self, known: Option<&Function>, reported: &Reported) -> (LoanGeneration, Loan, bool) {
        let (since, own) = (self.now, known.map(|known| known.key));
        let loan = match reported.holder {
            Holder::Nobody => Loan::Free,
            Holder::Assigned(to) => Loan::Applied { to, since },
            Holder::Leaving { from, forced: false } => Loan::Leaving { from, since },
            Holder::Leaving { from, forced: true } => Loan::Forced { from, since },
        };
        let Some(of) = loan.occupied() else { return (reported.generation, loan, false) };
        let next = LoanGeneration(reported.generation.0.saturating_add(1));
        let may_claim = self.may_claim(known, of) || canary::is_off(Rule::ClaimsAfterRestore);
        if let Some(rival) = self.rival(reported.number, of.place)
            && self.is_closed()
            && self.is_by_borrower(reported.number, of)
        {
            self.displace(rival.key);
        }
        if !may_claim || !self.has_room(known, reported.number, of.place) {
            return (next, Loan::Ended { since }, true);
        }
        if let Some(other) = self.state.in_slot(of.place).filter(|it| Some(it.key) != own) {
            self.displace(other.key);
        }
        self.taken.insert(of.place);
        match self.is_allowed(of) {
            true => (reported.generation, loan, false),
            // Nobody else gets the slot before the lender has ended it.
            false => (next, Loan::Forced { from: of, since }, true),
        }
    }

    /// Whether a lender may know better than this manager who has its function: where a manager was restored or made
    /// anew, until the lender was heard. Else only what is so already: nobody takes a slot by saying that it is theirs.
    fn may_claim(&self, known: Option<&Function>, of: Assignment) -> bool {
        self.may_know_better() || known.is_some_and(|it| it.loan.occupied() == Some(of))
    }

    fn may_know_better(&self) -> bool {
        self.is_closed() || !self.state.is_heard(self.node)
    }

    fn has_room(&self, known: Option<&Function>, number: u32, place: Place) -> bool {
        let other = self.rival(number, place).is_some();
        let borrower = self.state.node_of_domain(place.domain);
        let count = borrower.map_or(0, |it| self.state.in_block(it.block).count()) + self.taken.len();
        let most = SLOTS_PER_NODE_MAX + usize::from(known.is_some_and(|it| it.loan.occupied().is_some()));
        place.slot < SLOT_NUMBERS && !other && !self.taken.contains(&place) && count < most
    }

    fn is_allowed(&self, of: Assignment) -> bool {
        let borrower = self.state.node_of_domain(of.place.domain).filter(|node| node.id == of.borrower);
        let both = [borrower, self.state.joined(self.node)];
        let in_group = both.iter().all(|node| node.is_some_and(|node| node.groups.contains(of.group)));
        in_group && of.on_silence.is_valid()
    }
}

/// Whether a function that is not reported is one that was made, and is to be there no more. Of one that is to be there
/// the device may be away.
fn is_deleted(function: &Function, list: &MadeList) -> bool {
    let made = function.resource.made;
    made.is_some_and(|made| list.functions.iter().all(|it| it.id != made || it.name != function.name))
}

/// What a node says at length is kept in short.
fn shortened(said: &Unmade) -> Unmade {
    // It is shown in a terminal.
    let why = said.why.chars().map(|it| if it.is_control() { ' ' } else { it }).take(WHY_MAX).collect();
    Unmade { name: said.name.clone(), why }
}

/// Whether nobody can have given this generation.
fn is_impossible(present: LoanGeneration, reported: LoanGeneration) -> bool {
    let far = reported.0 > present.0.saturating_add(GENERATION_STRIDE) || reported.0 > GENERATION_LAST;
    far && reported > present
}
