//! The roles that share a store, as SQL, Kubernetes manifests or policies of a bucket.

use secrecy::SecretString;

use super::{StoreError, bucket, kubernetes};

const POSTGRES: &str = include_str!("../../roles/postgres.sql");
const KUBERNETES: &str = include_str!("../../roles/kubernetes.yaml");
const S3: &str = include_str!("../../roles/s3.json");

/// A kind of store that has roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleKind {
    /// A namespace of a Kubernetes cluster.
    Kubernetes,
    /// A PostgreSQL database.
    Postgres,
    /// An S3 bucket.
    S3,
}

/// Returns the role definitions that an administrator applies to a store. The namespace in a
/// Kubernetes `url` replaces `metal`. The place in an S3 `url` replaces `BUCKET` and `PREFIX`.
/// Other URLs are ignored.
pub fn roles(kind: RoleKind, url: Option<&SecretString>) -> Result<String, StoreError> {
    use secrecy::ExposeSecret as _;
    let of = |scheme: &str| url.filter(|url| url.expose_secret().starts_with(scheme));
    Ok(match kind {
        RoleKind::Postgres => POSTGRES.to_owned(),
        RoleKind::S3 => match of("s3://").map(|url| bucket::parse(url.expose_secret())).transpose()? {
            None => S3.to_owned(),
            Some(place) => S3.replace("BUCKET", &place.bucket).replace("PREFIX", &place.path("")),
        },
        RoleKind::Kubernetes => {
            let namespace = of("kubernetes://").map(|url| kubernetes::namespace_of(url.expose_secret())).transpose()?;
            match namespace.as_deref() {
                None | Some("metal") => KUBERNETES.to_owned(),
                Some(other) => in_namespace(other),
            }
        }
    })
}

/// Renders the manifests for another namespace. Cluster-scoped objects are renamed too; otherwise
/// the policies of two stores would replace each other.
///
/// The name is quoted: YAML reads a plain `123` or `on` as another type.
fn in_namespace(namespace: &str) -> String {
    let quoted = format!("\"{namespace}\"");
    KUBERNETES
        .replace("the namespace metal of", &format!("the namespace {namespace} of"))
        .replace("kind: Namespace\nmetadata: {name: metal}", &format!("kind: Namespace\nmetadata: {{name: {quoted}}}"))
        .replace("namespace: metal}", &format!("namespace: {quoted}}}"))
        .replace("kubernetes.io/metadata.name: metal}", &format!("kubernetes.io/metadata.name: {quoted}}}"))
        .replace("{name: metal-store}", &format!("{{name: metal-store-{namespace}}}"))
        .replace("policyName: metal-store\n", &format!("policyName: metal-store-{namespace}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_the_store_is_in_its_roles() {
        let url = |text: &str| SecretString::from(text.to_owned());
        let kubernetes = roles(RoleKind::Kubernetes, Some(&url("kubernetes://locks"))).unwrap();
        assert!(kubernetes.contains("metadata: {name: metal-runner, namespace: \"locks\"}"), "{kubernetes}");
        assert!(!kubernetes.contains("metal}") && !kubernetes.contains("name: metal-store}"), "{kubernetes}");
        assert_eq!(roles(RoleKind::Kubernetes, Some(&url("sqlite:///x"))).unwrap(), KUBERNETES);
        for (text, place) in [("s3://locks/team/a", "locks/team/a/"), ("s3://locks", "locks/")] {
            let s3 = roles(RoleKind::S3, Some(&url(text))).unwrap();
            let policies: serde_json::Value = serde_json::from_str(&s3).unwrap();
            let read = &policies["reviewer"]["Statement"][0]["Resource"];
            assert_eq!(*read, format!("arn:aws:s3:::{place}*"));
            assert!(!s3.contains("BUCKET") && !s3.contains("PREFIX"), "{s3}");
        }
    }
}
