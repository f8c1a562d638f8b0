//! A sentinel password is searched for in everything that is written.

use crate::support::{
    images::Images,
    simulator::{Fleet, maintenance},
    workspace::Workspace,
};

for_each_host! {
    async fn no_secret_is_written_anywhere(host) {
        const PASSWORD: &str = "sentinel-8c1f-password";
        let mut config = bmc_simulator::SimulatorConfig::with_systems(1);
        config.credentials.password = PASSWORD.into();
        let (fleet, images, mut workspace) = (Fleet::with(config).await, Images::start().await, Workspace::new(host));
        workspace.set("TF_LOG", "TRACE");
        let more = format!(
            "server_power = \"On\"\n  boot_configuration = {{ method = \"virtual_media\", image = \"{}\" }}",
            images.url("rescue.iso")
        );
        fleet.configure(&workspace, &maintenance("node1", "m", &more));
        let text = std::fs::read_to_string(workspace.folder().join("main.tf")).unwrap();
        // The configuration itself must not hold it either, or finding it would prove nothing.
        std::fs::write(workspace.folder().join("main.tf"), text.replace(&format!("\"{PASSWORD}\""), "var.password") + "\nvariable \"password\" {\n  sensitive = true\n}\n").unwrap();
        workspace.set("TF_VAR_password", PASSWORD);
        let mut said = Vec::new();
        said.push(workspace.try_plan().await.succeeded());
        said.push(workspace.apply().await.succeeded());
        said.push(workspace.refresh().await.succeeded());
        fleet.command_line(&mut workspace);
        said.push(workspace.metal(&["queue", "--json"]).await.succeeded());
        said.push(workspace.metal(&["show", "tests/m", "--json"]).await.succeeded());
        said.push(workspace.destroy().await.succeeded());
        workspace.set("TF_VAR_password", format!("{PASSWORD}-wrong"));
        said.push(workspace.apply().await.failed());
        for run in &said {
            assert!(!run.output.contains(PASSWORD), "{} said it:\n{}", run.command, run.output);
        }
        let written = workspace.everything_written();
        assert!(written.len() > 5, "{written:?}");
        for (file, content) in written {
            let found = content.windows(PASSWORD.len()).any(|window| window == PASSWORD.as_bytes());
            assert!(!found, "{} holds the password", file.display());
        }
    }
}
