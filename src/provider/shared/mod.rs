//! What several types have in common.

pub(super) mod boot;
pub(super) mod boot_proof;
pub(super) mod cell;
pub(super) mod diagnostics;
pub(super) mod effect;
pub(super) mod ended;
pub(super) mod identity;
pub(super) mod list_filter;
pub(super) mod list_records;
pub(super) mod moved;
pub(super) mod not_updated;
pub(super) mod own_turn;
pub(super) mod private;
pub(super) mod prospect;
pub(super) mod renamed_timeouts;
pub(super) mod resource_ext;
pub(super) mod resource_identity;
pub(super) mod restored;
pub(super) mod review;
pub(super) mod schema;
pub(super) mod standing;
pub(super) mod toleration;
pub(super) mod values;
pub(super) mod window;
pub(super) mod write_only;
pub(super) mod wrong_settings;
