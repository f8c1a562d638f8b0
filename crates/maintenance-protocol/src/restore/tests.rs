//! Tests of release rules that the exploration does not cover.

use jiff::Timestamp;
use shown_text::{AsRaw, OneLine};

use super::{overrides::boot_change, *};
use crate::{
    gate::{ExternalSystem, GateRecord, PowerAfter, QueueAuthority},
    machine::PowerTarget,
    model::{tolerated::BootWrites, verdict::after},
    step::{Attempt, Reply},
};

#[test]
fn what_a_busy_machine_did_not_take_is_not_left_behind() {
    let disabled = BootOverride { enabled: Some("Disabled".into()), ..BootOverride::default() };
    let found = BootOverride { http_boot_uri: Some("http://images/a.iso".into()), ..disabled.clone() };
    let action = boot_change(&disabled, &found).unwrap();
    let (record, _) = held(Some(disabled.clone()));
    let judged = |reply: Reply| {
        let at = Timestamp::UNIX_EPOCH;
        let attempt = Attempt { reply, ..Attempt::intended(action.clone(), at) };
        let later = at + std::time::Duration::from_hours(1);
        let limits = Limits::default();
        let last = Attempt { at: after(at, limits.busy), ..attempt.clone() };
        restore_boot(&record, &disabled, &found, &[attempt, last], &limits, later)
    };
    let refused = |transient| Reply::Refused { message: "no".into(), transient };
    assert!(matches!(judged(refused(true)), Verdict::Fail(_)), "the machine could apply it later: the lock stays");
    for reply in [refused(false), Reply::Unknown, Reply::Accepted] {
        assert!(matches!(judged(reply), Verdict::Fail(_)), "the maintenance's address would remain");
    }
    let chosen = BootOverride { boot_next: Some("Boot0010".into()), ..disabled.clone() };
    let Some(Action::SetBoot { wanted, .. }) = boot_change(&disabled, &chosen) else {
        panic!("the next-boot entry stays")
    };
    assert_eq!(wanted.boot_next.as_raw(), Some(""));
    let unchanged = restore_boot(&record, &disabled, &disabled, &[], &Limits::default(), Timestamp::UNIX_EPOCH);
    assert_eq!(unchanged, Verdict::Done);
}

/// An unchanged maintenance of a running server with an empty drive.
fn held(boot: Option<BootOverride>) -> (Maintenance, MachineView) {
    use crate::{
        ids::LockKey,
        model::lock::{EnqueueRequest, Leases, ServerLock},
    };
    let mut lock = ServerLock::new(LockKey::new("k"));
    lock.enqueue(EnqueueRequest::sample("a"), &Leases::default(), Timestamp::UNIX_EPOCH).unwrap();
    let mut record = lock.active.remove(0).into_inner();
    let machine = MachineView { power: PowerState::On, boot: boot.clone(), ..MachineView::default() };
    record.prior = Some(PriorState {
        power: PowerState::On,
        boot,
        media: vec![drive(Some("http://console/a.iso"))],
        recorded_at: Timestamp::UNIX_EPOCH,
    });
    (record, machine)
}

/// Returns the effect without a reading from the BMC.
fn effect_of(record: &Maintenance) -> Option<String> {
    effect(record, &Facts::default(), &Limits::default(), Timestamp::UNIX_EPOCH)
}

fn drive(image: Option<&str>) -> MediaSlot {
    MediaSlot {
        slot: "/m/Cd".into(),
        media_types: vec!["CD".into()],
        image: image.map(OneLine::from),
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
                assert_eq!(wanted.target.as_raw(), Some("Pxe"), "some BMCs list nothing without an override");
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
    assert_eq!(of(machine.clone()), Verdict::Done, "the server runs and continues");
    let off = MachineView { power: PowerState::Off, ..machine };
    assert!(matches!(of(off.clone()), Verdict::Act(_)));
    assert_eq!(of(MachineView { boot: Some(once("None")), ..off }), Verdict::Done, "it boots nothing else");
}

/// A maintenance under an external system whose owner now wants this power.
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
    // The owner now wants it off.
    let (off, _) = held_for(PowerState::On, Some(Off), Some(PowerAfter::Wanted(Off)));
    assert_eq!(judged(Step::RestorePower, &off, PowerState::Off), Verdict::Done);
    assert_eq!(judged(Step::Verify, &off, PowerState::Off), Verdict::Done);
    assert!(acts(judged(Step::StopForRestore, &off, PowerState::On)));
    assert_eq!((off.final_power(), effect_of(&off)), (Some(Off), None));
    // The owner now wants it on.
    let (on, _) = held_for(PowerState::Off, Some(On), Some(PowerAfter::Wanted(On)));
    assert_eq!(judged(Step::StopForRestore, &on, PowerState::On), Verdict::Done);
    assert!(acts(judged(Step::RestorePower, &on, PowerState::Off)));
    assert!(
        matches!(judged(Step::Verify, &on, PowerState::Off), Verdict::Fail(why) if why.raw().contains("requests On now"))
    );
    assert_eq!((on.final_power(), effect_of(&on)), (Some(On), None));
    let (on, _) = held_for(PowerState::Off, None, Some(PowerAfter::Wanted(On)));
    assert_eq!(effect_of(&on).as_deref(), Some("is switched on."));
    // The external system powers it off, so the release does not change the power.
    let (ends, _) = held_for(PowerState::On, Some(Off), Some(PowerAfter::EndsOff));
    for power in [PowerState::On, PowerState::Off] {
        for step in [Step::StopForRestore, Step::RestorePower, Step::Verify] {
            assert_eq!(judged(step, &ends, power), Verdict::Done, "{step}");
        }
    }
    assert_eq!((ends.final_power(), effect_of(&ends)), (Some(Off), None));
    let (told, _) = held_for(PowerState::On, Some(Off), None);
    assert_eq!((told.final_power(), effect_of(&told).as_deref()), (Some(On), Some("is switched on.")));
}

#[test]
fn a_plan_tells_that_the_external_system_restores_a_power_that_is_not_recorded() {
    let told = |after| effect_of(&held_for(PowerState::Unknown, Some(PowerTarget::Off), after).0);
    assert_eq!(told(Some(PowerAfter::Wanted(PowerTarget::On))).as_deref(), Some("is switched on by Metal3."));
    assert_eq!(told(Some(PowerAfter::Wanted(PowerTarget::Off))), None);
    assert_eq!(told(None).as_deref(), Some("is switched to its owner's requested power by Metal3."));
}

/// Recorded fields that are not compared, with the reason.
const NOT_COMPARED: [(&str, &str); 4] = [
    ("/recorded_at", "describes the reading"),
    ("/media/0/media_types/0", "identifies the drive"),
    ("/media/0/media_types/1", "identifies the drive"),
    ("/boot/ignition/secret", "is never read back"),
];

/// Collects the JSON pointer of every value in a document.
fn leaves(value: &serde_json::Value, at: &str, found: &mut Vec<String>) {
    use serde_json::Value::{Array, Object};
    match value {
        Object(fields) => fields.iter().for_each(|(name, value)| leaves(value, &format!("{at}/{name}"), found)),
        Array(items) => items.iter().enumerate().for_each(|(n, value)| leaves(value, &format!("{at}/{n}"), found)),
        _ => found.push(at.to_owned()),
    }
}

/// The recorded state defines the cases: each new field must be compared or listed above.
#[test]
fn each_recorded_field_that_differs_after_a_restore_fails_the_verification() {
    let prior = PriorState {
        power: PowerState::On,
        boot: Some(BootOverride {
            enabled: Some("Continuous".into()),
            target: Some("UefiHttp".into()),
            mode: Some("UEFI".into()),
            http_boot_uri: Some("http://images/theirs.efi".into()),
            uefi_target: Some("PciRoot(0x0)".into()),
            boot_next: Some("Boot0001".into()),
            ignition: Some(crate::machine::Ignition::Secret("theirs".into())),
            external: false,
        }),
        media: vec![MediaSlot {
            slot: "/m/Cd".into(),
            media_types: vec!["CD".into(), "DVD".into()],
            image: Some("http://images/theirs.iso".into()),
            inserted: true,
            write_protected: Some(false),
        }],
        recorded_at: Timestamp::UNIX_EPOCH,
    };
    let (mut record, machine) = held(None);
    record.prior = Some(prior.clone());
    record.drives = vec!["/m/Cd".into()];
    record.boot_writes = Some(BootWrites::default());
    let verify = |shown: &PriorState| {
        let machine = MachineView { power: shown.power, boot: shown.boot.clone(), ..machine.clone() };
        let facts = Facts { machine: Some(machine), media: Some(shown.media.clone()), ..Facts::default() };
        judged(Step::Verify, &record, &facts, std::time::Duration::from_hours(1))
    };
    assert_eq!(verify(&prior), Verdict::Done);
    let document = serde_json::to_value(&prior).unwrap();
    let mut fields = Vec::new();
    leaves(&document, "", &mut fields);
    for (field, _) in NOT_COMPARED {
        assert!(fields.iter().any(|known| known == field), "{field} is not recorded any more");
    }
    for field in fields.iter().filter(|field| NOT_COMPARED.iter().all(|(other, _)| field != other)) {
        let mut changed = document.clone();
        let value = changed.pointer_mut(field).unwrap();
        *value = match &*value {
            serde_json::Value::Bool(is) => (!is).into(),
            serde_json::Value::String(text) if text == "On" => "Off".into(),
            serde_json::Value::String(text) => format!("{text}0").into(),
            other => panic!("{field}: no other value for {other}"),
        };
        let verdict = verify(&serde_json::from_value(changed).unwrap());
        assert!(matches!(verdict, Verdict::Fail(_)), "{field}: {verdict:?}");
    }
}

#[test]
fn a_one_time_override_that_a_start_used_is_not_armed_again() {
    let once = |target: &str| BootOverride {
        enabled: Some("Once".into()),
        target: Some(target.into()),
        ..BootOverride::default()
    };
    let none =
        BootOverride { enabled: Some("Disabled".into()), target: Some("None".into()), ..BootOverride::default() };
    let (mut record, machine) = held(Some(once("Pxe")));
    let facts = Facts { machine: Some(MachineView { boot: Some(none), ..machine }), ..Facts::default() };
    let of = |record: &Maintenance, step| judged(step, record, &facts, std::time::Duration::ZERO);
    for step in [Step::DisarmBoot, Step::RestoreBoot, Step::Verify] {
        assert_eq!(of(&record, step), Verdict::Done, "{step}");
    }
    let told = effect(&record, &facts, &Limits::default(), Timestamp::UNIX_EPOCH).unwrap();
    assert!(told.contains("(Pxe Once) has been used since and is not armed again"), "{told}");
    assert_eq!(tolerated(&record, &facts).len(), 1);
    // The maintenance overwrote the override before any start used it.
    record.boot_writes = Some(BootWrites::default());
    assert!(matches!(of(&record, Step::RestoreBoot), Verdict::Act(_)));
    assert!(matches!(of(&record, Step::Verify), Verdict::Fail(_)));
    // A start used it before the maintenance wrote its own override.
    record.boot_writes = Some(BootWrites { mode: None, once_used: true });
    assert_eq!(of(&record, Step::Verify), Verdict::Done);
}

#[test]
fn the_plan_of_a_release_names_the_calls_that_it_makes() {
    let told = |record: &Maintenance, machine: MachineView| {
        let facts = Facts { machine: Some(machine), ..Facts::default() };
        effect(record, &facts, &Limits::default(), Timestamp::UNIX_EPOCH)
    };
    let continuous =
        BootOverride { enabled: Some("Continuous".into()), target: Some("Pxe".into()), ..BootOverride::default() };
    let (record, machine) = held(Some(continuous.clone()));
    assert_eq!(told(&record, machine.clone()), None);
    let off = MachineView { power: PowerState::Off, ..machine.clone() };
    assert_eq!(
        told(&record, off).as_deref(),
        Some(
            "is switched on. It is off now and was on before the maintenance. It boots by the override Pxe Continuous, which was \
             armed before the maintenance."
        )
    );
    let other = BootOverride { target: Some("Hdd".into()), ..continuous };
    let changed = MachineView { boot: Some(other), ..machine };
    assert_eq!(
        told(&record, changed).as_deref(),
        Some("is restored to its prior boot configuration; its power stays.")
    );
}
