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
        policy: Text => computed(String, "`OwnerApproval` needs your approval; `Enforced` does not.");
        reason: Text => computed(String, "The stated reason.");
        ticket: Text => computed(String, "The maintenance's ticket.");
        priority: ValueNumber => computed(Number, "Its queue priority.");
        window: Text => computed(String, "When it can start; null: at any time.");
        effect: Text => computed(String, "The effect on the server, in words; empty if it is only locked.");
        requested_by: Text => computed(String, "The user and machine that requested it.");
        requested_at: Text => computed(String, "When it was requested (RFC 3339, UTC).");
        digest: Text => computed(
            String,
            "The request's digest. An approval is bound to it and becomes void when the request changes.",
        );
        approved: ValueBool => computed(Bool, "True if it does not wait for your approval.");
        escalates_at: Text => computed(String, "When it can start without approval (RFC 3339, UTC).");
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
        phase: String, "With `metal_operator`: the ServerClaim's phase, `Bound` or `Unbound`; otherwise null.";
        ignition_secret: String, "With `metal_operator`: the Secret with the ignition file; null without an ignition file.";
        id: String, "`namespace/name`.";
        owner: String, "The server's owner: the provider's `owner`. Approvals need the same owner.";
        claimed_at: String, "When the server was claimed (RFC 3339, UTC).";
        lock_key: String, "The server's hardware identity, under which the claim is stored.";
        maintenance_needed: Bool, "True if maintenance of the server is pending. A refresh then also warns.";
        pending: AttributeList(AskedModel::settings()), "Pending maintenance, oldest first.";
    }
});

/// Builds the schema.
pub(in crate::provider) fn claim_schema() -> Schema {
    use AttributeType::String;
    schema(
        "Marks a server as in use by its owner. A maintenance with `policy = \"OwnerApproval\"` then needs the owner's \
         approval. With `metal_operator` it is a ServerClaim, which boots the server. Otherwise it is a record in the \
         coordination store and does not touch the server.",
        ClaimModel::with_outputs(attributes([
            (
                "server",
                required(
                    String,
                    "The server's name in the provider's configuration. Changing it replaces the resource.",
                ),
            ),
            ("namespace", required(String, "First part of the claim's name. Changing it replaces the resource.")),
            (
                "name",
                required(String, "Second part of the name, after `namespace`. Changing it replaces the resource."),
            ),
            (
                "contact",
                optional(
                    String,
                    "How to contact the owner, shown wherever an approval is missing. At most 256 characters.",
                ),
            ),
            (
                "image",
                optional(
                    String,
                    "Required with `metal_operator`: the image that the server boots for its owner, by its name in a registry. A change takes effect at the next boot.",
                ),
            ),
            (
                "ignition",
                optional(
                    object([
                        ("url", optional(String, "Not supported here. Set `file` or `secret_name`.")),
                        (
                            "file",
                            optional(
                                String,
                                "A local file of at most 1 MiB. The provider stores it in a Secret, which is deleted with the claim. Plans and states do not contain its content. New content counts as a change.",
                            ),
                        ),
                        (
                            "secret_name",
                            optional(String, "Name of a Secret with the key `ignition`, in the claim's namespace."),
                        ),
                    ]),
                    "With `metal_operator`: the ignition file for the server's boot.",
                ),
            ),
            (
                "ignition_wo",
                secret(
                    "With `metal_operator`: the ignition file's content as text, instead of `ignition`. The provider stores it in a Secret, which is deleted with the claim. It can be an ephemeral value; plans, states and records do not contain it. Needs Terraform or OpenTofu 1.11. Older hosts are rejected, because they would store it.",
                ),
            ),
            (
                "ignition_wo_version",
                optional(
                    AttributeType::Number,
                    "The version of `ignition_wo`, any number. New content takes effect when this number changes.",
                ),
            ),
            (
                "server_power",
                optional(String, "Required with `metal_operator`: the power that the owner requests, `On` or `Off`."),
            ),
            ("tolerations", tolerations_attribute()),
            (
                "timeouts",
                timeouts([
                    (
                        "create",
                        "With `metal_operator`: limit for binding the server. Default: `\"30m\"`. If it ends, the provider removes the claim.",
                    ),
                    ("update", "Not used: apply does not wait for changes."),
                    ("delete", "With `metal_operator`: limit for freeing the server. Default: `\"30m\"`."),
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
            bad(diags, at, "Only one source is allowed", "Set ignition or ignition_wo, not both.");
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
                    "A claim in the coordination store only records the server's owner; it does not boot the server. \
                     Remove {name}. Claims of {} boot servers.",
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
            server: Value::Value(claim.server.to_string()),
            namespace: Value::Value(claim.id.namespace().to_owned()),
            name: Value::Value(claim.id.name().to_owned()),
            contact: known(claim.contact.as_ref().map(|text| text.raw().to_owned())),
            ..Self::default()
        };
        model.show(claim, view);
        model
    }

    pub(in crate::provider) fn show(&mut self, claim: &Claim, view: &LockView) {
        self.id = Value::Value(claim.id.to_string());
        self.owner = Value::Value(claim.owner.to_string());
        self.claimed_at = Value::Value(claim.since.to_string());
        self.lock_key = Value::Value(view.lock.key.raw().to_owned());
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
            reason: known(asked.reason.as_ref().map(|text| text.raw().to_owned())),
            ticket: known(asked.ticket.as_ref().map(|text| text.raw().to_owned())),
            priority: Value::Value(asked.priority),
            window: known(asked.window.as_ref().map(|text| text.raw().to_owned())),
            effect: Value::Value(asked.effect.to_string()),
            requested_by: Value::Value(asked.by.to_string()),
            requested_at: Value::Value(asked.requested_at.to_string()),
            digest: Value::Value(asked.digest.to_string()),
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
        text.push_str(&format!("; the server {}", asked.effect.shown().trim_end_matches('.')));
    }
    if let Some(window) = &asked.window {
        text.push_str(&format!("; starts only in {window}"));
    }
    match (asked.policy, asked.allowed) {
        (Policy::Enforced, _) => text.push_str(". Approval not required (Enforced)."),
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
