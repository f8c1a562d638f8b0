//! What is done to the audit log past this program, with plain clients: `audit verify` names the
//! line.

use std::{fs, path::Path, sync::Arc};

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::Value;
use terraform_provider_metal::{
    maintenance::approval::Scope,
    store::{ChainEnds, Store},
};

use crate::{
    bench::{HandClock, apply, finish, hold, kubernetes, sql_of, sqlite},
    conformance::verified,
    records::{key, request},
    roles::run,
    support::kubernetes::Kubernetes,
    talk::{approval, approve, claim},
};

/// Some lines: of a claim, its owner's words, and a hold.
async fn something_happens(store: &dyn Store, n: u32) {
    let claim = claim(&format!("c{n}"));
    apply(store, &key("k"), |lock, _, now| lock.claim(claim.clone(), now)).await.unwrap();
    approve(store, &key("k"), &approval(Scope::All)).await.unwrap();
    let (uid, fence) = hold(store, &key("k"), &request(&format!("a{n}"), n)).await;
    finish(store, &key("k"), &uid, fence).await.unwrap();
    assert!(apply(store, &key("k"), |lock, _, now| lock.unclaim_for(&claim.uid, "team", "ada", now)).await.unwrap());
}

/// What `audit verify` says.
async fn said(url: &str) -> Result<String, String> {
    run(&["audit", "verify"], url).await
}

/// Says that a line does not fit, and `store check` does as well.
async fn names(url: &str, line: &str) {
    let told = said(url).await.unwrap_err();
    assert!(told.contains(line), "{line}: {told}");
    let check = run(&["store", "check"], url).await.unwrap_err();
    assert!(check.contains("the audit log was changed: ") && check.contains(line), "{line}: {check}");
}

/// An anchor outside of the store: it notices what fits in itself.
async fn with_anchor(url: &str, file: &Path) -> Result<String, String> {
    run(&["audit", "verify", "--anchor", file.to_str().unwrap()], url).await
}

#[tokio::test]
async fn a_line_of_a_file_that_was_changed_left_out_or_added_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("coordination.sqlite"), folder.path().join("copy.sqlite"));
    let url = format!("sqlite://{}", path.display());
    let store = sqlite(&path, HandClock::new()).await.unwrap();
    something_happens(&store, 1).await;
    let (count, _, _) = verified(&store, &ChainEnds::new()).await.unwrap();
    store.close().await;
    assert!(count > 5);
    assert!(said(&url).await.unwrap().contains(&format!("{count} lines of the audit log are as they were written")));
    sql_of(&path, "PRAGMA wal_checkpoint(TRUNCATE)").await;
    fs::copy(&path, &copy).unwrap();
    let end = format!("DELETE FROM audit WHERE number = {count}");
    let again = "INSERT INTO audit (at, namespace, name, uid, generation, actor, what, detail)
                 SELECT at, namespace, name, uid, generation, 'eve', what, detail FROM audit WHERE number = 2";
    let shifted = "UPDATE audit SET number = -number WHERE number > 3; DELETE FROM audit WHERE number = 3;
                   UPDATE audit SET number = -number - 1 WHERE number < 0;";
    let changed = "line 3 is not as it was written";
    for (change, line) in [
        ("UPDATE audit SET actor = 'eve' WHERE number = 3", changed.to_owned()),
        ("UPDATE audit SET at = '2020-01-01T00:00:00.000000000Z' WHERE number = 3", changed.to_owned()),
        ("UPDATE audit SET detail = detail || '.' WHERE number = 3", changed.to_owned()),
        ("UPDATE audit SET generation = generation + 1 WHERE number = 3", changed.to_owned()),
        ("DELETE FROM audit WHERE number = 3", "line 3 is missing".to_owned()),
        ("DELETE FROM audit WHERE number < 3", "line 1 is missing".to_owned()),
        (shifted, changed.to_owned()),
        (&end, format!("line {count} is missing: the chain ended later")),
        (again, "a line has no place in the chain".to_owned()),
        ("UPDATE meta SET value = '0 ' WHERE key = 'audit'", "line 1 was added behind the end".to_owned()),
        ("DELETE FROM meta WHERE key = 'audit'", "a line cannot be read: the end of the chain is gone".to_owned()),
    ] {
        sql_of(&path, change).await;
        names(&url, &line).await;
        sql_of(&path, "PRAGMA wal_checkpoint(TRUNCATE)").await;
        fs::copy(&copy, &path).unwrap();
        said(&url).await.unwrap();
    }
    // One who can compute the chain can also set it back as a whole: the anchor has seen more.
    let anchor = folder.path().join("anchor.json");
    with_anchor(&url, &anchor).await.unwrap();
    let back = format!(
        "DELETE FROM audit WHERE number = {count}; UPDATE meta SET value = (SELECT number || ' ' || hash FROM audit \
         ORDER BY number DESC LIMIT 1) WHERE key = 'audit'"
    );
    sql_of(&path, &back).await;
    said(&url).await.unwrap();
    let kept = fs::read(&anchor).unwrap();
    let told = with_anchor(&url, &anchor).await.unwrap_err();
    assert!(told.contains(&format!("line {count} of the chain of the store is not the one that was there")), "{told}");
    assert_eq!(fs::read(&anchor).unwrap(), kept, "it is not replaced by what does not fit");
    let other = sqlite(&folder.path().join("other.sqlite"), HandClock::new()).await.unwrap();
    other.close().await;
    let url = format!("sqlite://{}", folder.path().join("other.sqlite").display());
    assert!(with_anchor(&url, &anchor).await.unwrap_err().contains("the anchor of the store"));
}

/// The data of one object of a namespace, as a plain client changes it.
async fn changed(cluster: &Kubernetes, namespace: &str, part: &str, change: impl Fn(&str) -> Option<String>) {
    let mut done = 0;
    for map in cluster.config_maps(namespace).await {
        let text = map.data.as_ref().and_then(|data| data.get(part)).and_then(|text| change(text));
        if let Some(text) = text {
            cluster.set_data(namespace, &map, part, &text).await;
            done += 1;
        }
    }
    assert_eq!(done, 1, "of {part}");
}

fn holds(map: &ConfigMap, part: &str) -> bool {
    map.data.as_ref().is_some_and(|data| data.contains_key(part))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_in_kubernetes_that_was_changed_left_out_or_added_is_named() {
    let cluster = tokio::task::spawn_blocking(Kubernetes::shared).await.unwrap();
    let namespace = cluster.namespace();
    let url = cluster.store(&namespace);
    let store = kubernetes(&url, None).await.unwrap();
    // Enough that the older lines are in journals.
    for n in 0..6 {
        something_happens(&store, n).await;
    }
    let (count, _, ends) = verified(&store, &ChainEnds::new()).await.unwrap();
    assert!(count > 30 && ends.len() == 2, "{ends:?}");
    let saved = cluster.config_maps(&namespace).await;
    assert!(saved.iter().any(|map| holds(map, "entries")), "there is no journal");
    let last = ends["k"].number;
    // The entry with a line, in whatever object it is.
    let tampered = async |told: bool, number: u64, change: &(dyn Fn(&mut Vec<Value>, usize) + Sync), line: &str| {
        let place = |line: &Value| {
            let chain = &line["chain"];
            chain["number"] == number && chain["lock"] == "k" && (chain["told"] == true) == told
        };
        for part in ["entries", "outbox", "said"] {
            for map in saved.iter().filter(|map| holds(map, part)) {
                let mut entries: Vec<Value> = serde_json::from_str(&map.data.as_ref().unwrap()[part]).unwrap();
                let its = |entry: &Value| entry["events"].as_array().is_some_and(|lines| lines.iter().any(place));
                let Some(at) = entries.iter().position(its) else { continue };
                change(&mut entries, at);
                cluster.set_data(&namespace, map, part, &serde_json::to_string(&entries).unwrap()).await;
                names(&url, line).await;
                cluster.set_data(&namespace, map, part, &map.data.as_ref().unwrap()[part]).await;
                said(&url).await.unwrap();
                return;
            }
        }
        panic!("there is no line {number}");
    };
    let by_eve = |entries: &mut Vec<Value>, at: usize| entries[at]["events"][0]["by"] = "eve".into();
    let gone = |entries: &mut Vec<Value>, at: usize| drop(entries.remove(at));
    tampered(false, 3, &by_eve, "line 3 of the chain of k is not as it was written").await;
    tampered(false, 3, &gone, "line 3 of the chain of k is missing").await;
    tampered(false, last, &gone, &format!("line {last} of the chain of k is missing: the chain ended later")).await;
    tampered(true, 2, &by_eve, "line 2 of the chain of the approvals of k is not as it was written").await;
    tampered(true, 6, &gone, "line 6 of the chain of the approvals of k is missing").await;
    let added = |entries: &mut Vec<Value>, at: usize| {
        let mut entry = entries[at].clone();
        (entry["commit"], entry["events"][0]["by"]) = ("forged-commit".into(), "eve".into());
        entries.push(entry);
    };
    tampered(false, last, &added, &format!("line {last} of the chain of k is there twice")).await;
    let loose = |entries: &mut Vec<Value>, at: usize| {
        let mut entry = entries[at].clone();
        entry["commit"] = "forged-commit".into();
        entry["events"][0].as_object_mut().unwrap().remove("chain");
        entries.push(entry);
    };
    tampered(false, last, &loose, "a line has no place in the chain").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gap_in_a_chain_does_not_end_pruning() {
    const DAY: std::time::Duration = std::time::Duration::from_hours(24);
    let clock = HandClock::new();
    let kube = tokio::task::spawn_blocking(Kubernetes::shared).await.unwrap();
    let namespace = kube.namespace();
    let maps = kubernetes(&kube.store(&namespace), Some(clock.clone())).await.unwrap();
    something_happens(&maps, 1).await;
    something_happens(&maps, 2).await;
    changed(kube, &namespace, "outbox", |text| {
        let mut entries: Vec<Value> = serde_json::from_str(text).unwrap();
        let third = |entry: &Value| {
            entry["events"].as_array().is_some_and(|lines| lines.iter().any(|line| line["chain"]["number"] == 3))
        };
        let at = entries.iter().position(third)?;
        entries.remove(at);
        Some(serde_json::to_string(&entries).unwrap())
    })
    .await;
    clock.pass(DAY * 3);
    {
        let store = &maps as &dyn Store;
        something_happens(store, 3).await;
        assert!(store.contents().await.unwrap().violations()[0].contains("line 3 of the chain of k is missing"));
        while store.prune(DAY, 3).await.unwrap() > 0 {}
        // Only what is young is left, and what is left fits.
        let left = store.contents().await.unwrap();
        assert_eq!(left.violations(), [""; 0]);
        assert!(left.audit.iter().all(|line| line.at == left.audit[0].at) && left.audit.len() > 5, "{:?}", left.audit);
        verified(store, &ChainEnds::new()).await.unwrap();
    }
}
