//! Tests of single virtual media rules.

use shown_text::OneLine;

use super::*;

fn drive(path: &str, kinds: &[&str]) -> MediaSlot {
    MediaSlot {
        slot: path.into(),
        media_types: kinds.iter().map(|kind| (*kind).into()).collect(),
        image: None,
        inserted: false,
        write_protected: None,
    }
}

fn boot() -> BootSpec {
    BootSpec { image: Some("http://images/a.iso".into()), ..BootSpec::new(BootMethod::VirtualMedia) }
}

fn lists(targets: &[&str]) -> Capabilities {
    Capabilities {
        boot_targets: targets.iter().map(|target| (*target).into()).collect(),
        boot_menu: true,
        ..Capabilities::default()
    }
}

fn option(reference: &str, name: &str, path: &str) -> BootOption {
    BootOption { reference: reference.into(), name: name.into(), path: Some(path.into()) }
}

#[test]
fn the_first_slot_by_number_is_filled_and_a_configured_one_before_all() {
    let media = [drive("/m/2", &["CD"]), drive("/m/10", &["CD"]), drive("/m/1", &["CD", "USBStick"])];
    assert_eq!(choose_slot(&media, "http://i/a.iso", None).unwrap().slot, "/m/1");
    assert_eq!(choose_slot(&media, "http://i/a.iso", Some("10")).unwrap().slot, "/m/10");
    assert_eq!(choose_slot(&media, "http://i/a.iso", Some("3")), None);
    let problem = missing_drive(&boot(), &Capabilities { media_slot: Some("3".into()), ..lists(&[]) }, &media);
    assert!(problem.unwrap().1.contains("2, 10, 1"));
}

#[test]
fn a_medium_that_could_boot_instead_is_replaced_or_taken_out() {
    let of = |path: &str, image: Option<&str>| MediaSlot {
        inserted: image.is_some(),
        image: image.filter(|image| !image.is_empty()).map(OneLine::from),
        ..drive(path, &["CD"])
    };
    let (ours, theirs) = ("http://i/a.iso", Some("http://i/theirs.iso"));
    let media = [of("/m/1", theirs), of("/m/2", None)];
    assert_eq!(choose_slot(&media, ours, None).unwrap().slot, "/m/1", "`Cd` boots the first drive");
    let media = [of("/m/1", Some("")), of("/m/2", theirs), of("/m/3", theirs)];
    let chosen = choose_slot(&media, ours, None).unwrap();
    assert_eq!((chosen.slot.raw(), rival(&media, chosen, ours).unwrap().slot.raw()), ("/m/2", "/m/3"));
    let media = [of("/m/1", None), of("/m/2", Some(ours)), drive("/m/3", &["USBStick"])];
    assert_eq!(rival(&media, &media[0], ours), None);
    let unknown = held_unknown(&boot(), &lists(&[]), &[of("/m/1", Some(""))]);
    assert!(unknown.unwrap().contains("eject it first"));
    let hidden = [of("/m/1", Some("")), of("/m/2", None)];
    assert!(held_unknown(&boot(), &lists(&["Cd"]), &hidden).is_some(), "`Cd` can boot the hidden medium");
    assert_eq!(held_unknown(&boot(), &lists(&["Cd", "UefiTarget"]), &hidden), None, "the boot menu distinguishes them");
    let told = Capabilities { media_slot: Some("2".into()), ..lists(&["Cd"]) };
    assert_eq!(held_unknown(&boot(), &told, &hidden), None);
}

#[test]
fn the_target_is_what_the_bmc_tells_apart() {
    let of = |has: &Capabilities, before: Option<&[BootOption]>, menu: &[BootOption]| {
        let wanted = target(&boot(), has, false, before, menu);
        let exact = wanted.names_an_entry();
        (wanted.target.unwrap(), wanted.uefi_target.or(wanted.boot_next), exact)
    };
    let old = [option("Boot0001", "ubuntu", "HD(1)")];
    let with = [old[0].clone(), option("Boot0002", "USB device", "Usb(3)")];
    let uefi = lists(&["None", "Cd", "UefiTarget"]);
    assert_eq!(of(&lists(&["None", "Cd", "Hdd"]), None, &[]), ("Cd".into(), None, false));
    assert_eq!(of(&lists(&["Cd", "UsbCd"]), None, &[]), ("UsbCd".into(), None, false));
    assert_eq!(of(&uefi, Some(&old), &with), ("UefiTarget".into(), Some("Usb(3)".into()), true));
    assert_eq!(of(&uefi, Some(&with), &with), ("Cd".into(), None, false), "nothing appeared");
    let named = [old[0].clone(), option("Boot0009", "iLO Virtual CD-ROM", "USB(1)")];
    assert_eq!(of(&uefi, None, &named), ("UefiTarget".into(), Some("USB(1)".into()), true));
    let next = lists(&["Pxe", "UefiBootNext"]);
    assert_eq!(of(&next, Some(&old), &with), ("UefiBootNext".into(), Some("Boot0002".into()), true));
    let told = Capabilities { media_target: Some("Floppy".into()), ..uefi };
    assert_eq!(of(&told, Some(&old), &with), ("Floppy".into(), None, false));
    assert!(missing_target(&boot(), &told).is_some(), "not listed");
    assert!(missing_target(&boot(), &lists(&["None", "Pxe"])).is_some());
    assert!(missing_target(&boot(), &next).is_none());
}

#[test]
fn a_medium_without_an_address_is_ours_where_the_drive_was_empty() {
    use crate::{
        ids::LockKey,
        machine::PowerState,
        model::lock::{EnqueueRequest, Leases, ServerLock},
        state::PriorState,
        step::Step,
    };
    let now = Timestamp::UNIX_EPOCH;
    let mut lock = ServerLock::new(LockKey::new("k"));
    lock.enqueue(EnqueueRequest::sample("a"), &Leases::default(), now).unwrap();
    let mut record = lock.active.remove(0).into_inner();
    record.spec.boot = Some(boot());
    let (empty, media) = (drive("cdrom", &["CD"]), Vec::new());
    let prior = PriorState { power: PowerState::Off, boot: None, media, recorded_at: now };
    record.prior = Some(PriorState { media: vec![empty.clone()], ..prior });
    let filled = MediaSlot { inserted: true, ..empty };
    let facts = Facts { media: Some(vec![filled]), capabilities: Some(lists(&["Cd"])), ..Facts::default() };
    let progress = Progress::new(vec![Step::InsertMedium], now);
    let next = |record: &Maintenance| insert(record, &progress, &facts, &Limits::default(), now);
    assert!(matches!(next(&record), Verdict::Fail(_)), "it belongs to another author");
    record.drives = vec!["cdrom".into()];
    assert_eq!(next(&record), Verdict::Act(Action::Eject { slot: "cdrom".into() }));
}

#[test]
fn nothing_is_concluded_of_a_boot_that_was_not_started() {
    use crate::{
        ids::{LockKey, Runner, Token},
        machine::PowerTarget,
        model::lock::{EnqueueRequest, Leases, ServerLock},
        state::Phase,
    };
    let (now, leases) = (Timestamp::UNIX_EPOCH, Leases::default());
    for (power, outcome) in
        [(Some(PowerTarget::On), Some(OperationOutcome::Unproven)), (Some(PowerTarget::Off), None), (None, None)]
    {
        let mut lock = ServerLock::new(LockKey::new("k"));
        let uid = lock.enqueue(EnqueueRequest::sample("a"), &leases, now).unwrap().uid().clone();
        let runner = Runner::new("r", "ada", "desk", 1);
        let fence = lock.attach(&uid, runner, Token(uuid::Uuid::nil()), &leases, now).unwrap();
        let record = &mut lock.active[0];
        (record.spec.boot, record.spec.server_power) = (Some(boot()), power);
        // A change in place to off drops the earlier outcome.
        record.outcome = Some(OperationOutcome::Unproven);
        record.phase = Phase::Preparing(Progress { outcome: record.outcome, ..Progress::new(Vec::new(), now) });
        lock.prepared(&uid, fence, now).unwrap();
        assert_eq!(lock.active[0].outcome, outcome, "{power:?}");
    }
}
