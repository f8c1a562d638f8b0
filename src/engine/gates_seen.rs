//! Gate states of a held server, for read-only commands.

use crate::maintenance::{gate, state::Maintenance};

use super::{Engine, gate::wish_to};

/// Observed gate states of a record.
#[derive(Clone, Debug)]
pub struct GatesSeen {
    /// The record as a release would find it now, with the gates' states.
    pub record: Maintenance,
    /// Why a gate no longer grants the server.
    pub revoked: Option<String>,
    /// Why the external system ends the server's use after the release, in a sentence.
    pub deletion: Option<String>,
}

impl Engine {
    /// Reads the gates that a record entered. Skips gates that do not answer.
    pub async fn gates_seen(&self, record: &Maintenance) -> GatesSeen {
        let mut seen = GatesSeen { record: record.clone(), revoked: None, deletion: None };
        for (place, gate) in record.gates.iter().enumerate().filter(|(_, gate)| gate.entered && !gate.left) {
            let Ok(Some(link)) = self.link(record.server(), gate) else { continue };
            let wish = wish_to(record, Some(gate), self.store().id());
            let Some(Ok(view)) = async { Some(link.gate()?.look(&wish, false).await) }.await else { continue };
            let noted = &mut seen.record.gates[place];
            noted.power_after = view.power_after;
            if let Some(why) = gate::taken_away(&view.standing) {
                noted.lost.get_or_insert_with(|| why.clone());
                let outer = gate.system.gate.is_some();
                seen.revoked.get_or_insert(if outer {
                    format!("{}: {why}", gate.system.name)
                } else {
                    why.to_string()
                });
            }
            seen.deletion = seen.deletion.or(view.deletion.map(|why| why.to_string()));
        }
        seen
    }
}
