//! Cards that live and do not work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::cases::pattern;
use crate::client::Client;
use crate::disk::Scratch;
use crate::log;
use crate::pair::{Node, Pair};
use crate::skip;

const MIB: u64 = 1 << 20;

/// Writes, has something happen to one of the cards while another write is under way, and expects it to be replaced.
fn survives(
    name: &str,
    victim: fn(&Pair) -> &Node,
    befalls: fn(&Node) -> Result<(), String>,
) -> Result<(), String> {
    let place = Scratch::new(name);
    let pair = Pair::start(&place.image(4 * MIB), &place.path(""));
    let mut client = Client::connect(&pair.socket);
    for round in 0..2 {
        assert_eq!(client.write(0, &pattern(round, 65536)), 0);
        let before = victim(&pair).record();
        client.begin_write(MIB, &pattern(round + 10, 65536));
        befalls(victim(&pair))?;
        assert_eq!(client.reply(), 0, "the write goes on");
        // The write may have been done before it happened.
        let more = pattern(round + 20, 65536);
        assert_eq!(client.write(2 * MIB, &more), 0);
        victim(&pair).wait_until("the card was replaced", |record| {
            record.running && record.restarts == before.restarts + 1
        });
        assert!(client.read(0, 65536) == pattern(round, 65536));
        assert!(client.read(MIB, 65536) == pattern(round + 10, 65536));
        assert!(client.read(2 * MIB, 65536) == more);
    }
    Ok(())
}

pub(crate) fn stopped_cards_are_replaced() {
    let stop = |node: &Node| {
        node.signal_card(libc::SIGSTOP);
        Ok(())
    };
    survives("stopped-lender", |pair| &pair.lender, stop).unwrap();
    survives("stopped-borrower", |pair| &pair.borrower, stop).unwrap();
    assert!(log::count("the card was stopped by a signal") >= 4, "each is in the log");
}

pub(crate) fn cards_that_spin_are_replaced() {
    let spin = |node: &Node| Debugger::attach(node.record().pid.unwrap()).and_then(Debugger::leave_spinning);
    for (name, victim) in [
        ("spin-lender", (|pair| &pair.lender) as fn(&Pair) -> &Node),
        ("spin-borrower", |pair| &pair.borrower),
    ] {
        if let Err(why) = survives(name, victim, spin) {
            return skip(&why);
        }
    }
    assert!(log::count("the card runs and makes no turn") >= 4, "each is in the log");
}

pub(crate) fn cards_with_a_debugger_are_left_alone() {
    let place = Scratch::new("debugger");
    let pair = Pair::start(&place.image(MIB), &place.path(""));
    let mut client = Client::connect(&pair.socket);
    assert_eq!(client.write(0, &pattern(1, 4096)), 0);
    let before = pair.lender.record();
    let debugger = match Debugger::attach(before.pid.unwrap()) {
        Ok(debugger) => debugger,
        Err(why) => return skip(&why),
    };
    client.begin_write(0, &pattern(2, 4096));
    pair.lender.wait_until("the card is seen as stopped", |record| {
        record.condition == io::agent::Condition::Stopped
    });
    let (looks, start) = (pair.lender.turns(), Instant::now());
    while start.elapsed() < Duration::from_secs(3) || pair.lender.turns() < looks + 50 {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(pair.lender.record().pid, before.pid, "it is somebody's who looks into it");
    debugger.leave();
    assert_eq!(client.reply(), 0);
    assert!(client.read(0, 4096) == pattern(2, 4096));
    assert_eq!((pair.lender.record().restarts, pair.borrower.record().restarts), (0, 0));
}

/// More threads than processors, all of which want one all the time.
pub(crate) fn busy_machine_kills_nobody() {
    let place = Scratch::new("busy");
    let pair = Pair::start(&place.image(MIB), &place.path(""));
    let mut client = Client::connect(&pair.socket);
    let end = AtomicBool::new(false);
    let threads = 4 * std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let start = Instant::now();
        let mut round = 0;
        while start.elapsed() < Duration::from_secs(5) {
            assert_eq!(client.write(0, &pattern(round, 65536)), 0);
            assert!(client.read(0, 65536) == pattern(round, 65536));
            round += 1;
        }
        // And idle.
        std::thread::sleep(Duration::from_secs(3));
        end.store(true, Ordering::Relaxed);
    });
    assert_eq!((pair.lender.record().restarts, pair.borrower.record().restarts), (0, 0));
}

/// A card under ptrace(2). Its thread is this one: the kernel wants all of it from the same.
struct Debugger {
    pid: libc::pid_t,
}

impl Debugger {
    /// Stops the card. The reason if that is not allowed here.
    fn attach(pid: libc::pid_t) -> Result<Self, String> {
        let refused = |what: &str| format!("{what} is not allowed here: {}", std::io::Error::last_os_error());
        // SAFETY: seizes and stops a child of this process; no memory of ours is named.
        unsafe {
            if libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) != 0 {
                return Err(refused("ptrace"));
            }
            let debugger = Self { pid };
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, pid, 0, 0), 0);
            // The agent reaps what has ended only: a stop is left to us.
            let mut status = 0;
            assert_eq!(libc::waitpid(pid, &raw mut status, libc::__WALL), pid);
            assert!(libc::WIFSTOPPED(status), "{status:x}");
            Ok(debugger)
        }
    }

    fn leave(self) {
        // SAFETY: as above; the card goes on.
        unsafe { assert_eq!(libc::ptrace(libc::PTRACE_DETACH, self.pid, 0, 0), 0) };
    }

    /// The card goes on, with a jump to itself where it was.
    fn leave_spinning(self) -> Result<(), String> {
        const JUMP_TO_ITSELF: u64 = 0xfeeb;
        // SAFETY: registers are read into a structure of the kernel's layout and written back; text is that of the
        // card, which is another process and may be hurt.
        unsafe {
            let mut registers: libc::user_regs_struct = std::mem::zeroed();
            assert_eq!(libc::ptrace(libc::PTRACE_GETREGS, self.pid, 0, &raw mut registers), 0);
            let at = registers.rip;
            *libc::__errno_location() = 0;
            let word = libc::ptrace(libc::PTRACE_PEEKTEXT, self.pid, at, 0) as u64;
            assert_eq!(*libc::__errno_location(), 0);
            let word = word & !0xffff | JUMP_TO_ITSELF;
            assert_eq!(libc::ptrace(libc::PTRACE_POKETEXT, self.pid, at, word), 0);
            // An interrupted system call is not begun again.
            registers.orig_rax = u64::MAX;
            assert_eq!(libc::ptrace(libc::PTRACE_SETREGS, self.pid, 0, &raw const registers), 0);
        }
        self.leave();
        Ok(())
    }
}
