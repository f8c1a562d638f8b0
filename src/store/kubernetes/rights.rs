//! Finds a store whose roles are used while their admission policy does not work.

use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    core::v1::ConfigMap,
    rbac::v1::Role,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};

use super::link::StoreClient;
use crate::{
    kubernetes::{ClusterError, RequestInfo},
    shown::OneLine,
    store::StoreError,
};

/// A lock without its label, which the policy refuses to everybody.
const REFUSED: &str = "metal-lock-policy-check";

/// The policy's API group of the verbs that tell runners from approvers.
const VERBS: &str = "terraform-provider-metal";

/// Reports a missing policy. The API server judges a dry run, so this sees every way to disable the
/// policy and needs no right to read policies. An account that cannot create ConfigMaps cannot
/// check it.
pub(super) async fn disabled(link: &StoreClient) -> Result<Option<OneLine>, StoreError> {
    let metadata = ObjectMeta { name: Some(REFUSED.to_owned()), ..ObjectMeta::default() };
    let map = &ConfigMap { metadata, ..ConfigMap::default() };
    let how = &PostParams { dry_run: true, ..PostParams::default() };
    let asked = link.maps("create", Some(REFUSED), |all| async move { all.create(how, map).await }).await;
    match asked {
        Ok(_) | Err(ClusterError::AlreadyExists { .. }) => {}
        Err(ClusterError::Denied { .. } | ClusterError::Forbidden { .. }) => return Ok(None),
        Err(error) => return Err(link.faults.cluster(&error)),
    }
    let used = are_roles_used(link).await.map_err(|error| link.faults.cluster(&error))?;
    Ok(used.then(|| {
        "the admission policy of the roles does not work: a runner can write approvals, and an approver can change \
         locks; apply the output of `store roles kubernetes` again"
            .into()
    }))
}

/// Returns true if the roles exist, or if this account is one of them.
async fn are_roles_used(link: &StoreClient) -> Result<bool, ClusterError> {
    let about = link.request("get", "roles.rbac.authorization.k8s.io", Some("metal-approver"));
    let ask = |client: Client| async { Api::<Role>::namespaced(client, &link.namespace).get("metal-approver").await };
    match link.cluster.call(about, ask).await {
        Ok(_) => Ok(true),
        Err(ClusterError::NotFound { .. }) => Ok(false),
        Err(ClusterError::Forbidden { .. }) => {
            Ok(may(link, "servers", "hold").await? != may(link, "approvals", "give").await?)
        }
        Err(error) => Err(error),
    }
}

/// Returns true if this account has one of the policy's verbs.
async fn may(link: &StoreClient, resource: &str, verb: &str) -> Result<bool, ClusterError> {
    let attributes = ResourceAttributes {
        group: Some(VERBS.to_owned()),
        resource: Some(resource.to_owned()),
        verb: Some(verb.to_owned()),
        namespace: Some(link.namespace.clone()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = &SelfSubjectAccessReview { spec, ..Default::default() };
    let kind = "selfsubjectaccessreviews.authorization.k8s.io";
    let about = RequestInfo { verb: "create", resource: kind, namespace: None, name: None };
    let ask = |client: Client| async move { Api::all(client).create(&PostParams::default(), review).await };
    let answer = link.cluster.call(about, ask).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
