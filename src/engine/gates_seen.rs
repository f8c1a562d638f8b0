//! What the gates say of a server that is held, to those who only look.

use crate::maintenance::{gate, state::Maintenance};

use super::{Engine, gate::wish_to};

/// What the gates of a record were seen to say.
#[derive(Clone, Debug)]
pub struct GatesSeen {
    /// The record as a release that begins now would find it: with what the gates say.
    pub record: Maintenance,
    /// Why a gate does not hold the server any more.
    pub revoked: Option<String>,
    /// Why the external system ends the use of the server after the release, in a sentence.
    pub deletion: Option<String>,
}

impl Engine {
    /// What the gates that a record entered say of its server. Those that do not answer say
    /// nothing.
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
                seen.revoked.get_or_insert(if outer { format!("{}: {why}", gate.system.name) } else { why });
            }
            seen.deletion = seen.deletion.or(view.deletion);
        }
        seen
    }
}
