//! Lives of cards and of nodes: what is about all parts of a world. A card is served until it has nothing more to say,
//! the next one begins, a node begins anew, and faults and rivals do what they plan.

use link::Tenancy;
use node::agent::Effect;
use node::{Card, CardEvent};

use crate::contest::{Contest, Move};
use crate::edge::Clients;
use crate::marks::Mark;
use crate::media::Media;
use crate::rest::{Rest, Step};
use crate::slot::{Guests, Slot};
use crate::stage::{BORROWER, Event, LENDER, RIVAL};
use crate::world::World;

impl World<'_> {
    /// Events, frames, media and edges, until the card has nothing more to say.
    pub(crate) fn service(&mut self, node: usize) {
        self.serve_events(node);
        let (stage, identity) = (&mut self.stage, &mut self.identity);
        if node == LENDER {
            self.disks.serve_records(stage);
        }
        self.traffic.transmit(stage, identity, node);
        for loan in 0..stage.loans.len() {
            if node == LENDER {
                self.disks.serve(stage);
            } else {
                self.clients.serve(stage, &self.disks, node, loan);
            }
            let guests = self.guests.iter_mut();
            guests.for_each(|guests| guests.serve(stage, &self.disks, Slot { node, loan }));
        }
        self.traffic.transmit(stage, identity, node);
        let due = stage.nodes[node].card.as_ref().and_then(Card::poll_timeout);
        if let Some(at) = due {
            stage.wake_at(node, at.as_nanos());
        }
    }

    /// What a card tells its agent, which keeps who uses what, whatever becomes of cards and ledgers.
    fn serve_events(&mut self, node: usize) {
        let stage = &mut self.stage;
        while let Some(event) = stage.nodes[node].card.as_mut().and_then(Card::poll_event) {
            match event {
                CardEvent::Tenant(loan, tenancy) => stage.tenant_changes(loan, tenancy),
                CardEvent::Located(holder) => {
                    stage.tell_agent(node, |agent, now| agent.handle_located(now, holder));
                }
                CardEvent::Overtaken(loan) => {
                    let (lent, who) = (&mut stage.loans[loan], stage.nodes[node].who());
                    let guests = self.guests.as_ref();
                    let is_served = |since| {
                        self.clients.are_served(node, loan, since)
                            || guests.is_some_and(|guests| guests.are_served(Slot { node, loan }, since))
                    };
                    if lent.is_overtaken(who, is_served, &mut stage.report) {
                        stage.log(Some(node), "overtaken", loan as u64, 0);
                    }
                }
                CardEvent::Joined(_, peer, incarnation) => {
                    let peer = (peer, incarnation);
                    self.traffic.neighbours.iter_mut().for_each(|it| it.met(stage, node, peer));
                }
                CardEvent::Left(_) => {
                    self.traffic.neighbours.iter_mut().for_each(|it| it.left(stage, node));
                }
                CardEvent::Closed { loan, has_lost } if node != LENDER => {
                    stage.given_back(node, loan, has_lost);
                }
                CardEvent::MediaFault(drive) => self.disks.report_loss(stage, drive),
                CardEvent::Refused(loan, refusal) if node != LENDER => stage.refused(node, loan, refusal),
                CardEvent::Notice(notice) => {
                    let (watch, mut scene) = stage.scene();
                    watch.check_notice(&mut scene, node, notice);
                }
                // Nothing is withdrawn here.
                CardEvent::Withdrawn(_)
                | CardEvent::Applied(..)
                | CardEvent::Ready(_)
                | CardEvent::Refused(..)
                | CardEvent::Met(..)
                | CardEvent::Unusable(..)
                | CardEvent::Doubted(_)
                | CardEvent::Closed { .. } => {}
            }
        }
    }

    /// What an agent wanted done is, if it still lives.
    pub(crate) fn performed(&mut self, node: usize, life: u64, effect: &Effect) {
        if self.stage.nodes[node].life != life || self.stage.nodes[node].is_away {
            return;
        }
        match effect {
            Effect::Start { .. } => self.start_card(node),
            Effect::Drain { .. } => {
                // Mostly that was long enough.
                if self.stage.random.chance(700) {
                    self.disks.drain(&mut self.stage);
                }
                self.stage.disks_had_time(node);
            }
            Effect::StoreTenancy { loan, tenancy } => self.store_tenancy(*loan, *tenancy),
            Effect::StoreHolder(holder) => {
                self.stage.nodes[node].keep_holder(self.stage.clock.instant(), *holder);
                self.stage.drive_agent(node);
            }
            // The others take no time.
            _ => {}
        }
    }

    /// The state folder has it, or could not be written.
    fn store_tenancy(&mut self, loan: usize, tenancy: Tenancy) {
        let stage = &mut self.stage;
        let fails = !stage.is_calm() && stage.random.chance(30);
        stage.report.marks.set_if(Mark::TenancyUnsaved, fails);
        let former = if fails { None } else { stage.change_tenant(loan, tenancy) };
        if let Some(former) = former {
            // What its clients wait for has happened by now, or not before the next one is served.
            let shared = &mut stage.loans[loan].shared;
            self.clients.abandon_writes(loan, former, shared);
            self.guests.iter().for_each(|guests| guests.abandon_writes(loan, former, shared));
        }
        if !fails {
            self.guests.iter_mut().for_each(|guests| guests.drive_is_taken(stage, loan));
        }
        if let Some(former) = former {
            self.shorten_rest(former.node);
        }
        let stage = &mut self.stage;
        let result = if fails { Err("no space".to_owned()) } else { Ok(()) };
        stage.tell_agent(LENDER, |agent, now| agent.handle_tenancy_stored(now, loan, result));
        if let Some(node) = stage.nodes[LENDER].with_card() {
            self.service(node);
        }
    }

    /// The next card of a node begins.
    fn start_card(&mut self, node: usize) {
        if !self.stage.may_start(node) {
            return;
        }
        let mut drives = Vec::new();
        if node == LENDER {
            self.disks.media.iter_mut().for_each(Media::card_begins);
            drives = self.stage.terms.drives(&self.stage.loans);
        }
        for (drive, config) in drives.iter_mut().enumerate() {
            self.disks.media.iter().for_each(|media| media.configure(drive, config));
            self.guests.iter().for_each(|guests| guests.configure(drive, config));
        }
        let config = self.stage.card_config(node, drives);
        let Some(card) = self.stage.make_card(node, config) else { return };
        self.stage.card_began(node, card);
        self.serve_events(node);
        self.faults.arm(self.stage.nodes[node].switch);
        if self.tell_card(node) && self.stage.let_time_pass(node).is_some() {
            self.service(node);
        }
    }

    /// A new card hears what its agent knows: false if it dies of what it hears of its media.
    fn tell_card(&mut self, node: usize) -> bool {
        let stage = &mut self.stage;
        if node == LENDER && !self.disks.tell_losses(stage) {
            return false;
        }
        self.traffic.neighbours.iter_mut().for_each(|it| it.card_began(stage, node));
        for loan in 0..stage.loans.len() {
            if node != LENDER {
                self.clients.tell(stage, node, loan);
            }
            self.guests.iter_mut().for_each(|guests| guests.tell(stage, Slot { node, loan }));
        }
        stage.drive_agent(node);
        true
    }

    /// A node loses its ledger with its program, or its machine loses its power: another life begins.
    fn begin_anew(&mut self, node: usize, loses_power: bool) {
        let stage = &mut self.stage;
        stage.end_life(node);
        if node == LENDER && !loses_power {
            // Requests under way hold the image's lock, and the next program opens it when they have ended.
            self.disks.drain(stage);
        }
        self.traffic.neighbours.iter_mut().for_each(|it| it.part(stage, Some(node)));
        self.identity.iter_mut().for_each(|identity| identity.tamper_with_folder(stage, node));
        if node == LENDER {
            self.disks.lender_begins(stage);
            let guests = self.guests.iter_mut().flat_map(|guests| &mut guests.guests);
            guests.for_each(|guest| guest.lender_rebooted = true);
        } else {
            self.guests.iter_mut().for_each(|guests| guests.lose_node(stage, node));
            self.clients.lose_node(stage, node);
        }
        stage.begin_life(node);
    }

    /// One fault, and the next one's date; or the end of all.
    pub(crate) fn fault(&mut self) {
        let stage = &mut self.stage;
        if self.traffic.siege.keeps_out(stage) {
            return stage.clock.after(1_000_000, Event::Fault);
        }
        let (now, progress) = (self.stage.clock.now, self.progress());
        let waits = self.contest.as_ref().is_some_and(|contest| contest.is_waiting(now));
        if !waits && self.faults.are_over(now, progress) {
            return self.calm();
        }
        self.commit_fault();
        self.stage.clock.after(self.faults.pause(waits), Event::Fault);
    }

    fn commit_fault(&mut self) {
        let (stage, faults, traffic) = (&mut self.stage, &mut self.faults, &mut self.traffic);
        let mut any_borrower = || self.contest.as_mut().map_or(BORROWER, Contest::any_borrower);
        match faults.random.below(100) {
            0..26 => faults.kill(stage, LENDER),
            26..52 => faults.kill(stage, any_borrower()),
            52..58 => {
                faults.kill(stage, LENDER);
                faults.kill(stage, any_borrower());
            }
            58..68 => traffic.network.change(),
            68..78 => faults.cut(stage, traffic),
            // To a lender, what comes late from a node is as good as the node.
            78..85 if self.rest.as_ref().is_some_and(Rest::is_away) => {}
            78..85 => traffic.inject(stage, &mut faults.random, false),
            85..92 if faults.reboots_often => self.reboot(),
            85..92 => traffic.inject(stage, &mut faults.random, true),
            92..95 => {
                let loan = faults.random.index(stage.loans.len());
                let leaves = self.clients.leave(stage, &mut faults.random, (any_borrower(), loan));
                leaves.into_iter().for_each(|node| self.service(node));
            }
            95 => traffic.neighbours.iter_mut().for_each(|it| it.part(stage, None)),
            _ => self.reboot(),
        }
    }

    /// A node loses its ledger, its sockets, and what its disks had not written.
    fn reboot(&mut self) {
        let replaced = &mut self.disks.replaced;
        if self.faults.reboots == 0 || replaced.as_mut().is_some_and(|it| it.alter(&mut self.stage)) {
            return;
        }
        let node = self.faults.random.index(2);
        if self.rest.as_ref().is_some_and(|rest| rest.spares(node)) {
            return;
        }
        self.faults.reboots -= 1;
        if self.stage.nodes[node].is_away {
            return;
        }
        if node == LENDER {
            self.reboot_lender();
        } else {
            self.begin_anew(node, false);
            self.stage.report.marks.set(Mark::BorrowerReboot);
        }
    }

    /// The lender's program, or the machine.
    fn reboot_lender(&mut self) {
        let is_machine = self.disks.media.as_mut().is_none_or(Media::loses_power)
            && self.guests.as_mut().is_none_or(Guests::loses_power);
        self.begin_anew(LENDER, is_machine);
        let stage = &mut self.stage;
        stage.report.marks.set(Mark::LenderReboot);
        if is_machine {
            self.disks.power_failed(stage);
            self.guests.iter_mut().for_each(|guests| guests.power_failed(stage));
        }
        if self.disks.replaced.as_mut().is_some_and(|replaced| replaced.program_ended(stage)) {
            self.guests.iter_mut().for_each(|guests| guests.drives_are_replaced(stage));
        }
    }

    /// The lender's machine goes off, or its program only, and on again.
    pub(crate) fn switch_off(&mut self) {
        if !self.stage.is_calm() && !self.stage.nodes[LENDER].is_away {
            self.reboot_lender();
        }
    }

    /// What the borrowers do next.
    pub(crate) fn contest(&mut self) {
        if self.contest.is_none() {
            return;
        }
        if self.stage.is_calm() {
            self.settle();
            return self.stage.clock.after(20_000_000, Event::Contest);
        }
        let (clients, guests) = (&self.clients, self.guests.as_ref());
        let loans = &self.stage.loans;
        // Who has a loan wants it only while a guest has a drive to lose.
        let has_none = |slot: Slot| guests.is_some_and(|guests| guests.is_away(slot));
        let want = |node, loan| {
            let slot = Slot { node, loan };
            want(clients, guests, slot) && (loans[loan].tenure.holder != Some(node) || !has_none(slot))
        };
        let Some(contest) = &mut self.contest else { return };
        let after = contest.pause();
        let next = contest.next_move(&self.stage, want);
        next.into_iter().for_each(|next| self.make_move(next));
        self.stage.clock.after(after, Event::Contest);
    }

    /// What a guest that rests, or will, does next.
    pub(crate) fn rest(&mut self) {
        let (clients, guests, stage) = (&self.clients, self.guests.as_ref(), &mut self.stage);
        let islands = self.traffic.network.islands;
        let is_wanted = |node: usize, loan: usize| want(clients, guests, Slot { node, loan });
        let guest_of = |node: usize, loan: usize| {
            let is_contested =
                !islands[node] && is_wanted(node, loan) && is_wanted(BORROWER + RIVAL - node, loan);
            guests.filter(|_| is_contested)?.is_at_work(Slot { node, loan })
        };
        let Some(step) = self.rest.as_mut().and_then(|rest| rest.turn(stage, guest_of)) else { return };
        match step {
            Step::Rest(node, until) => {
                self.guests.iter_mut().for_each(|guests| guests.rest(stage, node, until));
            }
            Step::Part(node, lasts, until) => {
                self.guests.iter_mut().for_each(|guests| guests.rest(stage, node, until));
                self.make_move(Move::Part(node, lasts));
                let end = self.rest.as_ref().and_then(Rest::faults_until);
                end.into_iter().for_each(|end| self.faults.go_on_until(end));
            }
            Step::Return(node) => {
                // Whoever stays away for long sees few faults, and these are to be seen now.
                self.faults.kill(stage, LENDER);
                self.faults.kill(stage, node);
            }
            Step::Settle => self.settle(),
        }
    }

    /// Another node has a drive of this one, whose guests may rest: perhaps it can be reached again soon.
    fn shorten_rest(&mut self, former: usize) {
        let (stage, rest) = (&mut self.stage, self.rest.as_mut());
        let Some((soon, until)) = rest.and_then(|rest| rest.drive_is_taken(stage, former)) else { return };
        stage.clock.at(soon, Event::Join(former));
        self.contest.iter_mut().for_each(|contest| contest.wait_no_longer(soon));
        self.guests.iter_mut().for_each(|guests| guests.rest(stage, former, until));
    }

    /// Whoever wants nothing more of a loan gives back what the other one waits for.
    fn settle(&mut self) {
        for node in [BORROWER, RIVAL] {
            let next = Contest::settle(&self.stage, |node, loan| self.want(node, loan), node);
            next.into_iter().for_each(|next| self.make_move(next));
        }
    }

    pub(crate) fn make_move(&mut self, next: Move) {
        let stage = &mut self.stage;
        match next {
            Move::Leave(node) => {
                if let Some(node) = stage.give_everything_back(node) {
                    self.service(node);
                }
            }
            Move::Die(node, lasts) => self.kill_program(node, lasts),
            Move::Part(node, lasts) => {
                let contest = self.contest.iter_mut();
                contest.for_each(|contest| contest.isolate(stage, &mut self.traffic, node, lasts));
            }
            Move::Return(node) => {
                if core::mem::take(&mut stage.nodes[node].is_away) {
                    stage.schedule_agent(node, stage.clock.now);
                    self.clients.come_back(stage, node);
                    self.guests.iter().for_each(|guests| guests.come_back(stage, node));
                }
            }
            Move::RestartLender => self.begin_anew(LENDER, false),
        }
    }

    /// A node that gives back what it has is done with that, or takes too long.
    pub(crate) fn end_program(&mut self, node: usize, life: u64) {
        if self.stage.nodes[node].life == life {
            let lasts = self.contest.as_mut().map_or(0, Contest::absence);
            self.kill_program(node, lasts);
        }
    }

    /// A node's program ends, with whatever it has, and is started again after `lasts`, or never.
    fn kill_program(&mut self, node: usize, lasts: u64) {
        let this = &mut self.stage.nodes[node];
        if core::mem::replace(&mut this.is_away, true) {
            return;
        }
        let life = this.life;
        self.stage.log(Some(node), "gone", life, lasts);
        self.begin_anew(node, false);
        let contest = self.contest.as_mut();
        if contest.is_some_and(|contest| !contest.was_killed(&mut self.stage, node, lasts)) {
            self.clients.give_up(node);
            self.guests.iter_mut().for_each(|guests| guests.give_up(node));
        }
    }

    /// Whether anybody at a node has something left to do with a loan.
    fn want(&self, node: usize, loan: usize) -> bool {
        want(&self.clients, self.guests.as_ref(), Slot { node, loan })
    }
}

/// Whether a client or a guest of a node has something left to do with a loan.
fn want(clients: &Clients, guests: Option<&Guests<'_>>, slot: Slot) -> bool {
    clients.want(slot.node, slot.loan) || guests.is_some_and(|guests| guests.want(slot))
}
