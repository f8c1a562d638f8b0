//! Sample journals for the checker: correct ones that must pass, and faults that it must find.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    checker::{Change, Course, ENABLED, Line, Rule, State, TARGET, judge},
    epochs::{Border, judge_parts},
};

fn boot(enabled: &str, target: &str) -> Change {
    Change::Boot([(ENABLED, enabled), (TARGET, target)].map(|(name, value)| (name.to_owned(), value.to_owned())).into())
}

fn reset(kind: &str) -> Change {
    Change::Reset(kind.to_owned())
}

fn as_it_was() -> State {
    let Change::Boot(boot) = boot("Disabled", "None") else { unreachable!() };
    State { on: true, boot }
}

/// Builds a one-machine run from its changes in order.
fn course(asked: &[&str], did: &[(&str, Change)]) -> Course {
    let machines = || BTreeMap::from([("node1".to_owned(), as_it_was())]);
    let line = |(at, (account, change)): (usize, &(&str, Change))| Line {
        at: at as u64,
        system: "node1".to_owned(),
        account: (*account).to_owned(),
        change: change.clone(),
        accepted: true,
    };
    Course {
        asked: asked.iter().map(|hold| ((*hold).to_owned(), "node1".to_owned())).collect(),
        start: machines(),
        end: machines(),
        lines: did.iter().enumerate().map(line).collect(),
        caught: BTreeSet::new(),
        failed: BTreeSet::new(),
    }
}

fn broken(course: &Course) -> Vec<Rule> {
    let mut rules: Vec<Rule> = judge(course).into_iter().map(|fault| fault.rule).collect();
    rules.dedup();
    rules
}

fn off_and_on(account: &str) -> [(&str, Change); 2] {
    [(account, reset("GracefulShutdown")), (account, reset("On"))]
}

fn one_after_the_other() -> Course {
    let did = [
        ("hold-1.1", reset("GracefulShutdown")),
        ("hold-1.1", boot("Continuous", "Pxe")),
        ("hold-1.2", reset("On")),
        ("hold-1.3", reset("ForceOff")),
        // Disabling an override removes its target.
        ("hold-1.3", Change::Boot([(ENABLED.to_owned(), "Disabled".to_owned())].into())),
        ("hold-1.5", reset("On")),
    ];
    course(&["hold-1", "hold-2"], &[did.as_slice(), &off_and_on("hold-2.1")].concat())
}

#[test]
fn a_good_run_is_good() {
    assert_eq!(judge(&one_after_the_other()), []);
    assert_eq!(judge(&course(&[], &[])), []);
}

#[test]
fn a_hold_that_comes_back_after_another_one_began_is_found() {
    let mut bad = one_after_the_other();
    // Swap one hold's last change with the other's first.
    let (a, b) = (bad.lines[5].account.clone(), bad.lines[6].account.clone());
    bad.lines[5].account = b;
    bad.lines[6].account = a;
    assert!(broken(&bad).contains(&Rule::Exclusivity), "{:?}", judge(&bad));

    // This includes changes that the machine rejected.
    let mut late = one_after_the_other();
    late.lines.push(Line { at: 8, account: "hold-1.5".into(), accepted: false, ..late.lines[7].clone() });
    assert_eq!(broken(&late), [Rule::Exclusivity]);
}

#[test]
fn the_order_is_that_of_arrival() {
    let mut shuffled = one_after_the_other();
    shuffled.lines.reverse();
    assert_eq!(judge(&shuffled), []);
}

#[test]
fn an_attempt_that_goes_on_after_a_later_one_began_is_found() {
    let mut bad = one_after_the_other();
    bad.lines[4].account = "hold-1.2".into();
    let found = judge(&bad);
    assert_eq!(broken(&bad), [Rule::Fencing]);
    assert!(found[0].to_string().contains("hold-1.2 changed node1 after attempt 3 had begun"), "{}", found[0]);
    assert_eq!(found[0].lines.len(), 6, "the whole block is shown");
}

#[test]
fn a_hold_that_did_nothing_is_found() {
    let mut bad = one_after_the_other();
    bad.asked.insert("hold-3".into(), "node1".into());
    assert_eq!(broken(&bad), [Rule::Lost]);
    // Rejected changes do not count.
    let mut refused = one_after_the_other();
    refused.lines[6].accepted = false;
    refused.lines[7].accepted = false;
    assert_eq!(broken(&refused), [Rule::Lost]);
}

#[test]
fn a_machine_that_is_not_as_it_was_is_found() {
    let whole = one_after_the_other();
    // Power and boot changes at an inner block's end.
    for missing in [5, 4] {
        let mut bad = whole.clone();
        bad.lines.remove(missing);
        assert!(broken(&bad).contains(&Rule::Restore), "without {missing}: {:?}", judge(&bad));
    }
    let mut bad = whole;
    bad.end.insert("node1".into(), State { on: false, ..as_it_was() });
    assert_eq!(broken(&bad), [Rule::Restore]);
}

#[test]
fn the_same_twice_in_a_row_is_found() {
    let mut bad = one_after_the_other();
    bad.lines.push(Line { at: 8, ..bad.lines[7].clone() });
    assert_eq!(broken(&bad), [Rule::Double]);
    // A rejected call can be repeated.
    bad.lines[7].accepted = false;
    assert_eq!(judge(&bad), []);
}

#[test]
fn whoever_nobody_asked_is_found() {
    for account in ["admin", "hold-9.1", "hold-1.x", ""] {
        let mut bad = one_after_the_other();
        bad.lines.push(Line { at: 8, account: account.into(), ..bad.lines[7].clone() });
        assert_eq!(broken(&bad), [Rule::Stranger], "{account}");
    }
    let mut elsewhere = one_after_the_other();
    elsewhere.lines.push(Line { at: 8, system: "node2".into(), ..elsewhere.lines[7].clone() });
    assert_eq!(broken(&elsewhere), [Rule::Stranger]);
    let mut odd = one_after_the_other();
    odd.lines.insert(1, Line { change: Change::Other("insert".into()), ..odd.lines[0].clone() });
    assert_eq!(broken(&odd), [Rule::Stranger]);
}

#[test]
fn whoever_was_caught_between_look_and_call_may_be_late_once() {
    let mut late = course(
        &["hold-1"],
        &[("hold-1.1", reset("GracefulShutdown")), ("hold-1.2", reset("On")), ("hold-1.1", reset("On"))],
    );
    assert!(broken(&late).contains(&Rule::Fencing));
    late.caught.insert("hold-1.1".to_owned());
    assert_eq!(broken(&late), []);
    let again = Line { at: 9, ..late.lines[2].clone() };
    late.lines.push(again);
    assert!(broken(&late).contains(&Rule::Fencing), "once");
}

#[test]
fn of_a_store_that_went_back_each_part_is_judged_for_itself() {
    let (off, on) = (|| reset("ForceOff"), || reset("On"));
    let did = [
        ("hold-1.1", off()),
        ("hold-1.1", on()),
        ("hold-2.1", off()),
        // The store was restored to a time when hold-1 had the server.
        ("hold-1.2", off()),
        ("hold-1.2", on()),
        ("hold-2.2", off()),
        ("hold-2.2", on()),
    ];
    let whole = course(&["hold-1", "hold-2"], &did);
    let rules = |course: &Course, border: &Border| {
        let faults = judge_parts(course, std::slice::from_ref(border));
        faults.into_iter().map(|fault| fault.rule).collect::<Vec<_>>()
    };
    let border = Border { at: 2, over: ["hold-1".to_owned()].into(), ..Border::default() };
    assert_eq!(rules(&whole, &border), []);
    assert!(!judge(&whole).is_empty(), "judged as one part, the run must fail");

    // Changes by an ended hold are judged. A missing repair counts in the last part.
    let mut bad = whole.clone();
    bad.lines.remove(1);
    assert_eq!(rules(&bad, &border), [Rule::Restore]);
    bad = whole.clone();
    bad.lines.swap_remove(4);
    assert!(rules(&bad, &border).contains(&Rule::Restore));

    // A hold that continues after the restore undoes its earlier changes.
    let mut on_and_on = whole.clone();
    on_and_on.lines.drain(3..6);
    let goes_on = [("node1".to_owned(), "hold-2".to_owned())].into();
    assert_eq!(rules(&on_and_on, &Border { goes_on, ..border.clone() }), []);
    // A hold without changes before or after the restore is lost, unless the operator ended it.
    on_and_on.asked.insert("hold-3".into(), "node1".into());
    let goes_on = [("node1".to_owned(), "hold-2".to_owned())].into();
    let mut border = Border { goes_on, ..border };
    assert_eq!(rules(&on_and_on, &border), [Rule::Lost]);
    border.ended.insert("hold-3".into());
    assert_eq!(rules(&on_and_on, &border), []);
}
