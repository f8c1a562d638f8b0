-- Format 1. A change of this schema, or of what a `body` can contain, is a new file with the next number. A program rejects a
-- store with a number that it does not support, so it never drops what another program wrote.

CREATE TABLE metal.meta (
    key text PRIMARY KEY,
    value text NOT NULL
);

-- Identifies the store: Terraform states contain it.
INSERT INTO metal.meta (key, value) VALUES ('store_id', replace(gen_random_uuid()::text, '-', ''));

-- The store's time, one clock for all processes. Every decision about time uses it.
CREATE FUNCTION metal.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';

-- Roles have no grants on the tables except SELECT. They change them only through the functions below, which run with the
-- owner's rights. `role_name` is the login role that wrote a row first, and controls it. NULL after an import: each runner
-- controls such a row.

-- One row per machine. It is never deleted, because `generation` must not start again. `revision` grows with each change;
-- `commits` names the last ones. `role_name` wrote the last change.
CREATE TABLE metal.locks (
    lock_key text COLLATE "C" PRIMARY KEY,
    generation bigint NOT NULL,
    last_ticket bigint NOT NULL,
    slot text,
    claim text,
    claim_role name,
    revision bigint NOT NULL,
    commits text NOT NULL,
    role_name name
);
CREATE INDEX locks_claimed ON metal.locks (lock_key) WHERE claim IS NOT NULL;

-- `body` is the whole record; the other columns find it. `runner` is the process whose lease counts for it. `gone`: it left
-- the queue without history; the row stays for a while, so that other processes see the removal.
CREATE TABLE metal.maintenances (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uid text NOT NULL UNIQUE,
    lock_key text COLLATE "C" NOT NULL REFERENCES metal.locks (lock_key),
    namespace text NOT NULL,
    name text NOT NULL,
    fate text NOT NULL CHECK (fate IN ('active', 'ended', 'gone')),
    ended_at timestamptz,
    revision bigint NOT NULL,
    runner text,
    body text NOT NULL,
    role_name name
);
-- The cost of finding what is active does not grow with the history.
CREATE UNIQUE INDEX maintenances_active_name ON metal.maintenances (namespace, name) WHERE fate = 'active';
CREATE INDEX maintenances_active_key ON metal.maintenances (lock_key, id) WHERE fate = 'active';
CREATE INDEX maintenances_moved ON metal.maintenances (lock_key, revision);
CREATE INDEX maintenances_past_name ON metal.maintenances (namespace, name, id) WHERE fate = 'ended';
CREATE INDEX maintenances_past_time ON metal.maintenances (ended_at) WHERE fate <> 'active';

-- `used_by` is the maintenance that started with the approval.
CREATE TABLE metal.approvals (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uid text NOT NULL UNIQUE,
    lock_key text COLLATE "C" NOT NULL REFERENCES metal.locks (lock_key),
    owner text NOT NULL,
    body text NOT NULL,
    used_by text
);
CREATE INDEX approvals_key ON metal.approvals (lock_key, id);

-- The roles that can approve for an owner. For an owner without a row, each approver can.
CREATE TABLE metal.owner_roles (
    owner text NOT NULL,
    role_name name NOT NULL,
    PRIMARY KEY (owner, role_name)
);

CREATE TABLE metal.leases (
    runner_id text PRIMARY KEY,
    until timestamptz NOT NULL,
    runner text NOT NULL,
    role_name name
) WITH (fillfactor = 50);

CREATE TABLE metal.bindings (
    server text COLLATE "C" PRIMARY KEY,
    lock_key text COLLATE "C" NOT NULL,
    role_name name
);

-- The audit log is append-only: `metal.commit` inserts lines, and only `metal.prune` deletes them. `writer` is the
-- transaction that wrote the line. Ids are issued before their transaction ends, so an export follows `writer` and then `id`:
-- once all transactions up to `writer` have ended, no line can appear before it.
CREATE TABLE metal.audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    writer xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at timestamptz NOT NULL DEFAULT metal.clock(),
    namespace text NOT NULL,
    name text NOT NULL,
    role_name name NOT NULL DEFAULT session_user,
    body text NOT NULL
);
CREATE INDEX audit_name ON metal.audit (namespace, name, id);
CREATE INDEX audit_time ON metal.audit (at);
CREATE INDEX audit_order ON metal.audit (writer, id);

-- The configured age of the audit log: no younger line is deleted. The owner of the schema changes it:
-- UPDATE metal.meta SET value = '90 days' WHERE key = 'audit_age';
INSERT INTO metal.meta (key, value) VALUES ('audit_age', '365 days');

-- One change of one lock, as a process sends it. `expected` and `newest` are the revision and the commit from which it was
-- made; `format` is the newest format that the process supports.
CREATE TYPE metal.record_part AS (uid text, namespace text, name text, fate text, runner text, body text);
CREATE TYPE metal.approval_part AS (uid text, owner text, body text, used_by text);
CREATE TYPE metal.use_part AS (uid text, used_by text);
CREATE TYPE metal.event_part AS (namespace text, name text, body text);
CREATE TYPE metal.change AS (
    lock_key text, expected bigint, newest text, commit_name text, format bigint,
    head_moved boolean, generation bigint, last_ticket bigint, slot text,
    claim_moved boolean, claim text,
    withdrawn text[], records metal.record_part[],
    unapproved text[], approvals metal.approval_part[], used metal.use_part[],
    events metal.event_part[],
    channel text
);
