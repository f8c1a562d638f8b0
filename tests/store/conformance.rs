//! Conformance cases for every store. A new store runs them with one line in `main.rs`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use terraform_provider_metal::{
    maintenance::{
        aliases::Alias,
        approval::{Approval, Claim, Scope},
        effects::PendingEffect,
        identity::{AliasClaim, AliasTarget},
        ids::{Attachment, Fence, LockKey, Uid},
        lock::{EnqueueRequest, Enqueued, Leases, Refusal, ServerLock},
        machine::ResetType,
        queue::{Turn, turn, waiting},
        rebind::{Rebind, audit_id},
        report::{Liveness, lines},
        spec::{MaintenanceKind, Policy, Spec},
        state::{Ending, Phase},
        step::Action,
    },
    store::{AuditLine, AuditStart, LockView, MemoryStore, RecordLookup, Store, StoreError},
};

use crate::{
    bench::{Bench, THEIRS, apply, finish, hold, join, soon, try_admit},
    records::{AGING, HOLD_PLACE, TTL, id, key, request, runner, spec},
};

/// Runs every case against one store type.
#[macro_export]
macro_rules! conforms {
    ($store:ident, $bench:expr) => {
        $crate::conforms! { $store, $bench,
            a_key_nobody_asked_for_is_empty
            what_one_handle_wrote_the_other_reads_unchanged
            what_else_is_known_of_a_lock_is_kept
            what_a_person_forbade_is_kept_and_shown
            a_request_that_comes_back_finds_its_record
            a_name_is_refused_to_another_owner_or_wish
            a_name_in_use_is_refused_until_its_process_is_gone
            a_name_is_active_for_one_key_only
            a_name_may_end_and_begin_in_one_transition
            generation_and_tickets_outlive_the_record_and_the_handle
            the_queue_is_ordered_by_priority_then_ticket_then_age
            an_absent_waiter_is_skipped_keeps_its_place_and_is_dropped
            a_place_is_kept_from_the_end_of_its_process_on_however_long_it_waited
            a_place_kept_on_purpose_outlives_its_process
            who_was_replaced_is_refused
            the_end_of_a_hold_frees_the_slot_and_ends_what_acted_under_it
            a_withdrawn_request_leaves_no_record
            a_name_finds_the_active_record_else_the_last_one
            identifiers_lead_to_one_lock_and_move_with_it
            an_incarnation_is_found_active_and_ended
            the_whole_queue_is_one_sorted_read
            a_server_stays_bound_to_its_first_key
            leases_end_on_the_clock_of_the_store
            the_audit_is_in_order_and_limited_to_the_newest
            each_line_of_the_audit_is_exported_once_under_a_stable_id
            changes_of_another_handle_wake_and_heartbeats_do_not
            a_change_right_after_watching_began_is_not_lost
            hundreds_of_watchers_wake_and_see_the_change
            a_refused_transition_changes_nothing
            concurrent_transactions_never_admit_two
            those_who_come_together_are_each_applied_once_or_refused
            those_of_different_locks_have_nothing_to_do_with_each_other
            the_end_of_a_task_undoes_nothing_of_the_others
            a_key_may_hold_any_text
            whatever_happens_it_means_the_same_as_in_memory
            a_record_that_cannot_be_read_keeps_its_server_and_nothing_else
            a_lock_of_another_format_is_refused_and_the_others_go_on
            an_open_process_notices_another_format_and_loses_nothing
            its_contents_may_be_moved_into_an_empty_store
            history_is_forgotten_after_its_time
            one_process_at_a_time_may_sweep
        }
    };
    ($store:ident, $bench:expr, lost_commits) => {
        $crate::conforms! { $store, $bench,
            a_lock_that_is_behind_what_was_read_is_not_acted_on
            a_lock_that_has_as_many_commits_as_were_lost_is_another_one
            a_lock_that_has_more_commits_than_were_lost_is_not_mixed_with_them
            a_lock_that_was_lost_whole_is_noticed
        }
    };
    ($store:ident, $bench:expr, $($case:ident)+) => {
        mod $store {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    $crate::conformance::$case(&$bench.await).await;
                }
            )+
        }
    };
}

pub async fn a_key_nobody_asked_for_is_empty(bench: &Bench) {
    let store = bench.open().await;
    let view = store.view(&key("k")).await.unwrap();
    assert_eq!((view.lock.key.clone(), view.now), (key("k"), bench.now()));
    assert_eq!((view.lock.generation, view.lock.last_ticket, view.lock.active.len()), (0, 0, 0));
    assert!(view.lock.slot.is_none() && view.leases.0.is_empty());
    assert_eq!(store.view_all().await.unwrap(), []);
    assert_eq!(store.find(&id("a")).await.unwrap(), None);
    assert_eq!(store.find_uid(&Uid::new("u")).await.unwrap(), None);
    assert_eq!(store.audit(&id("a"), 10).await.unwrap(), []);
    assert_eq!(store.binding("node-1").await.unwrap(), None);
    let again = bench.open().await;
    assert_eq!(store.id(), again.id());
    assert!(!store.id().is_empty());
}

pub async fn what_one_handle_wrote_the_other_reads_unchanged(bench: &Bench) {
    let (one, two) = (bench.open().await, bench.open().await);
    let mut wish = request("a", 1);
    wish.spec.reason = Some("quotes ' \" and \u{1F512}; DROP TABLE locks;--".into());
    wish.spec.expires_after = Some(Duration::from_nanos(1_234_567_891));
    wish.spec.triggers = [("β".into(), "\u{0}\n".into())].into();
    let (uid, generation) = hold(&*one, &key("k"), &wish).await;
    apply(&*one, &key("k"), |lock, _, _| lock.update(&uid, generation, |record| record.booted = true)).await.unwrap();
    let (mine, theirs) = (one.view(&key("k")).await.unwrap(), two.view(&key("k")).await.unwrap());
    assert_eq!(mine, theirs);
    assert_eq!(theirs.lock.active[0].spec, wish.spec);
    assert_eq!(theirs.leases.0.len(), 1);
    assert!(theirs.lock.finished.is_empty() && theirs.lock.events.is_empty());
    assert_eq!(two.view_all().await.unwrap(), [theirs]);
    // The writer's cache must equal the stored lock.
    let third = bench.open().await;
    assert_eq!(third.view(&key("k")).await.unwrap(), mine);
}

pub async fn what_else_is_known_of_a_lock_is_kept(bench: &Bench) {
    let (one, other, k) = (bench.open().await, bench.open().await, key("k"));
    let effect = PendingEffect {
        root: Uid::new("gone"),
        by: Uid::new("gone"),
        action: Action::Reset(ResetType::GracefulShutdown),
        at: Timestamp::UNIX_EPOCH,
        until: Timestamp::MAX,
    };
    // These fields survive even on a free lock without waiters or an owner.
    apply(&*one, &k, |lock, _, _| {
        lock.extension.effects.push(effect.clone());
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(other.view(&k).await.unwrap().lock.extension.effects, std::slice::from_ref(&effect));
    assert!(other.view_all().await.unwrap().is_empty(), "an effect alone creates a queue");
    let held = hold(&*one, &k, &request("a", 1)).await;
    let seen = other.view(&k).await.unwrap().lock;
    assert_eq!((seen.slot.as_ref().map(|slot| &slot.uid), &seen.extension.effects), (Some(&held.0), &vec![effect]));
    apply(&*other, &k, |lock, _, _| {
        lock.extension.effects.clear();
        Ok(())
    })
    .await
    .unwrap();
    let seen = one.view(&k).await.unwrap().lock;
    assert!(seen.extension.is_empty() && seen.slot.is_some());
}

pub async fn what_a_person_forbade_is_kept_and_shown(bench: &Bench) {
    let (one, other, k) = (bench.open().await, bench.open().await, key("k"));
    apply(&*one, &k, |lock, leases, now| {
        let uid = lock.enqueue(request("a", 1), leases, now)?.uid().clone();
        lock.forbid(&uid, &runner(2), "node needed", Some(Duration::from_hours(1)), now)?;
        lock.active.clear();
        Ok(())
    })
    .await
    .unwrap();
    // The lock is free, without waiters or an owner, but it must still be listed.
    let seen = other.view_all().await.unwrap();
    let [view] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(view.lock.release_of(&id("a")).map(|released| released.reason.raw()), Some("node needed"));
    assert_eq!(view.lock.block(view.now).map(|block| &block.by), Some(&runner(2)));
    assert_eq!(other.view(&k).await.unwrap().lock.extension, view.lock.extension);
    let refused = join(&*other, &k, &request("a", 2)).await.unwrap_err();
    assert!(matches!(refused, StoreError::Refused(Refusal::ReleasedBefore { .. })), "{refused}");
    apply(&*other, &k, |lock, _, now| {
        lock.allow(&id("a"), "carol", now);
        Ok(())
    })
    .await
    .unwrap();
    assert!(one.view_all().await.unwrap().is_empty());
    join(&*one, &k, &request("a", 1)).await.unwrap();
}

pub async fn a_request_that_comes_back_finds_its_record(bench: &Bench) {
    let store = bench.open().await;
    let first = request("a", 1);
    let ask = |wish: EnqueueRequest| {
        let store = store.clone();
        async move { apply(&*store, &key("k"), |lock, leases, now| lock.enqueue(wish.clone(), leases, now)).await }
    };
    assert_eq!(ask(first.clone()).await.unwrap(), Enqueued::New(first.uid.clone()));
    assert_eq!(ask(request("a", 2)).await.unwrap(), Enqueued::Adopted(first.uid.clone()));
    let view = store.view(&key("k")).await.unwrap();
    assert_eq!((view.lock.active.len(), view.lock.last_ticket), (1, 1));
    assert_eq!(view.lock.active[0].requester, runner(2));
}

pub async fn a_name_is_refused_to_another_owner_or_wish(bench: &Bench) {
    let store = bench.open().await;
    join(&*store, &key("k"), &request("a", 1)).await.unwrap();
    let other_owner = EnqueueRequest { owner: "rivals".into(), ..request("a", 2) };
    let refused = join(&*store, &key("k"), &other_owner).await.unwrap_err();
    assert!(matches!(refused, StoreError::Refused(Refusal::OtherOwner { .. })), "{refused}");
    let other_wish = EnqueueRequest { spec: Spec { priority: 7, ..spec() }, ..request("a", 2) };
    let refused = join(&*store, &key("k"), &other_wish).await.unwrap_err();
    assert!(matches!(refused, StoreError::Refused(Refusal::OtherSpec { .. })), "{refused}");
}

pub async fn a_name_in_use_is_refused_until_its_process_is_gone(bench: &Bench) {
    let store = bench.open().await;
    let (uid, first) = join(&*store, &key("k"), &request("a", 1)).await.unwrap();
    let refused = join(&*store, &key("k"), &request("a", 2)).await.unwrap_err();
    let StoreError::Refused(Refusal::InUse { by, until, .. }) = refused else { panic!("{refused}") };
    assert_eq!((by.pid, until), (1, bench.now() + TTL));
    bench.pass(TTL).await;
    let (same, second) = join(&*store, &key("k"), &request("a", 2)).await.unwrap();
    assert_eq!(same, uid);
    assert!(second > first);
    store.resign(&runner(2).id).await.unwrap();
    join(&*store, &key("k"), &request("a", 3)).await.unwrap();
}

pub async fn a_name_is_active_for_one_key_only(bench: &Bench) {
    let (one, two) = (bench.open().await, bench.open().await);
    let (uid, generation) = join(&*one, &key("k1"), &request("a", 1)).await.unwrap();
    let before = two.view(&key("k2")).await.unwrap();
    let refused = join(&*two, &key("k2"), &request("a", 2)).await.unwrap_err();
    assert_eq!(refused, StoreError::NameTaken { id: id("a"), key: key("k1") });
    assert_eq!(two.view(&key("k2")).await.unwrap().lock, before.lock);
    assert_eq!(two.audit(&id("a"), 10).await.unwrap().len(), 1);
    // An ended name can be used for another server.
    finish(&*one, &key("k1"), &uid, generation).await.unwrap();
    join(&*two, &key("k2"), &request("a", 2)).await.unwrap();
}

pub async fn a_name_may_end_and_begin_in_one_transition(bench: &Bench) {
    let store = bench.open().await;
    let (uid, generation) = hold(&*store, &key("k"), &request("a", 1)).await;
    let next = request("a", 2);
    apply(&*store, &key("k"), |lock, leases, now| {
        lock.finish(&uid, generation, &Phase::Failed { at: now, cause: "disk".into() }, now)?;
        lock.enqueue(next.clone(), leases, now)
    })
    .await
    .unwrap();
    let Some(RecordLookup::Active(record)) = store.find(&id("a")).await.unwrap() else { panic!("not active") };
    assert_eq!(record.uid, next.uid);
    assert!(matches!(store.find_uid(&uid).await.unwrap(), Some(RecordLookup::Past(_))));
}

pub async fn generation_and_tickets_outlive_the_record_and_the_handle(bench: &Bench) {
    let mut last = (Fence::default(), 0);
    for n in 1..=4 {
        let store = bench.open().await;
        let (uid, generation) = hold(&*store, &key("k"), &request("a", n)).await;
        let ticket = store.view(&key("k")).await.unwrap().lock.active[0].ticket_number;
        assert!((generation, ticket) > last && ticket > last.1, "{generation:?}, {ticket} after {last:?}");
        last = (generation, ticket);
        finish(&*store, &key("k"), &uid, generation).await.unwrap();
        assert_eq!(store.view(&key("k")).await.unwrap().lock.generation, generation.generation);
    }
    assert!(bench.open().await.view_all().await.unwrap().is_empty());
}

pub async fn the_queue_is_ordered_by_priority_then_ticket_then_age(bench: &Bench) {
    let store = bench.open().await;
    let (holder, generation) = hold(&*store, &key("k"), &request("holder", 1)).await;
    let wish = |name: &str, n, priority| EnqueueRequest { spec: Spec { priority, ..spec() }, ..request(name, n) };
    let mut joined = Vec::new();
    for (name, n, priority) in [("old", 2, 0), ("first", 3, 1), ("second", 4, 1)] {
        joined.push(join(&*store, &key("k"), &wish(name, n, priority)).await.unwrap());
    }
    bench.pass(AGING * 3).await;
    joined.push(join(&*store, &key("k"), &wish("young", 5, 3)).await.unwrap());
    for n in 2..=5 {
        store.renew(&runner(n), TTL).await.unwrap();
    }
    let view = store.view(&key("k")).await.unwrap();
    let names: Vec<_> = waiting(&view.lock, AGING, view.now).iter().map(|record| record.id.name()).collect();
    assert_eq!(names, ["first", "second", "old", "young"]);
    finish(&*store, &key("k"), &holder, generation).await.unwrap();
    for (uid, generation) in [&joined[1], &joined[2], &joined[0], &joined[3]] {
        for (other, theirs) in joined.iter().filter(|(other, _)| other != uid) {
            let admitted = try_admit(&*store, &key("k"), other, *theirs).await;
            assert!(!admitted.unwrap_or(false), "{other} before {uid}");
        }
        assert!(try_admit(&*store, &key("k"), uid, *generation).await.unwrap());
        finish(&*store, &key("k"), uid, *generation).await.unwrap();
    }
}

pub async fn an_absent_waiter_is_skipped_keeps_its_place_and_is_dropped(bench: &Bench) {
    let store = bench.open().await;
    let (away, _) = join(&*store, &key("k"), &request("away", 1)).await.unwrap();
    bench.pass(TTL).await;
    let (here, generation) = join(&*store, &key("k"), &request("here", 2)).await.unwrap();
    let drop_absent = async || {
        let change = |lock: &mut ServerLock, leases: &Leases, now| {
            lock.drop_absent(leases, now);
            Ok(lock.active.len())
        };
        apply(&*store, &key("k"), change).await
    };
    assert_eq!(drop_absent().await.unwrap(), 2);
    assert!(try_admit(&*store, &key("k"), &here, generation).await.unwrap());
    // The waiter reconnects within `HOLD_PLACE` and remains first in the queue.
    bench.pass(HOLD_PLACE - Duration::from_secs(1)).await;
    assert_eq!(drop_absent().await.unwrap(), 2);
    let (again, _) = join(&*store, &key("k"), &request("away", 3)).await.unwrap();
    assert_eq!(again, away);
    let ticket = |view: &terraform_provider_metal::store::LockView, uid| view.lock.get(uid).unwrap().ticket_number;
    let view = store.view(&key("k")).await.unwrap();
    assert!(ticket(&view, &away) < ticket(&view, &here));
    // The waiter stays disconnected, so it loses its queue position and its name is free.
    store.resign(&runner(3).id).await.unwrap();
    bench.pass(HOLD_PLACE).await;
    assert_eq!(drop_absent().await.unwrap(), 1);
    assert_eq!(store.find(&id("away")).await.unwrap(), None);
    let last = store.audit(&id("away"), 1).await.unwrap().remove(0);
    assert_eq!(last.what, "dropped");
}

pub async fn a_place_is_kept_from_the_end_of_its_process_on_however_long_it_waited(bench: &Bench) {
    let store = bench.open().await;
    let (uid, _) = join(&*store, &key("k"), &request("a", 1)).await.unwrap();
    // A connected waiter keeps its position for longer than `HOLD_PLACE`.
    for _ in 0..(HOLD_PLACE.as_secs() / TTL.as_secs() * 4) {
        bench.pass(TTL / 2).await;
        store.renew(&runner(1), TTL).await.unwrap();
    }
    bench.pass(TTL).await;
    let left = async |store: &dyn Store| {
        let change = |lock: &mut ServerLock, leases: &Leases, now| {
            lock.drop_absent(leases, now);
            Ok(lock.get(&uid).is_some())
        };
        apply(store, &key("k"), change).await.unwrap()
    };
    // The first observer of the disconnect starts the timer for all later observers.
    assert!(left(&*store).await);
    bench.pass(HOLD_PLACE - Duration::from_secs(1)).await;
    assert!(left(&*bench.open().await).await, "the queue position expired too early");
    bench.pass(Duration::from_secs(2)).await;
    assert!(!left(&*store).await);
}

pub async fn a_place_kept_on_purpose_outlives_its_process(bench: &Bench) {
    let store = bench.open().await;
    let (uid, _) = join(&*store, &key("k"), &EnqueueRequest { keeps_place: true, ..request("a", 1) }).await.unwrap();
    bench.pass(HOLD_PLACE * 100).await;
    apply(&*store, &key("k"), |lock, leases, now| {
        lock.drop_absent(leases, now);
        Ok(())
    })
    .await
    .unwrap();
    assert!(matches!(store.find_uid(&uid).await.unwrap(), Some(RecordLookup::Active(_))));
}

pub async fn who_was_replaced_is_refused(bench: &Bench) {
    let (one, two) = (bench.open().await, bench.open().await);
    let (uid, old) = hold(&*one, &key("k"), &request("a", 1)).await;
    bench.pass(TTL).await;
    let (_, new) = join(&*two, &key("k"), &request("a", 2)).await.unwrap();
    let fenced = StoreError::Refused(Refusal::Fenced { ours: old.generation, current: new.generation });
    let update = apply(&*one, &key("k"), |lock, _, _| lock.update(&uid, old, |record| record.booted = true)).await;
    assert_eq!(update.unwrap_err(), fenced);
    assert_eq!(finish(&*one, &key("k"), &uid, old).await.unwrap_err(), fenced);
    let detach = apply(&*one, &key("k"), |lock, _, now| lock.detach(&uid, old, now)).await;
    assert_eq!(detach.unwrap_err(), fenced);
    // This applies even after the process renews its lease.
    one.renew(&runner(1), TTL).await.unwrap();
    let view = one.view(&key("k")).await.unwrap();
    assert!(!view.lock.may_act(&uid, old, &view.leases, view.now));
    assert!(view.lock.may_act(&uid, new, &view.leases, view.now));
    assert!(!view.lock.active[0].booted);
}

pub async fn the_end_of_a_hold_frees_the_slot_and_ends_what_acted_under_it(bench: &Bench) {
    let store = bench.open().await;
    let (parent, generation) = hold(&*store, &key("k"), &request("hold", 1)).await;
    let boot = Spec { kind: MaintenanceKind::BootConfiguration, parent: Some(parent.clone()), ..spec() };
    let (child, _) = join(&*store, &key("k"), &EnqueueRequest { spec: boot, ..request("boot", 2) }).await.unwrap();
    let (next, theirs) = join(&*store, &key("k"), &request("next", 3)).await.unwrap();
    assert!(!try_admit(&*store, &key("k"), &next, theirs).await.unwrap());
    finish(&*store, &key("k"), &parent, generation).await.unwrap();
    let Some(RecordLookup::Past(ended)) = store.find_uid(&child).await.unwrap() else { panic!("still active") };
    assert!(matches!(ended.phase, Phase::Completed { ending: Ending::CompletedBy(_), .. }));
    assert!(store.view(&key("k")).await.unwrap().lock.slot.is_none());
    assert!(try_admit(&*store, &key("k"), &next, theirs).await.unwrap());
}

pub async fn a_withdrawn_request_leaves_no_record(bench: &Bench) {
    let store = bench.open().await;
    let (uid, generation) = join(&*store, &key("k"), &request("a", 1)).await.unwrap();
    apply(&*store, &key("k"), |lock, _, now| lock.withdraw(&uid, generation, now)).await.unwrap();
    assert_eq!(store.find(&id("a")).await.unwrap(), None);
    assert_eq!(store.find_uid(&uid).await.unwrap(), None);
    assert!(bench.open().await.view_all().await.unwrap().is_empty());
    join(&*store, &key("other"), &request("a", 1)).await.unwrap();
}

pub async fn a_name_finds_the_active_record_else_the_last_one(bench: &Bench) {
    let store = bench.open().await;
    let mut last = None;
    for n in 1..=3 {
        // Alternate between two keys: a name's history spans servers.
        let (uid, generation) = hold(&*store, &key(&format!("k{}", n % 2)), &request("a", n)).await;
        let found = store.find(&id("a")).await.unwrap();
        assert_eq!(found.as_ref().map(|found| &found.record().uid), Some(&uid));
        assert!(matches!(found, Some(RecordLookup::Active(_))));
        finish(&*store, &key(&format!("k{}", n % 2)), &uid, generation).await.unwrap();
        last = Some(uid);
    }
    let Some(RecordLookup::Past(record)) = store.find(&id("a")).await.unwrap() else { panic!("not in the history") };
    assert_eq!(Some(record.uid), last);
    assert!(record.attachment.is_none() && record.phase.is_over());
}

pub async fn an_incarnation_is_found_active_and_ended(bench: &Bench) {
    let (one, two) = (bench.open().await, bench.open().await);
    let (first, generation) = hold(&*one, &key("k"), &request("a", 1)).await;
    assert!(matches!(two.find_uid(&first).await.unwrap(), Some(RecordLookup::Active(_))));
    finish(&*one, &key("k"), &first, generation).await.unwrap();
    let (second, _) = hold(&*one, &key("k"), &request("a", 1)).await;
    assert!(matches!(two.find_uid(&first).await.unwrap(), Some(RecordLookup::Past(record)) if record.uid == first));
    assert!(matches!(two.find_uid(&second).await.unwrap(), Some(RecordLookup::Active(record)) if record.uid == second));
}

pub async fn the_whole_queue_is_one_sorted_read(bench: &Bench) {
    let store = bench.open().await;
    for (n, name) in ["m", "z", "a"].into_iter().enumerate() {
        let n = u32::try_from(n).unwrap();
        hold(&*store, &key(name), &request(&format!("{name}-holds"), n)).await;
        join(&*store, &key(name), &request(&format!("{name}-waits"), 10 + n)).await.unwrap();
    }
    let (uid, generation) = hold(&*store, &key("over"), &request("over", 9)).await;
    finish(&*store, &key("over"), &uid, generation).await.unwrap();
    let all = bench.open().await.view_all().await.unwrap();
    let keys: Vec<_> = all.iter().map(|view| view.lock.key.raw()).collect();
    assert_eq!(keys, ["a", "m", "z"]);
    for view in all {
        assert_eq!(view.leases.0.len(), 2, "each view contains only its own leases");
        assert_eq!(store.view(&view.lock.key).await.unwrap(), view);
    }
}

pub async fn a_server_stays_bound_to_its_first_key(bench: &Bench) {
    let (one, two) = (bench.open().await, bench.open().await);
    let name = "redfish:node'1 \u{1F5A5}";
    one.bind(name, &key("k1"), false).await.unwrap();
    two.bind(name, &key("k1"), false).await.unwrap();
    let refused = two.bind(name, &key("k2"), false).await.unwrap_err();
    let expected = StoreError::OtherIdentity { server: name.into(), bound: key("k1"), found: key("k2") };
    assert_eq!(refused, expected);
    assert_eq!(one.binding(name).await.unwrap(), Some(key("k1")));
    let names = ["nobody", name, "no\0body"].map(str::to_owned);
    assert_eq!(two.bindings(&names).await.unwrap(), [None, Some(key("k1")), None]);
    assert_eq!(two.bindings(&[]).await.unwrap(), []);
    two.bind(name, &key("k2"), true).await.unwrap();
    assert_eq!(one.binding(name).await.unwrap(), Some(key("k2")));
    one.bind("node-2", &key("k2"), false).await.unwrap();

    let racers = (0..8).map(|n| {
        let store = if n % 2 == 0 { one.clone() } else { two.clone() };
        tokio::spawn(async move { store.bind("contended", &key(&format!("k{n}")), false).await.is_ok() })
    });
    let won = futures_util::future::join_all(racers).await.into_iter().filter(|won| *won.as_ref().unwrap()).count();
    assert_eq!(won, 1);
}

pub async fn identifiers_lead_to_one_lock_and_move_with_it(bench: &Bench) {
    let (one, two) = (bench.open().await, bench.open().await);
    let serial = Alias::serial("Dell Inc.", "A%4/2", Some("/redfish/v1/Systems/a")).unwrap();
    one.bind(&serial.stored(), &key("k1"), false).await.unwrap();
    let refused = two.bind(&serial.stored(), &key("k2"), false).await.unwrap_err();
    assert!(matches!(refused, StoreError::OtherIdentity { bound, .. } if bound == key("k1")));
    let claims = [AliasClaim { alias: serial.clone(), version: 0 }];
    let (to, by) = (key("k2"), "ada");
    let rebind = Rebind { to: Some(&to), by, reason: "new mainboard" };
    // A move is refused while a record is active, and its whole transaction with it.
    let (uid, generation) = hold(&*one, &key("k1"), &request("a", 1)).await;
    let refused = two.transact(&key("k1"), &mut |lock, _, now| lock.give_up(&claims, &rebind, now)).await.unwrap_err();
    assert!(matches!(refused, StoreError::Refused(Refusal::LockInUse { .. })), "{refused}");
    finish(&*one, &key("k1"), &uid, generation).await.unwrap();
    let known = one.view(&key("k1")).await.unwrap().lock;
    assert_eq!(known.keeps(&claims), Ok(()));
    two.transact(&key("k1"), &mut |lock, _, now| lock.give_up(&claims, &rebind, now)).await.unwrap();
    // A process with the old binding is refused inside its own transaction.
    let refused = one.transact(&key("k1"), &mut |lock, _, _| lock.keeps(&claims)).await.unwrap_err();
    assert!(matches!(refused, StoreError::Refused(Refusal::AliasMoved { .. })), "{refused}");
    let lock = bench.open().await.view(&key("k1")).await.unwrap().lock;
    assert_eq!(lock.moved_on(&serial, 0), Some(AliasTarget::At { key: to.clone(), version: 1 }));
    let lines = one.audit(&audit_id(&key("k1")).unwrap(), 10).await.unwrap();
    assert_eq!(lines.iter().map(|line| line.what.raw()).collect::<Vec<_>>(), ["rebound"]);
    assert!(lines[0].detail.raw().ends_with("new mainboard"), "{}", lines[0].detail);
    // Export and import keep the binding.
    let contents = one.contents().await.unwrap();
    assert_eq!(contents.violations(), Vec::<String>::new());
    assert!(contents.bindings.contains(&(serial.stored(), key("k1"))));
    assert_eq!(contents.locks.iter().find(|lock| lock.key == key("k1")).unwrap().extension.moved.len(), 1);
}

pub async fn leases_end_on_the_clock_of_the_store(bench: &Bench) {
    let (one, two) = (bench.open().await, bench.open().await);
    let (uid, generation) = hold(&*one, &key("k"), &request("a", 1)).await;
    let acts = async || {
        let view = two.view(&key("k")).await.unwrap();
        view.lock.may_act(&uid, generation, &view.leases, view.now)
    };
    assert!(acts().await);
    bench.pass(TTL - Duration::from_secs(1)).await;
    assert!(acts().await);
    one.renew(&runner(1), TTL).await.unwrap();
    bench.pass(TTL - Duration::from_secs(1)).await;
    assert!(acts().await);
    bench.pass(Duration::from_secs(1)).await;
    assert!(!acts().await);
    // Resigning records when the process disconnected.
    let until = two.view(&key("k")).await.unwrap().leases.0[&runner(1).id];
    assert_eq!(until, bench.now());
    bench.pass(TTL).await;
    one.resign(&runner(1).id).await.unwrap();
    assert_eq!(two.view(&key("k")).await.unwrap().leases.0[&runner(1).id], until, "it ended before");
    one.renew(&runner(1), TTL).await.unwrap();
    assert!(acts().await);
    one.resign(&runner(1).id).await.unwrap();
    assert!(!acts().await);
    // A disconnect does not release the server.
    assert!(two.view(&key("k")).await.unwrap().lock.slot.is_some());
    one.resign(&runner(99).id).await.unwrap();
}

pub async fn the_audit_is_in_order_and_limited_to_the_newest(bench: &Bench) {
    let store = bench.open().await;
    let (uid, generation) = hold(&*store, &key("k"), &request("a", 1)).await;
    bench.pass(TTL).await;
    join(&*store, &key("k"), &request("b", 2)).await.unwrap();
    finish(&*store, &key("k"), &uid, generation).await.unwrap();
    let words = |events: Vec<terraform_provider_metal::maintenance::lock::AuditEvent>| -> Vec<String> {
        events.into_iter().map(|event| event.what.to_string()).collect()
    };
    let all = bench.open().await.audit(&id("a"), 100).await.unwrap();
    assert_eq!((all[0].uid.clone(), all[2].at, all[2].generation), (uid, bench.now(), generation.generation));
    assert_eq!(words(all), ["enqueued", "admitted", "released"]);
    assert_eq!(words(store.audit(&id("a"), 2).await.unwrap()), ["admitted", "released"]);
    assert_eq!(words(store.audit(&id("a"), 0).await.unwrap()), [""; 0]);
    assert_eq!(words(store.audit(&id("b"), usize::MAX).await.unwrap()), ["enqueued"]);
}

/// Exports the lines after `start`, once `count` of them are visible in log order.
async fn exported(store: &dyn Store, start: &AuditStart, count: usize) -> Vec<AuditLine> {
    soon("the export of all lines", async {
        loop {
            let (mut lines, mut start) = (Vec::new(), start.clone());
            loop {
                let more = store.export_audit(&start, 3).await.unwrap();
                let Some(last) = more.last() else { break };
                start = AuditStart::After(last.position.clone());
                lines.extend(more);
            }
            if lines.len() >= count {
                return lines;
            }
        }
    })
    .await
}

pub async fn each_line_of_the_audit_is_exported_once_under_a_stable_id(bench: &Bench) {
    const DAY: Duration = Duration::from_secs(86_400);
    let (one, two) = (bench.open().await, bench.open().await);
    assert_eq!(one.export_audit(&AuditStart::Oldest, 10).await.unwrap(), []);
    let (claim, given) = (crate::talk::claim("c"), crate::talk::approval(Scope::All));
    apply(&*one, &key("k"), |lock, _, now| lock.claim(claim.clone(), now)).await.unwrap();
    // An approval on its own, between concurrent changes by two processes and to other locks.
    crate::talk::approve(&*two, &key("k"), &given).await.unwrap();
    let (uid, generation) = hold(&*one, &key("k"), &request("a", 1)).await;
    let others = (2..8).map(|n| {
        let store = if n % 2 == 0 { Arc::clone(&one) } else { Arc::clone(&two) };
        async move { hold(&*store, &key(&format!("other-{}", n % 3)), &request(&format!("m{n}"), n)).await }
    });
    drop(futures_util::future::join_all(others.take(3)).await);
    apply(&*two, &key("k"), |lock, _, now| lock.withdraw_approval_for(&given.uid, "team", "ada", now)).await.unwrap();
    finish(&*two, &key("k"), &uid, generation).await.unwrap();
    let stored = one.contents().await.unwrap().audit;
    let first = exported(&*two, &AuditStart::Oldest, stored.len()).await;
    let ids: std::collections::BTreeSet<_> = first.iter().map(|line| line.id.clone()).collect();
    assert!(ids.len() == first.len() && first.len() == stored.len() && first.len() > 8, "{first:#?}");
    assert!(first.iter().all(|line| stored.contains(line.event.as_ref().unwrap())), "{first:#?}");
    // The export can continue after any line, in another process and after more changes.
    bench.pass(DAY).await;
    let (uid, generation) = hold(&*bench.open().await, &key("k"), &request("b", 9)).await;
    finish(&*one, &key("k"), &uid, generation).await.unwrap();
    let all = exported(&*bench.open().await, &AuditStart::Oldest, stored.len() + 3).await;
    assert_eq!((all.len(), &all[..first.len()]), (first.len() + 3, &first[..]));
    for (at, line) in all.iter().enumerate() {
        let start = AuditStart::AfterId(line.id.clone());
        assert_eq!(exported(&*two, &start, 0).await, all[at + 1..], "after {}", line.id);
    }
    let young = exported(&*two, &AuditStart::Age(DAY / 2), 3).await;
    assert_eq!(young, all[first.len()..]);
    // A pruned line is not a valid start, because later lines can be missing too.
    while one.prune(DAY / 2, 3).await.unwrap() > 0 {}
    assert_eq!(exported(&*two, &AuditStart::Oldest, 3).await, young);
    for id in [first[0].id.as_str(), "forged", ""] {
        let error = two.export_audit(&AuditStart::AfterId(id.to_owned()), 10).await.unwrap_err();
        assert!(matches!(&error, StoreError::NoSuchLine { .. }), "{id}: {error}");
    }
    assert_eq!(bench.open().await.contents().await.unwrap().violations(), [""; 0]);
}

pub async fn changes_of_another_handle_wake_and_heartbeats_do_not(bench: &Bench) {
    let (one, two) = (bench.open().await, bench.open().await);
    let (uid, generation) = hold(&*two, &key("k"), &request("a", 1)).await;
    let mut changes = one.changes(&key("k"));
    let mut fence = one.changes(&key("fence"));
    // An older change can arrive together with the first. After that the watch is current.
    join(&*two, &key("k"), &request("b", 2)).await.unwrap();
    soon("the change", changes.changed()).await.unwrap();
    // A poll reads keys in any order, so the third change shows that a poll ended in between.
    for name in ["c", "c2", "c3"] {
        join(&*two, &key("fence"), &request(name, 3)).await.unwrap();
        soon("the fence", fence.changed()).await.unwrap();
    }
    changes.mark_unchanged();

    for _ in 0..3 {
        two.renew(&runner(1), TTL).await.unwrap();
        two.renew(&runner(4), TTL).await.unwrap();
    }
    two.bind("node-1", &key("k"), false).await.unwrap();
    apply(&*two, &key("k"), |_, _, _| Ok(())).await.unwrap();
    let update = apply(&*two, &key("k"), |lock, _, _| {
        lock.update(&uid, Fence { generation: generation.generation + 9, ..generation }, |_| ())
    })
    .await;
    update.unwrap_err();
    // Changes arrive in order: after the fence's change, all earlier changes have arrived.
    join(&*two, &key("fence"), &request("d", 5)).await.unwrap();
    soon("the fence", fence.changed()).await.unwrap();
    assert!(!changes.has_changed().unwrap(), "nothing changed this key");

    finish(&*two, &key("k"), &uid, generation).await.unwrap();
    soon("the change", changes.changed()).await.unwrap();
    assert!(one.view(&key("k")).await.unwrap().lock.get(&uid).is_none());
}

pub async fn a_change_right_after_watching_began_is_not_lost(bench: &Bench) {
    let (one, two) = (bench.open().await, bench.open().await);
    for n in 0..10 {
        // The previous watch was dropped, so each round starts a new one.
        let mut changes = one.changes(&key("k"));
        join(&*two, &key("k"), &request(&format!("m{n}"), n)).await.unwrap();
        soon("the change", changes.changed()).await.unwrap();
    }
}

pub async fn hundreds_of_watchers_wake_and_see_the_change(bench: &Bench) {
    let (one, two) = (bench.open().await, bench.open().await);
    let (uid, generation) = hold(&*two, &key("k"), &request("a", 1)).await;
    let watchers: Vec<_> = (0..500)
        .map(|_| {
            let (store, uid, mut changes) = (one.clone(), uid.clone(), one.changes(&key("k")));
            tokio::spawn(async move {
                while store.view(&key("k")).await.unwrap().lock.get(&uid).is_some() {
                    changes.changed().await.unwrap();
                }
            })
        })
        .collect();
    finish(&*two, &key("k"), &uid, generation).await.unwrap();
    for watcher in watchers {
        soon("the watcher's end", watcher).await.unwrap();
    }
}

pub async fn a_refused_transition_changes_nothing(bench: &Bench) {
    let store = bench.open().await;
    let (uid, generation) = hold(&*store, &key("k"), &request("a", 1)).await;
    let before = (store.view(&key("k")).await.unwrap(), store.audit(&id("a"), 99).await.unwrap());
    let mut changes = store.changes(&key("k"));
    changes.mark_unchanged();
    let refused = apply(&*store, &key("k"), |lock, leases, now| {
        lock.detach(&uid, generation, now)?;
        lock.enqueue(request("b", 2), leases, now)?;
        lock.generation += 100;
        lock.withdraw(&uid, generation, now)
    })
    .await
    .unwrap_err();
    assert!(matches!(refused, StoreError::Refused(Refusal::Fenced { .. })), "{refused}");
    let after = (bench.open().await.view(&key("k")).await.unwrap(), store.audit(&id("a"), 99).await.unwrap());
    assert_eq!(after, before);
    assert_eq!(store.view(&key("k")).await.unwrap(), before.0);
    assert_eq!(store.find(&id("b")).await.unwrap(), None);
    // The hold still works after the refused calls.
    finish(&*store, &key("k"), &uid, generation).await.unwrap();
}

pub async fn concurrent_transactions_never_admit_two(bench: &Bench) {
    const SERVERS: u32 = 3;
    const PEOPLE: u32 = 36;
    let inside: Arc<Vec<AtomicU32>> = Arc::new((0..SERVERS).map(|_| AtomicU32::new(0)).collect());
    let mut handles = Vec::new();
    for _ in 0..4 {
        handles.push(bench.open().await);
    }
    let people = (0..PEOPLE).map(|n| {
        let (store, inside) = (handles[n as usize % handles.len()].clone(), inside.clone());
        tokio::spawn(async move {
            let server = n % SERVERS;
            let key = key(&format!("k{server}"));
            let mut changes = store.changes(&key);
            let (uid, generation) = join(&*store, &key, &request(&format!("m{n}"), n)).await.unwrap();
            loop {
                changes.mark_unchanged();
                let view = store.view(&key).await.unwrap();
                let mine = turn(&view.lock, &view.leases, &uid, AGING, view.now) == Turn::Yours;
                if mine && try_admit(&*store, &key, &uid, generation).await.unwrap() {
                    break;
                }
                changes.changed().await.unwrap();
            }
            let ticket = store.view(&key).await.unwrap().lock.get(&uid).unwrap().ticket_number;
            let others = inside[server as usize].fetch_add(1, Ordering::SeqCst);
            assert_eq!(others, 0, "{key} has two holders");
            tokio::task::yield_now().await;
            inside[server as usize].fetch_sub(1, Ordering::SeqCst);
            finish(&*store, &key, &uid, generation).await.unwrap();
            (server, ticket, generation)
        })
    });
    let mut tickets = Vec::new();
    for person in people.collect::<Vec<_>>() {
        tickets.push(soon("a place for each waiter", person).await.unwrap());
    }
    tickets.sort_unstable();
    let expected: Vec<(u32, u64)> =
        (0..SERVERS).flat_map(|server| (1..=u64::from(PEOPLE / SERVERS)).map(move |ticket| (server, ticket))).collect();
    assert_eq!(tickets.iter().map(|(server, ticket, _)| (*server, *ticket)).collect::<Vec<_>>(), expected);
    for server in 0..SERVERS {
        let view = handles[0].view(&key(&format!("k{server}"))).await.unwrap();
        assert_eq!(view.lock.generation, u64::from(PEOPLE / SERVERS));
        assert!(view.lock.slot.is_none() && view.lock.active.is_empty());
    }
}

/// Sends more requests than fit into one commit through two handles. Most join the queue, some use
/// a taken name, and some are refused after they changed the lock.
pub async fn those_who_come_together_are_each_applied_once_or_refused(bench: &Bench) {
    const ASKING: u32 = 90;
    let handles = [bench.open().await, bench.open().await];
    for n in 0..ASKING / 15 {
        join(&*handles[0], &key("elsewhere"), &request(&format!("m{}", n * 15 + 3), 200 + n)).await.unwrap();
    }
    for n in 0..ASKING {
        handles[0].renew(&runner(n), TTL).await.unwrap();
    }
    let asking = (0..ASKING).map(|n| {
        let store = handles[(n % 2) as usize].clone();
        tokio::spawn(async move {
            let wish = request(&format!("m{n}"), n);
            let k = key("k");
            let asked = apply(&*store, &k, |lock, leases, now| {
                let uid = lock.enqueue(wish.clone(), leases, now)?.uid().clone();
                let fence = lock.attach(&uid, wish.runner.clone(), crate::records::token(), leases, now)?;
                if n % 7 == 0 { Err(Refusal::WrongPhase("this test")) } else { Ok(fence.generation) }
            });
            (wish.uid.clone(), asked.await)
        })
    });
    let asking: Vec<_> = asking.collect();
    let (mut joined, mut generations) = (0, Vec::new());
    for (n, asked) in (0..ASKING).zip(asking) {
        let (uid, asked) = soon("a transition's result", asked).await.unwrap();
        let name = id(&format!("m{n}"));
        let lines = || async { handles[0].audit(&name, 9).await.unwrap() };
        let view = handles[(n % 2) as usize].view(&key("k")).await.unwrap();
        match asked {
            Ok(generation) => {
                assert!(n % 7 != 0 && n % 15 != 3, "{n}");
                assert_eq!(view.lock.get(&uid).unwrap().generation, generation, "{n}");
                assert_eq!(lines().await.len(), 1, "{n} is in the audit once");
                generations.push(generation);
                joined += 1;
            }
            Err(StoreError::Refused(Refusal::WrongPhase(_))) => assert!(n % 7 == 0 && view.lock.get(&uid).is_none()),
            Err(taken) => {
                assert_eq!(taken, StoreError::NameTaken { id: name.clone(), key: key("elsewhere") }, "{n}");
                assert!(n % 15 == 3 && view.lock.get(&uid).is_none(), "{n}");
            }
        }
    }
    generations.sort_unstable();
    assert_eq!(generations, (1..=joined).collect::<Vec<_>>());
    let third = bench.open().await.view(&key("k")).await.unwrap();
    let mut tickets: Vec<_> = third.lock.active.iter().map(|record| record.ticket_number).collect();
    tickets.sort_unstable();
    assert_eq!((tickets, third.lock.generation), ((1..=joined).collect(), joined));
    assert_eq!(bench.open().await.contents().await.unwrap().violations(), [""; 0]);
}

/// A store can batch changes to different locks into one request; each change has its own result.
pub async fn those_of_different_locks_have_nothing_to_do_with_each_other(bench: &Bench) {
    const LOCKS: u32 = 40;
    let store = bench.open().await;
    join(&*store, &key("elsewhere"), &request("taken", 200)).await.unwrap();
    store.renew(&runner(1), TTL).await.unwrap();
    for round in 0..3 {
        // 20% of the names are taken; 40% are each requested twice at the same time.
        let name = |n: u32| match n % 5 {
            0 => "taken".to_owned(),
            1 | 2 => format!("pair-{round}-{}", n / 5),
            _ => format!("own-{round}-{n}"),
        };
        let refuses = |n: u32| n % 10 == 3;
        let asking: Vec<_> = (0..LOCKS)
            .map(|n| {
                let (store, wish, k) = (store.clone(), request(&name(n), 1), key(&format!("k{n}")));
                tokio::spawn(async move {
                    let asked = apply(&*store, &k, |lock, leases, now| {
                        lock.enqueue(wish.clone(), leases, now)?;
                        if refuses(n) { Err(Refusal::WrongPhase("this test")) } else { Ok(()) }
                    });
                    (wish.uid.clone(), asked.await)
                })
            })
            .collect();
        let mut pairs: Vec<(u32, LockKey)> = Vec::new();
        for (n, asked) in (0..LOCKS).zip(asking) {
            let (uid, asked) = soon("a transition's result", asked).await.unwrap();
            let k = key(&format!("k{n}"));
            let kept = store.view(&k).await.unwrap().lock.get(&uid).is_some();
            match asked {
                Ok(()) => {
                    assert!(kept && n % 5 != 0 && !refuses(n), "{n}");
                    if matches!(n % 5, 1 | 2) {
                        pairs.push((n / 5, k));
                    }
                }
                Err(StoreError::Refused(Refusal::WrongPhase(_))) => assert!(!kept && refuses(n), "{n}"),
                Err(StoreError::NameTaken { id: taken, key: by }) => {
                    assert!(!kept && matches!(n % 5, 0..=2), "{n}");
                    assert_eq!(taken, id(&name(n)));
                    let Some(RecordLookup::Active(holder)) = store.find(&taken).await.unwrap() else {
                        panic!("{n}: free")
                    };
                    assert_eq!(holder.lock_key, by, "{n}");
                }
                Err(error) => panic!("{n}: {error}"),
            }
        }
        let expected: Vec<u32> = (0..LOCKS / 5).collect();
        assert_eq!(
            pairs.iter().map(|(pair, _)| *pair).collect::<Vec<_>>(),
            expected,
            "one winner in each pair: {pairs:?}"
        );
    }
    // The store's cache equals the stored locks.
    let (seen, read) = (store.view_all().await.unwrap(), bench.open().await.view_all().await.unwrap());
    let locks = |views: &[LockView]| views.iter().map(|view| (*view.lock).clone()).collect::<Vec<_>>();
    assert_eq!(locks(&seen), locks(&read));
    assert_eq!(store.contents().await.unwrap().violations(), [""; 0]);
}

/// Aborts tasks in the middle, including the task that writes for all others.
pub async fn the_end_of_a_task_undoes_nothing_of_the_others(bench: &Bench) {
    const ASKING: u32 = 40;
    let store = bench.open().await;
    for n in 0..ASKING {
        store.renew(&runner(n), TTL).await.unwrap();
    }
    for round in 0..5 {
        let k = key(&format!("k{round}"));
        let asking = (0..ASKING).map(|n| {
            let (store, k) = (store.clone(), k.clone());
            tokio::spawn(async move {
                let wish = request(&format!("m{round}-{n}"), n);
                let asked = apply(&*store, &k, |lock, leases, now| lock.enqueue(wish.clone(), leases, now));
                asked.await.map(|_| wish.uid.clone())
            })
        });
        let asking: Vec<_> = asking.collect();
        for n in [0, 1, 2, 7, 8, 20] {
            asking[n].abort();
            tokio::task::yield_now().await;
        }
        for (n, asked) in asking.into_iter().enumerate() {
            match soon("a transition's result", asked).await {
                Ok(asked) => {
                    let uid = asked.unwrap();
                    let found = store.find_uid(&uid).await.unwrap();
                    assert!(matches!(found, Some(RecordLookup::Active(_))), "{round} {n}");
                }
                Err(ended) => assert!(ended.is_cancelled() && [0, 1, 2, 7, 8, 20].contains(&n), "{ended}"),
            }
        }
        let view = bench.open().await.view(&k).await.unwrap();
        let mut tickets: Vec<_> = view.lock.active.iter().map(|record| record.ticket_number).collect();
        tickets.sort_unstable();
        assert_eq!(tickets, (1..=view.lock.last_ticket).collect::<Vec<_>>());
        assert!(tickets.len() >= 34);
    }
    assert_eq!(bench.open().await.contents().await.unwrap().violations(), [""; 0]);
}

pub async fn a_key_may_hold_any_text(bench: &Bench) {
    use proptest::{
        strategy::{Strategy as _, ValueTree as _},
        test_runner::TestRunner,
    };
    let store = bench.open().await;
    let mut chance = TestRunner::deterministic();
    let any = proptest::prelude::any::<String>();
    let mut texts: Vec<String> = (0..40).map(|_| any.new_tree(&mut chance).unwrap().current()).collect();
    texts.extend(
        ["", "'", "\"; --", "a\u{0}b", "a\u{0}c", "%", "A", "a", " a", "ä", "a\u{308}", "\u{10FFFF}"].map(String::from),
    );
    texts.sort();
    texts.dedup();
    for (n, text) in texts.iter().enumerate() {
        let n = u32::try_from(n).unwrap();
        join(&*store, &LockKey::new(text.clone()), &request(&format!("m{n}"), n)).await.unwrap();
    }
    let all = bench.open().await.view_all().await.unwrap();
    let keys: Vec<_> = all.iter().map(|view| view.lock.key.raw().to_owned()).collect();
    assert_eq!(keys, texts);
    for view in all {
        assert_eq!(view.lock.active.len(), 1, "{:?}", view.lock.key);
        assert_eq!(store.view(&view.lock.key).await.unwrap(), view);
    }
}

/// Names that are valid for users but have a special meaning in some store.
const HOSTILE: [&str; 14] = [
    "plain",
    "'; DROP SCHEMA metal CASCADE; --",
    "\"; DELETE FROM locks; --",
    "$1",
    "%00",
    "%2F",
    "../../meta",
    "a/b/../c",
    "\u{0}",
    "\\0",
    "{\"json\":[1]}",
    "line\nbreak \u{1F512}",
    "Robert'); --",
    "\\",
];

/// Random transitions from several users, without regard for their validity.
#[allow(clippy::too_many_lines, reason = "one table of all events is easier to read")]
pub async fn whatever_happens_it_means_the_same_as_in_memory(bench: &Bench) {
    use proptest::prelude::RngExt as _;
    let mut chance = proptest::test_runner::TestRunner::deterministic();
    let handles = [bench.open().await, bench.open().await];
    let memory = MemoryStore::new(bench.clock.clone());
    let mut uids: Vec<(LockKey, Uid)> = Vec::new();
    for step in 0..220u32 {
        let chance = chance.rng();
        let store = &handles[chance.random_range(0..2)];
        let hostile = HOSTILE[chance.random_range(0..HOSTILE.len())];
        let this = LockKey::new(HOSTILE[chance.random_range(0..3)].to_owned());
        let other = uids.get(chance.random_range(0..uids.len().max(1))).cloned();
        let (event, who) = (chance.random_range(0..11), chance.random_range(0..5));
        let uid = Uid::new(format!("{hostile}-{step}"));
        match event {
            0..=2 => {
                let mut wish = EnqueueRequest { uid: uid.clone(), ..request(&format!("m{who}"), who) };
                wish.spec.reason = Some(hostile.into());
                wish.spec.server = hostile.into();
                wish.spec.policy = Policy::OwnerApproval;
                wish.runner.run = Some(hostile.into());
                let both = (join(&**store, &this, &wish).await, join(&memory, &this, &wish).await);
                assert_eq!(both.0, both.1, "{step}");
                if both.0.is_ok() {
                    uids.push((this, uid));
                }
            }
            3 => {
                let claim = Claim {
                    uid: uid.clone(),
                    id: id(&format!("c{who}")),
                    owner: hostile.into(),
                    contact: Some(hostile.into()),
                    server: hostile.into(),
                    since: bench.now(),
                    by: hostile.into(),
                };
                let claim = |lock: &mut ServerLock, _: &Leases, now| lock.claim(claim.clone(), now);
                assert_eq!(apply(&**store, &this, &claim).await, apply(&memory, &this, &claim).await, "{step}");
            }
            4 | 5 => {
                let approve = |lock: &mut ServerLock, _: &Leases, now| {
                    let scope = match lock.active.first().filter(|_| who % 2 == 0) {
                        Some(record) => Scope::Maintenance { id: record.id.clone(), digest: record.digest.clone() },
                        None => Scope::All,
                    };
                    let (not_before, expires, used_by) = (None, None, None);
                    let by = hostile.into();
                    let approval = Approval { uid: uid.clone(), scope, not_before, expires, at: now, by, used_by };
                    let owner = lock.ownership.claim.as_ref().map(|claim| claim.owner.clone()).unwrap_or_default();
                    lock.approve(approval, owner.raw(), now)
                };
                assert_eq!(apply(&**store, &this, approve).await, apply(&memory, &this, approve).await, "{step}");
            }
            6 => {
                let end = |lock: &mut ServerLock, _: &Leases, now| {
                    let claim = lock.ownership.claim.as_ref().map(|claim| claim.uid.clone());
                    let approval = lock.ownership.approvals.first().map(|approval| approval.uid.clone());
                    Ok(match (claim, approval) {
                        (Some(uid), _) if who == 0 => lock.unclaim(&uid, hostile, now),
                        (_, Some(uid)) => lock.withdraw_approval(&uid, hostile, now),
                        _ => false,
                    })
                };
                assert_eq!(apply(&**store, &this, end).await, apply(&memory, &this, end).await, "{step}");
            }
            7 => {
                bench.pass(TTL * who).await;
                let drop_absent = |lock: &mut ServerLock, leases: &Leases, now| {
                    lock.drop_absent(leases, now);
                    Ok(lock.active.len())
                };
                assert_eq!(
                    apply(&**store, &this, drop_absent).await,
                    apply(&memory, &this, drop_absent).await,
                    "{step}"
                );
            }
            _ => {
                let Some((key, uid)) = other else { continue };
                let next = |lock: &mut ServerLock, leases: &Leases, now| {
                    let attachment = lock.get(&uid).and_then(|record| record.attachment.as_ref());
                    let generation = attachment.map_or_else(Fence::default, Attachment::fence);
                    let over = Phase::Failed { at: now, cause: hostile.into() };
                    let holds = lock.get(&uid).is_some_and(|record| record.phase != Phase::Pending);
                    match who {
                        _ if holds => lock.finish(&uid, generation, &over, now),
                        4 => lock.withdraw(&uid, generation, now),
                        _ if turn(lock, leases, &uid, AGING, now) == Turn::Yours => {
                            lock.admit(&uid, generation, Phase::InMaintenance { since: now }, now)
                        }
                        _ => Ok(()),
                    }
                };
                assert_eq!(apply(&**store, &key, next).await, apply(&memory, &key, next).await, "{step}");
            }
        }
        let bound = (store.bind(hostile, &key("b"), who == 1).await, memory.bind(hostile, &key("b"), who == 1).await);
        assert_eq!(bound.0, bound.1);
        assert_eq!(store.binding(hostile).await.unwrap(), Some(key("b")));
        assert_eq!(handles[1].find(&id("m0")).await, memory.find(&id("m0")).await, "{step}");
        assert_eq!(store.find_uid(&Uid::new(hostile)).await, Ok(None));
    }
    let (mut found, mut expected) = (handles[0].contents().await.unwrap(), memory.contents().await.unwrap());
    assert_eq!(found.violations(), [""; 0]);
    assert!(expected.history.len() > 3 && expected.audit.len() > 50, "something happened");
    assert!(expected.locks.iter().any(|lock| !lock.ownership.approvals.is_empty()));
    found.store_id.clone_from(&expected.store_id);
    // A Kubernetes object lists its records in no particular order.
    for lock in &mut found.locks {
        lock.active.sort_by_key(|record| record.ticket_number);
    }
    // In a bucket, changes of two locks at the same instant have no order.
    if bench.open().await.address().starts_with("s3://") {
        for contents in [&mut found, &mut expected] {
            contents.history.sort_by_key(|record| (record.detached_at, record.uid.clone()));
            contents.audit.sort_by_key(|event| (event.at, event.uid.clone()));
        }
    }
    assert_eq!(found, expected);
}

/// Returns the lines that `queue` prints for a lock.
fn states(view: &LockView) -> Vec<(String, &'static str, usize)> {
    let lines = lines(&view.lock, &view.leases, AGING, view.now, &|_| Liveness::Unknown);
    lines.into_iter().map(|line| (line.id.to_string(), line.state, line.position)).collect()
}

pub async fn a_record_that_cannot_be_read_keeps_its_server_and_nothing_else(bench: &Bench) {
    let one = bench.open().await;
    let Some(damage) = bench.damage() else { return assert_eq!(one.address(), "memory://") };
    let (uid, _) = hold(&*one, &key("k"), &request("a", 1)).await;
    join(&*one, &key("k"), &request("waits", 2)).await.unwrap();
    hold(&*one, &key("other"), &request("fine", 3)).await;
    (damage.record)(
        uid.raw(),
        "{\"from\": \"the future\", \"id\": \"ops/a\", \"uid\": \"UID\", \"spec\": {\"server\": \"node-1\"}}",
    )
    .await;
    let two = bench.open().await;
    let views = two.view_all().await.unwrap();
    let shown: Vec<_> = views.iter().flat_map(states).collect();
    let expected = [("ops/waits", "Pending", 1), ("ops/a", "Unreadable", 0), ("ops/fine", "InMaintenance", 0)];
    assert_eq!(shown, expected.map(|(id, state, position)| (id.to_owned(), state, position)));
    // Its name is taken, its server is held, and lookups fail with the reason.
    assert!(join(&*two, &key("k"), &request("a", 4)).await.is_err());
    assert!(matches!(two.find(&id("a")).await, Err(StoreError::Unreadable { .. })));
    assert!(matches!(two.find_uid(&uid).await, Err(StoreError::Unreadable { .. })));
    let (next, generation) = join(&*two, &key("k"), &request("next", 5)).await.unwrap();
    assert!(!try_admit(&*two, &key("k"), &next, generation).await.unwrap());
    // Other changes to the same lock do not touch the unreadable record.
    let again = bench.open().await;
    apply(&*again, &key("k"), |lock, _, now| lock.withdraw(&next, generation, now)).await.unwrap();
    for store in [&one, &two, &again, &bench.open().await] {
        let Ok(view) = store.view(&key("k")).await else { continue };
        assert_eq!(view.lock.active.len() + view.lock.unreadable.len(), 2);
    }
    let fresh = bench.open().await.view(&key("k")).await.unwrap();
    assert!(fresh.lock.unreadable[0].raw.raw().contains("the future"), "{}", fresh.lock.unreadable[0].raw);
    let wrong = two.contents().await.unwrap().violations();
    assert!(wrong.iter().any(|line| line.raw().contains("ops/a of k cannot be read")), "{wrong:?}");
}

pub async fn a_lock_of_another_format_is_refused_and_the_others_go_on(bench: &Bench) {
    let one = bench.open().await;
    let Some(damage) = bench.damage() else { return assert_eq!(one.address(), "memory://") };
    let (uid, fence) = hold(&*one, &key("k"), &request("a", 1)).await;
    let (fine, its_fence) = hold(&*one, &key("other"), &request("fine", 3)).await;
    (damage.lock)(r#"{"format":9,"weather":"fine"}"#).await;
    for store in [one.clone(), bench.open().await] {
        for error in [
            store.view(&key("k")).await.unwrap_err(),
            join(&*store, &key("k"), &request("b", 2)).await.unwrap_err(),
            finish(&*store, &key("k"), &uid, fence).await.unwrap_err(),
        ] {
            let said = error.to_string();
            assert!(matches!(error, StoreError::Unreadable { .. }), "{said}");
            assert!(
                said.contains("format 9") && said.contains("use the version that wrote it") && said.contains('k'),
                "{said}"
            );
        }
        let shown: Vec<_> = store.view_all().await.unwrap().iter().flat_map(states).collect();
        let expected = [("ops/a", "Unreadable", 0), ("ops/fine", "InMaintenance", 0)];
        assert_eq!(shown, expected.map(|(id, state, position)| (id.to_owned(), state, position)));
        let wrong = store.contents().await.unwrap().violations();
        assert!(wrong.iter().any(|line| line.raw().contains("ops/a of k cannot be read")), "{wrong:?}");
    }
    // Other servers remain usable.
    finish(&*one, &key("other"), &fine, its_fence).await.unwrap();
    hold(&*bench.open().await, &key("third"), &request("more", 4)).await;
}

pub async fn an_open_process_notices_another_format_and_loses_nothing(bench: &Bench) {
    let store = bench.open().await;
    let Some(damage) = bench.damage() else { return assert_eq!(store.address(), "memory://") };
    let (uid, fence) = hold(&*store, &key("k"), &request("a", 1)).await;
    let before = store.view(&key("k")).await.unwrap().lock;
    (damage.schema)(THEIRS).await;
    for error in [
        finish(&*store, &key("k"), &uid, fence).await.unwrap_err(),
        apply(&*store, &key("new"), |lock, leases, now| lock.enqueue(request("b", 2), leases, now)).await.unwrap_err(),
    ] {
        let said = error.to_string();
        assert!(matches!(error, StoreError::Unreadable { .. }), "{said}");
        assert!(said.contains("changed its format to 9999") && said.contains("Nothing was written"), "{said}");
    }
    // After the schema number is restored, everything is readable again.
    (damage.schema)(1).await;
    assert_eq!(bench.open().await.view(&key("k")).await.unwrap().lock, before);
    finish(&*store, &key("k"), &uid, fence).await.unwrap();
}

pub async fn its_contents_may_be_moved_into_an_empty_store(bench: &Bench) {
    let memory = MemoryStore::new(bench.clock.clone());
    let (uid, generation) = hold(&memory, &key("k"), &request("a", 1)).await;
    finish(&memory, &key("k"), &uid, generation).await.unwrap();
    let kept = EnqueueRequest { keeps_place: true, ..request("waits", 2) };
    apply(&memory, &key("k"), |lock, leases, now| lock.enqueue(kept.clone(), leases, now)).await.unwrap();
    memory.bind("team/node-1", &key("k"), false).await.unwrap();
    let contents = memory.contents().await.unwrap();
    assert_eq!(contents.in_use(), [""; 0]);

    let store = bench.open().await;
    store.fill(&contents).await.unwrap();
    let refused = store.fill(&contents).await.unwrap_err();
    assert_eq!(refused, StoreError::InUse { address: store.address().into() });
    let moved = bench.open().await;
    if moved.address() != "memory://" {
        assert_eq!(moved.id(), contents.store_id, "the store id differs from the id in states");
    }
    let found = moved.contents().await.unwrap();
    assert_eq!((&found.locks, &found.history), (&contents.locks, &contents.history));
    assert_eq!((&found.bindings, &found.audit), (&contents.bindings, &contents.audit));
    assert_eq!(found.violations(), [""; 0]);
    let lines = exported(&*moved, &AuditStart::Oldest, contents.audit.len()).await;
    assert_eq!(lines.iter().map(|line| line.event.clone().unwrap()).collect::<Vec<_>>(), contents.audit);
    // Numbering continues: the new store never reuses a generation or a ticket.
    let (_, next) = join(&*moved, &key("k"), &request("b", 3)).await.unwrap();
    assert!(next > generation);
    let view = moved.view(&key("k")).await.unwrap();
    let tickets: Vec<_> = view.lock.active.iter().map(|record| record.ticket_number).collect();
    assert_eq!(tickets, [2, 3]);
    assert!(matches!(moved.find(&id("a")).await.unwrap(), Some(RecordLookup::Past(record)) if record.uid == uid));
    let start = AuditStart::After(lines.last().unwrap().position.clone());
    assert!(!exported(&*moved, &start, 1).await.is_empty());
    // A holder would continue in the old store.
    let (_, _) = hold(&memory, &key("other"), &request("c", 4)).await;
    assert_eq!(memory.contents().await.unwrap().in_use(), ["ops/c (InMaintenance, ada on desk (process 4))"]);
}

pub async fn history_is_forgotten_after_its_time(bench: &Bench) {
    const DAY: Duration = Duration::from_secs(86_400);
    let store = bench.open().await;
    let mut ended = Vec::new();
    for n in 0..6 {
        let (uid, generation) = hold(&*store, &key("k"), &request(&format!("m{n}"), n)).await;
        finish(&*store, &key("k"), &uid, generation).await.unwrap();
        let (gone, generation) = join(&*store, &key("k"), &request("leaves", n)).await.unwrap();
        apply(&*store, &key("k"), |lock, _, now| lock.withdraw(&gone, generation, now)).await.unwrap();
        ended.push(uid);
        bench.pass(DAY).await;
    }
    let (held, _) = hold(&*store, &key("k"), &request("held", 9)).await;
    let before = store.view(&key("k")).await.unwrap();
    assert_eq!(store.prune(DAY * 30, 100).await.unwrap(), 0);
    // Prunes in small batches until the history is empty.
    let mut batches = 0;
    while store.prune(DAY * 3, 2).await.unwrap() > 0 {
        batches += 1;
    }
    assert!(batches > 1, "{batches}");
    for (n, uid) in ended.iter().enumerate() {
        let found = store.find_uid(uid).await.unwrap();
        assert_eq!(found.is_some(), n >= 3, "the record of day {n}");
        let name = id(&format!("m{n}"));
        assert_eq!(store.find(&name).await.unwrap().is_some(), n >= 3);
        assert_eq!(store.audit(&name, 9).await.unwrap().len(), if n >= 3 { 3 } else { 0 });
    }
    assert!(matches!(store.find_uid(&held).await.unwrap(), Some(RecordLookup::Active(_))));
    assert_eq!(store.view(&key("k")).await.unwrap().lock, before.lock);
    assert_eq!(bench.open().await.contents().await.unwrap().violations(), [""; 0]);
}

/// Ends one hold and begins another in two commits, as process `n`.
async fn another_hold(store: &dyn Store, ended: (&Uid, Fence), n: u32) -> (Uid, Fence) {
    finish(store, &key("k"), ended.0, ended.1).await.unwrap();
    hold(store, &key("k"), &request(&format!("of-{n}"), n)).await
}

/// Returns a handle whose cache is newer than the restored store, and the hold in the backup.
async fn restored(bench: &Bench) -> (Arc<dyn Store>, (Uid, Fence)) {
    let one = bench.open().await;
    let kept = hold(&*one, &key("k"), &request("a", 1)).await;
    bench.save().await;
    another_hold(&*one, (&kept.0, kept.1), 2).await;
    one.view(&key("k")).await.unwrap();
    bench.go_back().await;
    (one, kept)
}

#[allow(clippy::needless_pass_by_value, reason = "each result is checked once")]
fn is_noticed<T: std::fmt::Debug>(result: Result<T, StoreError>) {
    assert!(matches!(result, Err(StoreError::WentBack { .. })), "{result:?}");
}

pub async fn a_lock_that_is_behind_what_was_read_is_not_acted_on(bench: &Bench) {
    let (one, kept) = restored(bench).await;
    is_noticed(one.view(&key("k")).await);
    // Every access fails while the generation is below one already issued.
    is_noticed(one.view(&key("k")).await);
    is_noticed(join(&*one, &key("k"), &request("b", 3)).await);
    is_noticed(apply(&*one, &key("k"), |lock, _, _| lock.update(&kept.0, kept.1, |record| record.booted = true)).await);
    let fresh = bench.open().await;
    let lock = fresh.view(&key("k")).await.unwrap().lock;
    assert_eq!((lock.generation, lock.active.len(), lock.active[0].booted), (kept.1.generation, 1, false));
    // An administrator raises the generation above all issued values, and access works again.
    apply(&*fresh, &key("k"), |lock, _, _| {
        lock.generation += 1000;
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(one.view(&key("k")).await.unwrap().lock, fresh.view(&key("k")).await.unwrap().lock);
}

pub async fn a_lock_that_has_as_many_commits_as_were_lost_is_another_one(bench: &Bench) {
    let (one, kept) = restored(bench).await;
    let two = bench.open().await;
    let (other, generation) = another_hold(&*two, (&kept.0, kept.1), 3).await;
    // The commit count and generation match, but the holder differs. The cached lock must not be
    // committed.
    is_noticed(apply(&*one, &key("k"), |lock, _, now| lock.claim(claim_of(lock, now), now)).await);
    let fresh = bench.open().await.view(&key("k")).await.unwrap().lock;
    assert_eq!((fresh.generation, fresh.active.len()), (generation.generation, 1));
    assert_eq!((&fresh.active[0].uid, &fresh.slot.as_ref().unwrap().uid), (&other, &other));
    assert!(fresh.ownership.claim.is_none());
    // The error appears a single time, because the cache is now current.
    assert_eq!(one.view(&key("k")).await.unwrap().lock, fresh);
    assert_eq!(bench.open().await.contents().await.unwrap().violations(), [""; 0]);
}

pub async fn a_lock_that_has_more_commits_than_were_lost_is_not_mixed_with_them(bench: &Bench) {
    let (one, kept) = restored(bench).await;
    let two = bench.open().await;
    let (other, generation) = another_hold(&*two, (&kept.0, kept.1), 3).await;
    join(&*two, &key("k"), &request("waits", 4)).await.unwrap();
    apply(&*two, &key("k"), |lock, _, _| lock.update(&other, generation, |record| record.booted = true)).await.unwrap();
    is_noticed(one.view(&key("k")).await);
    let fresh = bench.open().await.view(&key("k")).await.unwrap().lock;
    assert_eq!(one.view(&key("k")).await.unwrap().lock, fresh);
    assert_eq!(fresh.active.len(), 2);
}

pub async fn a_lock_that_was_lost_whole_is_noticed(bench: &Bench) {
    let one = bench.open().await;
    bench.save().await;
    let (uid, generation) = hold(&*one, &key("k"), &request("a", 1)).await;
    bench.go_back().await;
    is_noticed(
        apply(&*one, &key("k"), |lock, _, _| lock.update(&uid, generation, |record| record.booted = true)).await,
    );
    assert_eq!(bench.open().await.contents().await.unwrap().locks.len(), 0);
}

fn claim_of(lock: &ServerLock, since: Timestamp) -> Claim {
    Claim {
        uid: Uid::new("claim"),
        id: id("claim"),
        owner: "tenants".into(),
        contact: None,
        server: lock.key.raw().into(),
        since,
        by: "ada".into(),
    }
}

pub async fn one_process_at_a_time_may_sweep(bench: &Bench) {
    const LENGTH: Duration = Duration::from_mins(10);
    let handles = [bench.open().await, bench.open().await];
    let (uid, _) = hold(&*handles[0], &key("k"), &request("a", 1)).await;
    let before = handles[0].view(&key("k")).await.unwrap();
    for _ in 0..3 {
        let asking = (0..20).map(|n| {
            let store = handles[n % 2].clone();
            tokio::spawn(async move {
                let runner = runner(u32::try_from(n).unwrap());
                store.claim_sweep(&runner.id, LENGTH).await.unwrap()
            })
        });
        let claimed = futures_util::future::join_all(asking).await;
        assert_eq!(claimed.into_iter().filter(|claimed| *claimed.as_ref().unwrap()).count(), 1);
        assert!(!bench.open().await.claim_sweep(&runner(30).id, LENGTH).await.unwrap());
        bench.pass(LENGTH).await;
    }
    // No other lock contains the record.
    let after = handles[1].view(&key("k")).await.unwrap();
    assert_eq!((&after.lock, after.lock.get(&uid).is_some()), (&before.lock, true));
    assert_eq!(handles[0].view_all().await.unwrap().len(), 1);
    assert_eq!(bench.open().await.contents().await.unwrap().violations(), [""; 0]);
}
