//! How clients ask and are answered.

use super::client::{Heard, is_done};
use super::world::{Happening, World};
use crate::command::Asked;
use crate::machine::Ticket;

impl World {
    pub(super) fn client_tick(&mut self, at: usize) {
        let ms = self.random.range(100, 1500);
        self.after_ms(ms, Happening::ClientTick { client: at });
        let (bases, heard, is_calm) = (self.bases(), self.checks.heard, !self.faults.is_on);
        let client = &mut self.clients[at];
        let asked = match &client.pending {
            Some(pending) => {
                self.counts.repeated += 1;
                Some(pending.asked.clone())
            }
            None => client.ask(&bases, heard, is_calm),
        };
        let Some(asked) = asked else { return };
        let copies = 1 + u64::from(self.faults.happens(&mut self.random, self.faults.repeat));
        for _ in 0..copies {
            if let Some(us) = self.faults.delay_us(&mut self.random) {
                let (life, asked) = (self.driver.life, asked.clone());
                self.after_us(us, Happening::Ask { client: at, life, asked });
            }
        }
    }

    pub(super) fn ask(&mut self, client: usize, life: u64, asked: Asked) {
        if life != self.driver.life || self.driver.manager.is_none() {
            return;
        }
        self.trace(|| format!("client {client} asks {asked:?}"));
        self.next_ticket += 1;
        let (ticket, now) = (Ticket(self.next_ticket), self.both());
        self.tickets.insert(ticket, (client, asked.clone()));
        self.with_manager(|manager| manager.handle_command(now, ticket, &asked));
    }

    pub(super) fn hear(&mut self, client: usize, asked: &Asked, heard: &Heard) {
        let after = self.clients[client].pending.as_ref().map_or(0, |pending| pending.after);
        if !self.clients[client].hear(asked, heard) {
            return;
        }
        self.checks.taken(asked, heard, after);
        match heard {
            Ok(reply) if is_done(reply) => self.counts.done += 1,
            Ok(_) => self.counts.pending += 1,
            Err(_) => self.counts.refused += 1,
        }
        self.follow(client, asked, heard);
    }
}
