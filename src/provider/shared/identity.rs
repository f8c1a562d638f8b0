//! Diagnostics for servers whose lock cannot be determined.

use tf_provider::{AttributePath, Diagnostic};

use crate::provider::shared::diagnostics::NOTHING_DONE;
use crate::{
    maintenance::{
        aliases::Alias,
        identity::{IdentityError, NoUuid},
        ids::LockKey,
    },
    plugin::diagnostic,
    shown::shell_word,
};

/// Builds the diagnostic for a server without its own lock.
pub(in crate::provider) fn of_identity(server: &str, error: &IdentityError) -> Diagnostic {
    let (summary, detail) = match error {
        IdentityError::NoUuid { why } => (format!("{server} reports no system UUID"), without_uuid(why)),
        IdentityError::OtherLock { name, key, others } => {
            (format!("{server} is known under another lock"), other_lock(name, key, others))
        }
    };
    diagnostic(summary, detail, AttributePath::new("server"))
}

fn without_uuid(why: &NoUuid) -> String {
    format!(
        "The BMC reports no system UUID, or one that many servers have, and {why}. A lock under less than a UUID might not \
         exclude another configuration of the same server. {NOTHING_DONE} After a reset of the BMC or its first boot, wait until \
         it reports the UUID and apply again. If it never does, set lock_key for this server in the inventory, to the same \
         text in every configuration that uses the server."
    )
}

fn other_lock(name: &Alias, key: &LockKey, others: &[(Alias, LockKey)]) -> String {
    let lines: Vec<String> = others.iter().map(|(alias, key)| format!("  {alias} belongs to the lock {key}")).collect();
    let moved: Vec<String> = others.iter().map(|(alias, _)| shell_word(&alias.to_string()).into_owned()).collect();
    let shared = others.iter().map(|(alias, _)| alias).find(|alias| alias.is_hardware() && !alias.is_uuid());
    let mut text = format!(
        "Here {name} belongs to the lock {key}, but\n{}\nOne server must have one lock. {NOTHING_DONE}\nIf the mainboard, the \
         server or its address was replaced, move these identifiers while neither lock is in use:\n  terraform-provider-metal \
         server rebind {} --key {} --reason WHY",
        lines.join("\n"),
        moved.join(" "),
        shell_word(key.raw()),
    );
    if let Some(shared) = shared {
        text.push_str(&format!(
            "\nIf several servers report one of them, such as the serial number of a chassis, it identifies none of \
             them:\n  terraform-provider-metal server rebind {} --shared --reason WHY",
            shell_word(&shared.to_string())
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_locks_and_the_way_out_are_shown() {
        let lock = |text: &str| LockKey::new(text);
        let error = IdentityError::OtherLock {
            name: Alias::name("team/node"),
            key: lock("5d5d5544-0037-3010-8052-b4c04f4d3332"),
            others: vec![(
                Alias::serial("Dell Inc.", "CN42", None).unwrap(),
                lock("4c4c4544-0037-3010-8052-b4c04f4d3332"),
            )],
        };
        let text = of_identity("node", &error).detail.to_string();
        for line in [
            "  serial:dell inc./cn42 belongs to the lock 4c4c4544-0037-3010-8052-b4c04f4d3332\n",
            "  terraform-provider-metal server rebind 'serial:dell inc./cn42' --key 5d5d5544-0037-3010-8052-b4c04f4d3332 --reason WHY\n",
            "  terraform-provider-metal server rebind 'serial:dell inc./cn42' --shared --reason WHY",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
