//! Deferral while the provider's own configuration is unknown: hosts that allow it repeat the
//! request in a later run.
use std::collections::BTreeMap;

use tf_provider::{Diagnostics, value::ValueAny};

use super::{
    ServedProvider,
    codec::{self, Received},
    diagnostics::known,
    proto::tfplugin6 as wire,
    resource::Described,
    served::Served,
};

/// Returns a configuration whose computed values are unknown.
pub(super) fn to_be_filled(
    diags: &mut Diagnostics,
    described: Result<&Described, Diagnostics>,
    config: Option<&wire::DynamicValue>,
) -> Option<wire::DynamicValue> {
    let described = known(diags, described)?;
    let config = Received::new(config, &described.shape, "configuration");
    let mut config: BTreeMap<String, ValueAny> = config.decode(diags)?;
    let attributes = described.wire.block.iter().flat_map(|block| &block.attributes);
    for attribute in attributes.filter(|attribute| attribute.computed) {
        let value = config.entry(attribute.name.clone()).or_insert(ValueAny::Null);
        if matches!(value, ValueAny::Null) {
            *value = ValueAny::Unknown;
        }
    }
    codec::send(diags, &config)
}

impl<P: ServedProvider> Served<P> {
    /// Returns the deferral if the host allows one; `None`: answer normally.
    pub(super) fn deferred(&self, host: Option<wire::ClientCapabilities>) -> Option<wire::Deferred> {
        let allowed = host.is_some_and(|host| host.deferral_allowed);
        let reason = wire::deferred::Reason::ProviderConfigUnknown.into();
        (allowed && self.provider.is_deferred()).then_some(wire::Deferred { reason })
    }
}
