//! Rules that tests can switch off, one at a time, to show that the checkers find their absence.
//!
//! Outside of tests of this crate all rules are kept, always: [`is_off`] is `false`.

/// A rule, by what holds while it is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// Nodes are told of a change only when it is durable.
    TellDurable,
    /// A request is answered only when what it saw and did is durable.
    AnswerDurable,
    /// A request that was done is not done again.
    RememberRequests,
    /// A request that was answered without a change changes nothing when it comes again.
    RememberAnswers,
    /// Each assignment, and each that ends, has a generation of its own.
    RaiseGeneration,
    /// Each start of a manager has an epoch of its own.
    RaiseEpoch,
    /// What a node says counts only when it has promised to heed no older epoch.
    HearPromised,
    /// After a restore nothing is assigned before lenders were heard.
    HearFirst,
    /// A greater generation of a lender is taken over.
    AdoptGreater,
    /// Only while a manager that was restored listens a lender says who has its function.
    ClaimsAfterRestore,
    /// "Applied" counts for the generation that it is about.
    CheckApplied,
    /// A node that is heard anew is told again what it is to have.
    TellAgain,
    /// A slot has one function.
    OneFunctionASlot,
    /// A function that is taken back is free only when its lender says so.
    WaitForLender,
    /// Domains of a node that was removed are nobody's for a while.
    QuarantineDomains,
    /// A join token is used once.
    UseOnce,
    /// A list of slots names the entry that it is of.
    NumberPresets,
    /// A node heeds no older epoch than it has heard of.
    RefuseOldEpochs,
    /// A lender refuses a lower generation than it has.
    RefuseLowerGenerations,
    /// A lender heeds no older limits than it has.
    RefuseOlderLimits,
    /// That limits are applied counts for the decision that it is about.
    CheckLimits,
    /// That a list of functions is made counts for the decision that it is about.
    CheckMade,
    /// A function is made when its lender lends it.
    SeeMade,
    /// A lender heeds no older list of functions that are made there than it has.
    RefuseOlderMade,
    /// A function that somebody has is not deleted.
    DeleteFree,
    /// A lender says what its card acts by.
    SayActed,
    /// Who alone finds several dead has a dead rail itself, and nobody else has.
    BlameAccuser,
    /// Nodes are told of dead rails once in a while only.
    PaceRails,
    /// A torn tail is cut.
    CutTorn,
    /// Damage that is no torn tail is an error.
    NameDamage,
}

#[cfg(test)]
thread_local! {
    static OFF: core::cell::Cell<Option<Rule>> = const { core::cell::Cell::new(None) };
}

/// Whether a test has switched this rule off in its thread.
#[cfg(test)]
pub(crate) fn is_off(rule: Rule) -> bool {
    OFF.get() == Some(rule)
}

/// Rules are kept.
#[cfg(not(test))]
pub(crate) fn is_off(_: Rule) -> bool {
    false
}

/// Runs `body` without a rule, or with all of them.
#[cfg(test)]
pub(crate) fn without<T>(rule: Option<Rule>, body: impl FnOnce() -> T) -> T {
    /// Rules are in force again also when `body` panics.
    struct Back;
    impl Drop for Back {
        fn drop(&mut self) {
            OFF.set(None);
        }
    }
    OFF.set(rule);
    let _back = Back;
    body()
}
