//! The audit log as chains of hashes: each line has a number and a hash of itself and of the line
//! before it, so that none can be changed, left out or added afterwards without all later ones.
//!
//! A store whose changes follow one another anyway has one chain. Where changes of different
//! servers must not wait for each other there is one for each lock, and the end of it is in what
//! the same change writes on its condition: it costs no request and no condition of its own. An
//! owner who only approves writes apart from the lock, and so has a chain apart. Lines that are
//! older than the chains, or came from another store, have one of their own.
//!
//! PostgreSQL has its chain in the database, where its roles cannot reach it (`postgres/chain.rs`).

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{
    audit::{AuditProof, BrokenLine, ChainEnd, ChainEnds},
    optimistic::CommitDelta,
};
use crate::maintenance::{ids::LockKey, lock::AuditEvent};

/// Reports a line that cannot be read, or an end that is not there.
pub(super) fn unreadable(number: Option<u64>, error: &dyn fmt::Display) -> AuditProof {
    let line = Some(error.to_string());
    AuditProof::Broken(BrokenLine { chain: None, number, problem: "cannot be read", line })
}

/// Which lines are one chain. The default: all lines of a store with one chain, or those that are
/// older than the chains of locks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct ChainName {
    /// The lock that they are about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lock: Option<LockKey>,
    /// Those of approvals alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) told: bool,
}

impl ChainName {
    pub(super) fn of(lock: &LockKey, told: bool) -> Self {
        Self { lock: Some(lock.clone()), told }
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.lock, self.told) {
            (Some(lock), true) => write!(f, "the approvals of {lock}"),
            (Some(lock), false) => write!(f, "{lock}"),
            (None, _) => f.write_str("the store"),
        }
    }
}

/// The place of a line in its chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ChainPlace {
    #[serde(flatten)]
    pub(super) name: ChainName,
    /// From 1.
    pub(super) number: u64,
    /// SHA-256 of this line and of the hash before, in hexadecimal.
    pub(super) hash: String,
}

/// A line as it is stored; without a link where the store has no chains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AuditLine {
    #[serde(flatten)]
    pub(super) event: AuditEvent,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) chain: Option<ChainPlace>,
}

impl From<AuditEvent> for AuditLine {
    fn from(event: AuditEvent) -> Self {
        Self { event, chain: None }
    }
}

/// A part of a chain: its lines up to an end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chain {
    /// The last line that was pruned.
    pub(super) start: ChainEnd,
    /// The last line.
    pub(super) end: ChainEnd,
    pub(super) lines: Vec<AuditLine>,
}

/// The hash of a line. Texts have their quotes and their places in a list, so that no two lines are
/// written alike.
fn hash(previous: &str, name: &ChainName, number: u64, event: &AuditEvent) -> String {
    let AuditEvent { at, id, uid, generation, by, what, detail } = event;
    let parts = (
        previous,
        (&name.lock, name.told, number),
        (at.to_string(), id.namespace(), id.name(), &uid.0),
        (generation, by, what, detail),
    );
    let text = serde_json::to_string(&parts).unwrap_or_default();
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Adds lines to a chain, of which `end` is the end before and after.
pub(super) fn add<'a>(
    name: &ChainName,
    end: &mut ChainEnd,
    events: impl IntoIterator<Item = &'a AuditEvent>,
) -> Vec<AuditLine> {
    let mut lines = Vec::new();
    for event in events {
        let number = end.number.saturating_add(1);
        *end = ChainEnd { number, hash: hash(&end.hash, name, number, event) };
        let link = ChainPlace { name: name.clone(), number, hash: end.hash.clone() };
        lines.push(AuditLine { event: event.clone(), chain: Some(link) });
    }
    lines
}

/// The ends of both chains of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) lock: ChainEnd,
    /// That of the approvals.
    pub(super) words: ChainEnd,
}

/// The lines of a change, in the chain that they belong to; without one where the store has none.
pub(super) fn lines(change: &CommitDelta<'_>, ends: Option<&mut Ends>) -> Vec<AuditLine> {
    let Some(ends) = ends else { return change.events.iter().cloned().map(AuditLine::from).collect() };
    let told = change.told_only();
    let end = if told { &mut ends.words } else { &mut ends.lock };
    add(&ChainName::of(&change.after.key, told), end, change.events)
}

/// The chains of a store, by their names.
#[derive(Debug, Default)]
pub(super) struct Chains {
    chains: BTreeMap<ChainName, Chain>,
    /// Lines without a place.
    loose: Vec<AuditEvent>,
}

impl Chains {
    pub(super) fn ends(&mut self, name: ChainName, end: ChainEnd) {
        self.chains.entry(name).or_default().end = end;
    }

    pub(super) fn starts(&mut self, name: ChainName, start: ChainEnd) {
        self.chains.entry(name).or_default().start = start;
    }

    pub(super) fn line(&mut self, line: AuditLine) {
        match line.chain.as_ref().map(|link| link.name.clone()) {
            Some(name) => self.chains.entry(name).or_default().lines.push(line),
            None => self.loose.push(line.event),
        }
    }

    /// Verifies all of them, and that the ends of an `earlier` look are still there. `adopting`:
    /// the older lines are being given their places.
    pub(super) fn verify(mut self, earlier: &ChainEnds, adopting: bool) -> AuditProof {
        if let Some(event) = self.loose.first().filter(|_| !adopting) {
            let problem = "has no place in the chain: it was not written by a change";
            return AuditProof::Broken(BrokenLine { chain: None, number: None, problem, line: Some(shown(event)) });
        }
        let (mut lines, mut forgotten, mut ends) = (0, 0, ChainEnds::new());
        for (name, chain) in &mut self.chains {
            if let Err(broken) = fits(name, chain) {
                return AuditProof::Broken(broken);
            }
            lines += chain.lines.len() as u64;
            forgotten += chain.start.number;
            if chain.end.number > 0 {
                ends.insert(name.to_string(), chain.end.clone());
            }
        }
        let named: BTreeMap<String, &Chain> =
            self.chains.iter().map(|(name, chain)| (name.to_string(), chain)).collect();
        for (name, seen) in earlier {
            let there = named.get(name).is_some_and(|chain| chain.holds(seen));
            if !there {
                let (chain, number) = (Some(name.clone()), Some(seen.number));
                return AuditProof::Broken(BrokenLine { chain, number, problem: NOT_THERE, line: None });
            }
        }
        AuditProof::Whole { lines, forgotten, waiting: self.loose.len() as u64, ends }
    }
}

/// What became of a line that an anchor has.
pub(super) const NOT_THERE: &str = "is not the one that was there when the anchor was written";

impl Chain {
    /// Whether a line that was its end is in it, or may have been pruned.
    fn holds(&self, seen: &ChainEnd) -> bool {
        let mut links = self.lines.iter().filter_map(|line| line.chain.as_ref());
        seen.number < self.start.number
            || *seen == self.start
            || links.any(|link| link.number == seen.number && link.hash == seen.hash)
    }
}

fn shown(event: &AuditEvent) -> String {
    format!("{} {} {} {}", event.at, event.id, event.what, event.by)
}

/// Verifies one chain. Lines up to its start may be left over from pruning that was cut short; then
/// they lead to it.
fn fits(name: &ChainName, chain: &mut Chain) -> Result<(), BrokenLine> {
    let broken = |number: u64, problem, line: Option<&AuditLine>| BrokenLine {
        chain: name.lock.is_some().then(|| name.to_string()),
        number: Some(number),
        problem,
        line: line.map(|line| shown(&line.event)),
    };
    let (changed, missing) = ("is not as it was written", "is missing");
    chain.lines.sort_by_key(|line| line.chain.as_ref().map_or(0, |link| link.number));
    chain.lines.dedup();
    let Chain { start, end, lines } = chain;
    let mut last: Option<ChainEnd> = None;
    for line in lines.iter() {
        let Some(link) = &line.chain else { continue };
        let before = match &last {
            None if link.number <= start.number => None,
            None => Some(&*start),
            Some(last) => Some(last),
        };
        if let Some(before) = before {
            if link.number == before.number {
                return Err(broken(link.number, "is there twice, and differs", Some(line)));
            }
            if link.number > before.number + 1 {
                return Err(broken(before.number + 1, missing, None));
            }
            if link.hash != hash(&before.hash, name, link.number, &line.event) {
                return Err(broken(link.number, changed, Some(line)));
            }
        }
        if link.number == start.number && link.hash != start.hash {
            return Err(broken(link.number, changed, Some(line)));
        }
        if link.number > end.number {
            return Err(broken(link.number, "was added behind the end of the chain", Some(line)));
        }
        last = Some(ChainEnd { number: link.number, hash: link.hash.clone() });
    }
    let last = last.unwrap_or_else(|| start.clone());
    if last.number < end.number {
        return Err(broken(last.number + 1, "is missing: the chain ended later", None));
    }
    if last != *end {
        return Err(broken(end.number, "is not the end that the chain had", lines.last()));
    }
    Ok(())
}

/// What pruning makes of the start of a chain, when these lines of it go. `None`: they are not the
/// next ones. `gaps`: nothing that comes before them is left, so that they go without them.
pub(super) fn forget(start: &ChainEnd, going: &[AuditLine], gaps: bool) -> Option<ChainEnd> {
    let mut links: Vec<&ChainPlace> = going.iter().filter_map(|line| line.chain.as_ref()).collect();
    links.sort_by_key(|link| link.number);
    let (first, last) = (links.first()?, links.last()?);
    if first.number > start.number.saturating_add(1) && !gaps {
        return None;
    }
    let further = ChainEnd { number: last.number, hash: last.hash.clone() };
    Some(if further.number > start.number { further } else { start.clone() })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::*;
    use crate::maintenance::ids::{MaintenanceId, Uid};

    fn event(n: u64) -> AuditEvent {
        AuditEvent {
            at: Timestamp::UNIX_EPOCH,
            id: MaintenanceId::new("ops", "a").unwrap(),
            uid: Uid("u".into()),
            generation: n,
            by: "ada".into(),
            what: "enqueued".into(),
            detail: String::new(),
        }
    }

    fn name() -> ChainName {
        ChainName::of(&LockKey("k".into()), false)
    }

    fn chain(count: u64) -> (ChainEnd, Vec<AuditLine>) {
        let mut end = ChainEnd::default();
        let lines = add(&name(), &mut end, &(0..count).map(event).collect::<Vec<_>>());
        (end, lines)
    }

    fn verified(start: ChainEnd, end: ChainEnd, lines: Vec<AuditLine>) -> Result<u64, String> {
        let mut chains = Chains::default();
        chains.starts(name(), start);
        chains.ends(name(), end);
        for line in lines {
            chains.line(line);
        }
        match chains.verify(&ChainEnds::new(), false) {
            AuditProof::Whole { lines, .. } => Ok(lines),
            AuditProof::Broken(broken) => Err(broken.to_string()),
            AuditProof::None(why) => Err(why.to_owned()),
        }
    }

    fn end_at(lines: &[AuditLine], number: usize) -> ChainEnd {
        let link = lines[number - 1].chain.clone().unwrap();
        ChainEnd { number: link.number, hash: link.hash }
    }

    #[test]
    fn a_line_is_stored_as_its_event_with_its_place_and_read_without() {
        let (_, lines) = chain(1);
        let text = serde_json::to_string(&lines).unwrap();
        assert_eq!(serde_json::from_str::<Vec<AuditEvent>>(&text).unwrap(), [event(0)]);
        assert_eq!(serde_json::from_str::<Vec<AuditLine>>(&text).unwrap(), lines);
        let plain = serde_json::to_string(&[event(0)]).unwrap();
        assert_eq!(serde_json::from_str::<Vec<AuditLine>>(&plain).unwrap(), [AuditLine::from(event(0))]);
    }

    #[test]
    fn the_first_line_that_does_not_fit_is_named() {
        let (end, lines) = chain(6);
        let none = ChainEnd::default();
        assert_eq!(verified(none.clone(), end.clone(), lines.clone()), Ok(6));
        let tampered = |change: &dyn Fn(&mut Vec<AuditLine>), told: &str| {
            let mut lines = lines.clone();
            change(&mut lines);
            let said = verified(none.clone(), end.clone(), lines).unwrap_err();
            assert!(said.contains(told), "{told}: {said}");
        };
        tampered(&|lines| lines[2].event.by = "eve".into(), "line 3 of the chain of k is not as it was written");
        tampered(&|lines| lines[2].event.at = Timestamp::MAX, "line 3 of the chain of k is not as it was written");
        tampered(&|lines| drop(lines.remove(2)), "line 3 of the chain of k is missing");
        tampered(&|lines| drop(lines.remove(0)), "line 1 of the chain of k is missing");
        tampered(&|lines| drop(lines.pop()), "line 6 of the chain of k is missing: the chain ended later");
        tampered(&|lines| lines.clear(), "line 1 of the chain of k is missing");
        tampered(&|lines| lines.push(event(9).into()), "a line has no place in the chain");
        let again = |lines: &mut Vec<AuditLine>| {
            let mut twice = lines[3].clone();
            twice.event.by = "eve".into();
            lines.push(twice);
        };
        tampered(&again, "line 4 of the chain of k is there twice");
        // A chain that is computed again is noticed by its end.
        let forged = |lines: &mut Vec<AuditLine>| {
            let mut events: Vec<_> = lines.iter().map(|line| line.event.clone()).collect();
            events[2].by = "eve".into();
            *lines = add(&name(), &mut ChainEnd::default(), &events);
        };
        tampered(&forged, "line 6 of the chain of k is not the end that the chain had");
        let mut longer = end.clone();
        let more = [lines.clone(), add(&name(), &mut longer, &[event(7)])].concat();
        assert!(verified(none, end, more).unwrap_err().contains("line 7 of the chain of k was added behind the end"));
    }

    #[test]
    fn a_line_of_one_chain_fits_into_no_other() {
        let (end, lines) = chain(2);
        let other = ChainName::of(&LockKey("k".into()), true);
        let mut chains = Chains::default();
        chains.ends(other.clone(), end);
        for mut line in lines {
            line.chain.as_mut().unwrap().name = other.clone();
            chains.line(line);
        }
        let AuditProof::Broken(broken) = chains.verify(&ChainEnds::new(), false) else { panic!("it fits") };
        assert!(broken.to_string().contains("line 1 of the chain of the approvals of k is not as it was written"));
    }

    #[test]
    fn what_an_anchor_has_seen_is_still_there() {
        let (end, lines) = chain(6);
        let judge = |end: &ChainEnd, lines: &[AuditLine], earlier: &ChainEnds| {
            let mut chains = Chains::default();
            chains.ends(name(), end.clone());
            lines.iter().cloned().for_each(|line| chains.line(line));
            match chains.verify(earlier, false) {
                AuditProof::Broken(broken) => Err(broken.to_string()),
                AuditProof::Whole { ends, .. } => Ok(ends),
                AuditProof::None(why) => Err(why.to_owned()),
            }
        };
        let anchor = judge(&end_at(&lines, 4), &lines[..4], &ChainEnds::new()).unwrap();
        assert_eq!(anchor, [("k".to_owned(), end_at(&lines, 4))].into());
        assert!(judge(&end, &lines, &anchor).is_ok());
        // All of it computed again, or set back, or gone.
        let mut other = ChainEnd::default();
        let forged = add(&name(), &mut other, &(1..7).map(event).collect::<Vec<_>>());
        assert_eq!(judge(&other, &forged, &ChainEnds::new()).unwrap().len(), 1);
        for (end, lines) in
            [(&other, &forged[..]), (&end_at(&lines, 3), &lines[..3]), (&ChainEnd::default(), &lines[..0])]
        {
            let told = judge(end, lines, &anchor).unwrap_err();
            assert!(told.contains("line 4 of the chain of k is not the one that was there"), "{told}");
        }
    }

    #[test]
    fn what_was_pruned_is_known_to_have_been_there() {
        let (end, lines) = chain(6);
        let start = end_at(&lines, 3);
        assert_eq!(verified(start.clone(), end.clone(), lines[3..].to_vec()), Ok(3));
        // Pruning that was cut short.
        assert_eq!(verified(start.clone(), end.clone(), lines[1..].to_vec()), Ok(5));
        assert!(verified(start.clone(), end.clone(), lines[4..].to_vec()).unwrap_err().contains("line 4"));
        assert_eq!(verified(end.clone(), end.clone(), Vec::new()), Ok(0));
        assert_eq!(forget(&ChainEnd::default(), &lines[..3], false), Some(start.clone()));
        assert_eq!(forget(&start, &lines[1..2], false), Some(start.clone()));
        assert_eq!(forget(&start, &lines[4..], false), None, "one between goes first");
        assert_eq!(forget(&start, &lines[4..], true), Some(end));
    }

    proptest! {
        #[test]
        fn no_two_lines_have_one_hash(one: (String, String, String), other: (String, String, String)) {
            let of = |(by, what, detail): &(String, String, String)| {
                let event = AuditEvent { by: by.clone(), what: what.clone(), detail: detail.clone(), ..event(1) };
                hash("", &name(), 1, &event)
            };
            prop_assert_eq!(of(&one) == of(&other), one == other);
        }
    }
}
