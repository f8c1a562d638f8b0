//! The handshake between host and provider, and rejected clients.
use std::{os::unix::fs::PermissionsExt, process::Stdio};

use crate::{
    host::{self, Credentials, Host, Start, client, client_config, connect, health, plugin, tfplugin6},
    trials,
};

trials![
    the_line_names_a_private_socket_and_nothing_else_is_said,
    without_a_certificate_nobody_gets_in,
    another_certificate_does_not_get_in,
    a_host_without_certificate_or_protocol_is_refused,
    the_services_of_every_plugin_answer,
    a_debugger_gets_in_without_certificate_and_survives_a_shutdown,
    the_log_is_the_hosts_and_holds_no_values,
];

async fn the_line_names_a_private_socket_and_nothing_else_is_said() {
    let host = Host::start().await;
    assert!(host.line.starts_with("1|6|unix|"), "{}", host.line);
    assert!(host.line.ends_with('\n') && !host.line.contains('='), "{}", host.line);
    let folder = host.socket.parent().unwrap();
    assert_eq!(folder.parent(), Some(host.folder.path()), "the host chose the folder");
    assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let (status, log) = host.shut_down().await;
    assert!(status.success(), "{status}");
    assert_eq!(log, "", "no log without TF_LOG");
}

async fn metadata(channel: &tonic::transport::Channel) -> Result<(), tonic::Status> {
    client(channel).get_metadata(tfplugin6::get_metadata::Request {}).await.map(|_| ())
}

async fn without_a_certificate_nobody_gets_in() {
    let host = Host::start().await;
    for config in [Some(client_config(&host.server_certificate, None)), None] {
        // In TLS 1.3 the client's handshake succeeds before it is rejected.
        if let Ok(channel) = connect(&host.socket, config).await {
            assert!(metadata(&channel).await.is_err());
        }
    }
    metadata(&host.channel).await.unwrap();
    host.shut_down().await;
}

async fn another_certificate_does_not_get_in() {
    let host = Host::start().await;
    let config = client_config(&host.server_certificate, Some(&Credentials::new()));
    if let Ok(channel) = connect(&host.socket, Some(config)).await {
        assert!(metadata(&channel).await.is_err());
    }
    // The host itself can connect more than once.
    let again = client_config(&host.server_certificate, Some(&host.credentials));
    metadata(&connect(&host.socket, Some(again)).await.unwrap()).await.unwrap();
    host.shut_down().await;
}

async fn a_host_without_certificate_or_protocol_is_refused() {
    for (name, value, said) in
        [("PLUGIN_CLIENT_CERT", "", "PLUGIN_CLIENT_CERT"), ("PLUGIN_PROTOCOL_VERSIONS", "5", "version 6")]
    {
        let start = Start { variables: [(name, value.to_owned())].into(), ..Start::default() };
        let folder = tempfile::tempdir().unwrap();
        let mut command = host::command(&start, &Credentials::new(), folder.path());
        let output = command.output().await.unwrap();
        assert!(!output.status.success());
        assert!(output.stdout.is_empty());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains(said), "{errors}");
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}

async fn the_services_of_every_plugin_answer() {
    use health::health_check_response::ServingStatus;
    let host = Host::start().await;
    let mut health = health::health_client::HealthClient::new(host.channel.clone());
    let request = health::HealthCheckRequest { service: "plugin".into() };
    let response = health.check(request).await.unwrap().into_inner();
    assert_eq!(response.status(), ServingStatus::Serving);

    let mut stdio = plugin::grpc_stdio_client::GrpcStdioClient::new(host.channel.clone());
    let mut streams = stdio.stream_stdio(plugin::Empty {}).await.unwrap().into_inner();
    let mut broker = plugin::grpc_broker_client::GrpcBrokerClient::new(host.channel.clone());
    let mut infos = broker.start_stream(tokio_stream::pending()).await.unwrap().into_inner();
    let (status, _) = host.shut_down().await;
    assert!(status.success());
    // Both streams were open and silent, and did not delay the end.
    assert!(streams.message().await.ok().flatten().is_none());
    assert!(infos.message().await.ok().flatten().is_none());
}

async fn a_debugger_gets_in_without_certificate_and_survives_a_shutdown() {
    use tokio::io::{AsyncBufReadExt, BufReader};
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    command.arg("--debug").env_remove(host::COOKIE.0);
    let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().unwrap();
    let value = line.strip_prefix("TF_REATTACH_PROVIDERS='").and_then(|line| line.strip_suffix('\''));
    let value: serde_json::Value = serde_json::from_str(value.unwrap()).unwrap();
    let of = &value["example.com/test/fixture"];
    assert_eq!(of["Protocol"], "grpc");
    assert_eq!(of["ProtocolVersion"], 6);
    assert_eq!(of["Pid"], child.id().unwrap());
    assert_eq!(of["Addr"]["Network"], "unix");
    let socket = std::path::PathBuf::from(of["Addr"]["String"].as_str().unwrap());
    let mode = socket.parent().unwrap().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);

    let channel = connect(&socket, None).await.unwrap();
    let mut controller = plugin::grpc_controller_client::GrpcControllerClient::new(channel.clone());
    controller.shutdown(plugin::Empty {}).await.unwrap();
    metadata(&channel).await.unwrap();
    drop((controller, channel));
    // The next run connects again, and Ctrl-C in the debugger's terminal ends the process.
    metadata(&connect(&socket, None).await.unwrap()).await.unwrap();
    host::signal("INT", child.id().unwrap());
    assert!(child.wait().await.unwrap().success());
    assert!(!socket.exists());
}

async fn the_log_is_the_hosts_and_holds_no_values() {
    let variables = [("TF_LOG", "TRACE".to_owned())].into();
    let mut host = Host::start_with(Start { variables, ..Start::default() }).await;
    let config = serde_json::json!({ "text": "hunter2", "echo": null });
    let request = tfplugin6::read_data_source::Request {
        type_name: "fixture_echo".into(),
        config: host::value(&config),
        ..Default::default()
    };
    host.provider.read_data_source(request).await.unwrap();
    let (_, log) = host.shut_down().await;
    assert!(!log.contains("hunter2"), "{log}");
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &lines {
        for field in ["@level", "@message", "@module", "@timestamp"] {
            assert!(line[field].is_string(), "{field} in {line}");
        }
        // The only layout that go-plugin parses.
        let timestamp = line["@timestamp"].as_str().unwrap();
        assert_eq!(timestamp.len(), "2006-01-02T15:04:05.000000Z".len(), "{timestamp}");
    }
    let of_request = |line: &&serde_json::Value| line["tf_rpc"] == "ReadDataSource";
    assert_eq!(lines.iter().find(of_request).unwrap()["tf_resource_type"], "fixture_echo");
}
