//! Possible events, and rules that can be disabled.

/// A disabled rule, to prove that the rule is necessary and that the model detects its absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// All rules are active.
    Nothing,
    /// The process ignores its own clock, both before the call and for the call's time limit.
    NoClock,
    /// The process reads its own clock before the call, but the call can last for a whole lease.
    NoBound,
    /// The intent is recorded without checking the attachment.
    NoMayAct,
    /// A silent child record blocks its parent's actions.
    SilentKeepsTurn,
    /// A maintenance ends on an old reading, without checking again for active child records.
    NoMayActAtEnd,
    /// A renewal between the store's check and the call counts for the call.
    LaterRenewalCounts,
    /// The process counts its lease from a renewal's reply instead of its start.
    RenewalCountsFromReply,
    /// After a forced release, the new process contacts the machine immediately.
    NoWaitAfterSeize,
    /// After a forced release, the new process waits, but only its memory records that.
    SeizeWaitsInMemory,
    /// An absent holder is dropped like an absent waiter.
    DropsHolders,
    /// A maintenance's end deletes the issued generations.
    ForgetsGenerations,
    /// No process restores the server.
    NeverGivesBack,
    /// A call ends with its reply.
    ForgetsEffects,
    /// A call ends with its maintenance: the next maintenance does not wait for late effects.
    ForgetsEffectsAtEnd,
    /// A release does not wait for calls of the preparation.
    ReleaseForgetsCalls,
    /// A completed step proves that all earlier calls have ended, whichever step sent them.
    StepsForgetOtherCalls,
    /// A process of unknown state counts as dead.
    UnknownCountsAsGone,
    /// An undriven record stays attached until its process ends.
    NeverLetsGo,
    /// A failed in-place change releases the server.
    UpdateGivesBack,
    /// A handover records the current state as the prior state.
    HandOverForgetsPrior,
    /// A process does not detect that the store was set back.
    NoCommitNames,
    /// The same, and only generations distinguish attachments.
    SameTokens,
    /// A state does not store the last generation.
    StateRemembersNothing,
    /// A run repeats a rejected change beyond its time limit.
    RepeatsForever,
}

/// An event. The number is the acting or affected actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Time passes for all.
    Tick,
    /// A run begins and attaches.
    Enter(usize),
    /// A run begins, but the store's reply is lost. The run ends with an error, and its process
    /// continues.
    EnterUnheard(usize),
    /// A run must stop.
    Stop(usize),
    /// A run's time limit ends.
    TimeIsOver(usize),
    /// A drive panics, and its process continues.
    Panic(usize),
    /// A process crashes.
    Crash(usize),
    /// A dead process's lease is ended.
    SettleDead(usize),
    /// A heartbeat detaches its process's undriven records.
    LetGo(usize),
    /// The lease is renewed, and the process receives the reply immediately.
    Renew(usize),
    /// A renewal from one tick ago renews the lease.
    RenewLate(usize),
    /// The lease is renewed, but the process never receives the reply.
    RenewUnheard(usize),
    /// Reads the store and the server, and decides.
    Decide(usize),
    /// The store applies the decision.
    Commit(usize),
    /// The process reads its own clock and begins the call.
    Begin(usize),
    /// The BMC accepts the call and answers.
    Answer(usize),
    /// The BMC accepts the call, but its answer is lost.
    AnswerUnheard(usize),
    /// The call ends without an answer, and never reached the BMC.
    CutOff(usize),
    /// The call's outcome is recorded.
    Note(usize),
    /// The wait after a forced release ends.
    Resume(usize),
    /// An accepted power change takes effect.
    Comes(usize),
    /// The store is copied.
    Backup,
    /// The store is reset to its copy.
    GoBack,
    /// A person marks the store as restored.
    Restored,
    /// A person has inspected a record's server.
    Inspected(usize),
    /// From now on, the store answers reads and rejects changes.
    Rejects,
    /// The store accepts changes again.
    Accepts,
}

impl Event {
    /// Returns true for a fault, or for a person's unrequested action.
    pub fn is_fault(self) -> bool {
        matches!(
            self,
            Self::EnterUnheard(_)
                | Self::Stop(_)
                | Self::TimeIsOver(_)
                | Self::Panic(_)
                | Self::Crash(_)
                | Self::RenewLate(_)
                | Self::RenewUnheard(_)
                | Self::AnswerUnheard(_)
                | Self::CutOff(_)
                | Self::Backup
                | Self::GoBack
                | Self::Rejects
        )
    }

    /// Returns true if the event is excluded for larger numbers of actors.
    pub fn is_rare(self) -> bool {
        self.is_fault()
            && !matches!(self, Self::Crash(_) | Self::CutOff(_) | Self::Backup | Self::GoBack | Self::Rejects)
    }
}
