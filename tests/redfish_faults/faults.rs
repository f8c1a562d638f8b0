//! What can go wrong with one request.

use std::time::Duration;

use bmc_simulator::{Fault, FaultAction, FaultBody};

use crate::bench::REQUEST;

/// What goes wrong with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Carried out, and the connection cut instead of a reply.
    LostReply,
    /// The connection is cut, nothing is carried out.
    Reset,
    /// Neither carried out nor answered.
    Silence,
    /// Carried out after the client gave up.
    Late,
    /// Answered late, but in time.
    Slow,
    /// Answered with this status although it was carried out.
    Done(u16),
    /// Answered as a success, and not carried out.
    Ignored,
    /// Answered with this status, and not carried out.
    Status(u16),
    /// As the last, with a `Retry-After`.
    Busy,
    /// Carried out; the reply's body ends in the middle.
    Cut,
    /// The same, with a length that admits it.
    Short,
    /// Carried out; a web page comes back.
    Html(u16),
    /// Answered as ever, but with `null` for this property.
    Hides(&'static str),
    /// Answered as ever, but with a word for this property that no specification has.
    Garbles(&'static str),
}

impl Kind {
    /// All of them.
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

    /// What a BMC may show wrongly, by the resource whose path ends so.
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

    /// Whether a client cannot know what came of a change.
    pub fn leaves_unknown(self) -> bool {
        matches!(self, Self::LostReply | Self::Silence | Self::Late | Self::Done(_) | Self::Cut | Self::Html(_))
            || matches!(self, Self::Status(500 | 502 | 504))
    }

    /// Whether it is of the short form of the matrix: one of each class.
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

    /// Whether it is worth a case of its own where nothing is carried out.
    pub fn meets_reads(self) -> bool {
        !matches!(
            self,
            Self::LostReply | Self::Late | Self::Done(_) | Self::Ignored | Self::Status(412 | 428 | 502 | 504)
        )
    }

    /// The fault in the simulator.
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
