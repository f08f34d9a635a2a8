//! The longest time that a busy loan over two rails is without an answer when one of them is cut: silently, in both
//! directions, so that neither end is told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use program::control::Impairment;
use program::exit::Failure;

use super::attach_gap::work;
use super::core_to_core::round_trip_ns;
use super::report::Round;
use crate::local::{Halt, Interrupt, NETWORK_ONLY, Node, Scratch};
use crate::nbd_client::NbdClient;

const PATIENCE: Duration = Duration::from_secs(20);
/// Traffic before a cut, in which both rails are used.
const BEFORE: Duration = Duration::from_millis(300);
/// A rail is cut for so long.
const CUT: Duration = Duration::from_millis(300);
/// How long both rails may take to be used again.
const BACK_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// Two nodes with two rails.
pub(super) struct CutGap<'a> {
    lender: Node,
    borrower: Node,
    client: NbdClient,
    blocks: u64,
    next: u64,
    rounds: u32,
    interrupt: &'a Interrupt,
    /// Dropped last: both nodes live there.
    _scratch: Scratch,
}

impl<'a> CutGap<'a> {
    /// Lends and borrows.
    pub(super) fn start(scratch: &Scratch, interrupt: &'a Interrupt) -> Result<Self, Halt> {
        let scratch = Scratch::create_in(scratch.path(), "cut")?;
        let source = std::path::Path::new(super::RAM);
        let (lender, line) = Node::lend(&scratch, source, 2, &[NETWORK_ONLY], interrupt)?;
        let (borrower, socket) = Node::borrow(&scratch, &line, &[NETWORK_ONLY], interrupt)?;
        let client = NbdClient::connect(&socket, PATIENCE)?;
        let blocks = client.size() / u64::from(super::attach_gap::BLOCK);
        Ok(Self { lender, borrower, client, blocks, next: 0, rounds: 0, interrupt, _scratch: scratch })
    }

    /// Milliseconds with a cut, of one rail and the other in turns, and in as much time without.
    pub(super) fn round(&mut self) -> Result<(Round, Round), Halt> {
        self.rounds += 1;
        super::in_turns(self.rounds - 1, self, |it| it.measured(true), |it| it.measured(false))
    }

    fn measured(&mut self, cuts: bool) -> Result<Round, Halt> {
        self.wait_up()?;
        let before = round_trip_ns();
        let rail = (self.rounds / 2 % 2) as usize;
        let (ends, interrupt, is_over) =
            ([&self.borrower, &self.lender], self.interrupt, AtomicBool::new(false));
        let (client, blocks, next) = (&mut self.client, self.blocks, &mut self.next);
        let (done, longest) = std::thread::scope(|scope| {
            let longest = scope.spawn(|| work(client, (blocks, next), || !is_over.load(Ordering::Relaxed)));
            let done = cut(ends, rail, cuts, interrupt);
            is_over.store(true, Ordering::Relaxed);
            (done, longest.join().expect("reading a drive does not panic"))
        });
        done?;
        let value = longest?.as_secs_f64() * 1e3;
        let core_to_core_ns = super::mean(before, round_trip_ns());
        Ok(Round { value, core_to_core_ns, ..Round::default() })
    }

    /// Both rails answer.
    fn wait_up(&self) -> Result<(), Halt> {
        let until = Instant::now() + BACK_MAX;
        while !self.borrower.status()?.rails.iter().all(|rail| rail.state == "up") {
            self.interrupt.check()?;
            if until < Instant::now() {
                let seconds = BACK_MAX.as_secs();
                return Err(Failure::failed(format!("a rail was not back within {seconds} s")).into());
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Ends both nodes in order.
    pub(super) fn stop(self) -> Result<(), Failure> {
        drop(self.client);
        self.borrower.stop()?;
        self.lender.stop()
    }
}

/// Waits, cuts a rail at both ends if it is to be, waits, and restores it.
fn cut(ends: [&Node; 2], rail: usize, cuts: bool, interrupt: &Interrupt) -> Result<(), Halt> {
    let names =
        ends.map(|end| Ok(end.status()?.rails.get(rail).map(|rail| rail.name.clone()).unwrap_or_default()));
    let [near, far]: [Result<String, Failure>; 2] = names;
    let (near, far) = (near?, far?);
    std::thread::sleep(BEFORE);
    let set = |is_cut: bool| -> Result<(), Failure> {
        for (end, rail) in ends.iter().zip([&near, &far]) {
            end.impair(Impairment {
                rail: rail.clone(),
                cut_in: is_cut,
                cut_out: is_cut,
                ..Impairment::default()
            })?;
        }
        Ok(())
    };
    interrupt.check()?;
    set(cuts)?;
    std::thread::sleep(CUT);
    Ok(set(false)?)
}
