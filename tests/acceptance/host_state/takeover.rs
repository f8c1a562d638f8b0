//! A record moves to another state only on purpose, and only in an apply.

use std::fs;

use bmc_simulator::PowerState;
use serde_json::json;

use super::DESTROY;
use crate::support::{
    host::Host,
    simulator::{Fleet, SOON, maintenance},
    state_server::StateServer,
    wait::eventually,
    workspace::{RUN_LIMIT, Workspace},
};

const HELD: &str = "metal_server_maintenance.held";

const IMPORT: &str = "import {\n  to = metal_server_maintenance.held\n  id = \"tests/m\"\n}\n";

fn off(more: &str) -> String {
    maintenance("node1", "m", &format!("server_power = \"Off\"\n  {more}"))
}

for_each_host! {
    async fn a_second_state_does_not_take_the_lock_of_a_running_apply(host) {
        let (fleet, first) = (Fleet::new(1).await, Workspace::new(host));
        let folder = first.folder().display().to_string();
        let work = format!(
            "resource \"terraform_data\" \"work\" {{\n  depends_on = [{HELD}]\n  provisioner \"local-exec\" {{\n    command = \"touch {folder}/works; until [ -e {folder}/done ]; do sleep 0.1; done\"\n  }}\n}}\n"
        );
        fleet.configure(&first, &(off("") + &work));
        let run = first.start_apply();
        eventually("the provisioner runs under the lock", SOON * 2, async || first.folder().join("works").exists().then_some(())).await;
        let second = first.beside();
        fleet.configure(&second, &off(""));
        let resets = fleet.resets("node1");
        second.try_plan().await.succeeded().says("Another state has managed tests/m");
        let refused = second.apply().await.failed();
        refused.says("Another state manages tests/m").says("import block with id = \"tests/m\"").says("adopt = true");
        second.destroy().await.succeeded().says("0 destroyed");
        assert_eq!(fleet.resets("node1"), resets, "the server did not change");
        fs::write(first.folder().join("done"), "").unwrap();
        run.wait(RUN_LIMIT).await.succeeded();
        first.plan().await.is_empty();
        first.destroy().await.succeeded();
        fleet.until("node1", PowerState::On).await;
    }
}

for_each_host! {
    async fn a_destroy_with_the_state_from_before_a_replacement_names_the_later_maintenance(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &off(""));
        workspace.apply().await.succeeded();
        let state = workspace.folder().join("terraform.tfstate");
        let before = fs::read(&state).unwrap();
        workspace.run(&["apply", "-auto-approve", "-input=false", "-no-color", &format!("-replace={HELD}")]).await.succeeded();
        fs::write(&state, before).unwrap();
        let destroyed = workspace.destroy().await.succeeded();
        destroyed.says("A later maintenance has this name").says("import tests/m and destroy it here");
        fleet.configure(&workspace, &(off("") + IMPORT));
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded();
        fleet.until("node1", PowerState::On).await;
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}

/// Under Terraform: OpenTofu 1.6 does not initialize a backend with development overrides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_whose_state_was_not_saved_is_taken_over_on_purpose() {
    for (killed, import) in [(true, false), (false, true)] {
        let (fleet, states, workspace) =
            (Fleet::new(1).await, StateServer::start().await, Workspace::new(Host::Terraform));
        states.keep_state_of(&workspace);
        fleet.configure(&workspace, &off(""));
        workspace.run(&["init", "-input=false"]).await.succeeded();
        if killed {
            // Between the last commit of the create and the saved state.
            states.holds_uploads(true);
            let run = workspace.start_apply();
            eventually("the state upload", SOON * 2, async || (states.uploads() > 0).then_some(())).await;
            run.kill_everything();
            states.holds_uploads(false);
        } else {
            states.refuses_uploads(true);
            workspace.apply().await.failed();
            states.refuses_uploads(false);
        }
        states.unlock();
        let resets = fleet.resets("node1");
        let refused = workspace.apply().await.failed();
        refused.says("Another state manages tests/m").says("import block with id = \"tests/m\"").says("adopt = true");
        assert_eq!(fleet.resets("node1"), resets);
        fleet.configure(&workspace, &if import { off("") + IMPORT } else { off("adopt = true") });
        workspace.apply().await.succeeded();
        workspace.plan().await.is_empty();
        assert_eq!(fleet.resets("node1"), resets, "the server was prepared before");
        workspace.destroy().await.succeeded();
        fleet.until("node1", PowerState::On).await;
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}

for_each_host! {
    async fn a_plan_with_an_import_block_leaves_the_record_with_its_state(host) {
        let (fleet, first) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&first, &off(""));
        first.apply().await.succeeded();
        let second = first.beside();
        fleet.configure(&second, &(off("") + IMPORT));
        let plan = second.plan().await;
        plan.run.says("1 to import, 0 to add, 1 to change").says("A maintenance is taken over from another state");
        assert_eq!(plan.change(HELD)["after_unknown"]["managed_by"], json!(true), "{}", plan.run.output);
        // The plan is discarded: the first state still manages the server and releases it.
        first.plan().await.is_empty();
        first.destroy().await.succeeded().says("1 destroyed");
        fleet.until("node1", PowerState::On).await;
        // If applied later, the plan finds that the maintenance has ended.
        second.apply_saved(&plan).await.failed().says("has ended");

        first.apply().await.succeeded();
        let second = first.beside();
        fleet.configure(&second, &(off("") + IMPORT));
        let resets = fleet.resets("node1");
        second.apply().await.succeeded();
        assert_eq!(fleet.resets("node1"), resets, "a takeover does not touch the server");
        second.plan().await.is_empty();
        // Hosts drop a refresh's warnings before a destroy.
        first.refresh().await.succeeded().says("Another state manages tests/m");
        first.destroy().await.succeeded().says("0 destroyed");
        assert_eq!(fleet.resets("node1"), resets);
        second.destroy().await.succeeded();
        fleet.until("node1", PowerState::On).await;
    }
}

for_each_host! {
    async fn an_imported_record_stays_with_the_old_state_until_the_next_apply(host) {
        let (fleet, first) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&first, &off(""));
        first.apply().await.succeeded();
        let second = first.beside();
        fleet.configure(&second, &off(""));
        second.import(HELD, "tests/m").await.succeeded();
        let resets = fleet.resets("node1");
        for tainted in [false, true] {
            if tainted {
                second.run(&["taint", HELD]).await.succeeded();
            }
            for destroy in [&DESTROY[..], &["destroy", "-auto-approve", "-input=false", "-no-color"]] {
                let refused = second.run(destroy).await.failed();
                refused.says("tests/m was imported and not taken over").says("apply the configuration");
            }
        }
        second.run(&["untaint", HELD]).await.succeeded();
        assert_eq!(fleet.resets("node1"), resets);
        first.plan().await.is_empty();
        let plan = second.plan().await;
        assert_eq!(plan.changes(), [(HELD.to_owned(), vec!["update".to_owned()])]);
        second.apply_saved(&plan).await.succeeded();
        second.plan().await.is_empty();
        second.destroy().await.succeeded();
        fleet.until("node1", PowerState::On).await;
    }
}
