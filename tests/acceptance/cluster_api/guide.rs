//! Checks the guide: its roles are sufficient, and its example works.

use std::{fs, path::Path};

use super::{chain::place, traces};
use crate::support::{provider, workspace::Workspace};

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

for_each_host! {
    async fn the_example_of_the_guide_works_with_the_roles_of_the_guide(host) {
        let (hosts, machines) = place(false).await;
        let user = format!("runner-{}", machines.namespace);
        for file in ["roles/metal3.yaml", "roles/cluster-api-management.yaml", "roles/cluster-api-workload.yaml"] {
            let roles = page(file).replace("namespace: metal3", &format!("namespace: {}", machines.namespace));
            hosts.kubernetes.apply(&roles);
        }
        let mut workspace = Workspace::new(host);
        let text = page("examples/guides/cluster-api/main.tf");
        workspace.write("main.tf", &text.replace("localhost/metal-maintenance/metal", provider::SOURCE));
        let kubeconfig = hosts.kubernetes.user(&user, &["metal-runners"]);
        crate::cluster_api::counts(&machines, &kubeconfig).await;
        let kubeconfig = kubeconfig.display().to_string();
        for (name, value) in
            [("host", "node1".to_owned()), ("namespace", hosts.namespace.clone()), ("kubeconfig", kubeconfig)]
        {
            workspace.set(&format!("TF_VAR_{name}"), value);
        }
        workspace.run(&["init", "-no-color", "-input=false"]).await;
        workspace
            .apply()
            .await
            .succeeded()
            .says("state = \"InMaintenance\"")
            .says(&format!("Machine {}/m1: Running", machines.namespace));
        workspace.destroy().await.succeeded();
        assert_eq!(hosts.traces("node1").await, Vec::<String>::new());
        assert_eq!(traces(&machines, "m1").await, Vec::<String>::new());
    }
}
