//! A host's gate: entered and left by annotations, under our own lock.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use kube::core::DynamicObject;

use crate::{
    backend::{
        BackendError, ExternalRequestRef, Gate, Machine, MaintenanceSystem, Outlook, Rejection,
        cluster::{OUR_ID, annotation, name, not_now},
        redfish::in_clear,
    },
    clock::within,
    maintenance::{
        gate::{ExternalRequest, ExternalState, ExternalSystem, GateView, QueueAuthority},
        ids::Uid,
        machine::ResetType,
    },
    shown::OneLine,
};

use super::{
    address::BmcAddress,
    change, firmware, health_checks,
    host::{BEFORE, DETACHED, Hold, Host, reboot_key},
    hosts::Hosts,
    link::no_redfish,
    machine::HostMachine,
    reboot,
    standing::{became, believed, beside, booted, deletion, power_after, standing},
};

/// How long pruning waits for the operator to manage a host again. The next pruning removes the
/// rest.
const PRUNE: Duration = Duration::from_secs(20);

/// Poll interval during that wait.
const PAUSE: Duration = Duration::from_secs(2);

impl HostMachine {
    fn held_by(&self, wish: &ExternalRequest, fresh: bool) -> Self {
        Self {
            hosts: Arc::clone(&self.hosts),
            name: self.name.clone(),
            held: Some(wish.clone()),
            fresh,
            link: Arc::clone(&self.link),
        }
    }

    async fn mark(&self) -> Option<String> {
        let host = self.hosts.host(&self.name, false).await.ok()??;
        host.metadata.resource_version.clone()
    }

    /// Describes operator actions that can end a `power_off` hold.
    async fn holes(&self, host: Host<'_>) -> Result<Option<String>, BackendError> {
        let found = match firmware::pending(&self.hosts, host.0).await? {
            Some(found) => Some(found),
            None => firmware::image(&self.hosts, &self.name).await?,
        };
        Ok(found.map(|what| {
            format!(
                "{what}; this can switch the host on, so hold = \"power_off\" cannot keep it off; use hold = \"detach\""
            )
        }))
    }

    /// Returns a power difference that remains after the operator manages the host again. Its
    /// status can still show the power from before the host was detached.
    async fn not_yet_on(&self, host: Host<'_>) -> Result<Option<String>, BackendError> {
        let Some(wanted) = host.kept_power().filter(|_| host.hold() == Some(Hold::Detach)) else { return Ok(None) };
        if !matches!(BmcAddress::read(host.bmc_address()), BmcAddress::Redfish { .. }) {
            return Ok(None);
        }
        let machine = self.redfish(host.0).await?;
        let power = self.link.judged(machine.observe().await).await?.power;
        Ok((power.restored() != Some(wanted))
            .then(|| format!("{} is not yet {wanted} (spec.online), now {power}", host.shown())))
    }

    /// Repeats the release until the host has lost every trace of the request.
    async fn until_left(&self, wish: &ExternalRequest) -> Result<(), BackendError> {
        loop {
            match self.look(wish, true).await?.standing {
                ExternalState::Absent | ExternalState::Refused(_) => return Ok(()),
                ExternalState::Returning(_) => {}
                _ => self.leave(wish).await?,
            }
            tokio::select! {
                () = self.changed() => {}
                () = self.hosts.clock.sleep(PAUSE) => {}
            }
        }
    }
}

/// Reads our request from a host, whichever maintenance created it.
pub(super) fn request(object: &DynamicObject) -> Option<ExternalRequestRef> {
    let host = Host(object);
    let held = host.marked().or_else(|| host.detached_by()).or_else(|| host.left_by());
    let what = if held.is_some() { "hold" } else { "reboot" };
    let author = held.or_else(|| host.rebooted_by())?;
    Some(ExternalRequestRef {
        store: author.store,
        uid: author.uid,
        name: format!("the {what} of {}", host.shown()),
        server: name(object).to_owned(),
        parks: true,
        gate: None,
        memory: BTreeMap::new(),
    })
}

#[async_trait]
impl Gate for HostMachine {
    async fn system(&self, operation: bool) -> Result<Option<ExternalSystem>, BackendError> {
        let name = "Metal3 (BareMetalHost)".to_owned();
        let boots = self.hosts.hold == Hold::Image && !operation;
        Ok(Some(ExternalSystem {
            boots,
            restores_power: true,
            ..ExternalSystem::own(name, QueueAuthority::Ours, !operation)
        }))
    }

    async fn look(&self, wish: &ExternalRequest, fresh: bool) -> Result<GateView, BackendError> {
        self.hosts.reaches(wish)?;
        let view = |standing, behind| GateView { behind, ..GateView::of(standing) };
        let Some(object) = self.hosts.host(&self.name, fresh).await? else {
            let standing = if wish.asked {
                ExternalState::Absent
            } else {
                ExternalState::Refused(self.hosts.absent(&self.name).into())
            };
            return Ok(view(standing, None));
        };
        let host = Host(&object);
        let mut standing = standing(host, wish, self.hosts.hold, self.hosts.now());
        if standing == ExternalState::Absent
            && wish.enters
            && !wish.asked
            && self.hosts.hold == Hold::PowerOff
            && let Some(why) = self.holes(host).await?
        {
            standing = ExternalState::Refused(why.into());
        }
        if let ExternalState::Leftovers(_) = &standing
            && fresh
            && let Some(why) = self.not_yet_on(host).await?
        {
            standing = ExternalState::Returning(why.into());
        }
        // Our store's other request, if its end is the only blocker.
        let behind = request(&object)
            .filter(|other| {
                matches!(standing, ExternalState::Waiting(_)) && other.store == wish.store && other.uid != wish.uid
            })
            .map(|other| Uid::new(other.uid));
        let (granted, hold) = (matches!(standing, ExternalState::Granted) && wish.enters, self.hold_of(host, wish));
        Ok(GateView {
            boot: booted(host).filter(|_| granted && hold == Hold::Image),
            power_after: power_after(host, hold).filter(|_| granted),
            deletion: deletion(host).filter(|_| granted && hold == Hold::Detach).map(OneLine::from),
            ..view(standing, behind)
        })
    }

    async fn enter(&self, wish: &ExternalRequest) -> Result<(), BackendError> {
        self.hosts.reaches(wish)?;
        let object = self.host(true).await?;
        let busy = |why| not_now(self.hosts.cluster.address(), format!("enter BareMetalHost {}", self.name), why);
        let Some(change) = change::enter(Host(&object), wish, self.hosts.hold, self.hosts.now()).map_err(busy)? else {
            return Ok(());
        };
        if self.hosts.hold == Hold::PowerOff
            && let Some(why) = self.holes(Host(&object)).await?
        {
            return Err(BackendError::Unsupported { address: self.address().into(), what: why.into() });
        }
        self.hosts.patch(&object, change).await
    }

    async fn leave(&self, wish: &ExternalRequest) -> Result<(), BackendError> {
        self.hosts.reaches(wish)?;
        let Some(object) = self.hosts.host(&self.name, true).await? else { return Ok(()) };
        let host = Host(&object);
        if let Some(what) = change::cleans(host, wish) {
            return Err(BackendError::Unsupported { address: self.address().into(), what: what.into() });
        }
        let now = self.hosts.now();
        let Some(change) = change::leave(host, wish, now) else { return Ok(()) };
        for told in [believed(host, wish, now), became(host, wish, now)].into_iter().flatten() {
            tracing::warn!("{told}");
        }
        self.hosts.patch(&object, change).await
    }

    async fn requests(&self) -> Result<Vec<ExternalRequestRef>, BackendError> {
        let host = self.hosts.host(&self.name, false).await?;
        Ok(host.iter().filter_map(|object| request(object)).collect())
    }

    async fn discard(&self, request: &ExternalRequestRef) -> Result<(), BackendError> {
        let wish = request.wish();
        if let Some(left) = within(PRUNE, self.until_left(&wish)).await {
            return left;
        }
        tracing::warn!("{}: the operator does not manage the host again yet", self.name);
        Ok(())
    }

    fn by_hand(&self, wish: &ExternalRequest, _order: QueueAuthority) -> String {
        let Hosts { namespace, hold, .. } = &*self.hosts;
        let key = match hold {
            Hold::Detach => DETACHED.to_owned(),
            Hold::PowerOff => reboot_key(&wish.uid),
            Hold::Image => {
                let spec = "'{\"spec\":{\"image\":null,\"consumerRef\":null}}'";
                return format!(
                    "kubectl patch baremetalhost -n {namespace} {} --type=merge -p {spec}, and set spec.online to the \
                     value in its annotation {BEFORE}",
                    self.name
                );
            }
        };
        format!("kubectl annotate baremetalhost -n {namespace} {} {key}-", self.name)
    }

    async fn changed(&self) {
        let mut changes = self.hosts.mirror.changes();
        let before = self.mark().await;
        if before.is_none() {
            // Waiters poll while the cluster is unreachable.
            return std::future::pending().await;
        }
        while changes.changed().await.is_ok() {
            if self.mark().await != before {
                return;
            }
        }
    }

    async fn outlook(&self, wish: &ExternalRequest) -> Result<Outlook, BackendError> {
        let object = self.host(false).await?;
        let host = Host(&object);
        let power = if host.online() { "On" } else { "Off" };
        let used = host.consumer().map_or_else(|| "no consumer".to_owned(), |it| format!("consumer {it}"));
        let mut lines = vec![format!("{}: {}, {}, wanted {power}, {used}.", host.shown(), host.state(), host.status())];
        if !host.error().is_empty() {
            lines.push(format!("Host error: {}.", host.error_text()));
        }
        let address = BmcAddress::read(host.bmc_address());
        match &address {
            BmcAddress::Redfish { endpoint, .. } => {
                match self.hosts.route.check(endpoint).await {
                    Ok(()) => lines.extend(in_clear(endpoint)),
                    Err(refused) => lines.push(format!("BMC: {refused}.")),
                }
                lines.extend(host.unproven_credentials());
            }
            other => lines.push(format!("BMC: {}.", no_redfish(other))),
        }
        if let Some(reuse) = host.reuse() {
            lines.push(format!(
                "Cluster API reserves the host for reuse by {reuse}: cluster-api-provider-metal3 v1.14 and later \
                 claims it even during the maintenance, and the operator provisions it after the release."
            ));
        }
        if wish.enters {
            lines.push(match self.hosts.hold {
                Hold::Detach => {
                    let older = if host.is_provisioned() {
                        ""
                    } else {
                        " baremetal-operator up to v0.12 does not delay the deletion of an available host: it switches \
                         the host off."
                    };
                    format!(
                        "Hold: the host is detached; the operator neither reads nor changes it, and a deletion is delayed \
                         until the release.{older}"
                    )
                }
                Hold::Image => "Hold: the host stays with its operator, which boots it from the image of a boot \
                                configuration (spec.image, live ISO) and deprovisions it at the release; no other \
                                consumer can claim it until then. A deletion is not delayed."
                    .to_owned(),
                Hold::PowerOff => {
                    "Hold: a reboot annotation keeps the host off, and the operator restores spec.online at the \
                                   release. A deletion is not delayed: it deprovisions the host."
                        .to_owned()
                }
            });
        }
        if host.disables_power_off() {
            lines.push(
                "spec.disablePowerOff is set: the operator never switches the host off, but a maintenance can."
                    .to_owned(),
            );
            if !host.online() {
                lines.push(
                    "spec.online is also false: the operator restarts the host repeatedly until a maintenance detaches \
                     it."
                        .to_owned(),
                );
            }
        }
        match firmware::pending(&self.hosts, &object).await {
            Ok(Some(what)) => lines.push(format!("Firmware: {what}, even after the release.")),
            Err(BackendError::Denied { message }) => lines.push(format!("Firmware: unknown ({message}).")),
            _ => {}
        }
        let (mut ahead, mut rejection) = (None, None);
        match self.look(wish, false).await.map(|view| view.standing) {
            Ok(ExternalState::Refused(why) | ExternalState::Failed(why)) => {
                // What only the configured hold cannot do; the host itself could be taken.
                let by_configuration = !matches!(beside(host, wish), ExternalState::Refused(_));
                rejection = Some(Rejection { why: why.to_string(), by_configuration });
            }
            Ok(ExternalState::Waiting(why)) => {
                lines.push(format!("It would wait for {why}."));
                let other = annotation(&object, OUR_ID).filter(|id| *id != wish.id);
                ahead = other.map(|id| format!("the maintenance {id} has the host"));
            }
            _ => {}
        }
        let unasked = health_checks::unasked(&self.hosts, &object).await;
        Ok(Outlook { lines, approval_missing: None, ahead, rejection, unasked })
    }
}

#[async_trait]
impl MaintenanceSystem for HostMachine {
    fn under(&self, wish: &ExternalRequest) -> Arc<dyn Machine> {
        Arc::new(self.held_by(wish, true))
    }

    fn shown(&self, wish: &ExternalRequest) -> Arc<dyn Machine> {
        Arc::new(self.held_by(wish, false))
    }

    fn operating(&self, wish: &ExternalRequest) -> Option<Arc<dyn Machine>> {
        (self.hosts.hold != Hold::Detach).then(|| Arc::new(self.held_by(wish, true)) as Arc<dyn Machine>)
    }

    async fn would_last(&self, reset: ResetType) -> Result<(), BackendError> {
        let object = self.host(true).await?;
        let host = Host(&object);
        if self.hosts.hold != Hold::Detach {
            return match reboot::refusal(host, reset, self.hosts.hold) {
                Some(what) => Err(BackendError::Unsupported { address: self.address().into(), what: what.into() }),
                None => Ok(()),
            };
        }
        let undone = match reset {
            ResetType::On => !host.online(),
            ResetType::ForceOff | ResetType::GracefulShutdown => host.online(),
            _ => false,
        };
        if !undone {
            return Ok(());
        }
        let wanted = if host.online() { "on" } else { "off" };
        Err(BackendError::Unsupported {
            address: self.address().into(),
            what: format!(
                "baremetal-operator would switch {} {wanted} again within a minute (spec.online). Run the operation \
                 under a metal_server_maintenance (maintenance_id), or change spec.online",
                host.shown()
            )
            .into(),
        })
    }
}
