//! A machine's certificate authorities, which small container images lack.

use crate::support::{
    simulator::{Fleet, maintenance},
    workspace::Workspace,
};

for_each_host! {
    async fn a_machine_without_authorities_needs_none_where_another_trust_is_configured(host) {
        let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(host));
        workspace.write("no-authorities.pem", "");
        let none = workspace.folder().join("no-authorities.pem").display().to_string();
        // A folder without certificates.
        let folder = workspace.folder().join("no-authorities");
        std::fs::create_dir(&folder).unwrap();
        workspace.set("SSL_CERT_FILE", none).set("SSL_CERT_DIR", folder.display().to_string());
        fleet.configure(&workspace, &maintenance("node1", "m", ""));
        workspace.apply().await.succeeded();
        workspace.plan().await.is_empty();

        let path = workspace.folder().join("main.tf");
        let text = std::fs::read_to_string(&path).unwrap();
        let trusting = text.replace("ca_certificate_file = \"${path.module}/bmc-ca.pem\"", "");
        assert_ne!(trusting, text);
        std::fs::write(&path, trusting).unwrap();
        let refused = workspace.destroy().await.failed();
        refused.says("this machine does not have certificate authorities").says("ca_certificate_file").says("SSL_CERT_FILE");

        let authority = workspace.folder().join("bmc-ca.pem").display().to_string();
        workspace.set("SSL_CERT_FILE", authority);
        workspace.destroy().await.succeeded();
    }
}
