//! The one table of times. Their order is asserted here, so that a change of one cannot break another.

use core::time::Duration;

/// Longest a receiver keeps an acknowledgement back.
pub const ACK_DELAY: Duration = Duration::from_micros(250);
/// Smallest variance term of a probe time-out (RFC 9002 §6.2.1's granularity): threads share cores here.
pub const PROBE_GRANULARITY: Duration = Duration::from_millis(1);
/// Round trip assumed before the first sample.
pub const INITIAL_RTT: Duration = Duration::from_millis(5);
/// Longest time between two probes of something unanswered.
pub const PROBE_MAX: Duration = Duration::from_millis(100);
/// First wait for the answer to a new card's hello; doubles up to [`HELLO_MAX`].
pub const HELLO: Duration = Duration::from_millis(2);
/// Longest wait between two hellos: a peer that is gone costs little, one that comes back is met soon.
pub const HELLO_MAX: Duration = Duration::from_millis(16);
/// Between two heartbeats on a rail that is otherwise idle.
pub const HEARTBEAT: Duration = Duration::from_millis(100);
/// A rail that has not been heard for so long is reported as down.
pub const RAIL_VERDICT: Duration = Duration::from_millis(350);
/// Longest a card's recovery is expected to take, from its death to its first frame.
pub const RECOVERY: Duration = Duration::from_millis(500);
/// Silence of a peer on every rail after which the borrower begins a new handshake.
pub const SILENCE: Duration = Duration::from_secs(1);
/// A peer that is silent for so long is called silent to people, and ends loans that end at once in silence: on a busy
/// machine one that is well may be silent for a while, and who is restarted calls within this.
pub const PEER_VERDICT: Duration = Duration::from_secs(2);
/// First wait for the answer to a handshake; doubles up to [`HANDSHAKE_RETRY_MAX`].
pub const HANDSHAKE_RETRY: Duration = Duration::from_millis(50);
/// Longest wait between two handshake attempts.
pub const HANDSHAKE_RETRY_MAX: Duration = Duration::from_secs(1);
/// How long a lender keeps the answer to one node from being displaced by a first message of another: round trips, with
/// room for a card that is replaced in between.
pub const PENDING_KEYS: Duration = Duration::from_millis(200);
/// A card that has made no turn for so long of its own time, or has slept so much longer than it promised, is killed
/// and replaced.
pub const WATCHDOG: Duration = Duration::from_secs(1);
/// Between two refusals on one path: who repeats old messages of a handshake gets no more, who has a new one is told.
pub const REFUSAL_PAUSE: Duration = Duration::from_millis(20);
/// A host's request without completion fails after this (PCIe 6.0 §2.8).
pub const COMPLETION_TIMEOUT: Duration = Duration::from_millis(3_500);
/// A lent function's read of its host's memory fails after this. A host that is away for a while costs its function
/// nothing: longer than drivers wait for a command. As long as PCIe lets a function wait (PCIe 6.0 §7.5.3.16: up to
/// 64 s).
pub const MEMORY_TIMEOUT: Duration = Duration::from_secs(60);
/// A controller that has not changed CSTS.RDY by then is reset again; CAP.TO says the same.
pub const CONTROLLER_READY: Duration = Duration::from_secs(10);
/// QEMU's time-out for a vfio-user message: everything is answered before it.
pub const QEMU_MESSAGE: Duration = Duration::from_secs(5);
/// A lender asks so often whether the node at the other end of a stream still knows that.
pub const STREAM_CHECK: Duration = Duration::from_secs(60);
/// A borrower that is silent for so long loses its function.
pub const HOLD: Duration = Duration::from_secs(600);
/// Default for how long a request at an edge may wait for an absent peer.
pub const IO_TIMEOUT: Duration = Duration::from_secs(30);

const fn shorter(a: Duration, b: Duration) -> bool {
    a.as_nanos() < b.as_nanos()
}

const _: () = {
    assert!(shorter(ACK_DELAY, PROBE_GRANULARITY), "an acknowledgement comes before the probe");
    assert!(shorter(HELLO, HELLO_MAX) && shorter(HELLO_MAX, PROBE_MAX));
    assert!(shorter(PROBE_MAX, RAIL_VERDICT), "a rail is probed before it is judged");
    assert!(shorter(HEARTBEAT, RAIL_VERDICT), "a healthy idle rail is heard before it is judged");
    assert!(RAIL_VERDICT.as_nanos() + RECOVERY.as_nanos() < SILENCE.as_nanos());
    assert!(shorter(REFUSAL_PAUSE, HANDSHAKE_RETRY), "each attempt can be refused");
    assert!(SILENCE.as_nanos() + HANDSHAKE_RETRY_MAX.as_nanos() <= PEER_VERDICT.as_nanos());
    assert!(shorter(HANDSHAKE_RETRY, PENDING_KEYS) && shorter(PENDING_KEYS, SILENCE));
    assert!(SILENCE.as_nanos() + HANDSHAKE_RETRY_MAX.as_nanos() < COMPLETION_TIMEOUT.as_nanos());
    assert!(WATCHDOG.as_nanos() + RECOVERY.as_nanos() < COMPLETION_TIMEOUT.as_nanos());
    assert!(shorter(RECOVERY, WATCHDOG), "a recovery is no hanging");
    assert!(shorter(COMPLETION_TIMEOUT, QEMU_MESSAGE));
    assert!(shorter(QEMU_MESSAGE, IO_TIMEOUT));
    assert!(shorter(IO_TIMEOUT, MEMORY_TIMEOUT) && shorter(MEMORY_TIMEOUT, HOLD));
    assert!(
        shorter(STREAM_CHECK, HOLD),
        "who has forgotten a stream has nothing of it for longer than a silent one"
    );
};
