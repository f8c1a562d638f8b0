//! Schema and model of `metal_server_claim`, and warnings for its owner.

use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, Diagnostics,
    schema::{AttributeType, Schema},
    value::{Value, ValueBool, ValueList, ValueNumber},
};

use crate::{
    backend::plug::with_own_claims,
    engine::ClaimWish,
    maintenance::{
        approval::{self, Claim, PendingMaintenance},
        ids::MaintenanceId,
        limits,
        queue::shown_time,
        spec::Policy,
    },
    plugin::diagnostic,
    shown::shell_word,
    store::LockView,
};

use crate::provider::{
    shared::block::table,
    shared::boot::IgnitionModel,
    shared::outputs::outputs,
    shared::schema::{attributes, computed, object, optional, required, schema, secret, timeouts},
    shared::toleration::{self, Tolerations, tolerations_attribute},
    shared::values::{Text, Timeouts, bad, check_names, check_timeouts, given, is_given, known, power, short},
    shared::write_only::WriteOnly,
};

table! {
    /// An entry of `pending`.
    pub(in crate::provider) struct AskedModel {
        maintenance: Text => computed(String, "`namespace/name` of the maintenance.");
        policy: Text => computed(String, "`OwnerApproval`: needs your approval. `Enforced`: needs none.");
        reason: Text => computed(String, "The reason that was given.");
        ticket: Text => computed(String, "Where it is discussed.");
        priority: ValueNumber => computed(Number, "Its priority in the queue.");
        window: Text => computed(String, "When it may start; null: at any time.");
        effect: Text => computed(String, "What happens to the server, in words; empty when it is only locked.");
        requested_by: Text => computed(String, "The user and machine that requested it.");
        requested_at: Text => computed(String, "Since when (RFC 3339, UTC).");
        digest: Text => computed(
            String,
            "Digest of the request. An approval is bound to it: when the request changes, the approval is void.",
        );
        approved: ValueBool => computed(Bool, "Whether it may start as far as you are concerned.");
        escalates_at: Text => computed(String, "When it starts without approval (RFC 3339, UTC).");
    }
}

/// A `metal_server_claim` in configuration, plan and state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct ClaimModel {
    pub(in crate::provider) id: Text,
    pub(in crate::provider) server: Text,
    pub(in crate::provider) namespace: Text,
    pub(in crate::provider) name: Text,
    pub(in crate::provider) owner: Text,
    pub(in crate::provider) contact: Text,
    pub(in crate::provider) claimed_at: Text,
    pub(in crate::provider) lock_key: Text,
    pub(in crate::provider) maintenance_needed: ValueBool,
    pub(in crate::provider) pending: ValueList<AskedModel>,
    pub(in crate::provider) image: Text,
    pub(in crate::provider) ignition: Value<IgnitionModel>,
    pub(in crate::provider) ignition_wo: WriteOnly,
    pub(in crate::provider) ignition_wo_version: ValueNumber,
    pub(in crate::provider) server_power: Text,
    pub(in crate::provider) tolerations: Tolerations,
    pub(in crate::provider) timeouts: Value<Timeouts>,
    pub(in crate::provider) phase: Text,
    pub(in crate::provider) ignition_secret: Text,
}

outputs!(ClaimModel {
    at_plan {}
    after_apply {
        phase: String, "With `metal_operator`: the ServerClaim's phase, `Bound` or `Unbound`; else null.";
        ignition_secret: String, "With `metal_operator`: the Secret with the ignition file; null when there is none.";
        id: String, "`namespace/name`.";
        owner: String, "Whose server it is: the provider's `owner`. Approvals need the same.";
        claimed_at: String, "Since when (RFC 3339, UTC).";
        lock_key: String, "The server's hardware identity, with which the claim is kept.";
        maintenance_needed: Bool, "Whether maintenance of the server is pending. A refresh that finds so also warns.";
        pending: AttributeList(AskedModel::settings()), "Pending maintenance, the oldest first.";
    }
});

/// Builds the schema.
pub(in crate::provider) fn claim_schema() -> Schema {
    use AttributeType::String;
    schema(
        "Says that a server is in use and whose it is. A maintenance with `policy = \"OwnerApproval\"` then starts only \
         with the owner's approval. With `metal_operator` it is a ServerClaim, which boots the server; otherwise it is kept in \
         the coordination store and touches no server.",
        ClaimModel::with_outputs(attributes([
            ("server", required(String, "The server's name in the provider's configuration. Changing it replaces.")),
            ("namespace", required(String, "First part of the claim's name. Changing it replaces.")),
            ("name", required(String, "Second part of that name. Changing it replaces.")),
            (
                "contact",
                optional(
                    String,
                    "Where the owner is reached, for people: shown wherever an approval is missing. At most 256 characters.",
                ),
            ),
            (
                "image",
                optional(
                    String,
                    "With `metal_operator`, and needed there: what the server boots for its owner, by its name in a registry. A change counts from the next boot on.",
                ),
            ),
            (
                "ignition",
                optional(
                    object([
                        ("url", optional(String, "Not possible here; give `file` or `secret_name`.")),
                        (
                            "file",
                            optional(
                                String,
                                "A local file of at most 1 MiB. A Secret is made of it that goes with the claim; its content is in no plan or state. A file with another content is a change.",
                            ),
                        ),
                        (
                            "secret_name",
                            optional(String, "The name of a Secret with the key `ignition`, in the claim's namespace."),
                        ),
                    ]),
                    "With `metal_operator`: the ignition file of what the server boots.",
                ),
            ),
            (
                "ignition_wo",
                secret(
                    "With `metal_operator`: the ignition file itself, as text. A Secret is made of it that goes with the claim. It may come from an ephemeral value, and is in no plan, state or record. Needs Terraform or OpenTofu 1.11; an older host is refused, because it would store it. Instead of `ignition`.",
                ),
            ),
            (
                "ignition_wo_version",
                optional(
                    AttributeType::Number,
                    "The version of `ignition_wo`, any number: a change of the content counts when this changes.",
                ),
            ),
            (
                "server_power",
                optional(
                    String,
                    "With `metal_operator`, and needed there: the power that the owner wants, `On` or `Off`.",
                ),
            ),
            ("tolerations", tolerations_attribute()),
            (
                "timeouts",
                timeouts([
                    (
                        "create",
                        "With `metal_operator`: for the server to be bound. Default: `\"30m\"`. When it ends, nothing is left of the claim.",
                    ),
                    ("update", "Not used: a change is not waited for."),
                    ("delete", "With `metal_operator`: for the server to be free again. Default: `\"30m\"`."),
                ]),
            ),
        ])),
    )
}

impl ClaimModel {
    pub(in crate::provider) fn check(&self, diags: &mut Diagnostics) {
        check_names(diags, &self.namespace, &self.name);
        for (name, value, most) in [
            ("server", &self.server, limits::SERVER),
            ("contact", &self.contact, limits::CONTACT),
            ("image", &self.image, limits::URL),
        ] {
            short(diags, value, AttributePath::new(name), most);
        }
        power(diags, &self.server_power, AttributePath::new("server_power"));
        if let Value::Value(ignition) = &self.ignition {
            ignition.check(diags, &AttributePath::new("ignition"));
        }
        let at = AttributePath::new("ignition_wo");
        if is_given(&self.ignition) && self.ignition_wo.content().is_some() {
            bad(diags, at, "One source is possible", "Give ignition or ignition_wo, not both.");
        } else {
            self.ignition_wo.check_version(diags, &self.ignition_wo_version, &AttributePath::root(), "ignition_wo");
        }
        toleration::check(diags, &self.tolerations);
        check_timeouts(diags, &self.timeouts);
    }

    /// Rejects attributes that require a cluster. An unknown value could turn out to be absent.
    pub(in crate::provider) fn only_told(&self, diags: &mut Diagnostics) {
        for (name, given) in [
            ("image", is_given(&self.image)),
            ("ignition", is_given(&self.ignition)),
            ("ignition_wo", self.ignition_wo.content().is_some()),
            ("server_power", is_given(&self.server_power)),
            ("tolerations", is_given(&self.tolerations)),
            ("timeouts", is_given(&self.timeouts)),
        ] {
            if given {
                let detail = format!(
                    "A claim in the coordination store only says whose the server is: it boots and waits for nothing. Leave \
                     {name} out. Claims of {} boot servers.",
                    with_own_claims()
                );
                bad(diags, AttributePath::new(name), "Not for a claim in the coordination store", detail);
            }
        }
    }

    pub(in crate::provider) fn name_id(&self) -> Option<MaintenanceId> {
        MaintenanceId::new(given(&self.namespace)?, given(&self.name)?).ok()
    }

    pub(in crate::provider) fn wish(&self) -> Option<ClaimWish> {
        Some(ClaimWish {
            id: self.name_id()?,
            server: given(&self.server)?.to_owned(),
            contact: given(&self.contact).map(str::to_owned),
        })
    }

    /// Builds the model from a claim in the coordination store.
    pub(in crate::provider) fn imported(claim: &Claim, view: &LockView) -> Self {
        let mut model = Self {
            server: Value::Value(claim.server.clone()),
            namespace: Value::Value(claim.id.namespace().to_owned()),
            name: Value::Value(claim.id.name().to_owned()),
            contact: known(claim.contact.clone()),
            ..Self::default()
        };
        model.show(claim, view);
        model
    }

    pub(in crate::provider) fn show(&mut self, claim: &Claim, view: &LockView) {
        self.id = Value::Value(claim.id.to_string());
        self.owner = Value::Value(claim.owner.clone());
        self.claimed_at = Value::Value(claim.since.to_string());
        self.lock_key = Value::Value(view.lock.key.0.clone());
        let asked = approval::asked(&view.lock, view.now);
        self.maintenance_needed = Value::Value(!asked.is_empty());
        self.set_pending(asked);
        self.phase = Value::Null;
        self.ignition_secret = Value::Null;
    }

    pub(in crate::provider) fn set_pending(&mut self, asked: Vec<PendingMaintenance>) {
        self.pending = Value::Value(asked.into_iter().map(AskedModel::from).collect());
    }
}

impl From<PendingMaintenance> for AskedModel {
    fn from(asked: PendingMaintenance) -> Self {
        Self {
            maintenance: Value::Value(asked.id.to_string()),
            policy: Value::Value(asked.policy.to_string()),
            reason: known(asked.reason),
            ticket: known(asked.ticket),
            priority: Value::Value(asked.priority),
            window: known(asked.window),
            effect: Value::Value(asked.effect),
            requested_by: Value::Value(asked.by),
            requested_at: Value::Value(asked.requested_at.to_string()),
            digest: Value::Value(asked.digest),
            approved: Value::Value(asked.allowed),
            escalates_at: known(asked.escalates_at.map(|at| at.to_string())),
        }
    }
}

/// Warns the owner about pending maintenance. `backend`: the command-line flag for these claims, if
/// they need it.
pub(in crate::provider) fn tell(
    diags: &mut Diagnostics,
    server: &str,
    asked: &[PendingMaintenance],
    backend: Option<&str>,
    owner: &str,
) {
    if asked.is_empty() {
        return;
    }
    let flags = format!("{} --owner {}", backend.map(|flag| format!(" {flag}")).unwrap_or_default(), shell_word(owner));
    let lines: Vec<String> = asked.iter().map(|asked| format!("  {}", line(asked, &flags))).collect();
    diags.add_warning(diagnostic(
        "Maintenance pending on claimed servers",
        format!("{server}:\n{}", lines.join("\n")),
        AttributePath::root(),
    ));
}

fn line(asked: &PendingMaintenance, flags: &str) -> String {
    let mut text = asked.id.to_string();
    if let Some(reason) = &asked.reason {
        text.push_str(&format!(" ({reason})"));
    }
    if let Some(ticket) = &asked.ticket {
        text.push_str(&format!(", {ticket}"));
    }
    text.push_str(&format!(", requested by {} at {}", asked.by, shown_time(asked.requested_at)));
    if !asked.effect.is_empty() {
        text.push_str(&format!("; the server {}", asked.effect.trim_end_matches('.')));
    }
    if let Some(window) = &asked.window {
        text.push_str(&format!("; starts only in {window}"));
    }
    match (asked.policy, asked.allowed) {
        (Policy::Enforced, _) => text.push_str(". It needs no approval (Enforced)."),
        (Policy::OwnerApproval, true) => text.push_str(". It is approved."),
        (Policy::OwnerApproval, false) => {
            let id = asked.id.to_string();
            let resource =
                format!(". It waits for your approval: metal_maintenance_approval with maintenance = {id:?}");
            text.push_str(&resource);
            text.push_str(&format!(", or `terraform-provider-metal approve {id}{flags}`."));
        }
    }
    if let Some(at) = asked.escalates_at {
        text.push_str(&format!(" Starts without approval at {}.", shown_time(at)));
    }
    text
}
