//! What a run is judged by: one module a property, each ignorant of the others and of the simulator.
//!
//! A checker returns what is wrong as text; whoever drives it adds the name under which it is reported.

pub(crate) mod addresses;
pub(crate) mod disk_model;
pub(crate) mod excuses;
pub(crate) mod freshness;
pub(crate) mod liveness;
pub(crate) mod nonces;
pub(crate) mod opening;
pub(crate) mod ordering;
pub(crate) mod outrun;
pub(crate) mod single_owner;
pub(crate) mod streams;
pub(crate) mod take_over;
pub(crate) mod verdicts;

/// What is wrong, if anything.
pub(crate) type Verdict = Result<(), String>;

/// The names under which failures are reported.
pub mod names {
    /// Each TLP is handed on once, in the order of the numbers, with the bytes it was sent with.
    pub const EXACTLY_ONCE: &str = "exactly-once";
    /// The bytes of a sequence number never differ between transmissions, nor after a recovery.
    pub const REPLAY_BYTES: &str = "replay-bytes";
    /// PCIe's order inside of a stream: nothing passes a posted write, which waits for nothing but credit.
    pub const ORDERING: &str = "ordering";
    /// Credits are used only as granted, never lowered, never advertised before they are committed, and whole in the
    /// end.
    pub const CREDITS: &str = "credits";
    /// What a peer believes to be committed is committed.
    pub const COMMITTED: &str = "committed";
    /// Nothing leaves before the commit of the step that caused it.
    pub const COMMIT_BEFORE_SEND: &str = "commit-before-send";
    /// What a client reads is what a disk would have returned, also for overlapping requests.
    pub const DISK: &str = "disk";
    /// What was flushed survives the power.
    pub const DURABILITY: &str = "durability";
    /// Each request ends once, and without an error.
    pub const COMPLETIONS: &str = "completions";
    /// No frame of an older card or incarnation has an effect, no frame has it twice, no forged one at all.
    pub const FRESHNESS: &str = "freshness";
    /// Old first messages of others keep nobody from a function that is free.
    pub const NEWCOMER: &str = "newcomer";
    /// No work for the disk of an older incarnation happens after the newer one is served.
    pub const INCARNATION: &str = "incarnation";
    /// A function has one owner: another one comes when it was given back or not heard for the hold time, and only then
    /// is told that the drive was used.
    pub const SINGLE_OWNER: &str = "single-owner";
    /// What a medium has lost fails each flush of each of its functions, until an operator has cleared it; that is kept
    /// before a host is told, and told to the operator.
    pub const MEDIA: &str = "media";
    /// A life loses its function to another one of its node only when it has left the lender's questions unanswered.
    pub const TAKE_OVER: &str = "take-over";
    /// Who repeats messages of a life that is over is not refused more often than is useful.
    pub const REFUSALS: &str = "refusals";
    /// A rail is taken for dead only where something was lost on it.
    pub const RAILS: &str = "rails";
    /// Data go only where a challenge was answered.
    pub const ADDRESSES: &str = "addresses";
    /// No nonce is used twice.
    pub const NONCES: &str = "nonces";
    /// After a roll-back the cells are those of the last commit.
    pub const ROLL_BACK: &str = "roll-back";
    /// A new card says hello, and who waits asks.
    pub const LIVENESS: &str = "liveness";
    /// When faults end, requests end, replay empties, pages are free.
    pub const QUIET: &str = "quiet";
    /// A stream is of who knows the secret of the function's present assignment, and carries nothing before it is open.
    pub const OPENING: &str = "opening";
    /// Nothing reaches for memory that it was not granted, or completes what nobody asked for.
    pub const STRAYS: &str = "strays";
    /// A managed function is whose it is by its lender's table.
    pub const ENTRIES: &str = "entries";
    /// What one peer lies about costs no other loan anything.
    pub const LIARS: &str = "liars";
    /// An assertion of the cards themselves.
    pub const ASSERTION: &str = "assertion";
}
