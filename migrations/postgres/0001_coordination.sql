-- Format 1. A change of this schema, or of what a `body` can contain, is a new file with the next number. A program rejects a
-- store with a number that it does not support, so it never drops what another program wrote.

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

CREATE TABLE metal.leases (
    runner_id text PRIMARY KEY,
    until timestamptz NOT NULL,
    runner text NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE metal.bindings (
    server text COLLATE "C" PRIMARY KEY,
    lock_key text COLLATE "C" NOT NULL
);

-- Returns true if the role that logged in may answer for an owner: `owner_roles` lists it, or lists no role for that owner.
-- In a function with its definer's rights the current role is the definer.
CREATE FUNCTION metal.answers_for(this_owner text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT EXISTS (SELECT FROM metal.owner_roles AS listed WHERE listed.owner = this_owner)
    OR EXISTS (
        SELECT FROM metal.owner_roles AS listed
        JOIN pg_catalog.pg_roles AS known ON known.rolname = listed.role_name
        WHERE listed.owner = this_owner AND pg_catalog.pg_has_role(session_user, known.oid, 'MEMBER')
    )
$$;

-- Returns true if the role that logged in owns the tables. It repairs, imports and restores without these limits.
CREATE FUNCTION metal.is_owner() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_catalog.pg_has_role(session_user, c.relowner, 'MEMBER')
    FROM pg_catalog.pg_class AS c WHERE c.oid = 'metal.locks'::pg_catalog.regclass
$$;

-- A lock only grows, one revision at a time. A revision that cannot grow would freeze its server; a revision that is issued
-- twice would accept a change of lost data.
CREATE FUNCTION metal.lock_grows() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF metal.is_owner() THEN
        RETURN NEW;
    END IF;
    IF TG_OP = 'INSERT' THEN
        IF NEW.revision <> 1 THEN
            RAISE EXCEPTION 'metal: the first revision of a lock is 1' USING ERRCODE = 'MT002';
        END IF;
    ELSIF NEW.lock_key <> OLD.lock_key OR NEW.generation < OLD.generation OR NEW.last_ticket < OLD.last_ticket
        OR (NEW.revision <> OLD.revision AND NEW.revision - 1 <> OLD.revision)
        OR (NEW.commits <> OLD.commits AND NEW.revision = OLD.revision)
    THEN
        RAISE EXCEPTION 'metal: a lock grows by one revision at a time, and nothing else of it becomes less'
            USING ERRCODE = 'MT002';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER lock_grows BEFORE INSERT OR UPDATE ON metal.locks FOR EACH ROW EXECUTE FUNCTION metal.lock_grows();

-- Approvals end with their claim, so no run needs the right to delete one. The text of a claim begins with its UID.
CREATE FUNCTION metal.claim_ends() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF substring(OLD.claim FROM '^\{"uid":"[^"]*"') IS DISTINCT FROM substring(NEW.claim FROM '^\{"uid":"[^"]*"') THEN
        DELETE FROM metal.approvals AS a WHERE a.lock_key = OLD.lock_key;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER claim_ends AFTER UPDATE OF claim ON metal.locks FOR EACH ROW
    WHEN (OLD.claim IS DISTINCT FROM NEW.claim) EXECUTE FUNCTION metal.claim_ends();

-- A role gives and withdraws approvals only of an owner for which it answers. An approval is used once.
ALTER TABLE metal.approvals ENABLE ROW LEVEL SECURITY;
CREATE POLICY anybody_reads ON metal.approvals FOR SELECT USING (true);
CREATE POLICY a_run_uses_it_once ON metal.approvals FOR UPDATE USING (used_by IS NULL) WITH CHECK (used_by IS NOT NULL);
CREATE POLICY its_owner_gives ON metal.approvals FOR INSERT WITH CHECK (metal.answers_for(owner));
CREATE POLICY its_owner_withdraws ON metal.approvals FOR DELETE USING (metal.answers_for(owner));

-- The audit log is append-only: roles insert lines, and only `metal.forget_audit` deletes them. `writer` is the transaction
-- that wrote the line. Ids are issued before their transaction ends, so an export follows `writer` and then `id`: once all
-- transactions up to `writer` have ended, no line can appear before it.
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

-- The database sets the role and the time of a line; its writer cannot choose them.
CREATE FUNCTION metal.stamp_audit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT metal.is_owner() THEN
        NEW.writer := pg_current_xact_id();
        NEW.at := metal.clock();
        NEW.role_name := session_user;
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER stamp_audit BEFORE INSERT ON metal.audit FOR EACH ROW EXECUTE FUNCTION metal.stamp_audit();

-- The configured age of the audit log: no younger line is deleted. The owner of the schema changes it:
-- UPDATE metal.meta SET value = '90 days' WHERE key = 'audit_age';
INSERT INTO metal.meta (key, value) VALUES ('audit_age', '365 days');
CREATE FUNCTION metal.audit_age() RETURNS interval
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT m.value::interval FROM metal.meta AS m WHERE m.key = 'audit_age'
$$;

-- Deletes at most `most` of the oldest lines that are older than `keep`, and returns their number. A `keep` below the
-- configured age is rejected.
CREATE FUNCTION metal.forget_audit(keep interval, most integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    gone bigint;
BEGIN
    IF keep IS NULL OR keep < metal.audit_age() THEN
        RAISE EXCEPTION 'metal: the audit log keeps its lines for %', metal.audit_age() USING ERRCODE = '42501';
    END IF;
    DELETE FROM metal.audit WHERE id IN (
        SELECT a.id FROM metal.audit AS a WHERE a.at < metal.clock() - keep ORDER BY a.at LIMIT most
    );
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
$$;

-- Gives and withdraws approvals of one lock, and nothing else: with the rights of its definer, so that an approver needs none
-- on the tables. The new revision, or nothing when the lock is not at the expected one. Called by a commit that has written
-- the lock itself, it belongs to that revision.
CREATE FUNCTION metal.answer(
    this_key text, expected bigint, commit_name text,
    unapproved text[], approvals text[], approval_owners text[], approval_bodies text[],
    event_namespaces text[], event_names text[], event_bodies text[],
    channel text
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    new_revision bigint := expected + 1;
    seen record;
BEGIN
    SELECT l.revision, l.commits, l.xmin = pg_current_xact_id()::xid AS ours INTO seen
    FROM metal.locks AS l WHERE l.lock_key = this_key FOR UPDATE;
    IF NOT FOUND OR seen.revision <> (CASE WHEN seen.ours THEN new_revision ELSE expected END) THEN
        RETURN NULL;
    END IF;
    IF EXISTS (SELECT FROM unnest(approval_owners) AS given (owner) WHERE NOT metal.answers_for(given.owner))
        OR EXISTS (
            SELECT FROM metal.approvals AS a
            WHERE a.lock_key = this_key AND a.uid = ANY (unapproved) AND NOT metal.answers_for(a.owner)
        )
    THEN
        RAISE EXCEPTION 'metal: permission denied to answer for this owner' USING ERRCODE = '42501';
    END IF;
    IF NOT seen.ours THEN
        -- A name that is there already, or that is none, could pass for the commit of another process.
        IF commit_name !~ '^[0-9a-zA-Z-]{16,64}$' OR commit_name = ANY (string_to_array(seen.commits, ' ')) THEN
            RAISE EXCEPTION 'metal: a commit has a name of its own' USING ERRCODE = '22023';
        END IF;
        UPDATE metal.locks AS l SET revision = new_revision,
            commits = array_to_string((ARRAY[commit_name] || string_to_array(nullif(seen.commits, ''), ' '))[1:32], ' ')
        WHERE l.lock_key = this_key;
    END IF;
    DELETE FROM metal.approvals AS a WHERE a.lock_key = this_key AND a.uid = ANY (unapproved);
    INSERT INTO metal.approvals (uid, lock_key, owner, body)
    SELECT new.uid, this_key, new.owner, new.body
    FROM unnest(approvals, approval_owners, approval_bodies) WITH ORDINALITY AS new (uid, owner, body, position)
    ORDER BY new.position;
    -- Each reader of the lock reads them all.
    IF (SELECT count(*) > 1000 OR sum(octet_length(a.body)) > 1000000 FROM metal.approvals AS a WHERE a.lock_key = this_key)
    THEN
        RAISE EXCEPTION 'metal: too many approvals for one server' USING ERRCODE = '22023';
    END IF;
    IF cardinality(event_bodies) > 0 THEN
        INSERT INTO metal.audit (namespace, name, role_name, body)
        SELECT new.namespace, new.name, session_user, new.body
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

-- Writes one change of one lock, if the lock still is at the revision it was made from. Returns the new revision, or NULL. One
-- call, so that no client holds a lock of the database between two of its own messages: a stopped client would block all
-- others. It runs with the caller's rights. Approvals go through `metal.answer`, and a change of approvals alone is only a call
-- of it.
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
    IF expected > 0 AND NOT head_moved AND NOT claim_moved AND cardinality(withdrawn) = 0 AND cardinality(uids) = 0
        AND cardinality(used) = 0 AND cardinality(array_remove(approval_uses, NULL)) = 0
        AND (cardinality(unapproved) > 0 OR cardinality(approvals) > 0)
    THEN
        RETURN metal.answer(
            this_key, expected, split_part(new_commits, ' ', 1), unapproved, approvals, approval_owners, approval_bodies,
            event_namespaces, event_names, event_bodies, channel);
    END IF;
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
    -- Those of a claim that is over are gone with it.
    IF cardinality(approvals) > 0
        OR EXISTS (SELECT FROM metal.approvals AS a WHERE a.lock_key = this_key AND a.uid = ANY (unapproved))
    THEN
        PERFORM metal.answer(
            this_key, expected, '', unapproved, approvals, approval_owners, approval_bodies, '{}', '{}', '{}', '');
    END IF;
    IF cardinality(used) > 0 OR cardinality(array_remove(approval_uses, NULL)) > 0 THEN
        UPDATE metal.approvals AS a SET used_by = new.used_by
        FROM unnest(used || approvals, used_by_uids || approval_uses) AS new (uid, used_by)
        WHERE a.lock_key = this_key AND a.uid = new.uid AND new.used_by IS NOT NULL;
        GET DIAGNOSTICS more = ROW_COUNT;
        IF more <> cardinality(array_remove(used_by_uids || approval_uses, NULL)) THEN
            RAISE EXCEPTION 'an approval was used before' USING ERRCODE = 'MT001';
        END IF;
    END IF;
    IF cardinality(event_bodies) > 0 THEN
        INSERT INTO metal.audit (namespace, name, body)
        SELECT new.namespace, new.name, new.body
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

REVOKE EXECUTE ON FUNCTION metal.answer, metal.forget_audit FROM PUBLIC;
