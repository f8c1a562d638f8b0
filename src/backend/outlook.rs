//! A server's external system as a plan reports it.

/// Facts about a server's external system for a plan's reviewer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// All facts, a sentence each.
    pub lines: Vec<String>,
    /// The missing approval that would block the maintenance.
    pub approval_missing: Option<String>,
    /// Other maintenances on the server.
    pub ahead: Option<String>,
    /// The reason why the system would reject the request now.
    pub rejection: Option<Rejection>,
    /// The server's consumer, if only a configured gate could request its consent.
    pub unasked: Option<UnaskedConsumer>,
}

/// Why a system would reject a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The cause, without the server's name.
    pub why: String,
    /// True if only another configuration helps: the plan fails. Otherwise it warns, because
    /// another author can remove the cause before the apply.
    pub by_configuration: bool,
}

impl Rejection {
    /// A cause that another author can remove.
    #[must_use]
    pub fn for_now(why: String) -> Self {
        Self { why, by_configuration: false }
    }
}

/// Plan warnings about a consumer that the server's external system neither consults nor drains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnaskedConsumer {
    /// Used if no gate drains the consumer's Node either.
    pub undrained: PlanWarning,
    /// Other possible consequences for the consumer.
    pub more: Option<PlanWarning>,
}

/// A plan warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanWarning {
    /// The summary.
    pub summary: &'static str,
    /// Reason and fix before apply, without the server's name.
    pub detail: String,
}

impl Outlook {
    /// Returns an outlook with one sentence.
    #[must_use]
    pub fn of_line(line: String) -> Self {
        Self { lines: vec![line], ..Self::default() }
    }

    /// Appends an inner gate's outlook.
    pub fn add(&mut self, inner: Self) {
        self.lines.extend(inner.lines);
        self.approval_missing = self.approval_missing.take().or(inner.approval_missing);
        self.ahead = self.ahead.take().or(inner.ahead);
        self.rejection = self.rejection.take().or(inner.rejection);
        self.unasked = self.unasked.take().or(inner.unasked);
    }
}
