//! A Server's gate in metal-operator: a `ServerMaintenance` if the cluster has the kind, otherwise
//! parking.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    backend::{BackendError, ExternalRequestRef, Gate, Machine, MaintenanceSystem, Outlook, Rejection},
    maintenance::{
        gate::{Asks, ExternalRequest, ExternalState, ExternalSystem, GateView, QueueAuthority},
        machine::ResetType,
    },
};

use super::{
    afterwards, claims,
    discovery::Way,
    link,
    machine::OperatorMachine,
    objects::{OPERATION, OUR_ID, annotation, reference, text, whose},
    operation, orphans,
    park::Parking,
};

impl OperatorMachine {
    fn parking<'a>(&'a self, wish: &'a ExternalRequest) -> Parking<'a> {
        Parking { fleet: &self.fleet, server: &self.name, wish }
    }

    fn held_by(&self, wish: &ExternalRequest, fresh: bool) -> Self {
        Self {
            fleet: Arc::clone(&self.fleet),
            name: self.name.clone(),
            held: Some(wish.clone()),
            fresh,
            link: Arc::clone(&self.link),
        }
    }

    /// Unparks the server. A server that only the parking stopped is started first.
    async fn unpark(&self, wish: &ExternalRequest) -> Result<(), BackendError> {
        let parking = self.parking(wish);
        if parking.was_running().await? {
            self.start().await?;
        }
        parking.leave().await
    }

    /// Returns a fingerprint that changes with the server, its claim and its requests.
    async fn mark(&self) -> Option<Vec<String>> {
        let server = self.fleet.server(&self.name, false).await.ok()??;
        let mut mark = vec![server.metadata.resource_version.clone().unwrap_or_default()];
        if let Some(claim) = reference(&server, "/spec/serverClaimRef") {
            let claim = self.fleet.claim(&claim, false).await.ok()?;
            mark.push(claim.and_then(|claim| claim.metadata.resource_version.clone()).unwrap_or_default());
        }
        for object in self.fleet.maintenances_of(&self.name).await.ok()? {
            mark.push(object.metadata.resource_version.clone().unwrap_or_default());
        }
        Some(mark)
    }
}

#[async_trait]
impl Gate for OperatorMachine {
    async fn system(&self, operation: bool) -> Result<Option<ExternalSystem>, BackendError> {
        let found = self.fleet.found().await?;
        let order = if found.way == Way::Park || operation { QueueAuthority::Ours } else { QueueAuthority::Theirs };
        let boots = found.way == Way::Legacy && !operation;
        // A parked server keeps the power that we leave. Any other server gets its claim's power,
        // if it has a claim.
        let restores_power = found.way != Way::Park;
        Ok(Some(ExternalSystem {
            boots,
            owners: true,
            restores_power,
            ..ExternalSystem::own(found.name(), order, !operation)
        }))
    }

    async fn look(&self, wish: &ExternalRequest, fresh: bool) -> Result<GateView, BackendError> {
        let parks = self.fleet.found().await?.way == Way::Park;
        if parks || !wish.enters { self.parking(wish).look(fresh).await } else { self.request(wish).look(fresh).await }
    }

    async fn enter(&self, wish: &ExternalRequest) -> Result<(), BackendError> {
        match self.fleet.found().await?.way {
            Way::Park => self.parking(wish).enter().await,
            Way::Legacy | Way::Maintenance => self.request(wish).enter().await,
        }
    }

    async fn leave(&self, wish: &ExternalRequest) -> Result<(), BackendError> {
        match self.fleet.found().await?.way {
            Way::Park => self.unpark(wish).await,
            Way::Legacy | Way::Maintenance => self.request(wish).leave().await,
        }
    }

    async fn requests(&self) -> Result<Vec<ExternalRequestRef>, BackendError> {
        orphans::of(&self.fleet, &self.name).await
    }

    async fn discard(&self, request: &ExternalRequestRef) -> Result<(), BackendError> {
        if request.parks {
            let wish = request.wish();
            return self.parking(&wish).leave().await;
        }
        orphans::discard(&self.fleet, request).await
    }

    fn by_hand(&self, wish: &ExternalRequest, order: QueueAuthority) -> String {
        match order {
            QueueAuthority::Theirs => {
                let request = self.request(wish);
                let (space, name) = (request.namespace(), request.name());
                format!("kubectl delete servermaintenance -n {space} {name}")
            }
            QueueAuthority::Ours | QueueAuthority::OnTurn => {
                format!("kubectl annotate server {} --overwrite {OPERATION}=unpark", self.name)
            }
        }
    }

    async fn changed(&self) {
        let before = self.mark().await;
        let mut kinds = vec![self.fleet.servers.changes(), self.fleet.claims.changes(), self.fleet.boots.changes()];
        if let Ok(Some((mirror, _))) = self.fleet.maintenances().await {
            kinds.push(mirror.changes());
        }
        if before.is_none() {
            // Waiters poll while the cluster is unreachable.
            return std::future::pending().await;
        }
        loop {
            let any = kinds.iter_mut().map(|changes| Box::pin(changes.changed()));
            let (_, _, _) = futures_util::future::select_all(any).await;
            // Some kinds change often, so only changes for this server wake the waiter.
            if self.mark().await != before {
                return;
            }
        }
    }

    async fn outlook(&self, wish: &ExternalRequest) -> Result<Outlook, BackendError> {
        let found = self.fleet.found().await?;
        let mut lines = vec![format!("Cluster: {}.", found.name())];
        lines.extend(found.warning.map(str::to_owned));
        if found.way != Way::Park && wish.enters && self.fleet.namespace_exists().await? == Some(false) {
            lines.push(format!(
                "Namespace {:?} does not exist in {}: create it before apply, or set metal_operator.namespace.",
                self.fleet.namespace,
                self.fleet.cluster.address()
            ));
        }
        let server = self.server(false).await?;
        lines.extend(shuts_down(found.way, wish.enters, text(&server, "/status/powerState")));
        if found.way == Way::Park && wish.enters {
            lines.extend(link::in_clear(&self.fleet, &server, &self.name).await);
        }
        let state = text(&server, "/status/state").unwrap_or("unknown");
        let (mut approval_missing, mut ahead) = (None, None);
        lines.push(match reference(&server, "/spec/serverClaimRef") {
            None => format!("Server: {state}, unclaimed."),
            Some(claim) => {
                let answer = match wish.asks {
                    Asks::Nobody => "its owner is notified; approval not required (Enforced)".to_owned(),
                    Asks::Owner | Asks::OwnerItMustHave => match claims::approval(&self.fleet, found, &claim).await? {
                        claims::ApprovalCheck::Missing(words) => {
                            let missing = format!("no approval yet; waits for {words}");
                            approval_missing = Some(format!("claimed by {claim}: {missing}"));
                            missing
                        }
                        claims::ApprovalCheck::Given | claims::ApprovalCheck::NotNeeded => {
                            "its owner has approved".to_owned()
                        }
                    },
                };
                format!("Server: {state}, claimed by {claim}: {answer}.")
            }
        });
        lines.extend(afterwards::lines(&self.fleet, found, &server).await);
        let others = self.fleet.maintenances_of(&self.name).await?;
        let others: Vec<String> =
            others.iter().filter(|it| annotation(it, OUR_ID) != Some(&wish.id)).map(|it| whose(it)).collect();
        if !others.is_empty() {
            ahead = Some(format!("ServerMaintenances in the cluster: {}", others.join(", ")));
            lines.push(format!("Other ServerMaintenances: {}.", others.join(", ")));
        }
        let rejection = match self.look(wish, false).await.map(|view| view.standing) {
            Ok(ExternalState::Refused(why) | ExternalState::Failed(why)) => Some(Rejection::for_now(why.to_string())),
            _ => None,
        };
        Ok(Outlook { lines, approval_missing, ahead, rejection, unasked: None })
    }
}

/// Warns that parking stops a running server.
fn shuts_down(way: Way, enters: bool, power: Option<&str>) -> Option<String> {
    let shuts = way == Way::Park && enters && power != Some("Off");
    shuts.then(|| "Parking shuts the server down first, regardless of server_power.".to_owned())
}

#[async_trait]
impl MaintenanceSystem for OperatorMachine {
    fn under(&self, wish: &ExternalRequest) -> Arc<dyn Machine> {
        Arc::new(self.held_by(wish, true))
    }

    fn shown(&self, wish: &ExternalRequest) -> Arc<dyn Machine> {
        Arc::new(self.held_by(wish, false))
    }

    async fn would_last(&self, reset: ResetType) -> Result<(), BackendError> {
        match reset {
            ResetType::On | ResetType::ForceOff => operation::would_last(&self.fleet, &self.name, reset).await,
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_running_server_that_is_parked_is_shut_down() {
        for (way, enters, power, expected) in [
            (Way::Park, true, Some("On"), true),
            (Way::Park, true, None, true),
            (Way::Park, true, Some("Off"), false),
            (Way::Park, false, Some("On"), false),
            (Way::Legacy, true, Some("On"), false),
        ] {
            assert_eq!(shuts_down(way, enters, power).is_some(), expected, "{way:?} {enters} {power:?}");
        }
    }
}
