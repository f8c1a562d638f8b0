//! `metal_maintenance_queue`: holders and waiters.

use async_trait::async_trait;
use tf_provider::{
    AttributePath, DataSource, Diagnostics,
    schema::Schema,
    value::{Value, ValueList, ValueNumber},
};

use crate::shown::OneLine;
use crate::{maintenance::report::QueueRow, plugin::diagnostic};

use crate::provider::{
    shared::block::table,
    shared::cell::Cell,
    shared::schema::{computed, optional, schema},
    shared::values::{Text, given, known, not_empty},
};

table! {
    /// A queue entry.
    pub(in crate::provider) struct EntryModel {
        server: Text => computed(String, "The server's name in the configuration that requested it.");
        lock_key: Text => computed(String, "The server's hardware identity, which is the lock key.");
        id: Text => computed(String, "`namespace/name` of the maintenance.");
        state: Text => computed(String, "The maintenance's state.");
        position: ValueNumber => computed(Number, "`0` for the holder, `1` for the next waiter.");
        waiting_for: Text => computed(String, "The reason for its wait; null if it does not wait. It also shows the reason for a delay if a step takes more than 5 s.");
        requested_at: Text => computed(String, "When it was requested (RFC 3339, UTC).");
        by: Text => computed(String, "The user and machine that requested it.");
        owner: Text => computed(String, "The requesting provider configuration's `owner`.");
        reason: Text => computed(String, "The stated reason.");
        ticket: Text => computed(String, "The maintenance's ticket.");
        priority: ValueNumber => computed(Number, "Its priority.");
        expires_at: Text => computed(String, "When the maintenance becomes overdue (RFC 3339, UTC).");
        place_kept_until: Text => computed(
            String,
            "When a disconnected run loses its queue position.",
        );
        generation: ValueNumber => computed(Number, "The generation, which increases each time a process attaches.");
    }
}

table! {
    /// A `metal_maintenance_queue` in configuration and state.
    pub(in crate::provider) struct QueueModel {
        server: Text => optional(String, "Only entries with this server name. Default: all.");
        entries: ValueList<EntryModel> => computed(
            AttributeList(EntryModel::settings()),
            "Holders and waiters, grouped by machine, in queue order.",
        );
    }
}

/// The data source type.
#[derive(Debug)]
pub(in crate::provider) struct MaintenanceQueue {
    pub(in crate::provider) cell: Cell,
}

#[async_trait]
impl DataSource for MaintenanceQueue {
    type State<'a> = Value<QueueModel>;
    type ProviderMetaState<'a> = Value<()>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(schema(
            "Holders of servers and waiters. Reads the coordination store, but not BMCs.",
            QueueModel::settings(),
        ))
    }

    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::State<'a>) -> Option<()> {
        if let Value::Value(model) = config {
            not_empty(diags, &model.server, AttributePath::new("server"));
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
        let read = match given(&model.server) {
            Some(server) => engine.queue_of(server).await,
            None => engine.queue().await,
        };
        match read {
            Ok(lines) => model.entries = Value::Value(lines.into_iter().map(EntryModel::from).collect()),
            Err(error) => {
                model.entries = Value::Null;
                diags.add_warning(diagnostic(
                    "The coordination store did not answer",
                    format!("{error}. The queue is not known."),
                    AttributePath::root(),
                ));
            }
        }
        Some(Value::Value(model))
    }
}

impl From<QueueRow> for EntryModel {
    fn from(line: QueueRow) -> Self {
        let number = |n: u64| Value::Value(i64::try_from(n).unwrap_or(i64::MAX));
        Self {
            server: Value::Value(line.server.into_raw()),
            lock_key: Value::Value(line.lock_key.raw().to_owned()),
            id: Value::Value(line.id.to_string()),
            state: Value::Value(line.state.to_owned()),
            position: number(line.position as u64),
            waiting_for: known(line.waiting_for),
            requested_at: Value::Value(line.requested_at.to_string()),
            by: Value::Value(line.by.to_string()),
            owner: Value::Value(line.owner.into_raw()),
            reason: known(line.reason.map(OneLine::into_raw)),
            ticket: known(line.ticket.map(OneLine::into_raw)),
            priority: Value::Value(line.priority),
            expires_at: known(line.expires_at.map(|at| at.to_string())),
            place_kept_until: known(line.place_kept_until.map(|at| at.to_string())),
            generation: number(line.generation),
        }
    }
}
