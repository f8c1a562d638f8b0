//! This process's identity: user, host, and CI job.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use uuid::Uuid;

use crate::{
    engine::process,
    files::{self, PathTrust},
    maintenance::ids::{Runner, RunnerId},
    shown::OneLine,
};

use super::SettingsError;

/// The process's environment, read once at its start so that tests can replace it.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Environment variables.
    pub variables: BTreeMap<String, String>,
    /// Variables whose value is not valid UTF-8.
    not_text: BTreeSet<String>,
}

/// Prefixes of variables that select a store or an account: our own and the PostgreSQL client's.
/// Backends read more, by name ([`Environment::lookup`]).
const READ: [&str; 2] = ["METAL_", "PG"];

impl Environment {
    /// Reads this process's environment.
    #[must_use]
    pub fn of_process() -> Self {
        Self::of(std::env::vars_os())
    }

    fn of(variables: impl Iterator<Item = (OsString, OsString)>) -> Self {
        let mut read = Self::default();
        // This program reads only names in UTF-8.
        for (name, value) in variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value))) {
            match value.into_string() {
                Ok(value) => drop(read.variables.insert(name, value)),
                Err(_) => drop(read.not_text.insert(name)),
            }
        }
        read
    }

    /// Rejects a value that is not valid UTF-8. If it were ignored, the program would silently use
    /// another store, owner or account.
    pub fn check(&self) -> Result<(), SettingsError> {
        let wrong = self.not_text.iter().find(|name| READ.iter().any(|start| name.starts_with(start)));
        wrong.map_or(Ok(()), |name| Err(SettingsError::NotText { variable: name.clone() }))
    }

    /// Reads a variable by a name that a backend or its inventory gives. Adds the name to `wrong`
    /// if the value is not valid UTF-8.
    pub(super) fn lookup(&self, name: &str, wrong: &Mutex<BTreeSet<String>>) -> Option<String> {
        if let Some(name) = self.not_text.get(name) {
            wrong.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone());
        }
        self.get(name).map(str::to_owned)
    }

    /// Returns this environment with the provider block's `trust_world_writable_paths`, if it is
    /// set.
    pub(super) fn with_path_trust(mut self, accepted: Option<bool>) -> Self {
        if let Some(accepted) = accepted {
            self.variables.insert(PathTrust::VARIABLE.to_owned(), accepted.to_string());
        }
        self
    }

    /// Returns whether files that other users can change are accepted.
    ///
    /// # Errors
    /// The variable is neither `true` nor `false`.
    pub fn path_trust(&self) -> Result<PathTrust, SettingsError> {
        match self.get(PathTrust::VARIABLE) {
            given @ (None | Some("true" | "false")) => Ok(PathTrust::of(given)),
            Some(other) => Err(SettingsError::Value {
                attribute: vec!["trust_world_writable_paths".to_owned()],
                problem: format!("{}={other:?} is neither true nor false", PathTrust::VARIABLE),
            }),
        }
    }

    /// Rejects authorities that other users can change and that the environment names for all TLS
    /// connections.
    pub(super) fn check_authorities(&self) -> Result<(), SettingsError> {
        let trust = self.path_trust()?;
        for name in ["SSL_CERT_FILE", "SSL_CERT_DIR"] {
            let Some(paths) = self.get(name) else { continue };
            let paths: Vec<_> =
                if name == "SSL_CERT_DIR" { std::env::split_paths(paths).collect() } else { vec![paths.into()] };
            files::check_authorities(&paths, trust)
                .map_err(|error| SettingsError::Value { attribute: Vec::new(), problem: format!("{name}: {error}") })?;
        }
        Ok(())
    }

    /// Removes variables.
    pub fn forget(&mut self, is_forgotten: impl Fn(&str) -> bool) {
        self.variables.retain(|name, _| !is_forgotten(name));
        self.not_text.retain(|name| !is_forgotten(name));
    }

    /// Returns a variable that is set and not empty.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// A CI job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CiJob {
    /// Its name for people, for example `github-4711`.
    pub run: Option<String>,
    /// Its web page.
    pub url: Option<String>,
    /// The commit it works on.
    pub commit: Option<String>,
    /// The user who started it.
    pub user: Option<String>,
}

/// Detects the CI job of this process by the variables that each system documents.
#[must_use]
pub fn ci_job(env: &Environment) -> Option<CiJob> {
    let get = |name: &str| env.get(name).map(str::to_owned);
    let named = |prefix: &str, name: &str| get(name).map(|id| format!("{prefix}-{id}"));
    if env.get("GITHUB_ACTIONS").is_some() {
        let url = match (get("GITHUB_SERVER_URL"), get("GITHUB_REPOSITORY"), get("GITHUB_RUN_ID")) {
            (Some(server), Some(repository), Some(run)) => Some(format!("{server}/{repository}/actions/runs/{run}")),
            _ => None,
        };
        return Some(CiJob {
            run: named("github", "GITHUB_RUN_ID"),
            url,
            commit: get("GITHUB_SHA"),
            user: get("GITHUB_ACTOR"),
        });
    }
    if env.get("GITLAB_CI").is_some() {
        return Some(CiJob {
            run: named("gitlab", "CI_JOB_ID"),
            url: get("CI_JOB_URL"),
            commit: get("CI_COMMIT_SHA"),
            user: get("GITLAB_USER_LOGIN"),
        });
    }
    if env.get("JENKINS_URL").is_some() {
        return Some(CiJob {
            run: get("BUILD_TAG"),
            url: get("BUILD_URL"),
            commit: get("GIT_COMMIT"),
            user: get("BUILD_USER_ID"),
        });
    }
    if env.get("ATLANTIS_TERRAFORM_VERSION").is_some() {
        return Some(CiJob {
            run: named("atlantis-pull", "PULL_NUM"),
            url: get("PULL_URL"),
            commit: get("HEAD_COMMIT"),
            user: get("USER_NAME"),
        });
    }
    if env.get("TF_VAR_spacelift_run_id").is_some() {
        return Some(CiJob {
            run: named("spacelift", "TF_VAR_spacelift_run_id"),
            url: None,
            commit: get("TF_VAR_spacelift_commit_sha"),
            user: None,
        });
    }
    if env.get("TFC_RUN_ID").is_some() {
        return Some(CiJob {
            run: get("TFC_RUN_ID"),
            url: None,
            commit: get("TFC_CONFIGURATION_VERSION_GIT_COMMIT_SHA"),
            user: None,
        });
    }
    let ci = env.get("CI").is_some_and(|value| value != "false" && value != "0");
    ci.then(CiJob::default)
}

/// Returns this process's identity; configured values override detected values.
#[must_use]
pub fn runner(env: &Environment, run: Option<String>) -> Runner {
    let job = ci_job(env).unwrap_or_default();
    let named = || env.get("USER").or_else(|| env.get("LOGNAME")).or_else(|| env.get("USERNAME")).map(str::to_owned);
    let user = job.user.or_else(named).or_else(account);
    Runner {
        id: RunnerId::new(Uuid::new_v4().to_string()),
        user: user.unwrap_or_else(|| "an unknown user".to_owned()).into(),
        host: host(fs::read_to_string("/proc/sys/kernel/hostname").ok().as_deref(), env).into(),
        pid: std::process::id(),
        process: process::own_mark(),
        run: run.or(job.run).map(OneLine::from),
        url: job.url.map(OneLine::from),
        commit: job.commit.map(OneLine::from),
    }
}

/// Returns this machine's name from the kernel (Linux only) or a variable (`COMPUTERNAME` on
/// Windows).
fn host(kernel: Option<&str>, env: &Environment) -> String {
    let kernel = kernel.map(str::trim).filter(|name| !name.is_empty());
    let name = kernel.or_else(|| env.get("HOSTNAME")).or_else(|| env.get("COMPUTERNAME"));
    name.unwrap_or("an unknown host").to_owned()
}

/// Returns the process's account name if no variable is set, as in cron and many containers.
fn account() -> Option<String> {
    Account::of_process().map(|account| account.name)
}

/// A local account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) uid: u32,
    pub(super) name: String,
    /// Its home; empty if the machine does not list the account.
    pub(super) home: PathBuf,
}

impl Account {
    /// Returns this process's account (Linux only).
    pub(super) fn of_process() -> Option<Self> {
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.to_owned();
        let accounts = fs::read_to_string("/etc/passwd").ok()?;
        let listed = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let found = { listed }.find(|fields| fields.len() > 5 && fields[2] == uid);
        let name = found.as_ref().map_or_else(|| format!("user {uid}"), |fields| fields[0].to_owned());
        let home = found.map(|fields| PathBuf::from(fields[5])).unwrap_or_default();
        Some(Self { uid: uid.parse().ok()?, name, home })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Environment {
        Environment::of(pairs.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))))
    }

    #[cfg(unix)]
    #[test]
    fn a_variable_that_is_read_must_be_utf_8() {
        use std::os::unix::ffi::OsStringExt as _;
        let with = |name: &str| Environment::of([(name.into(), OsString::from_vec(b"\xff".to_vec()))].into_iter());
        for name in [super::super::variables::COORDINATION_URL, super::super::variables::OWNER, "METAL_NEW", "PGHOST"] {
            let error = with(name).check().unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
        // A destroy must not fail because of an unrelated variable.
        let other = with("CI_COMMIT_MESSAGE");
        assert_eq!(other.check(), Ok(()));
        let wrong = Mutex::default();
        assert_eq!(other.lookup("CI_COMMIT_MESSAGE", &wrong), None);
        assert_eq!(wrong.into_inner().unwrap().len(), 1, "a backend reads it by name");
    }

    #[test]
    fn ci_systems_are_recognised_by_their_own_variables() {
        let job = ci_job(&env(&[
            ("GITHUB_ACTIONS", "true"),
            ("GITHUB_RUN_ID", "4711"),
            ("GITHUB_SERVER_URL", "https://git.example"),
            ("GITHUB_REPOSITORY", "ops/infra"),
            ("GITHUB_SHA", "abc"),
            ("GITHUB_ACTOR", "alice"),
        ]))
        .unwrap();
        assert_eq!(job.run.as_deref(), Some("github-4711"));
        assert_eq!(job.url.as_deref(), Some("https://git.example/ops/infra/actions/runs/4711"));
        assert_eq!(job.user.as_deref(), Some("alice"));
        for (pairs, run, url, commit) in [
            (
                &[("GITLAB_CI", "true"), ("CI_JOB_ID", "12"), ("CI_JOB_URL", "https://x/12"), ("CI_COMMIT_SHA", "c1")]
                    [..],
                "gitlab-12",
                Some("https://x/12"),
                "c1",
            ),
            (
                &[
                    ("JENKINS_URL", "https://j"),
                    ("BUILD_TAG", "jenkins-a-7"),
                    ("BUILD_URL", "https://j/7"),
                    ("GIT_COMMIT", "c2"),
                ],
                "jenkins-a-7",
                Some("https://j/7"),
                "c2",
            ),
            (
                &[
                    ("ATLANTIS_TERRAFORM_VERSION", "1.6"),
                    ("PULL_NUM", "42"),
                    ("PULL_URL", "https://g/42"),
                    ("HEAD_COMMIT", "c3"),
                ],
                "atlantis-pull-42",
                Some("https://g/42"),
                "c3",
            ),
            (&[("TF_VAR_spacelift_run_id", "01J"), ("TF_VAR_spacelift_commit_sha", "c4")], "spacelift-01J", None, "c4"),
            (&[("TFC_RUN_ID", "run-abc"), ("TFC_CONFIGURATION_VERSION_GIT_COMMIT_SHA", "c5")], "run-abc", None, "c5"),
        ] {
            let job = ci_job(&env(pairs)).unwrap();
            let found = (job.run.as_deref(), job.url.as_deref(), job.commit.as_deref());
            assert_eq!(found, (Some(run), url, Some(commit)));
        }
        assert!(ci_job(&env(&[("CI", "true")])).is_some());
        assert!(ci_job(&env(&[("CI", "false")])).is_none());
        assert!(ci_job(&env(&[])).is_none());
    }

    #[test]
    fn what_is_configured_wins_over_what_is_detected() {
        let env = env(&[("GITLAB_CI", "true"), ("CI_JOB_ID", "12"), ("USER", "bob")]);
        let runner = runner(&env, Some("nightly".to_owned()));
        assert_eq!(runner.run.as_ref().map(OneLine::raw), Some("nightly"));
        assert_eq!(runner.user, "bob");
        assert_eq!(runner.to_string(), "run nightly by bob");
    }

    #[test]
    fn each_system_names_its_host_and_user() {
        let windows = env(&[("COMPUTERNAME", "OPS-PC"), ("USERNAME", "carol")]);
        assert_eq!(host(Some("node7\n"), &windows), "node7");
        assert_eq!(host(Some("\n"), &env(&[("HOSTNAME", "pod-1"), ("COMPUTERNAME", "OPS-PC")])), "pod-1");
        assert_eq!(host(None, &windows), "OPS-PC");
        assert_eq!(host(None, &env(&[])), "an unknown host");
        assert_eq!(runner(&windows, None).user, "carol");
    }
}
