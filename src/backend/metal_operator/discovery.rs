//! Detects the cluster's metal-operator features, because kinds and fields differ between versions.
//!
//! Sources: the API's discovery document and its OpenAPI v3 schemas, which every authenticated user
//! can read. Version facts: metal-operator v0.1.0 to v0.7.0 and its main branch of August 2026.

use serde_json::Value;

use crate::kubernetes::{Cluster, ClusterError, RequestInfo};

use super::objects::{MAINTENANCE, METAL, READINESS, VERSION};

/// How a server is taken out of service in this cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// `ServerMaintenance` of `metal.ironcore.dev` (v0.1 to v0.7), which includes power and boot
    /// configuration.
    Legacy,
    /// `ServerMaintenance` of `maintenance.metal.ironcore.dev`, which only reserves the server;
    /// power and boot use Redfish.
    Maintenance,
    /// Servers cannot refer to a `ServerMaintenance`: the server is parked; power and boot use
    /// Redfish.
    Park,
}

/// An approval's format on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApprovalFormat {
    /// Annotations (v0.1 to v0.5).
    Annotations,
    /// Labels (v0.6 and later).
    Labels,
}

/// The cluster's metal-operator features.
#[allow(clippy::struct_excessive_bools, reason = "each is a separate feature of the cluster")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClusterFeatures {
    pub(super) way: Way,
    pub(super) words: ApprovalFormat,
    /// True if `ServerMaintenance` supports priorities (v0.4 and later).
    pub(super) priority: bool,
    /// True if servers can be closed to new claims (v0.7 and later).
    pub(super) unclaimable: bool,
    /// True if claims can tolerate taints (v0.6 and later).
    pub(super) tolerations: bool,
    /// True if the cluster serves metal-maintenance-operator's `ServerMaintenance`.
    pub(super) maintenance_operator: bool,
    /// True if rules can taint a server (v0.6 and later).
    pub(super) readiness_rules: bool,
    /// True if metal-maintenance-operator can check a server's network.
    pub(super) wirings: bool,
    /// A warning about the combination, for a plan's reviewer.
    pub(super) warning: Option<&'static str>,
}

impl ClusterFeatures {
    /// Returns the API group of the `ServerMaintenance` in use, or read next to parking.
    pub(super) fn group(&self) -> Option<&'static str> {
        match self.way {
            Way::Legacy => Some(METAL),
            Way::Maintenance => Some(MAINTENANCE),
            Way::Park => self.maintenance_operator.then_some(MAINTENANCE),
        }
    }

    /// Describes the detected version for display.
    pub(super) fn name(&self) -> String {
        match self.way {
            Way::Legacy if self.unclaimable => {
                "ServerMaintenance of metal.ironcore.dev (metal-operator v0.7)".to_owned()
            }
            Way::Legacy if self.words == ApprovalFormat::Labels => {
                "ServerMaintenance of metal.ironcore.dev (metal-operator v0.6)".to_owned()
            }
            Way::Legacy if self.priority => {
                "ServerMaintenance of metal.ironcore.dev (metal-operator v0.4 or v0.5)".to_owned()
            }
            Way::Legacy => "ServerMaintenance of metal.ironcore.dev (metal-operator v0.1 to v0.3)".to_owned(),
            Way::Maintenance => "ServerMaintenance of maintenance.metal.ironcore.dev".to_owned(),
            Way::Park => "parking (metal-operator after v0.7)".to_owned(),
        }
    }
}

/// An API group's served kinds and schemas.
#[derive(Debug, Default)]
struct Group {
    kinds: Vec<String>,
    schemas: Value,
}

impl Group {
    fn has(&self, kind: &str) -> bool {
        self.kinds.iter().any(|known| known == kind)
    }

    fn schema(&self, kind: &str) -> Option<&Value> {
        let of_kind = |schema: &&Value| {
            let kinds = schema.get("x-kubernetes-group-version-kind").and_then(Value::as_array);
            kinds.is_some_and(|kinds| kinds.iter().any(|it| it.get("kind").and_then(Value::as_str) == Some(kind)))
        };
        let schemas = self.schemas.pointer("/components/schemas").and_then(Value::as_object);
        schemas.and_then(|schemas| schemas.values().find(of_kind))
    }

    /// Returns true if a kind's `spec` has a field.
    fn field(&self, kind: &str, field: &str) -> bool {
        let fields = self.schema(kind).and_then(|schema| schema.pointer("/properties/spec/properties"));
        fields.is_some_and(|fields| fields.get(field).is_some())
    }

    /// Returns true if both documents list the same kinds. They can differ shortly after an API
    /// server's start, and a partial view leads to wrong conclusions.
    fn is_settled(&self) -> bool {
        ["Server", "ServerMaintenance"].iter().all(|kind| self.has(kind) == self.schema(kind).is_some())
    }
}

/// Inspects a cluster. `Ok(Err(what))` names the missing part of a usable metal-operator.
pub(super) async fn discover(cluster: &Cluster) -> Result<Result<ClusterFeatures, String>, ClusterError> {
    let Some(metal) = group(cluster, METAL).await? else {
        return Ok(Err(format!("it does not serve {METAL}/{VERSION}: metal-operator's definitions are not installed")));
    };
    let maintenance = group(cluster, MAINTENANCE).await?.unwrap_or_default();
    let mut found = judge(&metal, &maintenance);
    if let Ok(found) = &mut found
        && found.maintenance_operator
    {
        found.wirings = group(cluster, READINESS).await?.is_some_and(|group| group.has("ServerWiring"));
    }
    Ok(found)
}

fn judge(metal: &Group, maintenance: &Group) -> Result<ClusterFeatures, String> {
    const KIND: &str = "ServerMaintenance";
    if !metal.has("Server") {
        return Err(format!("its {METAL}/{VERSION} does not define Server"));
    }
    let unclaimable = metal.field("Server", "unclaimable");
    let by_reference = metal.field("Server", "serverMaintenanceRef");
    let tolerations = metal.field("ServerClaim", "tolerations");
    let (maintenance_operator, readiness_rules) = (maintenance.has(KIND), metal.has("ServerReadinessRule"));
    let found = |way, words, priority, warning| ClusterFeatures {
        way,
        words,
        priority,
        unclaimable,
        tolerations,
        maintenance_operator,
        readiness_rules,
        wirings: false,
        warning,
    };
    // Helm keeps definitions during an upgrade (`crd.keep`). A leftover definition without a
    // controller does nothing, and then Servers lack a reference to it too.
    let leftover = metal.has(KIND) && !by_reference;
    match (metal.has(KIND) && by_reference, maintenance.has(KIND)) {
        (true, other) => {
            let words =
                if metal.field(KIND, "locatorLED") { ApprovalFormat::Labels } else { ApprovalFormat::Annotations };
            // metal-operator v0.7.0 treats a reference to the other group's object as dangling and
            // clears it.
            let warning = (other && unclaimable).then_some(
                "The cluster serves ServerMaintenance in both groups. metal-operator v0.7 treats requests of \
                 maintenance.metal.ironcore.dev as deleted; the provider uses metal.ironcore.dev.",
            );
            Ok(found(Way::Legacy, words, metal.field(KIND, "priority"), warning))
        }
        (false, true) if by_reference => Ok(found(Way::Maintenance, ApprovalFormat::Labels, true, None)),
        (false, other) if unclaimable => {
            let warning = if other {
                Some(
                    "metal-maintenance-operator enforces nothing here: Servers lack serverMaintenanceRef. The provider \
                     parks the server, and waits while a ServerMaintenance is InMaintenance. That operator does not \
                     wait for the provider.",
                )
            } else {
                leftover.then_some(
                    "The cluster serves ServerMaintenance, but its Servers lack serverMaintenanceRef, so it locks \
                     nothing: servers are parked. The definition can be left over from an upgrade.",
                )
            };
            Ok(found(Way::Park, ApprovalFormat::Labels, false, warning))
        }
        (false, _) => {
            Err(format!("its {METAL}/{VERSION} has neither ServerMaintenance nor a Server that can be parked"))
        }
    }
}

/// Reads a group; `None` if it is not served.
async fn group(cluster: &Cluster, group: &str) -> Result<Option<Group>, ClusterError> {
    let version = format!("{group}/{VERSION}");
    let request =
        RequestInfo { verb: "get", resource: "the API's discovery document", namespace: None, name: Some(&version) };
    let listed = cluster
        .call(request, |client| {
            let version = version.clone();
            async move { client.list_api_group_resources(&version).await }
        })
        .await;
    let listed = match listed {
        Ok(listed) => listed,
        Err(ClusterError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let request =
        RequestInfo { verb: "get", resource: "the API's OpenAPI document", namespace: None, name: Some(&version) };
    let path = format!("/openapi/v3/apis/{version}");
    let schemas = cluster
        .call(request, |client| {
            let path = path.clone();
            async move {
                let get = http::Request::get(path).header("accept", "application/json").body(Vec::new());
                client.request(get.map_err(kube::Error::HttpError)?).await
            }
        })
        .await;
    let unsettled = || ClusterError::Rejected {
        address: cluster.address().into(),
        request: request.to_string().into(),
        code: 503,
        message: "the API server is still preparing its documents".into(),
    };
    let schemas = match schemas {
        Err(ClusterError::NotFound { .. }) => return Err(unsettled()),
        schemas => schemas?,
    };
    let group = Group { kinds: listed.resources.into_iter().map(|it| it.kind).collect(), schemas };
    if group.is_settled() { Ok(Some(group)) } else { Err(unsettled()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn serving(kinds: &[(&str, &[&str])]) -> Group {
        let schemas = kinds.iter().map(|(kind, fields)| {
            let fields: serde_json::Map<String, Value> =
                fields.iter().map(|field| ((*field).to_owned(), json!({}))).collect();
            let schema = json!({
                "x-kubernetes-group-version-kind": [{ "kind": kind }],
                "properties": { "spec": { "properties": fields } },
            });
            ((*kind).to_owned(), schema)
        });
        let schemas: serde_json::Map<String, Value> = schemas.collect();
        Group {
            kinds: kinds.iter().map(|(kind, _)| (*kind).to_owned()).collect(),
            schemas: json!({ "components": { "schemas": schemas } }),
        }
    }

    #[test]
    fn what_two_documents_tell_differently_is_not_judged() {
        let mut group = serving(&[("Server", &["unclaimable"]), ("ServerMaintenance", &[])]);
        assert!(group.is_settled());
        group.kinds.pop();
        assert!(!group.is_settled());
        let mut group = serving(&[("Server", &["unclaimable"])]);
        assert!(group.is_settled());
        group.kinds.push("ServerMaintenance".to_owned());
        assert!(!group.is_settled());
    }

    #[test]
    fn each_version_is_told_by_what_it_has() {
        use Way::{Legacy, Maintenance, Park};
        type Kind = (&'static str, &'static [&'static str]);
        let old: Kind = ("Server", &["serverMaintenanceRef"]);
        let seven: Kind = ("Server", &["serverMaintenanceRef", "unclaimable"]);
        let eight: Kind = ("Server", &["unclaimable"]);
        let claim: Kind = ("ServerClaim", &["tolerations"]);
        let sm = |fields: &'static [&'static str]| -> Kind { ("ServerMaintenance", fields) };
        let none = Group::default();
        let other = serving(&[sm(&["priority", "locatorLED"])]);
        for (metal, maintenance, way, words, priority) in [
            (serving(&[old, sm(&[])]), &none, Legacy, ApprovalFormat::Annotations, false),
            (serving(&[old, sm(&["priority"])]), &none, Legacy, ApprovalFormat::Annotations, true),
            (serving(&[old, sm(&["priority", "locatorLED"])]), &none, Legacy, ApprovalFormat::Labels, true),
            (serving(&[seven, sm(&["priority", "locatorLED"])]), &other, Legacy, ApprovalFormat::Labels, true),
            (serving(&[seven]), &other, Maintenance, ApprovalFormat::Labels, true),
            (serving(&[eight]), &none, Park, ApprovalFormat::Labels, false),
            (serving(&[eight]), &other, Park, ApprovalFormat::Labels, false),
            // An upgrade left this definition.
            (serving(&[eight, sm(&["priority", "locatorLED"])]), &none, Park, ApprovalFormat::Labels, false),
        ] {
            let found = judge(&metal, maintenance).unwrap();
            assert_eq!((found.way, found.words, found.priority), (way, words, priority));
        }
        let tolerates = |kinds: &[Kind]| judge(&serving(kinds), &none).unwrap().tolerations;
        assert!(tolerates(&[eight, claim]));
        assert!(!tolerates(&[eight, ("ServerClaim", &["image"])]));
        assert!(judge(&serving(&[("Server", &[])]), &none).unwrap_err().contains("neither"));
        assert!(judge(&none, &none).unwrap_err().contains("does not define Server"));
    }

    /// The fields are those of the definitions in `config/crd/bases` of each release.
    #[test]
    fn the_guide_has_a_row_for_each_release() {
        const GUIDE: &str = include_str!("../../../docs/guides/metal-operator.md");
        type Kind = (&'static str, &'static [&'static str]);
        const SERVER: Kind = ("Server", &["serverMaintenanceRef"]);
        const TAINTED: Kind = ("Server", &["serverMaintenanceRef", "taints"]);
        let seven: Kind = ("Server", &["serverMaintenanceRef", "taints", "unclaimable"]);
        let main: Kind = ("Server", &["taints", "unclaimable"]);
        let full: Kind = ("ServerMaintenance", &["serverPower", "priority", "locatorLED"]);
        let other: Kind = ("ServerMaintenance", &["priority", "locatorLED"]);
        let releases: [(&str, &[Kind], Option<Kind>); 6] = [
            ("v0.1 to v0.3", &[SERVER, ("ServerMaintenance", &["serverPower"])], None),
            ("v0.4 and v0.5", &[SERVER, ("ServerMaintenance", &["serverPower", "priority"])], None),
            ("v0.6", &[TAINTED, full], None),
            ("v0.7", &[seven, full], None),
            ("main (2026-08-21)", &[main], None),
            ("no release", &[seven], Some(other)),
        ];
        for (release, kinds, other) in releases {
            let other = other.map_or_else(Group::default, |kind| serving(&[kind]));
            let found = judge(&serving(kinds), &other).unwrap();
            let row = GUIDE.lines().find(|line| line.starts_with(&format!("| {release} |"))).expect(release);
            assert!(row.contains(&format!("| `{}` |", found.name())), "{row}");
            assert_eq!(row.contains("with `priority`"), found.priority, "{row}");
            assert_eq!(row.contains("| Redfish |"), found.way != Way::Legacy, "{row}");
        }
        let beside = judge(&serving(&[main]), &serving(&[other])).unwrap();
        assert!(beside.way == Way::Park && beside.warning.is_some_and(|it| it.contains("enforces nothing")));
        assert_eq!(beside.group(), Some(MAINTENANCE));
    }
}
