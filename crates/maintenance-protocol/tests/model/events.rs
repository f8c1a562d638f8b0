//! What may happen, and the rules that can be left out.

/// A rule that is left out, to see that it is needed and that its absence is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The rules as they are.
    Nothing,
    /// The process does not ask its own clock, neither before the call nor for the call's time
    /// limit.
    NoClock,
    /// The process asks its own clock before the call, but the call may last as long as a lease
    /// from its beginning.
    NoBound,
    /// The intent is recorded without asking whether this process may act.
    NoMayAct,
    /// What acted under a hold and is silent keeps its turn when the hold acts itself.
    SilentKeepsTurn,
    /// A hold is ended on what was read before, without asking again whether something acts under
    /// it.
    NoMayActAtEnd,
    /// A renewal between the check of the store and the call counts for the call.
    LaterRenewalCounts,
    /// The process counts its lease from the reply to a renewal, not from its beginning.
    RenewalCountsFromReply,
    /// A process that took a hold from another one touches the machine at once.
    NoWaitAfterSeize,
    /// A process that took a hold from another one waits for it, but only it knows of that.
    SeizeWaitsInMemory,
    /// An absent holder is dropped like an absent waiter.
    DropsHolders,
    /// The end of a maintenance forgets which generations were given out.
    ForgetsGenerations,
    /// Nobody gives the server back.
    NeverGivesBack,
    /// A call is over with its reply.
    ForgetsEffects,
    /// A call is over with its hold: the next one does not wait for what may still come.
    ForgetsEffectsAtEnd,
    /// A release does not wait for what preparing called.
    ReleaseForgetsCalls,
    /// What a step reached shows that all earlier calls are done, whichever step made them.
    StepsForgetOtherCalls,
    /// A process of which nothing is known counts as gone.
    UnknownCountsAsGone,
    /// What a process does not drive any more stays its own until it ends.
    NeverLetsGo,
    /// A change in place that fails gives the server back.
    UpdateGivesBack,
    /// The next one takes the server as it is, and for the state before.
    HandOverForgetsPrior,
    /// A process does not notice that the store was set back.
    NoCommitNames,
    /// The same, and attachments differ by their generation alone.
    SameTokens,
    /// A state does not remember the generation that it has seen.
    StateRemembersNothing,
    /// A run repeats a change that the store rejects, whatever its time limit says.
    RepeatsForever,
}

/// One thing that happens. The number is whose run does it, or to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Time passes, for all.
    Tick,
    /// A run begins; it takes its right to act.
    Enter(usize),
    /// The same, but the store's reply is lost: the run ends with an error, and what else its
    /// process does goes on.
    EnterUnheard(usize),
    /// A run is asked to stop.
    Stop(usize),
    /// The time limit of a run is over.
    TimeIsOver(usize),
    /// A drive ends without a word, and its process goes on.
    Panic(usize),
    /// A process ends without a word.
    Crash(usize),
    /// The lease of a process that is known to be gone is ended.
    SettleDead(usize),
    /// The heartbeat of a process lets go of what nothing in it drives.
    LetGo(usize),
    /// The lease is renewed; the process hears of it at once.
    Renew(usize),
    /// The lease is renewed with a renewal that was begun one tick ago.
    RenewLate(usize),
    /// The lease is renewed, and the process never hears of it.
    RenewUnheard(usize),
    /// Reads the store and the server, and decides.
    Decide(usize),
    /// What was decided is applied by the store.
    Commit(usize),
    /// The process looks at its own clock and begins the call.
    Begin(usize),
    /// The BMC accepts the call and answers.
    Answer(usize),
    /// The BMC accepts the call, and its answer is lost.
    AnswerUnheard(usize),
    /// The call ends without an answer, and the BMC never saw it.
    CutOff(usize),
    /// What came of the call is recorded.
    Note(usize),
    /// A run that took a hold has waited long enough.
    Resume(usize),
    /// A power change that was accepted comes.
    Comes(usize),
    /// The store is copied.
    Backup,
    /// The store is set back to its copy.
    GoBack,
    /// A person says that the store was restored.
    Restored,
    /// A person has looked at the server of a record.
    Inspected(usize),
    /// The store answers reads and rejects changes from now on.
    Rejects,
    /// The store accepts changes again.
    Accepts,
}

impl Event {
    /// Whether this is something that goes wrong, or that a person does on top of what was asked.
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

    /// Whether it is left out where a larger number takes part.
    pub fn is_rare(self) -> bool {
        self.is_fault()
            && !matches!(self, Self::Crash(_) | Self::CutOff(_) | Self::Backup | Self::GoBack | Self::Rejects)
    }
}
