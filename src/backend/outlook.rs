//! What a plan says of a server's external system.

/// What a reviewer of a plan should know of a server's external system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// All of it, a sentence each.
    pub lines: Vec<String>,
    /// The approval that it would wait for.
    pub approval_missing: Option<String>,
    /// The maintenances of others on the server.
    pub ahead: Option<String>,
    /// Why the system would reject the request now.
    pub rejection: Option<Rejection>,
    /// What uses the server, where only a gate before it could ask that.
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

/// What a plan says of a consumer that a server's own external system neither asks nor drains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnaskedConsumer {
    /// Where no gate drains its Node either.
    pub undrained: PlanWarning,
    /// What else may become of it.
    pub more: Option<PlanWarning>,
}

/// A warning of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanWarning {
    /// What it warns of.
    pub summary: &'static str,
    /// Why, and what to do before apply; without the name of the server.
    pub detail: String,
}

impl Outlook {
    /// One sentence.
    #[must_use]
    pub fn of_line(line: String) -> Self {
        Self { lines: vec![line], ..Self::default() }
    }

    /// Adds what a gate behind this one tells.
    pub fn add(&mut self, inner: Self) {
        self.lines.extend(inner.lines);
        self.approval_missing = self.approval_missing.take().or(inner.approval_missing);
        self.ahead = self.ahead.take().or(inner.ahead);
        self.rejection = self.rejection.take().or(inner.rejection);
        self.unasked = self.unasked.take().or(inner.unasked);
    }
}
