use serde::{Deserialize, Serialize};

use crate::ledger::Layout;

/// A safety rule that can be switched off, to show that the simulator's checkers find its absence.
///
/// Production cards always run under [`RuleSet::ALL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Rule {
    /// Every store of a step saves its old value first.
    LogStores,
    /// What is freed in a step is allocated again only after the commit.
    ReuseAfterCommit,
    /// An effect is marked before the next one of the card.
    MarkEffects,
    /// The agent drains the ring before a new card starts.
    DrainBeforeStart,
    /// Outputs leave only after the commit.
    CommitBeforeSend,
    /// A probe stays armed while anything lies past committed.
    ProbeUncommitted,
    /// A new card says hello until it is answered.
    HelloUntilAnswered,
    /// A reset ends the commands of the old incarnation before the new one is served.
    EndOldIncarnation,
    /// A TLP below the expected sequence number is dropped.
    DropDuplicates,
    /// Frames of older card generations are refused.
    RefuseOldGenerations,
    /// A packet number is accepted once a key, generation and path.
    RefuseReplays,
    /// Completions never pass posted writes.
    CompletionsBehindPosted,
    /// A number is given only where the receiver has granted credit.
    CreditBeforeNumber,
    /// A tag stays in quarantine after a time-out.
    QuarantineTags,
    /// Committed is reported only after the commit.
    AckAfterCommit,
    /// A retransmitted sequence number carries the same bytes.
    KeepReplayBytes,
    /// A flush waits for the medium.
    FlushWaits,
    /// The generation is raised before each start of a card, so that no nonce is used twice.
    RaiseGeneration,
    /// Writes are kept until they are flushed, and written again to a controller that may have lost them.
    KeepUnflushed,
    /// A first message of a handshake is answered once, and does not displace the answer to another node.
    AnswerOnce,
    /// A write that nobody waits for any more is not issued again, and nothing to the same blocks before it has ended.
    TakeBack,
    /// A controller shows that it has ended only when its last write is in its guest's memory.
    EndBehindWrites,
    /// A host that is shown no volatile write cache has each write durable before it is answered.
    DurableBeforeAnswer,
    /// Each card seals with keys of its own, because its packet numbers begin anew.
    KeyOfEachCard,
    /// What a dead card may have written half is written again before anything else is asked of the medium, by
    /// whichever function.
    RedoFirst,
    /// A medium that has lost something fails each flush of each function from then on.
    LatchLosses,
    /// That a medium has lost something is kept over the lives of its node, before any host is told.
    KeepLosses,
    /// A new card hears what its predecessors' flushes have come to, before it serves anything.
    HeedTheDead,
    /// A lender that starts looks whether its images are what they were; those that are not are another drive to who
    /// has borrowed them.
    LookAtImages,
    /// A lender that is started anew keeps its function for whom it belonged to.
    HoldAfterRestart,
    /// A lender keeps its function for who is silent, for the hold time.
    HoldForSilent,
    /// A stream is of the peer that it was opened by, whatever number it has, and in the course that it was opened in.
    StreamsOfPeer,
    /// Another life of a node takes its function only when the one before has left a probe unanswered.
    ProbeBeforeTakeOver,
    /// A life that was seen beside the one that is met has nothing of it, for as long as that is kept.
    KeepFromCopies,
    /// A node with an older incarnation than was seen, or with the same one in another life, is not let in.
    RefuseOutdated,
    /// Refusals are apart in time.
    PauseRefusals,
    /// Data go only to an address that has answered a challenge.
    ProveAddresses,
    /// A drive that may have forgotten something is another one to its guest, which is found out before the guest
    /// reaches it.
    CompareSerial,
    /// A drive that another one has used since, or that holds something else, is taken from its guest.
    TakeFromGuest,
    /// Who uses a function is durable before the card is told, which lets nobody in before.
    StoreBeforeTell,
    /// A TLP reaches what lies at its address, and that only: an address of another endpoint is denied on a stream.
    AddressDecoder,
    /// An address leads over the rail that its frame was sent to, and no other one.
    AddressRails,
    /// A stream bears the requester id that was given when it opened, and no other one.
    RequesterRewrite,
    /// A stream is opened for who proves the secret of its function.
    ProveSecrets,
    /// Nothing is taken from a stream before it is open: what was before it has ended, and whose it is is durable.
    OpenFirst,
    /// Who asks for an earlier assignment of a function does not get it.
    FenceGenerations,
    /// A frame that names another assignment than its stream is of is dropped.
    FenceFrames,
    /// A switch takes a frame only by the port that its source lies behind.
    CheckSources,
    /// A frame passes so many switches and no more.
    CountHops,
    /// Of two ports that lead to the same a switch uses the one that is heard.
    UseWhatIsHeard,
    /// It leaves one where who is behind it says that nothing comes.
    LeaveWhatIsNotHeard,
    /// Who was overtaken as the owner of a switch's ports moves none.
    FenceEpochs,
    /// A rail is taken for dead only where the peer answers on another one.
    AnswerElsewhere,
    /// No line opens what a manager gives and takes.
    FenceLines,
    /// A managed function is opened by the node that it is assigned to, where it is assigned to, and nobody else.
    AssignedOnly,
    /// Who is to give a managed function back has it until that is over: nobody else gets a stream before.
    LetLeave,
    /// Who is to lose a managed function by force loses it at once.
    ForceOut,
    /// What a guest asks of a function that is silent is refused at once.
    RefuseWhileSilent,
}

impl Rule {
    /// Every rule, in the order of the enum.
    pub const ALL: [Self; 58] = [
        Self::LogStores,
        Self::ReuseAfterCommit,
        Self::MarkEffects,
        Self::DrainBeforeStart,
        Self::CommitBeforeSend,
        Self::ProbeUncommitted,
        Self::HelloUntilAnswered,
        Self::EndOldIncarnation,
        Self::DropDuplicates,
        Self::RefuseOldGenerations,
        Self::RefuseReplays,
        Self::CompletionsBehindPosted,
        Self::CreditBeforeNumber,
        Self::QuarantineTags,
        Self::AckAfterCommit,
        Self::KeepReplayBytes,
        Self::FlushWaits,
        Self::RaiseGeneration,
        Self::KeepUnflushed,
        Self::AnswerOnce,
        Self::TakeBack,
        Self::EndBehindWrites,
        Self::DurableBeforeAnswer,
        Self::KeyOfEachCard,
        Self::RedoFirst,
        Self::LatchLosses,
        Self::KeepLosses,
        Self::HeedTheDead,
        Self::LookAtImages,
        Self::HoldAfterRestart,
        Self::HoldForSilent,
        Self::StreamsOfPeer,
        Self::ProbeBeforeTakeOver,
        Self::KeepFromCopies,
        Self::RefuseOutdated,
        Self::PauseRefusals,
        Self::ProveAddresses,
        Self::CompareSerial,
        Self::TakeFromGuest,
        Self::StoreBeforeTell,
        Self::AddressDecoder,
        Self::AddressRails,
        Self::RequesterRewrite,
        Self::ProveSecrets,
        Self::OpenFirst,
        Self::FenceGenerations,
        Self::FenceFrames,
        Self::CheckSources,
        Self::CountHops,
        Self::UseWhatIsHeard,
        Self::LeaveWhatIsNotHeard,
        Self::FenceEpochs,
        Self::AnswerElsewhere,
        Self::FenceLines,
        Self::AssignedOnly,
        Self::LetLeave,
        Self::ForceOut,
        Self::RefuseWhileSilent,
    ];
}

/// Set unless credits are tight. Far from the bits of rules.
const TIGHT_CREDITS: u64 = 1 << 63;

/// The rules in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Layout, Serialize, Deserialize)]
pub struct RuleSet(u64);

impl RuleSet {
    /// Every rule.
    pub const ALL: Self = Self(u64::MAX);

    /// This set without `rule`.
    #[must_use]
    pub const fn without(self, rule: Rule) -> Self {
        Self(self.0 & !(1 << rule as u32))
    }

    /// This set, with receivers that grant next to no credit: no rule is missing, but senders are blocked all the time.
    #[must_use]
    pub const fn with_tight_credits(self) -> Self {
        Self(self.0 & !TIGHT_CREDITS)
    }

    /// Whether receivers grant next to no credit.
    #[inline]
    pub const fn has_tight_credits(self) -> bool {
        self.0 & TIGHT_CREDITS == 0
    }

    /// Whether `rule` is in force.
    #[inline]
    pub const fn has(self, rule: Rule) -> bool {
        self.0 & (1 << rule as u32) != 0
    }
}
