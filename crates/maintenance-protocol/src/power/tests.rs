use std::time::Duration;

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn attempt(action: &Action, seconds: i64, reply: Reply) -> Attempt {
    Attempt { reply, ..Attempt::intended(action.clone(), at(seconds)) }
}

fn busy(words: &str) -> Reply {
    Reply::Refused { message: words.into(), transient: true }
}

#[test]
fn what_a_busy_machine_refuses_is_sent_again_by_time_and_not_by_number() {
    let limits = Limits::default();
    let on = Action::Reset(ResetType::On);
    for (words, patience) in [("409: conflict", 90), ("400: (iLO.2.14.UnableToModifyDuringSystemPOST)", 300)] {
        let attempts: Vec<Attempt> = (0..patience / 5).map(|n| attempt(&on, n * 5, busy(words))).collect();
        let next = |now| pursue(on.clone(), &attempts, limits.power_change, &limits, at(now));
        assert_eq!(
            next(patience - 1),
            Verdict::Wait { why: format!("On was refused: {words}").into(), until: Some(at(patience)) }
        );
        assert!(matches!(next(patience), Verdict::Fail(_)), "{words}");
        let fewer = &attempts[..attempts.len() - 1];
        assert_eq!(pursue(on.clone(), fewer, limits.power_change, &limits, at(patience - 5)), Verdict::Act(on.clone()));
    }
}

#[test]
fn a_machine_is_asked_again_after_the_pause_that_it_asks_for() {
    let limits = Limits::default();
    let on = Action::Reset(ResetType::On);
    let words = format!("503: busy{}", asked_pause_text(Duration::from_mins(2)));
    let next = |attempts: &[Attempt], now| pursue(on.clone(), attempts, limits.power_change, &limits, at(now));
    let once = [attempt(&on, 0, busy(&words))];
    assert!(matches!(next(&once, 119), Verdict::Wait { .. }), "longer than a busy machine is waited for otherwise");
    assert_eq!(next(&once, 120), Verdict::Act(on.clone()));
    let thrice = [0, 120, 240].map(|seconds| attempt(&on, seconds, busy(&words)));
    assert!(matches!(next(&thrice, 360), Verdict::Fail(_)), "not for ever");
}

#[test]
fn a_medium_of_unknown_outcome_is_observed_for_as_long_as_an_accepted_one() {
    let limits = Limits::default();
    let insert = Action::Insert { slot: "Cd".into(), image: "http://images/a.iso".into(), write_protected: true };
    let attempts = [attempt(&insert, 0, Reply::Unknown)];
    let next = |now| pursue(insert.clone(), &attempts, limits.media, &limits, at(now));
    assert!(matches!(next(119), Verdict::Wait { .. }));
    assert_eq!(next(120), Verdict::Act(insert.clone()));
    let twice = [attempt(&insert, 0, Reply::Unknown), attempt(&insert, 120, Reply::Unknown)];
    assert!(matches!(pursue(insert.clone(), &twice, limits.media, &limits, at(240)), Verdict::Fail(_)));
}

#[test]
fn what_shows_nowhere_is_said_again_when_its_outcome_is_unknown() {
    let limits = Limits::default();
    let off = Action::Reset(ResetType::GracefulShutdown);
    let attempts: Vec<Attempt> = (0..5).map(|n| attempt(&off, n * 5, Reply::Unknown)).collect();
    let next = |made: usize, now| declare(off.clone(), &attempts[..made], &limits, at(now));
    assert!(matches!(next(1, 0), Verdict::Wait { .. }));
    assert_eq!(next(1, 1), Verdict::Act(off.clone()));
    assert!(matches!(next(4, 18), Verdict::Wait { .. }));
    assert_eq!(next(4, 19), Verdict::Act(off.clone()));
    assert!(matches!(next(5, 24), Verdict::Wait { .. }));
    assert!(matches!(next(5, 25), Verdict::Fail(_)), "not for ever");
}

#[test]
fn a_machine_that_is_where_it_shall_be_may_refuse() {
    let limits = Limits::default();
    let on = Action::Reset(ResetType::On);
    let attempts = [attempt(&on, 0, Reply::Refused { message: "400: already on".into(), transient: false })];
    let next = |now| pursue(on.clone(), &attempts, limits.power_change, &limits, at(now));
    assert!(matches!(next(1), Verdict::Wait { .. }), "the observed power can be old");
    assert!(matches!(next(5), Verdict::Fail(_)));
}

#[test]
fn a_machine_that_was_away_is_asked_again_before_its_power_is_cut() {
    let limits = Limits::default();
    let capabilities =
        Capabilities { resets: vec![ResetType::GracefulShutdown, ResetType::ForceOff], ..Capabilities::default() };
    let (graceful, on) = (Action::Reset(ResetType::GracefulShutdown), Action::Reset(ResetType::On));
    let machine = MachineView { power: PowerState::On, ..MachineView::default() };
    let next = |attempts: &[Attempt], now| switch_off(&machine, &capabilities, attempts, at(0), &limits, at(now));
    let away = || busy("connection refused");
    assert_eq!(next(&[attempt(&graceful, 0, away())], 300), Verdict::Act(graceful.clone()));
    let back = [attempt(&graceful, 0, away()), attempt(&graceful, 300, busy("503: starting"))];
    assert_eq!(next(&back, 305), Verdict::Act(graceful.clone()), "a reachable BMC can still be busy");
    let busy_for: Vec<Attempt> = (0..30).map(|n| attempt(&graceful, n * 5, away())).collect();
    assert_eq!(next(&busy_for, 150), Verdict::Act(Action::Reset(ResetType::ForceOff)), "not for ever");
    let pursued = |attempts: &[Attempt], now| pursue(on.clone(), attempts, limits.power_change, &limits, at(now));
    assert_eq!(pursued(&[attempt(&on, 0, away())], 300), Verdict::Act(on.clone()));
    let back = [attempt(&on, 0, away()), attempt(&on, 300, away())];
    assert_eq!(pursued(&back, 305), Verdict::Act(on.clone()));
}

#[test]
fn an_on_without_effect_is_sent_once_more_within_the_limit() {
    let limits = Limits::default();
    for action in [ON, FORCE_OFF] {
        for reply in [Reply::Accepted, Reply::Unknown, Reply::Unclear { message: "the fan is missing".into() }] {
            let next =
                |attempts: &[Attempt], now| pursue(action.clone(), attempts, limits.power_change, &limits, at(now));
            let once = [attempt(&action, 0, reply.clone())];
            assert!(matches!(next(&once, 59), Verdict::Wait { .. }), "{reply:?}");
            assert_eq!(next(&once, 60), Verdict::Act(action.clone()), "{reply:?}");
            let twice = [attempt(&action, 0, reply.clone()), attempt(&action, 60, reply.clone())];
            assert!(matches!(next(&twice, 119), Verdict::Wait { .. }), "{reply:?}");
            let Verdict::Fail(why) = next(&twice, 120) else { panic!("{reply:?}") };
            assert!(why.raw().contains("(sent 2 times), but did not take effect by"), "{why}");
            assert!(reply.message().is_none_or(|message| why.raw().contains(message.raw())), "{why}");
        }
    }
}

#[test]
fn a_refused_repetition_does_not_end_the_wait_for_the_first_call() {
    let limits = Limits::default();
    for transient in [false, true] {
        let refused = Reply::Refused { message: "400: it is on already".into(), transient };
        let attempts = [attempt(&ON, 0, Reply::Accepted), attempt(&ON, 60, refused)];
        let next = |now| pursue(ON, &attempts, limits.power_change, &limits, at(now));
        assert!(!matches!(next(119), Verdict::Fail(_)), "transient: {transient}");
    }
}

#[test]
fn a_restart_is_never_repeated() {
    let limits = Limits::default();
    for reset in [ResetType::GracefulRestart, ResetType::ForceRestart, ResetType::PowerCycle, ResetType::Nmi] {
        let action = Action::Reset(reset);
        for reply in [Reply::Accepted, Reply::Unknown, Reply::Unclear { message: "RAC0508: not ready".into() }] {
            let attempts = [attempt(&action, 0, reply.clone())];
            for now in [5, 30, 60, 120, 9000] {
                let verdict = pursue(action.clone(), &attempts, limits.power_change, &limits, at(now));
                assert!(!matches!(verdict, Verdict::Act(_)), "{action} {reply:?} after {now} s");
            }
        }
    }
}

#[test]
fn a_machine_that_is_not_ready_is_asked_until_the_run_ends() {
    let limits = Limits::default();
    let set = Action::SetBoot { wanted: crate::machine::BootOverride::default(), clear_http_boot_uri: false };
    let message = "500: \"The provider is not ready.\" (IDRAC.2.9.RAC0508) Wait for few minutes and retry.";
    let replies = [Reply::Unclear { message: message.into() }, busy(message)];
    for (action, reply) in
        [ON, FORCE_OFF, SHUTDOWN, set].into_iter().flat_map(|it| replies.clone().map(|r| (it.clone(), r)))
    {
        let attempts: Vec<Attempt> = (0..60).map(|n| attempt(&action, n * 30, reply.clone())).collect();
        let verdict = pursue(action.clone(), &attempts, limits.power_change, &limits, at(59 * 30 + 31));
        assert_eq!(verdict, Verdict::Act(action.clone()), "{reply:?}");
    }
}
