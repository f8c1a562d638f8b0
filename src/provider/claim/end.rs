//! Plan warnings about deleting a claim.

use tf_provider::{AttributePath, Diagnostics};

use crate::{engine::EngineError, maintenance::ids::LockKey, plugin::diagnostic};

use crate::provider::{
    claim::model::ClaimModel, claim::of_cluster::ClusterClaims, shared::diagnostics::of_engine, shared::values::given,
};

impl ClusterClaims<'_> {
    /// Warns of the effect on the server. Only reads.
    pub(super) async fn tell_end(&self, diags: &mut Diagnostics, model: &ClaimModel) {
        let (Some(id), Some(server)) = (given(&model.id), given(&model.server)) else { return };
        let key = given(&model.lock_key).map(LockKey::new);
        let looked = async {
            let state = self.there.state(server, true).await?;
            let approved = self.there.claim_view(id, true).await?.is_some_and(|claim| claim.approved);
            let asked = self.engine.asked_there(self.there, server, key.as_ref(), approved).await?;
            Ok::<_, EngineError>((state, asked))
        };
        let mut lines = vec![format!("{server}: {} {id} is deleted.", self.there.texts().claim)];
        match looked.await {
            // An unbound claim does not affect the server.
            Ok((state, _)) if state.claim.as_deref() != Some(id) => return,
            Ok((state, asked)) => {
                lines.extend(self.there.after_claim(Some(&state)));
                let waiting: Vec<String> =
                    asked.into_iter().filter(|asked| !asked.allowed).map(|asked| asked.id.to_string()).collect();
                if !waiting.is_empty() {
                    diags.add_warning(diagnostic(
                        "Deleting a claim starts maintenance that waits for approval",
                        format!("{server}: without the claim, {} can start without approval.", waiting.join(", ")),
                        AttributePath::root(),
                    ));
                }
            }
            Err(error) => {
                lines.extend(self.there.after_claim(None));
                let why = of_engine(server, &error).detail;
                lines.push(format!("Its current state could not be read: {why}"));
            }
        }
        diags.add_warning(diagnostic("Server will be powered off and unbound", lines.join(" "), AttributePath::root()));
    }
}
