//! Warns if a started server's BMC does not confirm the booted system.

use tf_provider::{AttributePath, Diagnostics};

use crate::{
    maintenance::{
        machine::PowerTarget,
        operate::OperationOutcome,
        spec::{BootMethod, MaintenanceKind},
        state::Maintenance,
    },
    plugin::diagnostic,
};

/// Summary of a warning: the server runs, and the booted system is unknown.
const NOT_PROVEN: &str = "A boot from virtual media is not proven";
/// Summary of a warning: the quirk table tolerates a difference.
const TOLERATED: &str = "A BMC shows another value than requested";

/// Warns of the differences that the last preparation or release of a record tolerated.
pub(in crate::provider) fn tolerated(diags: &mut Diagnostics, record: &Maintenance) {
    for one in &record.tolerated {
        let detail = format!("{}: {one}", record.server());
        diags.add_warning(diagnostic(TOLERATED, detail, AttributePath::root()));
    }
}

/// Warns if a server was started from a virtual drive and its BMC does not confirm that.
pub(in crate::provider) fn warn(diags: &mut Diagnostics, record: &Maintenance) {
    tolerated(diags, record);
    let by_drive = record.spec.boot.as_ref().is_some_and(|boot| boot.method == BootMethod::VirtualMedia);
    // A server that was not started has not booted the drive.
    let started = record.spec.server_power == Some(PowerTarget::On);
    let unproven = record.outcome == Some(OperationOutcome::Unproven);
    if record.spec.kind == MaintenanceKind::Operation || !by_drive || !started || !unproven {
        return;
    }
    diags.add_warning(diagnostic(
        NOT_PROVEN,
        format!(
            "{}: the image is in a virtual drive, the boot override was accepted and the server is on. The BMC does not show \
             which system was booted: not proven. Check the console. If the server booted its disk, set boot_target or media_slot \
             where the provider configures this server.",
            record.server()
        ),
        AttributePath::root(),
    ));
}
