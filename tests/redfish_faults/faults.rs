//! Faults of a single request.

use std::time::Duration;

use bmc_simulator::{Fault, FaultAction, FaultBody};

use crate::bench::REQUEST;

/// Fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Executed, but the connection closes instead of a reply.
    LostReply,
    /// Not executed; the connection closes.
    Reset,
    /// Neither executed nor answered.
    Silence,
    /// Executed after the client's timeout.
    Late,
    /// Answered late, but within the timeout.
    Slow,
    /// Executed, but answered with this error status.
    Done(u16),
    /// Answered as a success, but not executed.
    Ignored,
    /// Answered with this status and not executed.
    Status(u16),
    /// Same as `Status`, with a `Retry-After`.
    Busy,
    /// Executed; the reply's body is truncated.
    Cut,
    /// Executed; the body is truncated, with a matching length.
    Short,
    /// Executed; the reply is a web page.
    Html(u16),
    /// Normal reply with `null` for this property.
    Hides(&'static str),
    /// Normal reply with an undefined value for this property.
    Garbles(&'static str),
}

impl Kind {
    pub const ALL: [Self; 22] = [
        Self::LostReply,
        Self::Reset,
        Self::Silence,
        Self::Late,
        Self::Slow,
        Self::Done(500),
        Self::Done(502),
        Self::Done(504),
        Self::Ignored,
        Self::Status(500),
        Self::Status(502),
        Self::Status(503),
        Self::Status(504),
        Self::Busy,
        Self::Status(401),
        Self::Status(404),
        Self::Status(409),
        Self::Status(412),
        Self::Status(428),
        Self::Cut,
        Self::Short,
        Self::Html(500),
    ];

    /// Wrong property values, by the resource's path suffix.
    pub const SHOWN: [(&str, Self); 13] = [
        ("/Systems/1", Self::Hides("/PowerState")),
        ("/Systems/1", Self::Garbles("/PowerState")),
        ("/Systems/1", Self::Hides("/Boot")),
        ("/Systems/1", Self::Hides("/Boot/BootSourceOverrideEnabled")),
        ("/Systems/1", Self::Hides("/Boot/BootSourceOverrideTarget")),
        ("/Systems/1", Self::Garbles("/Boot/BootSourceOverrideEnabled")),
        ("/Systems/1", Self::Hides("/Boot/HttpBootUri")),
        ("/Systems/1", Self::Hides("/Actions")),
        ("/VirtualMedia", Self::Hides("/Members")),
        ("/VirtualMedia/*", Self::Hides("/Inserted")),
        ("/VirtualMedia/*", Self::Hides("/Image")),
        ("/VirtualMedia/*", Self::Garbles("/ConnectedVia")),
        ("/VirtualMedia/*", Self::Hides("/MediaTypes")),
    ];

    /// Returns true if the client cannot determine a change's outcome.
    pub fn leaves_unknown(self) -> bool {
        matches!(self, Self::LostReply | Self::Silence | Self::Late | Self::Done(_) | Self::Cut | Self::Html(_))
            || matches!(self, Self::Status(500 | 502 | 504))
    }

    /// Returns true for the matrix's short form, which has one fault per class.
    pub fn is_common(self) -> bool {
        matches!(
            self,
            Self::LostReply
                | Self::Silence
                | Self::Late
                | Self::Done(500)
                | Self::Ignored
                | Self::Html(500)
                | Self::Status(401 | 412 | 500 | 503)
                | Self::Short
        )
    }

    /// Returns true if the fault is worth testing on reads.
    pub fn meets_reads(self) -> bool {
        !matches!(
            self,
            Self::LostReply | Self::Late | Self::Done(_) | Self::Ignored | Self::Status(412 | 428 | 502 | 504)
        )
    }

    pub fn fault(self) -> Fault {
        let error = |status, apply| FaultAction::Answer {
            status,
            body: FaultBody::Error { key: "InternalError".into(), message: "An internal error occurred".into() },
            headers: Vec::new(),
            apply,
        };
        Fault::new(match self {
            Self::LostReply => FaultAction::LoseReply,
            Self::Reset => FaultAction::Cut,
            Self::Silence => FaultAction::Silence,
            Self::Late => FaultAction::Late { time: REQUEST + Duration::from_millis(60) },
            Self::Slow => FaultAction::Delay { time: REQUEST / 3 },
            Self::Done(status) => error(status, true),
            Self::Ignored => FaultAction::Ignore,
            Self::Status(status) => error(status, false),
            Self::Busy => FaultAction::Busy { retry_after_seconds: 1 },
            Self::Cut => FaultAction::Truncate { bytes: 10, honest_length: false },
            Self::Short => FaultAction::Truncate { bytes: 10, honest_length: true },
            Self::Hides(property) => FaultAction::Show { property: property.into(), value: serde_json::Value::Null },
            Self::Garbles(property) => FaultAction::Show { property: property.into(), value: "Resetting".into() },
            Self::Html(status) => FaultAction::Answer {
                status,
                body: FaultBody::Html("<html>proxy</html>".into()),
                headers: Vec::new(),
                apply: true,
            },
        })
    }
}
