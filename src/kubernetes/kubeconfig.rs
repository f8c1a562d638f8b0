//! Reads a cluster's configuration. Checks every file and program that it names, because the API
//! client reads those files itself.

use std::path::{Path, PathBuf};

use kube::{
    Config,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};

use super::{ClusterSettings, error::chain as words};
use crate::files::{self, FileError, PathTrust, Pipes};

/// The files of a Pod's service account. The client reads them if no kubeconfig exists.
const SERVICE_ACCOUNT: [&str; 2] =
    ["/var/run/secrets/kubernetes.io/serviceaccount/token", "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"];

/// Returns the client's configuration. Sends no request and runs no program.
pub(super) async fn load(settings: &ClusterSettings) -> Result<Config, String> {
    let told = |error: FileError| error.to_string();
    if let Some(host) = &settings.host {
        let url = host.parse().map_err(|error| format!("host {host:?} is not a valid address: {error}"))?;
        let mut config = Config::new(url);
        if let Some(path) = &settings.ca_certificate_file {
            let pem = files::read(path, files::SMALL, settings.trust).map_err(told)?;
            let parsed: Result<Vec<_>, _> = x509_parser::pem::Pem::iter_from_buffer(pem.as_bytes()).collect();
            let pems = parsed.map_err(|error| format!("{} does not contain a certificate: {error}", path.display()))?;
            config.root_cert = Some(pems.into_iter().map(|pem| pem.contents).collect());
        }
        if let Some(path) = &settings.token_file {
            // The client rereads the file regularly.
            files::check_trusted(path, Pipes::Refused, settings.trust).map_err(told)?;
        }
        let token_file = settings.token_file.as_ref().map(|path| path.display().to_string());
        config.auth_info = AuthInfo { token_file, ..AuthInfo::default() };
        return Ok(config);
    }
    let options = KubeConfigOptions { context: settings.context.clone(), ..KubeConfigOptions::default() };
    if let Some(path) = &settings.kubeconfig {
        let read = read(path, settings.trust)?;
        return of(read, &options, settings.trust).await;
    }
    let paths = usual();
    let missing = match paths.iter().find(|path| !path.exists()) {
        Some(path) => format!("the kubeconfig {} does not exist", path.display()),
        None if paths.is_empty() => "the home directory, and so the default kubeconfig, is unknown".to_owned(),
        None => match of(merged(&paths, settings.trust)?, &options, settings.trust).await {
            Ok(config) => return Ok(config),
            Err(cause) => cause,
        },
    };
    // A configured context requires a file.
    if settings.context.is_some() {
        return Err(missing);
    }
    SERVICE_ACCOUNT.iter().try_for_each(|path| files::check_existing(path.as_ref(), settings.trust)).map_err(told)?;
    Config::incluster_env().map_err(|inside| {
        format!("{missing}; and this process does not run in a Pod with a service account ({})", words(&inside))
    })
}

/// Returns the files that `KUBECONFIG` names, or the default one.
fn usual() -> Vec<PathBuf> {
    let named = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let named: Vec<PathBuf> = std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect();
    if !named.is_empty() {
        return named;
    }
    std::env::home_dir().map(|home| home.join(".kube/config")).into_iter().collect()
}

fn merged(paths: &[PathBuf], trust: PathTrust) -> Result<Kubeconfig, String> {
    let mut all = Kubeconfig::default();
    for path in paths {
        all = all.merge(read(path, trust)?).map_err(|error| words(&error))?;
    }
    Ok(all)
}

fn read(path: &Path, trust: PathTrust) -> Result<Kubeconfig, String> {
    let told = |error: FileError| error.to_string();
    let parsed = if files::check_trusted(path, Pipes::Allowed, trust).map_err(told)? {
        let text = files::read(path, files::SMALL, trust).map_err(told)?;
        Kubeconfig::from_yaml(&text)
    } else {
        // The client also resolves paths relative to the file.
        Kubeconfig::read_from(path)
    };
    parsed.map_err(|error| words(&error))
}

/// Returns a context's configuration after checking the files that it names.
async fn of(read: Kubeconfig, options: &KubeConfigOptions, trust: PathTrust) -> Result<Config, String> {
    for path in named_files(&read, options) {
        files::check_existing(Path::new(&path), trust).map_err(|error| error.to_string())?;
    }
    let config = Config::from_custom_kubeconfig(read, options).await.map_err(|error| words(&error))?;
    let provider = config.auth_info.auth_provider.as_ref();
    if provider.is_some_and(|provider| provider.config.contains_key("cmd-path")) {
        return Err("its user has an auth-provider that runs a program; write it as an exec plugin".to_owned());
    }
    Ok(config)
}

/// Returns the files that the selected context's cluster and user name.
fn named_files(read: &Kubeconfig, options: &KubeConfigOptions) -> Vec<String> {
    let name = options.context.as_ref().or(read.current_context.as_ref());
    let context = read.contexts.iter().find(|it| Some(&it.name) == name).and_then(|it| it.context.as_ref());
    let Some(context) = context else { return Vec::new() };
    let cluster = read.clusters.iter().filter(|it| it.name == context.cluster).filter_map(|it| it.cluster.as_ref());
    let users = read.auth_infos.iter().filter(|it| Some(&it.name) == context.user.as_ref());
    let users = users.filter_map(|it| it.auth_info.as_ref());
    let of_users = users.flat_map(|it| [&it.client_certificate, &it.client_key, &it.token_file]);
    cluster.map(|it| &it.certificate_authority).chain(of_users).flatten().cloned().collect()
}
