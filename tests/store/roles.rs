//! Printed roles.

use terraform_provider_metal::{
    cli::{self, Exit},
    settings::Environment,
};
use tokio_util::sync::CancellationToken;

/// Runs a command. Returns its output or its error.
pub async fn run(arguments: &[&str], url: &str) -> Result<String, String> {
    // As in `main`.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let all = [&["terraform-provider-metal", "--coordination-url", url], arguments].concat();
    let all = all.into_iter().map(Into::into).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let exit = cli::run(all, &Environment::default(), CancellationToken::new(), &mut out, &mut err).await;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if exit == Exit::Success { Ok(text(out)) } else { Err(text(err)) }
}

/// Returns the output of `store roles` for a store.
pub async fn printed(kind: &str, url: &str) -> String {
    run(&["store", "roles", kind], url).await.unwrap()
}
