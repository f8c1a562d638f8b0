//! The rules of the steps back that no exploration shows one by one.

use super::*;
use crate::{
    gate::{ExternalSystem, GateRecord, PowerAfter, QueueAuthority},
    machine::PowerTarget,
};

#[test]
fn what_a_busy_machine_did_not_take_is_not_left_behind() {
    let disabled = BootOverride { enabled: Some("Disabled".into()), ..BootOverride::default() };
    let found = BootOverride { http_boot_uri: Some("http://images/a.iso".into()), ..disabled.clone() };
    let action = boot_change(&disabled, &found).unwrap();
    let judged = |reply: Reply| {
        let at = Timestamp::UNIX_EPOCH;
        let attempt = Attempt { reply, ..Attempt::intended(action.clone(), at) };
        let later = at + std::time::Duration::from_hours(1);
        let limits = Limits::default();
        let last = Attempt { at: after(at, limits.busy), ..attempt.clone() };
        restore_boot(&disabled, &found, &[attempt, last], &limits, later)
    };
    let refused = |transient| Reply::Refused { message: "no".into(), transient };
    assert!(matches!(judged(refused(true)), Verdict::Fail(_)), "it may take it later: the lock stays");
    assert_eq!(judged(refused(false)), Verdict::Done);
    assert_eq!(judged(Reply::Unknown), Verdict::Done, "some fail at null");
    assert_eq!(judged(Reply::Accepted), Verdict::Done, "accepted, and still shown");
    let chosen = BootOverride { boot_next: Some("Boot0010".into()), ..disabled.clone() };
    let Some(Action::SetBoot { wanted, .. }) = boot_change(&disabled, &chosen) else { panic!("it is left") };
    assert_eq!(wanted.boot_next.as_deref(), Some(""));
    assert_eq!(restore_boot(&disabled, &disabled, &[], &Limits::default(), Timestamp::UNIX_EPOCH), Verdict::Done);
}

/// A hold of a running server with an empty drive, that nothing was done to.
fn held(boot: Option<BootOverride>) -> (Maintenance, MachineView) {
    use crate::{
        ids::LockKey,
        model::lock::{EnqueueRequest, Leases, ServerLock},
    };
    let mut lock = ServerLock::new(LockKey("k".into()));
    lock.enqueue(EnqueueRequest::sample("a"), &Leases::default(), Timestamp::UNIX_EPOCH).unwrap();
    let mut record = lock.active.remove(0).into_inner();
    let machine = MachineView { power: PowerState::On, boot: boot.clone(), ..MachineView::default() };
    record.prior = Some(PriorState {
        power: PowerState::On,
        boot,
        media: vec![drive(Some("http://console/a.iso"))],
        last_reset: None,
        recorded_at: Timestamp::UNIX_EPOCH,
    });
    (record, machine)
}

fn drive(image: Option<&str>) -> MediaSlot {
    MediaSlot {
        slot: "/m/Cd".into(),
        media_types: vec!["CD".into()],
        image: image.map(str::to_owned),
        inserted: image.is_some(),
        write_protected: None,
    }
}

fn judged(step: Step, record: &Maintenance, facts: &Facts, later: std::time::Duration) -> Verdict {
    let progress = Progress::new(vec![step], Timestamp::UNIX_EPOCH);
    judge(step, record, &progress, facts, &Limits::default(), after(Timestamp::UNIX_EPOCH, later))
}

#[test]
fn a_drive_that_was_never_used_stops_no_server() {
    let (mut record, machine) = held(None);
    let steps = [Step::StopForRestore, Step::RestoreMedia, Step::Verify];
    let mut facts = Facts { machine: Some(machine), ..Facts::default() };
    for media in [None, Some(vec![drive(None)]), Some(Vec::new())] {
        facts.media = media;
        for step in steps {
            assert_eq!(judged(step, &record, &facts, std::time::Duration::ZERO), Verdict::Done, "{step}");
        }
    }
    record.drives = vec!["/m/Cd".into()];
    facts.media = Some(vec![drive(None)]);
    for step in steps {
        assert_ne!(judged(step, &record, &facts, std::time::Duration::ZERO), Verdict::Done, "{step}");
    }
}

#[test]
fn an_override_that_is_not_shown_for_a_moment_is_not_forgotten() {
    let pxe = |enabled: &str| BootOverride {
        enabled: Some(enabled.into()),
        target: Some("Pxe".into()),
        ..BootOverride::default()
    };
    let (record, machine) = held(Some(pxe("Continuous")));
    let facts = Facts { machine: Some(MachineView { boot: None, ..machine }), ..Facts::default() };
    for step in [Step::RestoreBoot, Step::Verify] {
        let judged = |later| judged(step, &record, &facts, std::time::Duration::from_secs(later));
        assert!(matches!(judged(29), Verdict::Wait { .. }), "{step}");
        match (step, judged(30)) {
            (Step::RestoreBoot, Verdict::Act(Action::SetBoot { wanted, .. })) => {
                assert_eq!(wanted.target.as_deref(), Some("Pxe"), "some list nothing where none is set");
            }
            (Step::Verify, Verdict::Fail(_)) => {}
            (step, verdict) => panic!("{step}: {verdict:?}"),
        }
    }
}

#[test]
fn an_override_is_cleared_only_before_a_start_that_would_use_it_up() {
    let once = |target: &str| BootOverride {
        enabled: Some("Once".into()),
        target: Some(target.into()),
        ..BootOverride::default()
    };
    let (record, machine) = held(Some(once("Pxe")));
    let of = |machine: MachineView| {
        let facts = Facts { machine: Some(machine), ..Facts::default() };
        judged(Step::DisarmBoot, &record, &facts, std::time::Duration::ZERO)
    };
    assert_eq!(of(machine.clone()), Verdict::Done, "it runs and goes on");
    let off = MachineView { power: PowerState::Off, ..machine };
    assert!(matches!(of(off.clone()), Verdict::Act(_)));
    assert_eq!(of(MachineView { boot: Some(once("None")), ..off }), Verdict::Done, "it boots nothing else");
}

/// A hold under an external system that wants the server to have this power by now.
fn held_for(before: PowerState, asked: Option<PowerTarget>, after: Option<PowerAfter>) -> (Maintenance, MachineView) {
    let (mut record, machine) = held(None);
    let system = ExternalSystem { restores_power: true, ..ExternalSystem::own("Metal3", QueueAuthority::Ours, true) };
    record.gates = vec![GateRecord { asked: true, entered: true, power_after: after, ..GateRecord::new(system) }];
    record.spec.server_power = asked;
    if let Some(prior) = &mut record.prior {
        (prior.power, prior.media) = (before, Vec::new());
    }
    (record, machine)
}

#[test]
fn the_power_that_the_owner_wants_by_now_is_restored_instead_of_the_recorded_one() {
    use PowerTarget::{Off, On};
    let judged = |step: Step, record: &Maintenance, power: PowerState| {
        let machine = MachineView { power, ..MachineView::default() };
        let facts = Facts {
            machine: Some(machine),
            capabilities: Some(crate::machine::Capabilities {
                resets: vec![crate::machine::ResetType::On, crate::machine::ResetType::GracefulShutdown],
                ..Default::default()
            }),
            ..Facts::default()
        };
        judged(step, record, &facts, std::time::Duration::ZERO)
    };
    let acts = |verdict: Verdict| matches!(verdict, Verdict::Act(Action::Reset(_)));
    // The owner wants it off since.
    let (off, _) = held_for(PowerState::On, Some(Off), Some(PowerAfter::Wanted(Off)));
    assert_eq!(judged(Step::RestorePower, &off, PowerState::Off), Verdict::Done);
    assert_eq!(judged(Step::Verify, &off, PowerState::Off), Verdict::Done);
    assert!(acts(judged(Step::StopForRestore, &off, PowerState::On)));
    assert_eq!((off.final_power(), effect(&off)), (Some(Off), None));
    // On since.
    let (on, _) = held_for(PowerState::Off, Some(On), Some(PowerAfter::Wanted(On)));
    assert_eq!(judged(Step::StopForRestore, &on, PowerState::On), Verdict::Done);
    assert!(acts(judged(Step::RestorePower, &on, PowerState::Off)));
    assert!(
        matches!(judged(Step::Verify, &on, PowerState::Off), Verdict::Fail(why) if why.contains("wants On by now"))
    );
    assert_eq!((on.final_power(), effect(&on)), (Some(On), None));
    let (on, _) = held_for(PowerState::Off, None, Some(PowerAfter::Wanted(On)));
    assert_eq!(effect(&on).as_deref(), Some("is switched on."));
    // It ends off by itself: nothing is switched for its power.
    let (ends, _) = held_for(PowerState::On, Some(Off), Some(PowerAfter::EndsOff));
    for power in [PowerState::On, PowerState::Off] {
        for step in [Step::StopForRestore, Step::RestorePower, Step::Verify] {
            assert_eq!(judged(step, &ends, power), Verdict::Done, "{step}");
        }
    }
    assert_eq!((ends.final_power(), effect(&ends)), (Some(Off), None));
    let (told, _) = held_for(PowerState::On, Some(Off), None);
    assert_eq!((told.final_power(), effect(&told).as_deref()), (Some(On), Some("is switched on.")));
}

#[test]
fn a_plan_tells_that_the_external_system_restores_a_power_that_is_not_recorded() {
    let told = |after| effect(&held_for(PowerState::Unknown, Some(PowerTarget::Off), after).0);
    assert_eq!(told(Some(PowerAfter::Wanted(PowerTarget::On))).as_deref(), Some("is switched on by Metal3."));
    assert_eq!(told(Some(PowerAfter::Wanted(PowerTarget::Off))), None);
    assert_eq!(told(None).as_deref(), Some("is brought to the power that its owner wants by Metal3."));
}
