//! The maintenance reason that identifies our flag, readable by people and by us. Pure.
//!
//! Ironic's maintenance API is an unconditional write without an owner. The reason is the only flag
//! field that clients write (Ironic 39.0.0, api/controllers/v1/node.py,
//! `NodeMaintenanceController`).

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::{maintenance::gate::ExternalRequest, shown, shown::AsRaw};

/// The start of our mark. The mark ends the reason, so that user text before it cannot imitate it.
const MARK: &str = " [terraform-provider-metal ";

/// The maximum length of user text in a reason, in characters.
const LONGEST: usize = 300;

/// A maintenance flag's author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// The coordination store's ID.
    pub(super) store: String,
    pub(super) uid: String,
    /// The maintenance, as `namespace/name`.
    pub(super) id: String,
}

/// Returns a maintenance's reason for its flag.
pub(super) fn write(wish: &ExternalRequest) -> String {
    let mut text = format!("maintenance {} of {}", short(&wish.id), short(wish.owner.raw()));
    for (name, value) in [("reason", wish.reason.as_raw()), ("ticket", wish.ticket.as_raw())] {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            text.push_str(&format!("; {name}: {}", short(value)));
        }
    }
    if !wish.run.is_empty() {
        text.push_str(&format!("; run: {}", short(wish.run.raw())));
    }
    text.push_str(&format!("; see: `terraform-provider-metal show {}`", short(&wish.id)));
    format!("{text}{MARK}store={} uid={} id={}]", code(&wish.store), code(&wish.uid), code(&wish.id))
}

/// Parses a reason's trailing mark; `None` if another tool wrote it.
pub(super) fn read(reason: &str) -> Option<Mark> {
    let start = reason.rfind(MARK)? + MARK.len();
    let fields = reason.get(start..)?.strip_suffix(']')?;
    let mut parts = fields.split(' ');
    let mut field = |name: &str| parts.next()?.strip_prefix(name)?.strip_prefix('=').map(decode);
    let mark = Mark { store: field("store")?, uid: field("uid")?, id: field("id")? };
    (parts.next().is_none() && !mark.uid.is_empty()).then_some(mark)
}

/// Returns another author's reason as one line, without our mark.
pub(super) fn shown_reason(reason: Option<&str>) -> String {
    match reason.map(str::trim).filter(|reason| !reason.is_empty()) {
        None => "no reason given".to_owned(),
        Some(reason) => {
            let text = reason.rfind(MARK).and_then(|at| reason.get(..at)).unwrap_or(reason);
            format!("reason: {}", shown::line(text))
        }
    }
}

fn short(text: &str) -> String {
    let line = shown::line(text);
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line.into_owned(),
    }
}

/// Characters that a mark's value must escape: blanks and brackets end it.
const CODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'/').remove(b':');

fn code(text: &str) -> String {
    utf8_percent_encode(text, CODED).to_string()
}

fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use crate::maintenance::gate::Asks;

    use super::*;

    pub(in crate::backend::ironic) fn wish() -> ExternalRequest {
        ExternalRequest {
            store: "s-1".into(),
            uid: "0190-u".into(),
            id: "ops/bios-2-19".into(),
            owner: "team-storage".into(),
            run: "ci-4711 (alice)".into(),
            asks: Asks::Nobody,
            priority: 0,
            reason: Some("BIOS 2.19".into()),
            ticket: Some("https://tickets/7".into()),
            asked: false,
            entered: false,
            enters: true,
            leaving: false,
            namespace: None,
            memory: BTreeMap::new(),
            outer: Vec::new(),
        }
    }

    #[test]
    fn what_was_written_is_read_and_people_can_read_it() {
        let wish = wish();
        let reason = write(&wish);
        assert_eq!(read(&reason), Some(Mark { store: wish.store.clone(), uid: wish.uid.clone(), id: wish.id.clone() }));
        for words in
            ["ops/bios-2-19", "team-storage", "BIOS 2.19", "https://tickets/7", "ci-4711 (alice)", "show ops/bios-2-19"]
        {
            assert!(reason.contains(words), "{reason}");
        }
        assert!(!shown_reason(Some(&reason)).contains("store="));
        let odd = ExternalRequest { store: "sqlite:///a b]%".into(), id: "ops/ä".into(), ..wish };
        let mark = read(&write(&odd)).unwrap();
        assert_eq!((mark.store.as_str(), mark.id.as_str()), ("sqlite:///a b]%", "ops/ä"));
    }

    #[test]
    fn no_text_of_a_person_stands_for_the_mark() {
        let forged = format!("x{MARK}store=s uid=u id=ops/other]");
        let wish = ExternalRequest { reason: Some(forged.clone().into()), ..wish() };
        assert_eq!(read(&write(&wish)).unwrap().uid, wish.uid);
        assert!(read(&format!("{forged} and more")).is_none(), "only at the end");
        for other in ["", "disk swap", "[terraform-provider-metal store=a]", &format!("x{MARK}store=s uid= id=y]")] {
            assert!(read(other).is_none(), "{other}");
        }
    }

    #[test]
    fn a_long_reason_is_cut() {
        let wish = ExternalRequest { reason: Some("x".repeat(9000).into()), ..wish() };
        let reason = write(&wish);
        assert!(reason.len() < 2000 && read(&reason).is_some());
    }
}
