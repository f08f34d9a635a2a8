//! The cards of a fleet: they run, die, send and are served by disks.

use base::Instant;
use node::agent::Exit;
use node::{Card, Egress};

use super::member::{FRAME, Submitted};
use super::network::Arrival;
use super::{Event, World};
use crate::checkers::names;
use crate::death::{End, survive};
use crate::rails;

/// The signal that kills cards.
const SIGKILL: i32 = 9;

impl<'w> World<'w> {
    pub(super) fn run_card(&mut self, node: usize) {
        let this = &mut self.members[node];
        if !this.node.wake.rings(self.clock.now) {
            return;
        }
        let due = this.node.card.as_ref().and_then(Card::poll_timeout);
        if due.is_some_and(|at| at.as_nanos() <= self.clock.now) && !self.act(node, Card::handle_timeout) {
            return;
        }
        self.service(node);
    }

    /// Events, media and frames, until the card has nothing more to say.
    pub(super) fn service(&mut self, node: usize) {
        if self.is_managed {
            self.check_entries(node);
        }
        self.serve_events(node);
        self.transmit(node);
        self.serve_media(node);
        self.transmit(node);
        let this = &mut self.members[node];
        let Some(at) = this.node.card.as_ref().and_then(Card::poll_timeout) else { return };
        if this.node.wake.set(at.as_nanos()) {
            self.clock.at(at.as_nanos(), Event::Card(node));
        }
    }

    /// Lets the card do something: false if it is dead, or dies of it.
    pub(super) fn act(&mut self, node: usize, work: impl FnOnce(&mut Card<'w>, Instant)) -> bool {
        let now = self.clock.instant();
        let Some(card) = self.members[node].node.card.as_mut() else { return false };
        match survive(|| work(card, now)) {
            Ok(()) => {
                if card.uncommitted() > 0 {
                    self.fail(names::COMMIT_BEFORE_SEND, "a step has ended without its commit".into());
                }
                self.check_roll_back(node);
                self.failure.is_none()
            }
            Err(end) => {
                self.end_card(node, end);
                false
            }
        }
    }

    fn check_roll_back(&mut self, node: usize) {
        if let Some(offset) = self.members[node].node.switch.take_mismatch() {
            let what = format!("offset {offset:#x} of the ledger is not what was committed");
            self.fail(names::ROLL_BACK, what);
        }
    }

    pub(super) fn end_card(&mut self, node: usize, end: End) {
        match end {
            End::Killed => self.kill(node),
            End::Panicked(what) => self.fail(names::ASSERTION, format!("node {node}: {what}")),
        }
    }

    /// A card dies, and its agent notices.
    pub(super) fn kill(&mut self, node: usize) {
        let this = &mut self.members[node];
        if this.node.card.take().is_none() {
            return;
        }
        this.node.switch.disarm();
        this.node.wake.stop();
        self.fleet.kills += 1;
        self.note("dies", node);
        let now = self.clock.instant();
        self.members[node].node.agent.handle_exit(now, Exit::Signal(SIGKILL));
        self.drive_agent(node);
    }

    /// True if the card died at this effect, or was dead.
    fn dies_here(&mut self, node: usize) -> bool {
        if self.members[node].node.card.is_some() && self.members[node].node.switch.dies_at_effect() {
            self.kill(node);
        }
        self.members[node].node.card.is_none() || self.failure.is_some()
    }

    pub(super) fn start_card(&mut self, node: usize) {
        if self.members[node].node.card.is_some() || !self.members[node].disk.is_empty() {
            let what = format!("node {node} is to have a card beside another one's requests");
            return self.fail(names::ASSERTION, what);
        }
        self.note("start", node);
        let mut seed = [0; 32];
        seed.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = self.random.next_u64().to_le_bytes());
        let config = self.members[node].config(&self.functions, seed);
        if !self.is_calm && self.fleet.kills > 0 && self.random.chance(100) {
            let stores = self.random.below(300);
            self.members[node].node.switch.arm_store(stores);
        }
        let (now, this) = (self.clock.instant(), &mut self.members[node]);
        let (memory, switch) = (this.node.memory, this.node.switch);
        let made = survive(|| Card::new(memory, Some(switch), config, now));
        this.node.agent.handle_started(now, node as i32 + 1);
        self.check_roll_back(node);
        match made {
            Ok(card) => self.welcome(node, card.expect("the memory was made for it")),
            Err(End::Killed) => {
                self.fleet.kills += 1;
                self.members[node].node.agent.handle_exit(now, Exit::Signal(SIGKILL));
                self.drive_agent(node);
            }
            Err(End::Panicked(what)) => self.fail(names::ASSERTION, format!("node {node} starts: {what}")),
        }
        // The card that had them is gone, with all that it had asked of its disk.
        self.conclude_withdrawals(node);
    }

    fn welcome(&mut self, node: usize, card: Card<'w>) {
        let now = self.clock.instant();
        let this = &mut self.members[node];
        this.node.card = Some(card);
        this.node.agent.handle_running(now);
        self.drive_agent(node);
        self.service(node);
    }

    fn transmit(&mut self, node: usize) {
        let mut buffer = core::mem::take(&mut self.buffer);
        while !self.dies_here(node) {
            let now = self.clock.instant();
            let Some(card) = self.members[node].node.card.as_mut() else { break };
            let outgoing = match survive(|| card.poll_transmit(now, &mut buffer)) {
                Ok(Some(outgoing)) => outgoing,
                Ok(None) => break,
                Err(end) => {
                    self.end_card(node, end);
                    break;
                }
            };
            let (Egress::Rail(rail), Some(to)) = (outgoing.egress, outgoing.to) else { continue };
            let sent = self.network.send((node, rail), to, &buffer[..outgoing.len]);
            for (after, arrival) in sent {
                self.clock.after(after, Event::Arrival(arrival));
            }
        }
        self.buffer = buffer;
    }

    pub(super) fn arrive(&mut self, arrival: Arrival) {
        let Arrival { to, rail, from, mut bytes } = arrival;
        if !self.dies_here(to) && self.act(to, |card, now| card.handle_frame(now, rail, from, &mut bytes)) {
            self.service(to);
        }
    }

    /// A node has these rails from now on: what the next card is told, too, before the present one is.
    pub(super) fn set_rails(&mut self, node: usize, rails: u8) {
        self.members[node].rails = rails;
        let set = |card: &mut Card<'_>, now| {
            card.set_rails(now, rails::config(rails, FRAME)).expect("there is one, as large as the others");
        };
        if !self.dies_here(node) && self.act(node, set) {
            self.service(node);
        }
    }

    fn serve_media(&mut self, node: usize) {
        while !self.dies_here(node) {
            let Some(card) = self.members[node].node.card.as_mut() else { return };
            let work = match survive(|| card.poll_media()) {
                Ok(Some(work)) => work,
                Ok(None) => return,
                Err(end) => return self.end_card(node, end),
            };
            let this = &mut self.members[node];
            this.next_request += 1;
            let (request, function) = (this.next_request, this.lent.start + work.loan);
            let (journal, card) = (this.node.kernel(), this.node.generation());
            let submitted = Submitted { work, function, journal, card };
            this.disk.insert(request, submitted);
            let slow = self.members[node].disk_is_slow && !self.is_calm && self.random.chance(20);
            let most = if slow { 2_000_000_000 } else { 150_000 };
            let stands = self.functions[function].is_stuck;
            let still = if stands { self.plan.end.saturating_sub(self.clock.now) } else { 0 };
            let after = still + self.random.range(5_000, most);
            self.clock.after(after, Event::Disk(node, request));
        }
    }

    /// The disk does something, whether or not the card that has asked for it still lives.
    pub(super) fn disk_done(&mut self, node: usize, request: u64) {
        let Some(submitted) = self.members[node].disk.remove(&request) else { return };
        self.execute(&submitted);
        let Submitted { work, card, .. } = submitted;
        if card == self.members[node].node.generation()
            && !self.dies_here(node)
            && self.act(node, |card, now| card.handle_media(now, work.loan, work.id, Ok(())))
        {
            self.service(node);
        }
    }

    fn execute(&mut self, submitted: &Submitted<'w>) {
        let function = &mut self.functions[submitted.function];
        if let Err(what) = function.check_effect(&submitted.work, &self.authors) {
            let what = format!("function {} of node {}: {what}", function.place, function.lender);
            return self.fail(names::SINGLE_OWNER, what);
        }
        function.disk.execute(&submitted.work, submitted.journal);
    }

    /// Everything that the disk was asked for happens, in any order.
    pub(super) fn drain(&mut self, node: usize) {
        while !self.members[node].disk.is_empty() {
            let any = self.random.index(self.members[node].disk.len());
            let request = self.members[node].disk.keys().copied().nth(any);
            if let Some(submitted) = request.and_then(|request| self.members[node].disk.remove(&request)) {
                self.execute(&submitted);
            }
        }
    }
}
