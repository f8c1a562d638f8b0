//! Pairs every requested or recorded override with every override that a BMC can show. Pairs with
//! different next starts never count as done.

use jiff::Timestamp;
use shown_text::{AsRaw, OneLine};

use super::*;
use crate::{
    machine::{BootMode, Capabilities, MediaSlot, PowerState, ResetType},
    model::{
        facts::Facts,
        lock::{EnqueueRequest, Leases, ServerLock},
        verdict::{Limits, after},
    },
    prepare, restore,
    spec::{BootMethod, BootSpec},
    state::{Phase, PriorState, Progress},
    step::{Attempt, Reply, Step},
};

const OURS: &str = "http://images.example/a.efi";

/// Addresses that BMCs and external systems show instead: of another image, with another query, and
/// an image reference that is not a URL.
const OTHERS: [&str; 3] =
    ["http://images.example/other.efi", "http://images.example/a.efi?version=2", "registry.example/rescue:4"];

fn texts(all: &[&str]) -> Vec<Option<OneLine>> {
    std::iter::once(None).chain(all.iter().map(|text| Some((*text).into()))).collect()
}

/// Returns every override that a BMC can show.
fn all_shown() -> Vec<BootOverride> {
    let mut all = Vec::new();
    for enabled in texts(&["Disabled", "Once", "Continuous"]) {
        for target in texts(&["None", "Pxe", "Hdd", "Cd", "UefiHttp"]) {
            for mode in texts(&["UEFI", "Legacy"]) {
                for http_boot_uri in texts(&[&[OURS][..], &OTHERS].concat()) {
                    let (enabled, target, mode) = (enabled.clone(), target.clone(), mode.clone());
                    all.push(BootOverride { enabled, target, mode, http_boot_uri, ..BootOverride::default() });
                }
            }
        }
    }
    all
}

/// Returns the next start's target and address, and true if later starts use them too. `None`: the
/// machine follows its boot order.
fn next_start(boot: &BootOverride) -> Option<(&str, Option<&str>, bool)> {
    let target = boot.target.as_raw().filter(|target| *target != "None")?;
    let lasts = match boot.enabled.as_raw() {
        Some("Once") => false,
        Some("Continuous") => true,
        Some("Disabled") => return None,
        other => panic!("an override with Enabled {other:?} counted as armed"),
    };
    let address = boot.http_boot_uri.as_raw().filter(|_| target == "UefiHttp");
    Some((target, address, lasts))
}

fn record(prior: Option<BootOverride>) -> Maintenance {
    let mut lock = ServerLock::new(crate::ids::LockKey::new("k"));
    lock.enqueue(EnqueueRequest::sample("a"), &Leases::default(), Timestamp::UNIX_EPOCH).unwrap();
    let mut record = lock.active.remove(0).into_inner();
    record.prior =
        Some(PriorState { power: PowerState::On, boot: prior, media: Vec::new(), recorded_at: Timestamp::UNIX_EPOCH });
    record
}

fn facts(power: PowerState, boot: Option<BootOverride>) -> Facts {
    let capabilities = Capabilities {
        resets: vec![ResetType::On, ResetType::GracefulShutdown, ResetType::ForceOff],
        boot_targets: ["None", "Pxe", "Hdd", "Cd", "UefiHttp"].map(OneLine::from).to_vec(),
        ..Capabilities::default()
    };
    Facts {
        machine: Some(MachineView { power, boot, ..MachineView::default() }),
        capabilities: Some(capabilities),
        media: Some(Vec::<MediaSlot>::new()),
        ..Facts::default()
    }
}

/// Judges a step with these attempts, early and late.
fn verdicts(step: Step, record: &Maintenance, attempts: &[Attempt], facts: &Facts) -> Vec<Verdict> {
    let progress = Progress { attempts: attempts.to_vec(), ..Progress::new(vec![step], Timestamp::UNIX_EPOCH) };
    let mut record = record.clone();
    record.phase = Phase::Preparing(progress.clone());
    let judge = |seconds| {
        let now = after(Timestamp::UNIX_EPOCH, std::time::Duration::from_secs(seconds));
        match step {
            Step::ConfigureBoot => prepare::judge(step, &record, &progress, facts, &Limits::default(), now),
            _ => restore::judge(step, &record, &progress, facts, &Limits::default(), now),
        }
    };
    [0, 3600].map(judge).to_vec()
}

fn is_done(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Done | Verdict::Concluded(_))
}

/// Returns an empty list of attempts, and lists with one attempt for each reply.
fn all_attempts(verdict: &Verdict) -> Vec<Vec<Attempt>> {
    let Verdict::Act(action) = verdict else { return vec![Vec::new()] };
    let with = |reply: Reply| vec![Attempt { reply, ..Attempt::intended(action.clone(), Timestamp::UNIX_EPOCH) }];
    let refused = Reply::Refused { message: "no".into(), transient: false };
    vec![Vec::new(), with(Reply::Accepted), with(Reply::Unknown), with(refused)]
}

#[test]
fn no_pair_with_another_next_start_counts_as_requested() {
    let (shown, mut done) = (all_shown(), 0);
    let methods = [
        (BootMethod::Pxe, None),
        (BootMethod::Disk, None),
        (BootMethod::Http, Some(OURS)),
        (BootMethod::Http, Some("registry.example/rescue:3")),
        (BootMethod::VirtualMedia, Some(OURS)),
    ];
    for (method, image) in methods {
        for once in [true, false] {
            for boot_mode in [None, Some(BootMode::Uefi), Some(BootMode::Legacy)] {
                for before in texts(&["UEFI", "Legacy"]) {
                    let none = BootOverride {
                        enabled: Some("Disabled".into()),
                        target: Some("None".into()),
                        mode: before.clone(),
                        ..BootOverride::default()
                    };
                    let mut record = record(Some(none.clone()));
                    record.spec.boot = Some(BootSpec {
                        method: method.clone(),
                        image: image.map(OneLine::from),
                        image_sha256: None,
                        once,
                        boot_mode,
                        ready_when: None,
                        ignition: None,
                    });
                    let first = verdicts(Step::ConfigureBoot, &record, &[], &facts(PowerState::Off, Some(none)));
                    let target = match method {
                        BootMethod::VirtualMedia => "Cd".to_owned(),
                        _ => method.target().into_owned(),
                    };
                    for found in &shown {
                        for attempts in all_attempts(&first[0]) {
                            let facts = facts(PowerState::Off, Some(found.clone()));
                            if !verdicts(Step::ConfigureBoot, &record, &attempts, &facts).iter().any(is_done) {
                                continue;
                            }
                            done += 1;
                            let (next, address, lasts) = next_start(found).unwrap();
                            assert_eq!(next, target, "{found:?}");
                            assert_eq!(address, image.filter(|_| method == BootMethod::Http), "{found:?}");
                            assert!(once || lasts, "{found:?}: a later start would boot something else");
                            let mode = found.mode.as_raw();
                            assert!(boot_mode.is_none_or(|wanted| mode.is_none_or(|mode| mode == wanted.as_redfish())));
                            let flipped = before.as_raw() == Some("UEFI") && mode == Some("Legacy");
                            assert!(boot_mode.is_some() || !flipped, "{found:?}: Legacy was not requested");
                        }
                    }
                }
            }
        }
    }
    assert!(done > 500, "{done}");
}

#[test]
fn no_pair_with_another_next_start_counts_as_restored() {
    let (shown, mut done) = (all_shown(), 0);
    // An incomplete override is never recorded if the maintenance changes it.
    let is_clear = |before: &&BootOverride| match before.enabled.as_raw() {
        Some("Disabled") => true,
        Some(_) => before.target.is_some(),
        None => before.target.as_raw().is_none_or(|target| target == "None"),
    };
    for before in shown.iter().filter(is_clear) {
        let mut record = record(Some(before.clone()));
        record.boot_writes = Some(BootWrites::default());
        for found in &shown {
            let facts = facts(PowerState::On, Some(found.clone()));
            let first = verdicts(Step::RestoreBoot, &record, &[], &facts);
            let verified = verdicts(Step::Verify, &record, &[], &facts);
            let restored = all_attempts(&first[0])
                .into_iter()
                .flat_map(|attempts| verdicts(Step::RestoreBoot, &record, &attempts, &facts));
            if !restored.chain(verified).any(|verdict| is_done(&verdict)) {
                continue;
            }
            done += 1;
            let (was, is) = (next_start(before), next_start(found));
            assert_eq!(was, is, "{before:?} {found:?}");
            let modes = before.mode.is_none() || before.mode == found.mode;
            assert!(was.is_none() || modes, "{before:?} {found:?}");
        }
    }
    assert!(done > 500, "{done}");
}

#[test]
fn no_override_is_in_force_when_the_start_that_restores_the_power_comes() {
    let once = BootOverride { enabled: Some("Once".into()), target: Some("Pxe".into()), ..BootOverride::default() };
    let mut record = record(Some(once));
    record.boot_writes = Some(BootWrites::default());
    for found in all_shown().into_iter().filter(|found| found.enabled.is_some()) {
        let facts = facts(PowerState::Off, Some(found.clone()));
        let first = verdicts(Step::DisarmBoot, &record, &[], &facts);
        for attempts in all_attempts(&first[0]) {
            for verdict in verdicts(Step::DisarmBoot, &record, &attempts, &facts) {
                assert!(!is_done(&verdict) || next_start(&found).is_none(), "{found:?} {attempts:?}");
            }
        }
    }
}

#[test]
fn a_bmc_that_ignores_disabled_gets_the_target_none() {
    let was = |target: &str| BootOverride {
        enabled: Some("Disabled".into()),
        target: Some(target.into()),
        mode: Some("UEFI".into()),
        ..BootOverride::default()
    };
    let left = BootOverride { enabled: Some("Continuous".into()), ..was("Pxe") };
    let record = record(Some(was("Pxe")));
    let facts = facts(PowerState::Off, Some(left));
    let first = verdicts(Step::RestoreBoot, &record, &[], &facts);
    let Verdict::Act(action) = &first[0] else { panic!("{first:?}") };
    let ignored = Attempt { reply: Reply::Accepted, ..Attempt::intended(action.clone(), Timestamp::UNIX_EPOCH) };
    match &verdicts(Step::RestoreBoot, &record, &[ignored], &facts)[1] {
        Verdict::Act(Action::SetBoot { wanted, .. }) => assert_eq!(wanted.target.as_raw(), Some("None")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_without_a_mode_is_repeated_with_uefi_where_the_bmc_chose_legacy() {
    let boot = |enabled: &str, mode: &str| BootOverride {
        enabled: Some(enabled.into()),
        target: Some("Pxe".into()),
        mode: Some(mode.into()),
        ..BootOverride::default()
    };
    let (wanted, before) = (BootOverride { mode: None, ..boot("Once", "") }, boot("Disabled", "UEFI"));
    let with =
        |before: &BootOverride, found: &str| with_mode(wanted.clone(), Some(before), Some(&boot("Once", found))).mode;
    assert_eq!(with(&before, "Legacy").as_raw(), Some("UEFI"));
    assert_eq!(with(&before, "UEFI"), None);
    assert_eq!(with(&boot("Disabled", "Legacy"), "Legacy"), None, "it was so before");
}

#[test]
fn a_mode_that_the_maintenance_set_is_not_left_behind() {
    let of = |mode: &str| BootOverride {
        enabled: Some("Disabled".into()),
        target: Some("None".into()),
        mode: Some(mode.into()),
        ..BootOverride::default()
    };
    let refusal = |set: Option<&str>| {
        let writes = BootWrites { mode: set.map(OneLine::from), once_used: false };
        refused(&recorded(&of("Legacy"), &of("UEFI"), Some(&writes)))
    };
    assert_eq!(refusal(Some("UEFI")).as_deref(), Some("BootSourceOverrideMode is UEFI, was Legacy"));
    assert_eq!(refusal(None), None, "the BMC changed the mode, and the override is disabled");
}

#[test]
fn the_design_lists_every_tolerated_difference() {
    let design = include_str!("../../../../DESIGN.md");
    for quirk in Quirk::ALL {
        assert!(design.contains(&format!("| `{}` |", quirk.name())), "{}", quirk.name());
    }
}

#[test]
fn no_property_of_a_bmc_forges_a_line() {
    let hostile = || Some("x\n::error".into());
    let boot = BootOverride {
        enabled: hostile(),
        target: hostile(),
        mode: hostile(),
        uefi_target: hostile(),
        boot_next: hostile(),
        ..BootOverride::default()
    };
    let calm = BootOverride { target: Some("Pxe".into()), ..BootOverride::default() };
    let differences = [requested(&calm, &boot, false), recorded(&calm, &boot, None)].concat();
    assert!(differences.len() > 2, "{differences:?}");
    let texts = differences.into_iter().map(|difference| difference.text);
    for text in texts.chain([Shown(Some(&boot)).to_string()]) {
        assert!(shown_text::is_plain(&text), "{text}");
    }
}
