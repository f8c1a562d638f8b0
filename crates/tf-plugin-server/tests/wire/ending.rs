//! Ends of the process: by the host's request, by a signal, and after the host's death.
use std::{path::Path, time::Duration};

use serde_json::json;
use tokio::task::JoinHandle;

use crate::{
    host::{Host, Start, errors, json, listens, plugin, signal, tfplugin6, until, value, warnings},
    trials,
};

trials![
    a_stop_reaches_a_running_create_and_other_requests_go_on,
    an_interrupt_is_left_to_the_host,
    sigterm_lets_a_running_create_answer,
    sigterm_does_not_wait_for_ever,
    a_shutdown_stops_what_runs,
    a_dead_host_stops_what_runs,
    a_broken_connection_does_not_cut_off_a_create,
    a_shutdown_is_answered_when_everything_is_closed,
];

type Applied = Result<tonic::Response<tfplugin6::apply_resource_change::Response>, tonic::Status>;

/// Starts a create that waits for a stop. Returns after it has started.
async fn waiting(host: &Host, folder: &Path, deaf: bool) -> JoinHandle<Applied> {
    let state = value(&json!({ "folder": folder, "deaf": deaf, "reached": null }));
    let request = tfplugin6::apply_resource_change::Request {
        type_name: "fixture_wait".into(),
        prior_state: value(&()),
        planned_state: state.clone(),
        config: state,
        ..Default::default()
    };
    let mut provider = host.provider.clone();
    let create = tokio::spawn(async move { provider.apply_resource_change(request).await });
    let started = folder.join("started");
    until("the create runs", || started.exists()).await;
    create
}

fn check_interrupted(applied: Applied) {
    let response = applied.unwrap().into_inner();
    assert_eq!(errors(&response.diagnostics), [""; 0]);
    assert_eq!(warnings(&response.diagnostics), ["interrupted: still waiting"]);
    assert_eq!(json(response.new_state.as_ref())["reached"], "Pending");
}

async fn answers(host: &mut Host) {
    let request = tfplugin6::get_metadata::Request {};
    host.provider.get_metadata(request).await.unwrap();
}

async fn a_stop_reaches_a_running_create_and_other_requests_go_on() {
    let (mut host, folder) = (Host::start().await, tempfile::tempdir().unwrap());
    let create = waiting(&host, folder.path(), false).await;
    assert!(!folder.path().join("stopped").exists());
    let stopped = host.provider.stop_provider(tfplugin6::stop_provider::Request {}).await.unwrap();
    assert_eq!(stopped.into_inner().error, "");
    check_interrupted(create.await.unwrap());
    answers(&mut host).await;
    let (status, _) = host.shut_down().await;
    assert!(status.success());
}

async fn an_interrupt_is_left_to_the_host() {
    let variables = [("TF_LOG", "DEBUG".to_owned())].into();
    let (mut host, folder) =
        (Host::start_with(Start { variables, ..Start::default() }).await, tempfile::tempdir().unwrap());
    let create = waiting(&host, folder.path(), false).await;
    host.signal("INT");
    host.signal("HUP");
    host.signal("INT");
    host.logs("SIGINT ignored").await;
    host.logs("SIGHUP ignored").await;
    answers(&mut host).await;
    // The create still waits: it was not stopped and did not end.
    assert!(!create.is_finished() && !folder.path().join("stopped").exists());
    host.provider.stop_provider(tfplugin6::stop_provider::Request {}).await.unwrap();
    check_interrupted(create.await.unwrap());
    let (status, _) = host.shut_down().await;
    assert!(status.success());
}

async fn sigterm_lets_a_running_create_answer() {
    let (mut host, folder) = (Host::start().await, tempfile::tempdir().unwrap());
    let create = waiting(&host, folder.path(), false).await;
    host.signal("TERM");
    check_interrupted(create.await.unwrap());
    let (status, _) = host.ended().await;
    assert!(status.success());
}

async fn sigterm_does_not_wait_for_ever() {
    let variables = [("FIXTURE_FINISH_WITHIN_MS", "200".to_owned())].into();
    let (mut host, folder) =
        (Host::start_with(Start { variables, ..Start::default() }).await, tempfile::tempdir().unwrap());
    let create = waiting(&host, folder.path(), true).await;
    host.signal("TERM");
    let (status, log) = host.ended().await;
    assert!(status.success());
    assert!(log.contains("did not end in time"), "{log}");
    assert!(create.await.unwrap().is_err());
}

async fn a_shutdown_stops_what_runs() {
    let (host, folder) = (Host::start().await, tempfile::tempdir().unwrap());
    let create = waiting(&host, folder.path(), false).await;
    // The host kills the process two seconds after this.
    let ended = tokio::time::timeout(Duration::from_secs(2), host.shut_down()).await;
    assert!(ended.expect("in time").0.success());
    check_interrupted(create.await.unwrap());
}

/// A shell acts as the host: it is the provider's parent, and the test kills it.
async fn a_dead_host_stops_what_runs() {
    let start = Start { shell: Some(r#""$1" & wait"#), ..Start::default() };
    let (mut host, folder) = (Host::start_with(start).await, tempfile::tempdir().unwrap());
    let create = waiting(&host, folder.path(), false).await;
    create.abort();
    signal("KILL", host.child.id().unwrap());
    host.child.wait().await.unwrap();
    let Host { socket, provider, channel, .. } = host;
    drop((provider, channel));
    let stopped = folder.path().join("stopped");
    until("the create received the stop", || stopped.exists()).await;
    until("the provider ended", || !listens(&socket) && !socket.parent().unwrap().exists()).await;
}

async fn a_broken_connection_does_not_cut_off_a_create() {
    let (host, folder) = (Host::start().await, tempfile::tempdir().unwrap());
    let create = waiting(&host, folder.path(), false).await;
    let Host { mut child, socket, server_certificate, credentials, provider, channel, folder: parent, .. } = host;
    create.abort();
    drop((provider, channel));
    // The parent lives, so a network library could be reconnecting: the provider stays.
    let config = crate::host::client_config(&server_certificate, Some(&credentials));
    let channel = crate::host::connect(&socket, Some(config)).await.unwrap();
    let mut provider = crate::host::client(&channel);
    provider.get_metadata(tfplugin6::get_metadata::Request {}).await.unwrap();
    assert!(!folder.path().join("stopped").exists());
    provider.stop_provider(tfplugin6::stop_provider::Request {}).await.unwrap();
    let stopped = folder.path().join("stopped");
    until("the create received the stop", || stopped.exists()).await;
    signal("TERM", child.id().unwrap());
    assert!(child.wait().await.unwrap().success());
    drop(parent);
}

async fn a_shutdown_is_answered_when_everything_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("closed");
    let variables = [("FIXTURE_BEFORE_END", file.display().to_string())].into();
    let mut host = Host::start_with(Start { variables, ..Start::default() }).await;
    let mut controller = plugin::grpc_controller_client::GrpcControllerClient::new(host.channel.clone());
    controller.shutdown(plugin::Empty {}).await.unwrap();
    assert!(file.exists(), "the host was answered before");
    assert!(host.ended().await.0.success());
}
