-- Format 1. A change of this schema, or of what `maintenances.body` can contain, is a new file with the next number. A
-- program rejects a file with a number that it does not support, so it never drops what another program wrote.

-- "metl": distinguishes our files from other programs' databases.
PRAGMA application_id = 1835365484;

CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Two stores with different ids are different truths.
INSERT INTO meta (key, value) VALUES ('store_id', lower(hex(randomblob(16))));

-- One row per machine. A row is never deleted, because `generation` must not start again. `revision` is one counter for the
-- whole table, so one index lookup finds the changes since revision n. `ownership` contains the claim and its approvals as one
-- document, which is read and written with the lock.
CREATE TABLE locks (
    lock_key TEXT PRIMARY KEY,
    generation INTEGER NOT NULL,
    last_ticket INTEGER NOT NULL,
    slot_uid TEXT,
    slot_since TEXT,
    slot_acting TEXT,
    ownership TEXT,
    revision INTEGER NOT NULL UNIQUE
) STRICT, WITHOUT ROWID;

-- The cost of listing claims does not grow with the number of machines.
CREATE INDEX locks_owned ON locks (lock_key) WHERE ownership IS NOT NULL;

-- `body` is the whole record; the other columns are there to find it. `runner` is the process whose lease counts for the
-- record. `ended_at` decides what is pruned.
CREATE TABLE maintenances (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL UNIQUE,
    lock_key TEXT NOT NULL REFERENCES locks (lock_key),
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    active INTEGER NOT NULL,
    runner TEXT,
    body TEXT NOT NULL,
    ended_at TEXT
) STRICT;

-- The cost of finding active records does not grow with the history.
CREATE UNIQUE INDEX maintenances_active_name ON maintenances (namespace, name) WHERE active = 1;
CREATE INDEX maintenances_active_key ON maintenances (lock_key) WHERE active = 1;
CREATE INDEX maintenances_active_runner ON maintenances (runner) WHERE active = 1;
CREATE INDEX maintenances_name ON maintenances (namespace, name, id);
CREATE INDEX maintenances_ended ON maintenances (ended_at) WHERE active = 0;

-- `boot_until` is the end of a lease by the boot clock of its machine, in nanoseconds; a change of the wall clock does not
-- move it. `boot` names the boot that this clock belongs to. Where the system does not report one, the columns are NULL and
-- `until` counts.
CREATE TABLE leases (
    runner_id TEXT PRIMARY KEY,
    until TEXT NOT NULL,
    runner TEXT NOT NULL,
    machine TEXT,
    boot TEXT,
    namespace TEXT,
    boot_until INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE bindings (
    server TEXT PRIMARY KEY,
    lock_key TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The log is append-only; pruning removes its oldest lines. AUTOINCREMENT never issues an id twice, so an id names one line.
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
CREATE INDEX audit_at ON audit (at);
