//! Engine parts for tests with their own backend.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use terraform_provider_metal::{
    backend::Backend,
    clock::Clock,
    engine::{Nodes, Parts, Tuning},
    maintenance::ids::Runner,
    probe::{Probe, ProbeError},
    store::Store,
};

/// Accepts every image and every readiness response.
#[derive(Debug)]
struct AnyImage;

#[async_trait]
impl Probe for AnyImage {
    async fn check_image(&self, _url: &str, _sha256: Option<&str>) -> Result<(), ProbeError> {
        Ok(())
    }

    async fn check_status(&self, _url: &str, _status: u16) -> Result<(), ProbeError> {
        Ok(())
    }
}

/// Returns engine parts for a separate process, with owner `tests`.
pub fn parts(store: &Arc<dyn Store>, backend: Arc<dyn Backend>, clock: &Arc<dyn Clock>) -> Parts {
    Parts {
        store: Arc::clone(store),
        backend,
        probe: Arc::new(AnyImage),
        clock: Arc::clone(clock),
        runner: Runner::new(uuid::Uuid::new_v4().to_string(), "tests", "tests", 1),
        owner: "tests".into(),
        windows: BTreeMap::new(),
        always_perform: false,
        nodes: Nodes::default(),
        gates: Vec::new(),
        tuning: Tuning::default(),
    }
}
