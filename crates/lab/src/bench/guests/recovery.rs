//! From the death of a card to the next I/O, as a guest sees it: the longest time that any of its requests takes.

use std::time::{Duration, Instant};

use program::exit::Failure;
use program::status::Card;

use super::{Guest, fio_command, halt};
use crate::bench::case::Work;
use crate::bench::peer;
use crate::bench::report::Round;
use crate::local::{Halt, Node};

/// What the guest does meanwhile.
const WORK: Work = Work { bytes: 4096, write_percent: 30, sequential: false, depth: 8 };
/// fio counts only what comes later: a guest that is translated is slow at first.
const RAMP: &str = "--ramp_time=200ms";
/// How long it counts.
const COUNTED: Duration = Duration::from_millis(600);
/// From the first requests to the kill, and up to so much more: in the middle of what is counted.
const SETTLE: Duration = Duration::from_millis(350);
const SETTLE_MORE: Duration = Duration::from_millis(200);
/// Frames from which on requests are under way: fio has looked at the drive before.
const FIRST_FRAMES: u64 = 400;
/// Anything that takes longer is a failure.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);

impl Guest {
    /// How long the longest request takes, in milliseconds. `kill` is the number of the round in which a card is
    /// killed, the other node's each time.
    pub(super) fn longest_request(&mut self, kill: Option<u32>) -> Result<Round, Halt> {
        let frames = received_frames(&self.nodes.lender)?;
        let command = fio_command(&self.borrowed_drive, WORK, COUNTED, RAMP);
        let job = self.vm.start(&command).map_err(|error| halt(error, &self.interrupt))?;
        self.until(|guest| Ok(received_frames(&guest.nodes.lender)? > frames + FIRST_FRAMES))?;
        std::thread::sleep(SETTLE + SETTLE_MORE.mul_f64(f64::from(kill.unwrap_or(5) * 7 % 10) / 10.0));
        let mut round = Round::default();
        if let Some(number) = kill {
            let of_lender = number % 2 == 1;
            let card = self.victim(of_lender).card()?;
            self.victim(of_lender).kill_card(&card)?;
            let mut successor = None;
            self.until(|guest| {
                successor = follows(&card, guest.victim(of_lender).card()?);
                Ok(successor.is_some())
            })?;
            round.card_ms = successor.and_then(|card| card.last_recovery_s).map(|seconds| seconds * 1e3);
            round.victim = Some(if of_lender { "lender" } else { "borrower" });
        }
        if self.vm.has_ended(&job).map_err(|error| halt(error, &self.interrupt))? {
            return Err(Failure::failed("fio in the guest ended before the card was killed").into());
        }
        let output = self.vm.wait(job, PATIENCE).map_err(|error| halt(error, &self.interrupt))?;
        round.value = peer::parse(&output.text)?.longest_us / 1e3;
        Ok(round)
    }

    fn victim(&self, of_lender: bool) -> &Node {
        if of_lender { &self.nodes.lender } else { &self.nodes.borrower }
    }

    fn until(&self, mut is_so: impl FnMut(&Self) -> Result<bool, Failure>) -> Result<(), Halt> {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self)? {
            self.interrupt.check()?;
            if Instant::now() > deadline {
                return Err(Failure::failed("a card was killed under a guest, and nothing follows").into());
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

/// The card, if it is one that follows `dead` and works.
fn follows(dead: &Card, card: Card) -> Option<Card> {
    (card.generation > dead.generation && card.pid.is_some() && card.state == "running").then_some(card)
}

fn received_frames(node: &Node) -> Result<u64, Failure> {
    Ok(node.status()?.channels.iter().map(|channel| channel.received_frames).sum())
}
