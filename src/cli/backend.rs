//! `--backend` and the backends' own flags.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, error::ErrorKind, value_parser};

use crate::{
    backend::plug::{self, BackendFlag, BackendPlugin, Block, Given},
    settings::BackendInput,
    shown::shell_word,
};

/// The option that selects a backend.
const BACKEND: &str = "backend";

/// A backend, and its block from flags.
#[derive(Clone, Debug)]
pub(super) struct BackendArgs {
    pub(super) plugin: &'static dyn BackendPlugin,
    block: Block,
}

impl BackendArgs {
    pub(super) fn input(&self) -> BackendInput {
        BackendInput { plugin: self.plugin, block: self.block.clone() }
    }

    /// Returns these flags for another command.
    pub(super) fn repeated(&self) -> String {
        let name = self.plugin.name();
        let is_default = name == BackendInput::default().plugin.name();
        let mut text = if is_default { String::new() } else { format!(" --{BACKEND} {name}") };
        for (_, flag) in flags().filter(|(owner, _)| owner.name() == name) {
            let value = flag.setting.and_then(|setting| self.block.text(setting.name));
            text.extend(value.map(|value| format!(" --{} {}", flag.name, shell_word(&value))));
        }
        text
    }
}

/// Returns the flags of all backends.
fn flags() -> impl Iterator<Item = (&'static dyn BackendPlugin, &'static BackendFlag)> {
    plug::plugins().iter().flat_map(|plugin| plugin.flags().iter().map(|flag| (*plugin, flag)))
}

fn argument(flag: &'static BackendFlag) -> Arg {
    let argument = Arg::new(flag.name).long(flag.name).global(true).help(flag.help());
    match flag.setting {
        Some(_) => argument.value_name("FILE").value_parser(value_parser!(String)),
        None => argument.action(ArgAction::SetTrue).conflicts_with(BACKEND),
    }
}

impl Args for BackendArgs {
    fn augment_args(command: Command) -> Command {
        let names = plug::plugins().iter().map(|plugin| plugin.name());
        let first = BackendInput::default().plugin.name();
        let backend = Arg::new(BACKEND).long(BACKEND).global(true).value_name("NAME").value_parser(names.collect::<Vec<_>>()).help(format!(
            "The servers' backend, by its block name in the provider configuration; environment variables configure \
             it, as the provider's page describes [default: {first}]"
        )).hide_possible_values(true);
        flags().fold(command.arg(backend), |command, (_, flag)| command.arg(argument(flag)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for BackendArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let named = matches.get_one::<String>(BACKEND).and_then(|name| plug::plugin(name));
        let chosen = flags().find(|(_, flag)| flag.setting.is_none() && matches.get_flag(flag.name));
        let plugin = named.or(chosen.map(|(plugin, _)| plugin)).unwrap_or(BackendInput::default().plugin);
        let mut block = Block::default();
        for (owner, flag) in flags() {
            let Some(setting) = flag.setting else { continue };
            let Some(value) = matches.get_one::<String>(flag.name) else { continue };
            if owner.name() != plugin.name() {
                let problem = format!(
                    "--{} belongs to the backend {}, but the selected backend is {}: remove one of the two\n",
                    flag.name,
                    owner.name(),
                    plugin.name()
                );
                return Err(clap::Error::raw(ErrorKind::ArgumentConflict, problem));
            }
            block.set(setting.name, Given::Text(value.clone()));
        }
        Ok(Self { plugin, block })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::{super::Cli, *};

    fn parsed(arguments: &[&str]) -> Result<BackendInput, String> {
        let all = [&["terraform-provider-metal"], arguments, &["queue"]].concat();
        Cli::try_parse_from(all).map(|cli| cli.common.backend.input()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_flag_belongs_to_the_backend_that_brings_it() {
        let name = |arguments: &[&str]| parsed(arguments).map(|input| input.plugin.name());
        assert_eq!(name(&[]), Ok("redfish"));
        assert_eq!(name(&["--backend", "ironic"]), Ok("ironic"));
        assert_eq!(name(&["--metal-operator"]), Ok("metal_operator"));
        let file = parsed(&["--inventory", "servers.yaml"]).unwrap().block.text("inventory_file");
        assert_eq!(file.as_deref(), Some("servers.yaml"));
        let refused = name(&["--inventory", "servers.yaml", "--backend", "ironic"]).unwrap_err();
        assert!(refused.contains("--inventory belongs to the backend redfish"), "{refused}");
        for (arguments, repeated) in [
            (&["--inventory", "a b.yaml"][..], " --inventory 'a b.yaml'"),
            (&["--metal-operator"], " --backend metal_operator"),
            (&["--coordination-url", "sqlite:///tmp/x"], " --coordination-url sqlite:///tmp/x"),
            (&["--coordination-url", "postgres://ci:hunter2@db/metal", "--owner", "a"], ""),
        ] {
            let all = [&["terraform-provider-metal"], arguments, &["queue"]].concat();
            assert_eq!(Cli::try_parse_from(all).unwrap().common.repeated(), repeated);
        }
        assert!(name(&["--metal-operator", "--backend", "ironic"]).is_err());
        assert!(name(&["--backend", "unheard-of"]).is_err());
    }

    #[test]
    fn no_flag_of_a_backend_is_one_of_another_or_of_the_program() {
        let mut names: Vec<&str> = flags().map(|(_, flag)| flag.name).collect();
        names.extend([BACKEND, "coordination-url", "owner", "json", "help", "version"]);
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
