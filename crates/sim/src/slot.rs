//! The edge of a slot: the kernel's socket between a guest's machine and the borrowing card, and an agent that takes
//! messages with descriptors and keeps those.

use std::rc::Rc;

use base::ledger::Span;
use node::{BorrowedSlot, Card, DescriptorId, Peeked};

use crate::chance::Chance;
use crate::checkers::excuses::Excuses;
use crate::checkers::names;
use crate::checkers::single_owner::Life;
use crate::client::Shared;
use crate::disks::Disks;
use crate::edge::{read, room_in, write};
use crate::guest::{Guest, Memories, SharedMemories};
use crate::marks::Mark;
use crate::stage::{Event, NODES, Stage};
use crate::volatile::Volatile;

/// Where a guest is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    pub(crate) node: usize,
    pub(crate) loan: usize,
}

/// The socket of a slot, and what its agent knows.
#[derive(Default)]
struct SlotSocket {
    connected: bool,
    received: u64,
    sent: u64,
    mail: Option<(u64, Vec<u8>, Vec<DescriptorId>)>,
    mails: u64,
    descriptors: u32,
    /// When its machine is to try again to start.
    tries_at: u64,
    /// When the card had the last bytes, where the function had left something unanswered by then.
    asked_in_silence: Option<u64>,
    /// The guest is about to lose its drive, which is another one: the life of the lender's machine that the slot has
    /// met.
    unplugging: Option<u64>,
}

/// The guests of a world: their machines, and what lies between them and the cards of those who borrow.
pub(crate) struct Guests<'w> {
    pub(crate) guests: Vec<Guest>,
    /// By guest.
    sockets: Vec<SlotSocket>,
    /// By node, where it has guests.
    memories: Vec<SharedMemories<'w>>,
    /// In some worlds their drives have a volatile cache.
    volatile: Option<Volatile>,
}

/// How often the driver of a guest looks at its clock, in nanoseconds.
const GUEST_TICK: u64 = 1_000_000_000;

/// How long a machine waits until it tries again to start, in nanoseconds: for a node that is away, a slot that another
/// node may have, and one that nobody else wants.
const AWAY: u64 = 500_000_000;
const CONTESTED: u64 = 50_000_000;
const UNDISPUTED: u64 = 3_000_000;

/// Whether the world of a seed has guests.
pub fn has_guests(seed: u64) -> bool {
    Chance::Guests.of(seed).chance(150)
}

/// What is answered by then was answered at once, in nanoseconds: what is posted to a silent function may hold back
/// what is behind it for a tenth of a second.
const AT_ONCE: u64 = 500_000_000;

impl<'w> Guests<'w> {
    pub(crate) fn new(
        guests: Vec<Guest>,
        memories: Vec<SharedMemories<'w>>,
        volatile: Option<Volatile>,
    ) -> Self {
        let sockets = guests.iter().map(|_| SlotSocket::default()).collect();
        Self { guests, sockets, memories, volatile }
    }

    /// The guest of a slot.
    fn at(&self, slot: Slot) -> Option<usize> {
        self.guests.iter().position(|guest| guest.slot() == slot)
    }

    fn memory(&self, node: usize) -> Option<Rc<Memories<'w>>> {
        self.memories[node].clone()
    }

    /// Whether something has succeeded that the guest of a slot has asked for since a tick.
    pub(crate) fn are_served(&self, slot: Slot, since: u64) -> bool {
        self.at(slot).is_some_and(|at| self.guests[at].served_of >= since)
    }

    /// Whether a guest of a node has something left to do with a loan.
    pub(crate) fn want(&self, slot: Slot) -> bool {
        self.at(slot).is_some_and(|at| !self.guests[at].is_done())
    }

    /// Whether the guest of a slot is not there.
    pub(crate) fn is_away(&self, slot: Slot) -> bool {
        self.at(slot).is_some_and(|at| self.guests[at].is_away())
    }

    /// If the guest of a slot is there and has had answers of its drive: whether it waits for others.
    pub(crate) fn is_at_work(&self, slot: Slot) -> Option<bool> {
        let guest = &self.guests[self.at(slot)?];
        guest.has_used_drive().then_some(guest.in_flight() > 0)
    }

    /// Those of a node ask for nothing until then.
    pub(crate) fn rest(&mut self, stage: &mut Stage<'w>, node: usize, until: u64) {
        for at in (0..self.guests.len()).filter(|at| self.guests[*at].node == node).collect::<Vec<_>>() {
            self.guests[at].rest(until);
            stage.log(None, "rests", at as u64, until);
            if until < u64::MAX {
                stage.clock.at(until, Event::ThinkGuest(at));
            }
        }
    }

    /// Those of a node want nothing any more.
    pub(crate) fn give_up(&mut self, node: usize) {
        self.guests.iter_mut().filter(|guest| guest.node == node).for_each(Guest::give_up);
    }

    /// The program of a node runs again.
    pub(crate) fn come_back(&self, stage: &mut Stage<'w>, node: usize) {
        for at in (0..self.guests.len()).filter(|at| self.guests[*at].node == node) {
            stage.clock.after(1_000_000, Event::ThinkGuest(at));
        }
    }

    /// Their machines start, a moment after the beginning.
    pub(crate) fn begin(&self, stage: &mut Stage<'w>) {
        for at in 0..self.guests.len() {
            stage.clock.after(2_000_000, Event::ThinkGuest(at));
            stage.clock.after(GUEST_TICK, Event::GuestTick(at));
        }
    }

    /// A guest's machine starts, or its driver thinks of requests. Returns its node, if the card is to be served.
    pub(crate) fn think(&mut self, stage: &mut Stage<'w>, at: usize) -> Option<usize> {
        let Slot { node, loan } = self.guests[at].slot();
        let memory = self.memory(node)?;
        let (guest, now) = (&mut self.guests[at], stage.clock.now);
        if guest.is_away() {
            return if guest.is_done() { None } else { self.start_machine(stage, at) };
        }
        match guest.serve(now, &memory) {
            Ok(true) => stage.wake_at(node, now),
            Ok(false) => {}
            Err((checker, what)) => {
                stage.report.fail(checker, what);
                return None;
            }
        }
        let shared = &mut stage.loans[loan].shared;
        if guest.watch(now, shared) {
            stage.report.log.event(now, None, "anew", at as u64, guest.resets);
            stage.wake_at(node, now);
        } else if !guest.rests(now) && guest.ask(shared, &memory) {
            stage.report.log.event(now, None, "ask", at as u64, shared.requests);
            stage.wake_at(node, now);
        }
        None
    }

    /// The guest's driver looks at its clock.
    pub(crate) fn tick(&mut self, stage: &mut Stage<'w>, at: usize) -> Option<usize> {
        if self.guests[at].is_done() && self.guests[at].is_away() {
            return None;
        }
        stage.clock.after(GUEST_TICK, Event::GuestTick(at));
        self.think(stage, at)
    }

    fn start_machine(&mut self, stage: &mut Stage<'w>, at: usize) -> Option<usize> {
        let Slot { node, loan } = self.guests[at].slot();
        if stage.clock.now < self.sockets[at].tries_at {
            return None;
        }
        let this = &stage.nodes[node];
        if this.is_away || this.agent.is_shutting_down() {
            return self.try_again(stage, at, AWAY);
        }
        let card = this.card.as_ref();
        let Some(card) = card.filter(|card| card.slot(loan).is_some_and(|slot| slot.is_ready())) else {
            let is_contested = stage.nodes.len() == NODES;
            return self.try_again(stage, at, if is_contested { CONTESTED } else { UNDISPUTED });
        };
        let socket = &mut self.sockets[at];
        (socket.connected, socket.received, socket.sent) = (true, 0, 0);
        (socket.mail, socket.mails) = (None, card.slot_taken_count(loan));
        stage.watch.excuses[node][loan].met(stage.nodes[node].cards);
        let first = socket.descriptors + 1;
        socket.descriptors += 3;
        self.memory(node)?.open(loan, first);
        self.guests[at].connected(first, stage.nodes[node].who());
        stage.log(None, "open", at as u64, 0);
        stage.act(node, |card, now| card.slot_open(now, loan)).then_some(node)
    }

    /// It will some time later, whoever else asks it to.
    fn try_again(&mut self, stage: &mut Stage<'w>, at: usize, after: u64) -> Option<usize> {
        self.sockets[at].tries_at = stage.clock.now + after;
        stage.clock.after(after, Event::ThinkGuest(at));
        None
    }

    /// The agent tells a new card of a slot.
    pub(crate) fn tell(&mut self, stage: &mut Stage<'w>, slot: Slot) {
        let (Some(at), Slot { node, loan }) = (self.at(slot), slot) else { return };
        if let (Some(card), Some(memory)) = (stage.nodes[node].card.as_mut(), self.memory(node)) {
            card.set_guest_memory(memory);
        }
        let idle = stage.nodes[node].card.as_ref().is_none_or(|card| card.slot_is_idle(loan));
        let socket = &mut self.sockets[at];
        // The time without a card does not count.
        socket.asked_in_silence = socket.asked_in_silence.and(Some(stage.clock.now));
        let mail = socket.mail.clone().filter(|_| socket.connected && !idle);
        let moved = socket.connected.then_some([socket.received, socket.sent]);
        let lives = stage.act(node, |card, now| card.slot_resume(now, loan, moved));
        if let Some((number, bytes, descriptors)) = mail.filter(|_| lives) {
            stage.act(node, |card, now| card.slot_taken(now, loan, number, &bytes, &descriptors));
        }
    }

    /// Signals and bytes go to machines, and theirs to the card.
    pub(crate) fn serve(&mut self, stage: &mut Stage<'w>, disks: &Disks<'_>, slot: Slot) {
        let Some(at) = self.at(slot) else { return };
        if stage.nodes[slot.node].card.is_none() || stage.report.has_failed() {
            return;
        }
        let lives = self.give_signals(stage, disks, slot.node) && close_released(stage, slot);
        if lives && self.sockets[at].connected && self.take_bytes(stage, at) && self.give_bytes(stage, at) {
            self.end_machine(stage, at);
        }
        self.look_for_replacement(stage, at);
    }

    /// Eventfds are signalled.
    fn give_signals(&mut self, stage: &mut Stage<'w>, disks: &Disks<'_>, node: usize) -> bool {
        stage.report.judge(names::COMMIT_BEFORE_SEND, stage.nodes[node].check_commit());
        let Some(memory) = self.memory(node) else { return false };
        while !stage.dies_here(node) {
            let signal = stage.nodes[node].card.as_mut().and_then(Card::poll_signal);
            let Some((loan, descriptor)) = signal else { return !stage.report.has_failed() };
            let Some(at) = self.at(Slot { node, loan }) else { return false };
            let shared = &mut stage.loans[loan].shared;
            let (guest, tick) = (&mut self.guests[at], shared.tick);
            let before = guest.completions;
            if let Err((checker, what)) = guest.interrupt(descriptor.0, stage.clock.now, shared, &memory) {
                stage.report.fail(checker, what);
                return false;
            }
            if guest.completions > before {
                stage.watch.excuses[node][loan].answered(stage.nodes[node].cards);
                if !guest.has_lost_drive() {
                    stage.loans[loan].shared.end_orphans_of_others(stage.nodes[node].who());
                }
                disks.judge_flushes(stage, loan);
                self.volatile.iter_mut().for_each(|volatile| volatile.endanger(stage, loan));
            }
            stage.log(None, "signal", at as u64, tick);
            let after = stage.random.below(150_000);
            stage.clock.after(after, Event::ThinkGuest(at));
            stage.wake_soon(node);
        }
        false
    }

    /// Bytes of the guest go to the card, or to the agent.
    fn take_bytes(&mut self, stage: &mut Stage<'w>, at: usize) -> bool {
        let seen: Vec<u8> = self.guests[at].outbox.iter().take(4096).map(|(byte, _)| *byte).collect();
        if seen.is_empty() {
            return true;
        }
        let (Slot { node, loan }, socket) = (self.guests[at].slot(), &self.sockets[at]);
        let Some(card) = stage.nodes[node].card.as_ref() else { return false };
        match card.slot_peeked(loan, socket.received, socket.mails, &seen) {
            Peeked::NeedMore | Peeked::Wait => true,
            Peeked::Consume(most) => {
                let most = stage.random.portion(most);
                self.put_bytes(stage, at, most)
            }
            Peeked::AgentTakes { len } => self.take_message(stage, at, len),
        }
    }

    fn put_bytes(&mut self, stage: &mut Stage<'w>, at: usize, most: usize) -> bool {
        let Slot { node, loan } = self.guests[at].slot();
        let journal = stage.nodes[node].kernel();
        let Some(card) = stage.nodes[node].card.as_ref() else { return false };
        let spans = card.slot_receive_spans(loan, self.sockets[at].received, most);
        let len = room_in(&spans).min(most);
        let bytes: Vec<u8> = self.guests[at].outbox.drain(..len).map(|(byte, _)| byte).collect();
        write(&spans, journal, &bytes);
        self.sockets[at].received += len as u64;
        let received = self.sockets[at].received;
        stage.wake_soon(node);
        // From then on it has its answer at once.
        let is_silent = is_silent(stage, node, loan);
        self.sockets[at].asked_in_silence = is_silent.then_some(stage.clock.now);
        !stage.dies_here(node) && stage.act(node, |card, now| card.slot_received(now, loan, received))
    }

    /// A processor that has asked for a register of a silent function has its answer at once.
    fn judge_patience(&self, stage: &mut Stage<'w>, at: usize) {
        let (Slot { node, loan }, asked) = (self.guests[at].slot(), self.sockets[at].asked_in_silence);
        let is_long = asked.is_some_and(|asked| stage.clock.now > asked + AT_ONCE);
        if is_long && self.guests[at].waits_for_register() && is_silent(stage, node, loan) {
            let what = format!("the guest of node {node}, loan {loan} waits for a function that is silent");
            stage.report.fail(names::LIVENESS, what);
        }
    }

    fn take_message(&mut self, stage: &mut Stage<'w>, at: usize, len: usize) -> bool {
        let Slot { node, loan } = self.guests[at].slot();
        let taken: Vec<_> = self.guests[at].outbox.drain(..len).collect();
        let bytes: Vec<u8> = taken.iter().map(|(byte, _)| *byte).collect();
        let descriptors = taken.into_iter().flat_map(|(_, descriptors)| descriptors).map(DescriptorId);
        let descriptors: Vec<_> = descriptors.collect();
        let socket = &mut self.sockets[at];
        socket.mails += 1;
        let number = socket.mails;
        socket.mail = Some((number, bytes.clone(), descriptors.clone()));
        stage.wake_soon(node);
        !stage.dies_here(node)
            && stage.act(node, |card, now| card.slot_taken(now, loan, number, &bytes, &descriptors))
    }

    /// Bytes of the card go to the guest.
    fn give_bytes(&mut self, stage: &mut Stage<'w>, at: usize) -> bool {
        let (Slot { node, loan }, sent) = (self.guests[at].slot(), self.sockets[at].sent);
        let (Some(card), Some(memory)) = (stage.nodes[node].card.as_ref(), self.memory(node)) else {
            return false;
        };
        let mut spans = [Span::empty(); 5];
        let count = card.slot_send_spans(loan, sent, &mut spans);
        if count == 0 {
            return true;
        }
        stage.report.judge(names::COMMIT_BEFORE_SEND, stage.nodes[node].check_commit());
        let mut bytes = read(&spans[..count]);
        self.judge_patience(stage, at);
        bytes.truncate(stage.random.portion(bytes.len()));
        if let Err((checker, what)) = self.guests[at].receive(stage.clock.now, &bytes, &memory) {
            stage.report.fail(checker, what);
            return false;
        }
        if self.guests[at].machine().is_behind() {
            let after = stage.random.below(150_000);
            stage.clock.after(after, Event::ThinkGuest(at));
        }
        self.sockets[at].sent += bytes.len() as u64;
        let sent = self.sockets[at].sent;
        stage.wake_soon(node);
        !stage.dies_here(node) && stage.act(node, |card, now| card.slot_sent(now, loan, sent))
    }

    /// The machines of a node have ended with it, in the middle of everything; they start again when that is back.
    pub(crate) fn lose_node(&mut self, stage: &mut Stage<'w>, node: usize) {
        for at in (0..self.guests.len()).filter(|at| self.guests[*at].node == node).collect::<Vec<_>>() {
            let was_there = !self.guests[at].is_away();
            self.crash(stage, at);
            // The node's ledger is new, and knows of no connection and no message.
            let descriptors = self.sockets[at].descriptors;
            self.sockets[at] = SlotSocket { descriptors, ..SlotSocket::default() };
            stage.watch.excuses[node][self.guests[at].loan] = Excuses::default();
            self.end_session(stage, at);
            stage.report.marks.set_if(Mark::GuestCrashed, was_there);
            stage.clock.after(5_000_000, Event::ThinkGuest(at));
        }
    }

    fn crash(&mut self, stage: &mut Stage<'w>, at: usize) {
        let Slot { node, loan } = self.guests[at].slot();
        let (who, Some(memory)) = (stage.nodes[node].who(), self.memory(node)) else { return };
        self.guests[at].crash(who, &mut stage.loans[loan].shared, &memory);
    }

    /// Another life has a drive: what is under way of the guest of `former` happens before that one is served, or
    /// never.
    pub(crate) fn abandon_writes(&self, loan: usize, former: Life, shared: &mut Shared) {
        let at = self.at(Slot { node: former.node, loan });
        at.into_iter().for_each(|at| self.guests[at].abandon_writes(shared, former));
    }

    /// It is durable who has a loan: all others have lost it.
    pub(crate) fn drive_is_taken(&mut self, stage: &Stage<'w>, loan: usize) {
        let lent = &stage.loans[loan];
        let (Some(holder), tick) = (lent.tenure.holder, lent.shared.tick) else { return };
        for guest in self.guests.iter_mut().filter(|it| it.loan == loan && it.node != holder) {
            guest.drive_is_taken(tick);
        }
    }

    /// Other content lies behind all drives.
    pub(crate) fn drives_are_replaced(&mut self, stage: &Stage<'w>) {
        for guest in &mut self.guests {
            guest.drive_is_gone(stage.loans[guest.loan].shared.tick);
        }
    }

    /// A slot has found that its guest's drive is another one: the agent unplugs that one.
    fn look_for_replacement(&mut self, stage: &mut Stage<'w>, at: usize) {
        let (Slot { node, loan }, socket) = (self.guests[at].slot(), &mut self.sockets[at]);
        let slot = stage.nodes[node].card.as_ref().and_then(|card| card.slot(loan));
        if socket.unplugging.is_some() || !slot.is_some_and(BorrowedSlot::is_replaced) {
            return;
        }
        if !self.guests[at].may_lose_drive() {
            let what = format!("the guest of node {node}, loan {loan} has lost its drive, to nobody");
            return stage.report.fail(names::SINGLE_OWNER, what);
        }
        socket.unplugging = Some(self.volatile.as_ref().map_or(0, Volatile::keeper));
        let after = stage.random.range(100_000, 20_000_000);
        stage.clock.after(after, Event::Unplug(at));
    }

    /// The agent takes the drive from the machine, in the middle of everything, and will plug in the new one; whatever
    /// was asked of it has no answer. Returns the node, if its card is to be served.
    pub(crate) fn unplug(&mut self, stage: &mut Stage<'w>, at: usize) -> Option<usize> {
        let met = self.sockets[at].unplugging.take()?;
        if self.volatile.as_ref().is_some_and(|volatile| volatile.keeper() == met) {
            self.guests[at].finds_the_drive();
        }
        if self.guests[at].is_away() {
            return None;
        }
        stage.report.marks.set(Mark::DriveReplaced);
        stage.report.marks.set_if(Mark::DriveTaken, self.guests[at].drive_was_taken());
        self.crash(stage, at);
        stage.log(None, "unplug", at as u64, 0);
        self.disconnect(stage, at);
        stage.clock.after(5_000_000, Event::ThinkGuest(at));
        let slot = self.guests[at].slot();
        closed(stage, slot).then_some(slot.node)
    }

    /// The machine is switched off when its driver has nothing more to do.
    fn end_machine(&mut self, stage: &mut Stage<'w>, at: usize) {
        let guest = &mut self.guests[at];
        if !guest.wants_to_leave() {
            return;
        }
        let slot = guest.slot();
        let Some(memory) = self.memories[slot.node].as_ref() else { return };
        guest.gone(memory);
        let marks = &mut stage.report.marks;
        marks.set(Mark::GuestServed);
        marks.set_if(Mark::MemoryByMessage, guest.machine().has_served());
        marks.set_if(Mark::MessageRefused, guest.machine().has_refused());
        marks.set_if(Mark::GuestReset, guest.followed > 0);
        stage.log(None, "close", at as u64, guest.completions);
        self.disconnect(stage, at);
        closed(stage, slot);
    }

    fn disconnect(&mut self, stage: &mut Stage<'w>, at: usize) {
        let Slot { node, loan } = self.guests[at].slot();
        self.sockets[at].connected = false;
        stage.watch.excuses[node][loan].left();
        self.end_session(stage, at);
    }

    fn end_session(&mut self, stage: &mut Stage<'w>, at: usize) {
        self.sockets[at].unplugging = None;
        let loan = self.guests[at].loan;
        self.volatile.iter_mut().for_each(|volatile| volatile.end_session(stage, loan));
    }

    /// What a guest sees of a drive.
    pub(crate) fn configure(&self, drive: usize, config: &mut device::nvme::Config) {
        self.volatile.iter().for_each(|volatile| volatile.configure(drive, config));
    }

    /// Whether the lender's next reboot is one of its machine, and not of its program only.
    pub(crate) fn loses_power(&mut self) -> bool {
        self.volatile.as_mut().is_none_or(Volatile::loses_power)
    }

    /// The lender's power has failed.
    pub(crate) fn power_failed(&mut self, stage: &mut Stage<'w>) {
        let Some(volatile) = &mut self.volatile else { return };
        volatile.lose_power();
        for guest in &mut self.guests {
            volatile.forget_drive(stage, guest.loan, guest);
        }
    }

    /// What they wait for, for a report.
    pub(crate) fn unanswered(&self) -> Vec<String> {
        let unanswered = |guest: &Guest| {
            let memory = self.memory(guest.node)?;
            Some(format!("{:?}: {}", guest.slot(), guest.unanswered(&memory)))
        };
        self.guests.iter().filter_map(unanswered).collect()
    }
}

/// The card hears that a machine has gone: false if it does not live.
fn closed(stage: &mut Stage<'_>, Slot { node, loan }: Slot) -> bool {
    !stage.dies_here(node) && stage.act(node, |card, now| card.slot_closed(now, loan))
}

/// The agent closes what the card has let go of: false if the card dies of that.
fn close_released(stage: &mut Stage<'_>, Slot { node, loan }: Slot) -> bool {
    let released = stage.nodes[node].card.as_ref().map(|card| card.slot_released(loan));
    for descriptor in released.unwrap_or_default() {
        if !stage.act(node, |card, now| card.slot_descriptor_closed(now, loan, descriptor)) {
            return false;
        }
    }
    true
}

/// Whether the function of a slot has left a request unanswered.
fn is_silent(stage: &Stage<'_>, node: usize, loan: usize) -> bool {
    let slot = stage.nodes[node].card.as_ref().and_then(|card| card.slot(loan));
    slot.and_then(BorrowedSlot::session).is_some_and(|session| session.presence.is_silent())
}
