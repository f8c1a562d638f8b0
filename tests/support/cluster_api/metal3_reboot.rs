//! The runtime extension's Metal3 mode: an approved Machine's host gets a reboot annotation, which
//! powers it off. `enabled` and the Node are ignored, and a deleted Machine leaves the annotation.

use kube::{Client, ResourceExt as _};
use serde_json::json;

use super::{
    MAINTENANCE, REBOOT,
    informer::{Cache, Turns},
    objects::{Failure, api, labelled, merge, text},
};

pub struct Metal3Reboot {
    pub client: Client,
    pub machines: Cache,
}

impl Turns for Metal3Reboot {
    async fn turn(&self, name: &str) -> Result<(), Failure> {
        let Some(machine) = self.machines.get(name) else { return Ok(()) };
        let parts: Vec<&str> = text(&machine, "/spec/providerID").split('/').collect();
        let ["metal3:", "", namespace, host, ..] = parts[..] else { return Ok(()) };
        let hosts = api(&self.client, "BareMetalHost", namespace);
        let Some(found) = hosts.get_opt(host).await? else { return Ok(()) };
        let approved = labelled(&machine, MAINTENANCE, "approved");
        if approved == found.annotations().get(REBOOT).is_some_and(String::is_empty)
            && approved == found.annotations().contains_key(REBOOT)
        {
            return Ok(());
        }
        let value = approved.then_some("");
        merge(&hosts, host, json!({"metadata": {"annotations": {REBOOT: value}}})).await?;
        Ok(())
    }
}
