-- Every change to this schema, and every change to what a `body` may hold, is a new migration: a program refuses a store
-- with a migration that it does not know, so that an older one never drops what a newer one wrote.

CREATE TABLE metal.meta (
    key text PRIMARY KEY,
    value text NOT NULL
);

-- Two stores with different ids are different truths.
INSERT INTO metal.meta (key, value) VALUES ('store_id', replace(gen_random_uuid()::text, '-', ''));

-- What time it is. Everything that is judged by time asks here, and nobody else: one clock for all processes.
CREATE FUNCTION metal.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';

-- One row per machine that was ever asked for. Never deleted: `generation` must not start again. `revision` grows with
-- every change of what is known about the machine; `commits` names the last ones.
CREATE TABLE metal.locks (
    lock_key text COLLATE "C" PRIMARY KEY,
    generation bigint NOT NULL,
    last_ticket bigint NOT NULL,
    slot text,
    claim text,
    revision bigint NOT NULL,
    commits text NOT NULL
);
CREATE INDEX locks_claimed ON metal.locks (lock_key) WHERE claim IS NOT NULL;

-- `body` is the whole record; the other columns are there to find it. `runner` is whose lease counts for it. `gone`: it
-- left the queue and is no history; the row stays for a while, so that others see what left.
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
    body text NOT NULL
);
-- The cost of finding what is active does not grow with the history.
CREATE UNIQUE INDEX maintenances_active_name ON metal.maintenances (namespace, name) WHERE fate = 'active';
CREATE INDEX maintenances_active_key ON metal.maintenances (lock_key, id) WHERE fate = 'active';
CREATE INDEX maintenances_moved ON metal.maintenances (lock_key, revision);
CREATE INDEX maintenances_past_name ON metal.maintenances (namespace, name, id) WHERE fate = 'ended';
CREATE INDEX maintenances_past_time ON metal.maintenances (ended_at) WHERE fate <> 'active';

-- The owners' words, apart from the locks, so that a role may be allowed to give them and another one not.
-- `used_by` is the run that started with it.
CREATE TABLE metal.approvals (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uid text NOT NULL UNIQUE,
    lock_key text COLLATE "C" NOT NULL REFERENCES metal.locks (lock_key),
    owner text NOT NULL,
    body text NOT NULL,
    used_by text
);
CREATE INDEX approvals_key ON metal.approvals (lock_key, id);

-- Which roles of this database may approve in the name of an owner. An owner that is not here has every role that may
-- approve at all.
CREATE TABLE metal.owner_roles (
    owner text NOT NULL,
    role_name name NOT NULL,
    PRIMARY KEY (owner, role_name)
);

-- PostgreSQL itself refuses an approval in the name of somebody else's owner.
ALTER TABLE metal.approvals ENABLE ROW LEVEL SECURITY;
CREATE POLICY anybody_reads ON metal.approvals FOR SELECT USING (true);
CREATE POLICY a_run_uses ON metal.approvals FOR UPDATE USING (true);
CREATE POLICY it_ends_with_its_claim ON metal.approvals FOR DELETE USING (true);
CREATE POLICY its_owner_gives ON metal.approvals FOR INSERT WITH CHECK (
    NOT EXISTS (SELECT FROM metal.owner_roles AS listed WHERE listed.owner = approvals.owner)
    OR EXISTS (
        SELECT FROM metal.owner_roles AS listed
        JOIN pg_roles AS known ON known.rolname = listed.role_name
        WHERE listed.owner = approvals.owner AND pg_has_role(current_user, known.oid, 'MEMBER')
    )
);

CREATE TABLE metal.leases (
    runner_id text PRIMARY KEY,
    until timestamptz NOT NULL,
    runner text NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE metal.bindings (
    server text COLLATE "C" PRIMARY KEY,
    lock_key text COLLATE "C" NOT NULL
);

-- `role_name` is who PostgreSQL knows that it was, whatever the line says.
CREATE TABLE metal.audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    namespace text NOT NULL,
    name text NOT NULL,
    role_name name NOT NULL DEFAULT session_user,
    body text NOT NULL
);
CREATE INDEX audit_name ON metal.audit (namespace, name, id);
CREATE INDEX audit_time ON metal.audit (at);

-- Writes one change of one lock, if the lock still is at the revision it was made from; the new revision, or nothing.
-- One call, so that no client ever holds a lock of the database between two of its own messages: one that is stopped or
-- cut off would keep everybody else waiting. Runs with the caller's rights.
CREATE FUNCTION metal.commit(
    this_key text, expected bigint, new_commits text,
    head_moved boolean, new_generation bigint, new_last_ticket bigint, new_slot text,
    claim_moved boolean, new_claim text,
    withdrawn text[],
    uids text[], namespaces text[], names text[], fates text[], runners text[], bodies text[],
    unapproved text[],
    approvals text[], approval_owners text[], approval_bodies text[], approval_uses text[],
    used text[], used_by_uids text[],
    event_namespaces text[], event_names text[], event_bodies text[],
    channel text
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    new_revision bigint := expected + 1;
    written bigint := 0;
    more bigint;
    this_fate text;
    this_moment timestamptz := metal.clock();
BEGIN
    IF expected = 0 THEN
        INSERT INTO metal.locks AS l (lock_key, generation, last_ticket, slot, claim, revision, commits)
        VALUES (this_key, new_generation, new_last_ticket, new_slot, new_claim, new_revision, new_commits)
        ON CONFLICT (lock_key) DO NOTHING;
    ELSE
        UPDATE metal.locks AS l SET revision = new_revision, commits = new_commits
        WHERE l.lock_key = this_key AND l.revision = expected;
    END IF;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- Only what moved: a role that approves may not write the rest.
    IF expected > 0 AND head_moved THEN
        UPDATE metal.locks AS l SET generation = new_generation, last_ticket = new_last_ticket, slot = new_slot
        WHERE l.lock_key = this_key;
    END IF;
    IF expected > 0 AND claim_moved THEN
        UPDATE metal.locks AS l SET claim = new_claim WHERE l.lock_key = this_key;
    END IF;
    -- What goes makes room for what comes: a name may end and begin in one change.
    IF cardinality(withdrawn) > 0 THEN
        UPDATE metal.maintenances AS m SET fate = 'gone', ended_at = this_moment, revision = new_revision, runner = NULL
        WHERE m.uid = ANY (withdrawn) AND m.fate = 'active';
    END IF;
    IF cardinality(uids) > 0 THEN
        FOREACH this_fate IN ARRAY ARRAY['ended', 'active'] LOOP
            INSERT INTO metal.maintenances AS m
                (uid, lock_key, namespace, name, fate, ended_at, revision, runner, body)
            SELECT new.uid, this_key, new.namespace, new.name, this_fate, CASE this_fate WHEN 'ended' THEN this_moment END, new_revision,
                new.runner, new.body
            FROM unnest(uids, namespaces, names, fates, runners, bodies) WITH ORDINALITY
                AS new (uid, namespace, name, fate, runner, body, position)
            WHERE new.fate = this_fate
            ORDER BY new.position
            ON CONFLICT (uid) DO UPDATE SET fate = excluded.fate, ended_at = excluded.ended_at,
                revision = excluded.revision, runner = excluded.runner, body = excluded.body
            WHERE m.lock_key = excluded.lock_key AND m.fate = 'active';
            GET DIAGNOSTICS more = ROW_COUNT;
            written := written + more;
        END LOOP;
        IF written <> cardinality(uids) THEN
            RAISE EXCEPTION 'an incarnation was used before' USING ERRCODE = 'MT001';
        END IF;
    END IF;
    IF cardinality(unapproved) > 0 THEN
        DELETE FROM metal.approvals AS a WHERE a.lock_key = this_key AND a.uid = ANY (unapproved);
    END IF;
    IF cardinality(approvals) > 0 THEN
        INSERT INTO metal.approvals (uid, lock_key, owner, body, used_by)
        SELECT new.uid, this_key, new.owner, new.body, new.used_by
        FROM unnest(approvals, approval_owners, approval_bodies, approval_uses) WITH ORDINALITY
            AS new (uid, owner, body, used_by, position)
        ORDER BY new.position;
    END IF;
    IF cardinality(used) > 0 THEN
        UPDATE metal.approvals AS a SET used_by = new.used_by
        FROM unnest(used, used_by_uids) AS new (uid, used_by)
        WHERE a.lock_key = this_key AND a.uid = new.uid;
    END IF;
    IF cardinality(event_bodies) > 0 THEN
        INSERT INTO metal.audit (at, namespace, name, body)
        SELECT this_moment, new.namespace, new.name, new.body
        FROM unnest(event_namespaces, event_names, event_bodies) WITH ORDINALITY
            AS new (namespace, name, body, position)
        ORDER BY new.position;
    END IF;
    IF channel <> '' THEN
        PERFORM pg_notify('metal_changes', channel);
    END IF;
    RETURN new_revision;
END
$$;
