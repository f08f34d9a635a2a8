//! Slots whose socket or preset is another one in the file than it was.
//!
//! What a machine is connected to stays until it has gone: the new socket is made at once, and takes the place of the
//! old one then. Another preset is attached when what is there was given back.

use io::agent::{Agent, Edge};
use io::event::Event;

use super::{Domains, Entry, Phase};
use crate::cli::SlotName;
use crate::config::{Change, Domain, Slot};
use crate::exit::Failure;
use crate::line::Line;
use crate::roles::{lend, socket};
use crate::state_dir::StateDir;
use crate::state_dir::slot::{Attached, Attachment};

/// A slot as the file has it now, with its socket where that is another one.
pub(in crate::roles) struct Changing {
    loan: usize,
    next: Next,
}

/// What a slot is to be.
pub(super) struct Next {
    slot: Slot,
    socket: Option<socket::Reserved>,
    /// What is attached then, where that is something else.
    function: Option<Option<Line>>,
    /// What a report says of it.
    change: Change,
}

impl Next {
    /// The same where something else was to come before, and has not.
    fn behind(self, before: Option<Self>, is_assigned: bool) -> Self {
        // That still is to come, unless the file says otherwise by now.
        let function = self.function.or_else(|| before?.function);
        // What a manager has assigned stays, whatever the file says is attached where nobody says otherwise.
        Self { function: function.filter(|_| !is_assigned), ..self }
    }

    /// Somebody has decided that nothing is to be there, whatever the file says.
    pub(super) fn attach_nothing(&mut self) {
        self.function = None;
    }
}

impl Changing {
    /// What is attached when the change is made, if that is news.
    pub(in crate::roles) fn line(&self) -> Option<&Line> {
        self.next.function.as_ref()?.as_ref()
    }

    /// Which loan it is.
    pub(in crate::roles) fn loan(&self) -> usize {
        self.loan
    }
}

impl Domains {
    /// Makes the socket of a slot that is to change, where the node does not listen there already.
    ///
    /// # Errors
    /// The socket cannot be made, or there is no such slot.
    pub(in crate::roles) fn reserve(
        &self,
        domain: &Domain,
        [before, after]: &[Slot; 2],
        agent: &Agent,
    ) -> Result<Changing, Failure> {
        let name = SlotName { domain: domain.name.clone(), slot: after.name.clone() };
        let found = self.places.iter().find(|(_, place)| place.name == name && !place.is_leaving);
        let Some((&loan, place)) = found else {
            return Err(Failure::refused(format!("{name} is just leaving: reload again when it has left")));
        };
        let function = (before.preset != after.preset).then(|| after.preset.clone());
        // Where nothing is attached now and then, there is no socket, nor is there for what was lost.
        let is_there = place.phase != Phase::Vacant && !place.is_lost;
        let has_socket = is_there || function.as_ref().is_some_and(Option::is_some);
        let waits = place.next.as_ref().and_then(|next| next.socket.as_ref());
        let is_ours = |path: &std::path::Path| {
            listens_at(agent, loan).is_some_and(|at| at == path) || waits.is_some_and(|it| it.path() == path)
        };
        let is_other = (&place.slot.socket, &place.slot.access) != (&after.socket, &after.access);
        let is_to_listen = has_socket && (is_other || place.phase == Phase::Vacant);
        let socket = is_to_listen
            .then(|| socket::Reserved::bind(&after.socket, &after.access, is_ours(&after.socket)))
            .transpose()?;
        if is_other && !has_socket {
            socket::check(&after.socket, &after.access)?;
        }
        let change = Change::SlotChanged(domain.clone(), Box::new([before.clone(), after.clone()]));
        Ok(Changing { loan, next: Next { slot: after.clone(), socket, function, change } })
    }

    /// Where sockets wait for slots that are to change, by slot.
    pub(in crate::roles) fn waiting_sockets(&self) -> impl Iterator<Item = (String, std::path::PathBuf)> {
        self.places.values().filter_map(|place| {
            let socket = place.next.as_ref()?.socket.as_ref()?;
            Some((place.name.to_string(), socket.path().to_owned()))
        })
    }

    /// Has a slot become what it is to be: at once, or when who uses it has let go of it. For whom it waits, if it
    /// does.
    pub(in crate::roles) fn change(
        &mut self,
        changing: Changing,
        agent: &mut Agent,
        state: &StateDir,
    ) -> Option<String> {
        let Changing { loan, next } = changing;
        let place = self.places.get_mut(&loan)?;
        let mut next = next.behind(place.next.take(), place.assigned.is_some());
        // What is there already only has to stay.
        let stays = |line: &Option<Line>| {
            let is_there = matches!(place.phase, Phase::Attaching | Phase::Attached) && !place.is_lost;
            has(agent, loan, line.as_ref()) && is_there
        };
        let is_news = next.function.is_some();
        next.function = next.function.filter(|line| !stays(line));
        let is_taken_out = next.function.is_some();
        if is_news && let Err(failure) = place.follow_file(is_taken_out, state) {
            Event::SlotUndecided { slot: place.name.to_string(), error: failure.message().to_owned() }.say();
        }
        place.next = Some(next);
        if is_taken_out {
            self.take_out(loan, agent);
        }
        self.follow_change(loan, agent, state);
        let waits_for = self.waits_for(loan, agent)?;
        let slot = self.places.get(&loan)?.name.to_string();
        Event::SlotChanging { slot, waits_for: waits_for.clone() }.say();
        Some(waits_for)
    }

    /// For whom a slot waits that is to change, or would.
    pub(in crate::roles) fn foresee(&self, changing: &Changing, agent: &Agent) -> Option<String> {
        let place = self.places.get(&changing.loan)?;
        let goes = changing.next.function.is_some() && place.phase != Phase::Vacant;
        let moves = changing.next.socket.is_some();
        self.waits(changing.loan, goes, moves, agent)
    }

    /// What has been changing since an earlier reload and is not touched by this one, and for whom it waits.
    pub(in crate::roles) fn changing_still(
        &self,
        changes: &[Change],
        agent: &Agent,
    ) -> Vec<(Change, String)> {
        let touched = |place: &Entry| {
            changes.iter().any(|change| {
                matches!(change, Change::SlotChanged(domain, slots)
                    if domain.name == place.name.domain && slots[1].name == place.name.slot)
            })
        };
        let waiting = self.places.iter().filter(|(_, place)| !touched(place)).filter_map(|(loan, place)| {
            Some((place.next.as_ref()?.change.clone(), self.waits_for(*loan, agent)?))
        });
        waiting.collect()
    }

    fn waits_for(&self, loan: usize, agent: &Agent) -> Option<String> {
        let next = self.places.get(&loan)?.next.as_ref()?;
        self.waits(loan, next.function.is_some(), true, agent)
    }

    fn waits(&self, loan: usize, goes: bool, moves: bool, agent: &Agent) -> Option<String> {
        if (goes || moves) && agent.has_guest(loan) {
            let to = if goes { "to let go of it" } else { "to end, or to be given the new socket" };
            return Some(format!("its virtual machine {to}"));
        }
        let view = agent.view();
        let (spec, _) = view.loan(loan).filter(|(spec, _)| goes && !spec.is_vacant())?;
        Some(format!("the lender of {} to take it back", spec.function))
    }

    /// Makes changes for which nobody is in the way any more.
    pub(super) fn follow_changes(&mut self, agent: &mut Agent, state: &StateDir) {
        let changing: Vec<usize> =
            self.places.iter().filter(|(_, place)| place.next.is_some()).map(|(loan, _)| *loan).collect();
        changing.into_iter().for_each(|loan| self.follow_change(loan, agent, state));
    }

    fn follow_change(&mut self, loan: usize, agent: &mut Agent, state: &StateDir) {
        let Some(place) = self.places.get_mut(&loan) else { return };
        let Some(next) = &place.next else { return };
        let is_vacant = place.phase == Phase::Vacant;
        let waits = if next.function.is_some() { !is_vacant } else { next.socket.is_some() && !is_vacant };
        // A machine that is connected to a vacant slot has nothing of it.
        if waits && (next.function.is_some() || agent.has_guest(loan)) {
            return;
        }
        let Some(Next { slot, socket, function, .. }) = place.next.take() else { return };
        place.slot = slot;
        Event::SlotChanged { slot: place.name.to_string() }.say();
        let (slot, path) = (place.name.to_string(), place.slot.socket.clone());
        let made = match (is_vacant, function.flatten()) {
            (true, line) => {
                agent.move_edge(loan, &path, None);
                line.map_or(Ok(()), |line| {
                    let listener = socket.map(socket::Reserved::install).transpose()?;
                    self.begin(loan, &line, listener, agent, state)
                })
            }
            (false, _) => socket.map_or(Ok(()), |socket| {
                let listener = socket.install()?;
                agent.move_edge(loan, &path, Some(listener));
                Ok(())
            }),
        };
        if let Err(failure) = made {
            let why = failure.message().to_owned();
            Event::SlotRefused { slot, why: why.clone() }.say();
            if let Some(place) = self.places.get_mut(&loan) {
                place.trouble = Some(why);
            }
        }
    }
}

impl Entry {
    /// What the file says holds from now on, whatever somebody has decided before. `is_other`: that is something else
    /// than what is there.
    fn follow_file(&mut self, is_other: bool, state: &StateDir) -> Result<(), Failure> {
        if is_other {
            return self.decide(Attached::Preset, state);
        }
        let attachment = Attachment { generation: self.generation, attached: Attached::Preset };
        Ok(state.set_attachment(&self.name, &attachment)?)
    }
}

/// Where the node listens for the machine of a slot.
fn listens_at(agent: &Agent, loan: usize) -> Option<std::path::PathBuf> {
    match agent.view().spec().loans.get(loan)?.config.role.edge()? {
        Edge::Vm { path, listener: Some(_), .. } => Some(path.clone()),
        _ => None,
    }
}

/// Whether a slot has what a line says, as it says it.
fn has(agent: &Agent, loan: usize, line: Option<&Line>) -> bool {
    let view = agent.view();
    let Some(spec) = view.spec().loans.get(loan) else { return false };
    let Some(line) = line else { return spec.is_vacant() };
    let is_same_way = match &spec.config.role {
        io::agent::LoanEnd::Borrow { peers, lender, .. } => {
            peers == line.addresses() && *lender == line.lender() && spec.config.group == line.group()
        }
        _ => false,
    };
    is_same_way && spec.config.function == lend::function_id(line.secret().reveal())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn next(function: Option<Option<Line>>) -> Next {
        let text =
            "[[domains]]\nname = 'vm'\nkind = 'vm'\n[[domains.slots]]\nname = 'a'\nsocket = '/run/a'\n";
        let mut config = Config::parse(text, std::path::Path::new("n.toml")).unwrap();
        let domain = config.domains.remove(0);
        let slot = domain.slots[0].clone();
        let change = Change::SlotChanged(domain, Box::new([slot.clone(), slot.clone()]));
        Next { slot, socket: None, function, change }
    }

    #[test]
    fn a_reload_leaves_what_a_manager_has_assigned() {
        let line = || Some(crate::line::tests::example());
        for said in [None, Some(None), Some(line())] {
            assert!(next(said.clone()).behind(None, true).function.is_none(), "{said:?}");
            assert!(next(None).behind(Some(next(said.clone())), true).function.is_none(), "{said:?}");
            assert_eq!(next(said.clone()).behind(None, false).function, said);
            assert_eq!(
                next(None).behind(Some(next(said.clone())), false).function,
                said,
                "it is still to come"
            );
        }
        assert_eq!(
            next(Some(None)).behind(Some(next(Some(line()))), false).function,
            Some(None),
            "the last word"
        );
    }
}
