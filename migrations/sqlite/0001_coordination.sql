-- Every change to this schema, and every change to what `maintenances.body` may hold, is a new migration: a program
-- refuses a store with a migration that it does not know, so that an older one never drops what a newer one wrote.

-- "metl": tells our files from other programs' databases.
PRAGMA application_id = 1835365484;

CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Two stores with different ids are different truths.
INSERT INTO meta (key, value) VALUES ('store_id', lower(hex(randomblob(16))));

-- One row per machine that was ever asked for. Never deleted: `generation` must not start again.
-- `revision` is one counter for the whole table, so that "what moved since n" is one look into its index.
CREATE TABLE locks (
    lock_key TEXT PRIMARY KEY,
    generation INTEGER NOT NULL,
    last_ticket INTEGER NOT NULL,
    slot_uid TEXT,
    slot_since TEXT,
    slot_acting TEXT,
    revision INTEGER NOT NULL UNIQUE
) STRICT, WITHOUT ROWID;

-- `body` is the whole record; the other columns are there to find it. `runner` is whose lease counts for it.
CREATE TABLE maintenances (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL UNIQUE,
    lock_key TEXT NOT NULL REFERENCES locks (lock_key),
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    active INTEGER NOT NULL,
    runner TEXT,
    body TEXT NOT NULL
) STRICT;

-- The cost of finding what is active does not grow with the history.
CREATE UNIQUE INDEX maintenances_active_name ON maintenances (namespace, name) WHERE active = 1;
CREATE INDEX maintenances_active_key ON maintenances (lock_key) WHERE active = 1;
CREATE INDEX maintenances_active_runner ON maintenances (runner) WHERE active = 1;
CREATE INDEX maintenances_name ON maintenances (namespace, name, id);

CREATE TABLE leases (
    runner_id TEXT PRIMARY KEY,
    until TEXT NOT NULL,
    runner TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE bindings (
    server TEXT PRIMARY KEY,
    lock_key TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    uid TEXT NOT NULL,
    generation INTEGER NOT NULL,
    actor TEXT NOT NULL,
    what TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;

CREATE INDEX audit_name ON audit (namespace, name, id);
