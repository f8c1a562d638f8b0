//! Roles from files and guides: their permissions, and the same roles without one of them.
//!
//! A comment `# optional: COST` marks a rule whose verbs a user can remove. It is above the rule,
//! or behind it on the same line.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
    time::{Duration, Instant},
};

use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use super::kubernetes::Kubernetes;

const MARK: &str = "# optional: ";

/// Group of the verbs that the store's admission policy checks.
const OURS: &str = "terraform-provider-metal";

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    pub group: String,
    pub resource: String,
    pub verb: String,
}

impl fmt::Display for Permission {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        write!(formatter, "{} {}{dot}{}", self.verb, self.resource, self.group)
    }
}

/// The Roles and ClusterRoles of a manifest.
pub struct Roles {
    documents: Vec<Value>,
    /// Each rule's mark, in order.
    marks: Vec<bool>,
}

/// Returns a rule's list.
fn words(rule: &Value, list: &str) -> Vec<String> {
    let all = rule[list].as_array().into_iter().flatten();
    all.map(|word| word.as_str().expect("a word").to_owned()).collect()
}

/// Returns a rule's pairs of group and resource.
fn kinds(rule: &Value) -> Vec<(String, String)> {
    let resources = words(rule, "resources");
    let of =
        |group: String| resources.iter().map(move |resource| (group.clone(), resource.clone())).collect::<Vec<_>>();
    words(rule, "apiGroups").into_iter().flat_map(of).collect()
}

/// Returns each rule's mark in a text.
fn marks(text: &str) -> Vec<bool> {
    let (mut marks, mut above) = (Vec::new(), false);
    for line in text.lines().map(str::trim) {
        if line.starts_with('#') {
            above |= line.starts_with(MARK);
            continue;
        }
        let on_one_line = line.starts_with("- {apiGroups:") && line.contains("verbs:");
        if on_one_line || line.starts_with("- apiGroups:") {
            marks.push(above || line.contains(MARK));
        }
        above = false;
    }
    marks
}

impl Roles {
    /// Reads a manifest; other kinds of objects are ignored. `namespace` replaces its namespace.
    pub fn of(text: &str, namespace: Option<(&str, &str)>) -> Self {
        let mut documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
        documents.retain(|document| matches!(document["kind"].as_str(), Some("Role" | "ClusterRole")));
        for document in &mut documents {
            if let Some((old, new)) = namespace
                && document["metadata"]["namespace"] == old
            {
                document["metadata"]["namespace"] = json!(new);
            }
        }
        let marks = marks(text);
        let rules: usize = documents.iter().map(|role| role["rules"].as_array().unwrap().len()).sum();
        assert_eq!(rules, marks.len(), "each rule begins a line");
        Self { documents, marks }
    }

    /// Reads files from `roles/`.
    pub fn of_files(files: &[&str], namespace: Option<(&str, &str)>) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("roles");
        let texts: Vec<String> = files.iter().map(|file| std::fs::read_to_string(folder.join(file)).unwrap()).collect();
        Self::of(&texts.join("\n---\n"), namespace)
    }

    /// Keeps only the role with this name.
    pub fn only(mut self, name: &str) -> Self {
        let mut marks = self.marks.into_iter();
        let mut kept = Vec::new();
        self.documents.retain(|role| {
            let own: Vec<bool> = marks.by_ref().take(role["rules"].as_array().unwrap().len()).collect();
            let meant = role["metadata"]["name"] == name;
            kept.extend(if meant { own } else { Vec::new() });
            meant
        });
        assert_eq!(self.documents.len(), 1, "there is one role {name}");
        self.marks = kept;
        self
    }

    fn rules(&self) -> impl Iterator<Item = (&Value, bool)> {
        let rules = self.documents.iter().flat_map(|role| role["rules"].as_array().unwrap());
        rules.zip(self.marks.iter().copied())
    }

    /// Returns the permissions, each with `true` if all its rules are optional.
    pub fn permissions(&self) -> BTreeMap<Permission, bool> {
        let mut all = BTreeMap::new();
        for (rule, optional) in self.rules() {
            for (group, resource) in kinds(rule) {
                for verb in words(rule, "verbs") {
                    let permission = Permission { group: group.clone(), resource: resource.clone(), verb };
                    *all.entry(permission).or_insert(true) &= optional;
                }
            }
        }
        all
    }

    /// Returns the permissions as verb and resource, such as `get secrets`.
    pub fn verbs(&self) -> BTreeSet<String> {
        self.permissions().keys().map(|permission| format!("{} {}", permission.verb, permission.resource)).collect()
    }

    /// Returns a user's roles and bindings, without one permission.
    fn of_user(&self, user: &str, without: Option<&Permission>) -> Vec<Value> {
        let rbac = "rbac.authorization.k8s.io";
        let mut objects = Vec::new();
        for document in &self.documents {
            let name = format!("{}-{user}", document["metadata"]["name"].as_str().unwrap());
            let mut copy = document.clone();
            copy["metadata"]["name"] = json!(name);
            let mut rules = Vec::new();
            for rule in document["rules"].as_array().unwrap() {
                for (group, resource) in kinds(rule) {
                    let mut verbs = words(rule, "verbs");
                    verbs.retain(|verb| {
                        !without.is_some_and(|it| it.group == group && it.resource == resource && it.verb == *verb)
                    });
                    let mut one = rule.clone();
                    one["apiGroups"] = json!([group]);
                    one["resources"] = json!([resource]);
                    one["verbs"] = json!(verbs);
                    rules.extend((!verbs.is_empty()).then_some(one));
                }
            }
            copy["rules"] = json!(rules);
            let kind = copy["kind"].as_str().unwrap();
            let mut metadata = copy["metadata"].clone();
            metadata["name"] = json!(name);
            let binding = json!({
                "apiVersion": format!("{rbac}/v1"), "kind": format!("{kind}Binding"), "metadata": metadata,
                "roleRef": {"apiGroup": rbac, "kind": kind, "name": name},
                "subjects": [{"kind": "User", "apiGroup": rbac, "name": user}],
            });
            objects.extend([copy, binding]);
        }
        objects
    }

    /// Gives the roles without one permission to a user, and waits until they count.
    pub async fn give(&self, cluster: &Kubernetes, user: &str, without: Option<&Permission>) {
        let objects = self.of_user(user, without);
        let text = objects.iter().map(Value::to_string).collect::<Vec<_>>().join("\n---\n");
        tokio::task::block_in_place(|| cluster.apply(&text));
        let client = Kubernetes::client(&cluster.user(user, &[])).await;
        let reviews: Api<SelfSubjectAccessReview> = Api::all(client);
        for role in objects.iter().filter(|object| object["rules"].is_array()) {
            for rule in role["rules"].as_array().unwrap() {
                let review = review(rule, &role["metadata"]["namespace"]);
                until_allowed(&reviews, &review).await;
            }
        }
    }
}

/// Returns a review of a rule's first verb.
fn review(rule: &Value, namespace: &Value) -> SelfSubjectAccessReview {
    let resource = rule["resources"][0].as_str().unwrap();
    let (resource, sub) = resource.split_once('/').unwrap_or((resource, ""));
    let attributes = json!({
        "group": rule["apiGroups"][0], "resource": resource, "subresource": sub, "verb": rule["verbs"][0],
        "name": rule["resourceNames"][0].as_str().unwrap_or_default(), "namespace": namespace.as_str().unwrap_or_default(),
    });
    serde_json::from_value(json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "metadata": {}, "spec": {"resourceAttributes": attributes},
    }))
    .unwrap()
}

async fn until_allowed(reviews: &Api<SelfSubjectAccessReview>, review: &SelfSubjectAccessReview) {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let answer = reviews.create(&PostParams::default(), review).await.unwrap();
        if answer.status.is_some_and(|status| status.allowed) {
            return;
        }
        assert!(Instant::now() < until, "a role does not count: {review:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Compares the outcome without each permission with the roles. `played` contains the errors of
/// the tasks without a permission; `None` is the whole role.
pub fn judge(permissions: &BTreeMap<Permission, bool>, played: &[(Option<Permission>, Vec<String>)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (without, errors) in played {
        let Some(permission) = without else {
            wrong.extend(errors.iter().map(|error| format!("the role is not sufficient: {error}")));
            continue;
        };
        let names = |error: &String| {
            // Only the admission policy checks the verbs of our own group.
            let denied = permission.group == OURS && error.contains("ValidatingAdmissionPolicy");
            let quoted = error.contains(&format!("\"{}\"", permission.verb));
            denied || (quoted && error.contains(permission.resource.as_str()))
        };
        match (permissions[permission], errors.is_empty()) {
            (true, false) => wrong.push(format!("{permission} is marked optional, and its absence fails: {errors:?}")),
            (false, true) => wrong.push(format!("no task needs {permission}: remove it, or state its cost")),
            (false, false) if !errors.iter().any(names) => {
                wrong.push(format!("without {permission}, another error: {errors:?}"));
            }
            _ => {}
        }
    }
    wrong
}
