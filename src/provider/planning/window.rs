//! `metal_maintenance_window`: when a window opens.

use async_trait::async_trait;
use tf_provider::{
    AttributePath, DataSource, Diagnostics,
    schema::Schema,
    value::{Value, ValueBool, ValueList, ValueNumber},
};

use crate::maintenance::window::OnClose;

use crate::provider::{
    shared::block::table,
    shared::cell::Cell,
    shared::schema::{computed, optional, schema},
    shared::values::{Text, bad, moment},
    shared::window::{WindowModel, window_attribute},
};

/// The default number of openings.
const COUNT: i64 = 5;
/// The largest number of openings.
const MOST: i64 = 1000;

table! {
    /// One opening.
    pub(in crate::provider) struct OpeningModel {
        start: Text => computed(String, "When it opens (RFC 3339, UTC).");
        end: Text => computed(String, "When it closes (RFC 3339, UTC).");
        local_start: Text => computed(String, "When it opens, in local time of its time zone.");
    }
}

table! {
    /// A `metal_maintenance_window` in configuration and state.
    pub(in crate::provider) struct WindowDataModel {
        window: Value<WindowModel> => window_attribute();
        from: Text => optional(String, "The time to search from (RFC 3339). Default: now.");
        limit: ValueNumber => optional(Number, "Number of openings. Default: `5`, at most `1000`.");
        open: ValueBool => computed(Bool, "True if the window is open at `from`.");
        openings: ValueList<OpeningModel> => computed(
            AttributeList(OpeningModel::settings()),
            "The openings that end after `from`, earliest first.",
        );
    }
}

/// The data source type.
#[derive(Debug)]
pub(in crate::provider) struct MaintenanceWindow {
    pub(in crate::provider) cell: Cell,
}

impl WindowDataModel {
    fn check(&self, diags: &mut Diagnostics) {
        if self.window.is_null() {
            bad(diags, AttributePath::new("window"), "A window is needed", "Set window, with a schedule or a name.");
        }
        if let Value::Value(count) = self.limit
            && !(1..=MOST).contains(&count)
        {
            bad(diags, AttributePath::new("limit"), "Invalid value", format!("{count} is not between 1 and {MOST}."));
        }
        moment(diags, &self.from, AttributePath::new("from"));
        if let Value::Value(window) = &self.window {
            window.check(diags, &AttributePath::new("window"), OnClose::Finish, None, None);
        }
    }
}

#[async_trait]
impl DataSource for MaintenanceWindow {
    type State<'a> = Value<WindowDataModel>;
    type ProviderMetaState<'a> = Value<()>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(schema("The next openings of a window. Does not read BMCs or the store.", WindowDataModel::settings()))
    }

    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::State<'a>) -> Option<()> {
        if let Value::Value(model) = config {
            model.check(diags);
        }
        Some(())
    }

    async fn read<'a>(
        &self,
        diags: &mut Diagnostics,
        config: Self::State<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<Self::State<'a>> {
        let Value::Value(mut model) = config else { return Some(Value::Null) };
        let engine = self.cell.engine(diags)?;
        model.check(diags);
        let from = moment(diags, &model.from, AttributePath::new("from")).unwrap_or_else(|| engine.now());
        let Value::Value(asked) = &model.window else { return None };
        let at = AttributePath::new("window");
        let window = asked.check(diags, &at, OnClose::Finish, Some(from), Some(engine.windows()))?.compile().ok()?;
        let count = if let Value::Value(count) = model.limit { count } else { COUNT };
        let shown = window.openings(from).take(usize::try_from(count).unwrap_or(0)).map(|opening| OpeningModel {
            start: Value::Value(opening.start.to_string()),
            end: Value::Value(opening.end.to_string()),
            local_start: Value::Value(window.shown(opening.start)),
        });
        let openings = shown.collect();
        model.openings = Value::Value(openings);
        model.open = Value::Value(window.open_at(from).is_some());
        Some(Value::Value(model))
    }
}
