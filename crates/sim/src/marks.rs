//! Coverage marks: rare situations that a run has been in, so that nobody trusts checkers that have seen nothing.

macro_rules! marks {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A situation that counts.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Mark { $($(#[$doc])* $name,)* }

        impl Mark {
            /// Every mark.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its name in reports.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

marks! {
    /// A card died inside a step, and had something to take back.
    RolledBack = "rolled-back",
    /// A roll-back or the first step of a new card was killed.
    RecoveryKilled = "recovery-killed",
    /// A card had to wait, since the disks had not ended what its predecessor had asked for.
    DiskSlow = "disk-slow",
    /// Both cards were dead at once.
    BothDead = "both-dead",
    /// A card died between two effects.
    EffectKilled = "effect-killed",
    /// The lending node rebooted.
    LenderReboot = "lender-reboot",
    /// The borrowing node rebooted.
    BorrowerReboot = "borrower-reboot",
    /// The machine of a guest ended with its node, in the middle of something.
    GuestCrashed = "guest-crashed",
    /// TLPs were handed on that had waited behind a gap.
    ReorderBuffer = "reorder-buffer",
    /// A sender was without credit.
    Blocked = "blocked",
    /// A request had no completion in time.
    CompletionTimeout = "completion-timeout",
    /// A handshake took place while requests were out.
    HandshakeDuringIo = "handshake-during-io",
    /// Both rails were cut.
    BothRailsCut = "both-rails-cut",
    /// A rail was cut in one direction only.
    OneWayCut = "one-way-cut",
    /// A node knew, or believed, that a rail of its own has no carrier.
    CarrierLost = "carrier-lost",
    /// A rail did not answer, though its node did.
    RailSilent = "rail-silent",
    /// A medium has failed a request.
    MediumFailed = "medium-failed",
    /// An operator was told that a medium has lost something.
    LossReported = "loss-reported",
    /// A card was told what another one has not heard.
    LossInherited = "loss-inherited",
    /// A lender started with other images than it had.
    ImageReplaced = "image-replaced",
    /// A guest's drive was another one, and was taken from it.
    DriveReplaced = "drive-replaced",
    /// So was the drive of a guest that had used it and rested while another node took it.
    DriveTaken = "drive-taken",
    /// A card died in the middle of writing memory.
    HalfWritten = "half-written",
    /// The disk did something while its card was dead.
    DiskOutlivedCard = "disk-outlived-card",
    /// Writes that were not flushed went with the power.
    CacheLost = "cache-lost",
    /// A client left with requests under way.
    ClientLeft = "client-left",
    /// A client was told that its request took too long.
    RequestTimeout = "request-timeout",
    /// A frame of an older card was refused.
    OldGenerationRefused = "old-generation-refused",
    /// A replayed frame was refused.
    ReplayRefused = "replay-refused",
    /// A forged frame was refused.
    ForgeryRefused = "forgery-refused",
    /// A frame was sent again.
    Retransmission = "retransmission",
    /// First messages of former borrowers were repeated.
    FormerReplayed = "former-replayed",
    /// The nodes agreed on memory that they share.
    MemoryShared = "memory-shared",
    /// A frame came through it.
    MemoryUsed = "memory-used",
    /// A guest with a driver of its own has had all its requests answered.
    GuestServed = "guest-served",
    /// A guest's machine has read or written memory for the function.
    MemoryByMessage = "memory-by-message",
    /// It has refused to.
    MessageRefused = "message-refused",
    /// A guest has disabled its controller in the middle of everything.
    GuestReset = "guest-reset",
    /// A borrower was refused, since another one has the function.
    Refused = "refused",
    /// Who uses a function could not be made durable at once.
    TenancyUnsaved = "tenancy-unsaved",
    /// Another borrower than before has taken a function.
    TenantChanged = "tenant-changed",
    /// It took it after the hold time.
    HoldOver = "hold-over",
    /// A state folder was restored from an older copy.
    FolderRestored = "folder-restored",
    /// A borrower was told that its incarnation had been seen.
    Outdated = "outdated",
    /// A borrower was told that another one with its identity has the function.
    TwinRefused = "twin-refused",
    /// A copy of a borrower took its function.
    TwinTookOver = "twin-took-over",
    /// The answer to a twin was late, and the one before could be reached again.
    OfferLate = "offer-late",
    /// Old first messages were refused.
    OldRefused = "old-refused",
    /// The lender has accepted what somebody had repeated from elsewhere, faster than the network.
    Spoofed = "spoofed",
}

/// The marks of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Marks(u64);

impl Marks {
    pub(crate) fn set(&mut self, mark: Mark) {
        self.0 |= 1_u64 << mark as u8;
    }

    pub(crate) fn set_if(&mut self, mark: Mark, condition: bool) {
        if condition {
            self.set(mark);
        }
    }

    /// Whether the run has been in this situation.
    pub fn has(self, mark: Mark) -> bool {
        self.0 & (1 << mark as u8) != 0
    }
}
