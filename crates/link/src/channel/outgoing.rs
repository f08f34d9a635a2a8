//! Frames go out. Nothing here changes the ledger: what is sent has been committed.

use base::Instant;

use super::{Channel, PathId};
use crate::frame::{HEADER_LEN, Header, Kind, OVERHEAD, TAG_LEN};
use crate::path::Carried;
use crate::record::{Record, Status, Writer};
use crate::seal::nonce;

/// A frame that has been built.
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    /// The rail it shall take.
    pub path: PathId,
    /// Its bytes.
    pub len: usize,
    /// Whether it is a message of a handshake: a lender's answer goes to whoever asked.
    pub is_handshake: bool,
}

/// What a frame carries beside acknowledgements. Decided first, encoded afterwards.
struct Plan {
    path: usize,
    hello: bool,
    ping: bool,
    /// The range of numbers to take TLPs from.
    tlps: Option<(u64, u64)>,
}

impl Channel<'_> {
    /// Builds the next frame in `out`, which holds the largest frame. None when there is nothing to send
    /// now.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut [u8]) -> Option<Transmit> {
        if self.handshake.due != 0 {
            return Some(self.write_handshake(out));
        }
        self.current.as_ref()?;
        let plan = self.plan(now)?;
        Some(self.write_sealed(now, &plan, out))
    }

    fn plan(&mut self, now: Instant) -> Option<Plan> {
        let due = self.greeting.due;
        if due != 0 {
            let path = due.trailing_zeros() as usize;
            self.greeting.due &= due - 1;
            return Some(Plan { path, hello: true, ping: false, tlps: None });
        }
        if let Some(path) = self.paths.iter().position(|path| path.ping) {
            self.paths[path].ping = false;
            // A probe is better than a ping if there is something to send anyway.
            let tlps = if self.best_path() == path { self.next_range() } else { None };
            return Some(Plan { path, hello: false, ping: true, tlps });
        }
        let best = self.best_path();
        let tlps = if self.paths[best].outgoing.has_window() { self.next_range() } else { None };
        let information = self.information.is_some() && self.next_information <= now;
        let answer = self.greeting.answer.is_some() || self.goodbye_heard;
        let path =
            if tlps.is_some() || answer || information { best } else { self.path_to_acknowledge(now)? };
        Some(Plan { path, hello: false, ping: false, tlps })
    }

    /// Acknowledgements go back on the path they are about, so that a dead path cannot hide that another one works.
    fn path_to_acknowledge(&self, now: Instant) -> Option<usize> {
        let path = (0..self.paths.len()).find(|&path| self.ack_is_due(path, now))?;
        Some(if self.is_suspect(path) { self.best_path() } else { path })
    }

    fn is_suspect(&self, path: usize) -> bool {
        self.paths[path].outgoing.probes() > 0
    }

    /// The next numbers to send: what was lost first, then what was never sent.
    fn next_range(&mut self) -> Option<(u64, u64)> {
        let (committed, next) = (self.port.sender.committed(), self.port.sender.next());
        let transmission = &mut self.transmission;
        while let Some((first, count)) = transmission.resend.pop_front() {
            let end = (first + count).min(next);
            let needs = |number: &u64| !transmission.received[*number as usize % transmission.received.len()];
            let Some(start) = (first.max(committed)..end).find(needs) else { continue };
            let stop = (start..end).find(|number| !needs(number)).unwrap_or(end);
            if stop < end {
                transmission.resend.push_front((stop, end - stop));
            }
            return Some((start, stop));
        }
        transmission.unsent = transmission.unsent.max(committed);
        (transmission.unsent < next).then_some((transmission.unsent, next))
    }

    fn write_handshake(&mut self, out: &mut [u8]) -> Transmit {
        let path = self.handshake.due.trailing_zeros() as u8;
        self.handshake.due &= self.handshake.due - 1;
        let len = HEADER_LEN + self.handshake.message.len() + TAG_LEN;
        // A message of the handshake has its own tag inside; the frame's stays zero.
        out[..len].fill(0);
        self.header(self.handshake.kind, path, 0, 0).write(out);
        out[HEADER_LEN..len - TAG_LEN].copy_from_slice(&self.handshake.message);
        self.cells.stats.sent_frames.add(1);
        Transmit { path, len, is_handshake: true }
    }

    fn header(&self, kind: Kind, path: u8, key_id: u8, packet_number: u64) -> Header {
        Header {
            kind,
            path,
            key_id,
            fabric: self.config.fabric,
            group: self.config.group,
            loan_generation: self.config.loan_generation,
            source: self.config.node,
            destination: self.peer().map(|(node, ..)| node).unwrap_or_default(),
            incarnation: self.config.incarnation,
            card_generation: self.config.generation,
            packet_number,
        }
    }

    fn write_sealed(&mut self, now: Instant, plan: &Plan, out: &mut [u8]) -> Transmit {
        let agreed = self.cells.current.get().max_frame as usize;
        let frame_limit = self.paths[plan.path].config.max_frame.min(agreed).min(out.len());
        let status = self.status();
        let (body, carried, eliciting) = {
            let mut writer = Writer::new(&mut out[HEADER_LEN..frame_limit - TAG_LEN], status);
            let eliciting = self.write_records(now, plan, &mut writer);
            let carried = self.write_tlps(plan, &mut writer);
            (writer.len(), carried, eliciting)
        };
        self.last_carried = (carried.first, carried.count);
        let path = &mut self.paths[plan.path];
        let number = path.outgoing.take_number();
        let sealing = self.current.as_ref().expect("frames are built only with keys");
        let len = body + OVERHEAD;
        self.header(Kind::Sealed, plan.path as u8, sealing.id, number).write(out);
        sealing.send.seal(&mut out[..len], nonce(self.config.generation, plan.path as u8, number));
        if eliciting || carried.count > 0 {
            self.paths[plan.path].outgoing.record(now, number, len, carried);
            self.paths[plan.path].next_heartbeat = now + base::times::HEARTBEAT;
        }
        self.frames_under_key += 1;
        self.cells.stats.sent_frames.add(1);
        Transmit { path: plan.path as u8, len, is_handshake: false }
    }

    /// What we say of the peer's stream; committed, because nothing in a transmitting step changes it.
    fn status(&self) -> Status {
        let grants = self.receiver.advertise();
        Status {
            committed: self.receiver.committed().into(),
            posted_headers: grants.posted_headers.into(),
            posted_data: grants.posted_data.into(),
            non_posted_headers: grants.non_posted_headers.into(),
        }
    }

    /// Everything but TLPs; true if it asks for an acknowledgement.
    fn write_records(&mut self, now: Instant, plan: &Plan, writer: &mut Writer<'_>) -> bool {
        for index in 0..self.paths.len() {
            if index != plan.path && !self.is_suspect(index) {
                continue;
            }
            if let Some((ranges, delay)) = self.paths[index].incoming.take_ack(now) {
                let delay_us = u16::try_from(delay.as_micros()).unwrap_or(u16::MAX);
                let generation = self.cells.peer_generation.get();
                writer.record(&Record::Ack { path: index as u8, generation, delay_us, ranges });
            }
        }
        if let Some(generation) = self.greeting.answer.take() {
            writer.record(&Record::HelloHeard { generation });
        }
        if core::mem::take(&mut self.goodbye_heard) {
            writer.record(&Record::GoodbyeHeard);
        }
        let mut eliciting = false;
        if plan.hello {
            eliciting |= writer.record(if self.goodbye { &Record::Goodbye } else { &Record::Hello });
        }
        if plan.ping {
            eliciting |= writer.record(&Record::Ping);
        }
        if let Some(information) = self.take_information(now) {
            eliciting |= writer.record(&Record::Information(information));
        }
        eliciting
    }

    /// As many TLPs of the planned range as fit; the rest of it stays to be sent.
    fn write_tlps(&mut self, plan: &Plan, writer: &mut Writer<'_>) -> Carried {
        let Some((first, end)) = plan.tlps else { return Carried::default() };
        let sender = &self.port.sender;
        let count = writer.stream(first, |room| {
            let (mut count, mut len) = (0_u16, 0);
            for number in first..end.min(first + u64::from(u16::MAX)) {
                if sender.tlp_len(number) > room.len() - len {
                    break;
                }
                len += sender.write_tlp(number, &mut room[len..]);
                count += 1;
            }
            (count, len)
        });
        let stop = first + u64::from(count);
        let transmission = &mut self.transmission;
        let again = stop.min(transmission.unsent).saturating_sub(first);
        self.cells.stats.retransmissions.add(again);
        if end <= transmission.unsent && stop < end {
            transmission.resend.push_front((stop, end - stop));
        }
        for number in first.max(transmission.unsent)..stop {
            transmission.received[number as usize % transmission.received.len()] = false;
        }
        transmission.unsent = transmission.unsent.max(stop);
        Carried { first, count }
    }
}
