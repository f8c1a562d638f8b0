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
-- What the roles may do is held by the database, whatever client they use.

-- Whether the role that logged in may answer for an owner: `owner_roles` names it, or names none for that owner. Inside of a
-- function with its definer's rights the current role is the definer.
CREATE FUNCTION metal.answers_for(this_owner text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT EXISTS (SELECT FROM metal.owner_roles AS listed WHERE listed.owner = this_owner)
    OR EXISTS (
        SELECT FROM metal.owner_roles AS listed
        JOIN pg_catalog.pg_roles AS known ON known.rolname = listed.role_name
        WHERE listed.owner = this_owner AND pg_catalog.pg_has_role(session_user, known.oid, 'MEMBER')
    )
$$;

-- Whether the role that logged in owns the tables: it repairs, imports and restores, so it is held to nothing.
CREATE FUNCTION metal.is_owner() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_catalog.pg_has_role(session_user, c.relowner, 'MEMBER')
    FROM pg_catalog.pg_class AS c WHERE c.oid = 'metal.locks'::pg_catalog.regclass
$$;

-- A lock only grows, one revision at a time: a number that cannot grow would freeze its server, and one that is given out
-- again would let a change through that was made from what is no longer there.
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

-- An approval is given and withdrawn by a role that may answer for its owner, and used once.
DROP POLICY a_run_uses ON metal.approvals;
DROP POLICY it_ends_with_its_claim ON metal.approvals;
DROP POLICY its_owner_gives ON metal.approvals;
CREATE POLICY a_run_uses_it_once ON metal.approvals FOR UPDATE USING (used_by IS NULL) WITH CHECK (used_by IS NOT NULL);
CREATE POLICY its_owner_gives ON metal.approvals FOR INSERT WITH CHECK (metal.answers_for(owner));
CREATE POLICY its_owner_withdraws ON metal.approvals FOR DELETE USING (metal.answers_for(owner));

-- The audit is a chain: `hash` is made of the line and of the hash before it, so that no line can be changed, left out or
-- put between others afterwards without all later ones. Its end is kept apart, where no role writes, and so is the end of
-- what was forgotten. `number` is the place in the chain; NULL until a line is in it.
ALTER TABLE metal.audit ADD COLUMN number bigint UNIQUE, ADD COLUMN previous bytea, ADD COLUMN hash bytea;
ALTER TABLE metal.audit ALTER COLUMN at SET DEFAULT metal.clock();
CREATE INDEX audit_unchained ON metal.audit (id) WHERE number IS NULL;
CREATE TABLE metal.audit_chain (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    number bigint NOT NULL,
    hash bytea NOT NULL,
    forgotten bigint NOT NULL,
    forgotten_hash bytea NOT NULL
);
INSERT INTO metal.audit_chain (number, hash, forgotten, forgotten_hash) VALUES (0, '', 0, '');

-- Of lengths and texts, so that no two lines are written alike.
CREATE FUNCTION metal.audit_hash(
    previous bytea, number bigint, at timestamptz, namespace text, name text, role_name name, body text
) RETURNS bytea LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT sha256(previous || convert_to(concat_ws(
        '|', number, (extract(epoch FROM at) * 1000000)::bigint, length(namespace), namespace, length(name), name,
        length(role_name::text), role_name::text, body
    ), 'UTF8'))
$$;

-- The database sets the role and the time of a line; its writer cannot choose them.
CREATE FUNCTION metal.stamp_audit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT metal.is_owner() THEN
        NEW.at := metal.clock();
        NEW.role_name := session_user;
        NEW.number := NULL;
        NEW.previous := NULL;
        NEW.hash := NULL;
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER stamp_audit BEFORE INSERT ON metal.audit FOR EACH ROW EXECUTE FUNCTION metal.stamp_audit();

-- Adds lines to the chain. No transaction waits for its end: lines that come while another one has it are added by the next.
-- So commits of different servers do not follow one another, and a client that keeps a transaction open stops no other
-- server.
CREATE FUNCTION metal.chain_audit() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    last metal.audit_chain%ROWTYPE;
    line metal.audit%ROWTYPE;
    next_hash bytea;
BEGIN
    SELECT * INTO last FROM metal.audit_chain FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR line IN SELECT * FROM metal.audit AS a WHERE a.number IS NULL ORDER BY a.id LIMIT 1000 LOOP
        last.number := last.number + 1;
        next_hash := metal.audit_hash(
            last.hash, last.number, line.at, line.namespace, line.name, line.role_name, line.body);
        UPDATE metal.audit AS a SET number = last.number, previous = last.hash, hash = next_hash WHERE a.id = line.id;
        last.hash := next_hash;
    END LOOP;
    UPDATE metal.audit_chain SET number = last.number, hash = last.hash;
END
$$;
CREATE FUNCTION metal.audit_grows() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM metal.chain_audit();
    RETURN NULL;
END
$$;

-- The lines that are there now.
DO $$
BEGIN
    WHILE EXISTS (SELECT FROM metal.audit AS a WHERE a.number IS NULL) LOOP
        PERFORM metal.chain_audit();
    END LOOP;
END
$$;
CREATE TRIGGER audit_grows AFTER INSERT ON metal.audit FOR EACH STATEMENT EXECUTE FUNCTION metal.audit_grows();

-- Forgets the oldest lines, without gaps, up to the first one that is not old enough. How many.
CREATE FUNCTION metal.forget_audit(keep interval, most integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    last bigint;
    gone bigint;
BEGIN
    PERFORM FROM metal.audit_chain FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR keep < interval '0' THEN
        RETURN 0;
    END IF;
    WITH oldest AS (
        SELECT a.number, a.at < metal.clock() - keep AS is_old
        FROM metal.audit AS a WHERE a.number IS NOT NULL ORDER BY a.number LIMIT most
    )
    SELECT max(o.number) INTO last FROM oldest AS o
    WHERE o.number < coalesce((SELECT min(young.number) FROM oldest AS young WHERE NOT young.is_old), o.number + 1);
    IF last IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE metal.audit_chain
    SET forgotten = last, forgotten_hash = (SELECT a.hash FROM metal.audit AS a WHERE a.number = last);
    DELETE FROM metal.audit AS a WHERE a.number <= last;
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

-- As before, with the caller's rights; but approvals go through `metal.answer`, a change of approvals alone is nothing but a
-- call of it, and an approval is used once.
CREATE OR REPLACE FUNCTION metal.commit(
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

REVOKE EXECUTE ON FUNCTION metal.answer, metal.forget_audit, metal.chain_audit FROM PUBLIC;

-- Existing grants are carried over: a role that approved by the tables does so by the function, and one that wrote or deleted
-- lines of the audit does so as far as that is still possible.
DO $$
DECLARE
    had record;
BEGIN
    FOR had IN
        SELECT x.grantee, CASE WHEN x.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(x.grantee)) END AS called,
            bool_or(c.relname = 'approvals' AND x.privilege_type = 'INSERT') AS approves,
            bool_or(c.relname = 'maintenances' AND x.privilege_type = 'INSERT') AS runs,
            bool_or(c.relname = 'audit' AND x.privilege_type = 'DELETE') AS forgets
        FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS x
        WHERE c.relnamespace = 'metal'::regnamespace AND c.relkind = 'r' AND x.grantee <> c.relowner
        GROUP BY x.grantee
    LOOP
        EXECUTE format('REVOKE INSERT, DELETE ON metal.approvals FROM %s', had.called);
        EXECUTE format('REVOKE INSERT, UPDATE, DELETE ON metal.audit FROM %s', had.called);
        IF had.runs THEN
            EXECUTE format('GRANT INSERT (namespace, name, body) ON metal.audit TO %s', had.called);
        ELSE
            EXECUTE format('REVOKE UPDATE (revision, commits) ON metal.locks FROM %s', had.called);
        END IF;
        IF had.approves THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION metal.answer TO %s', had.called);
        END IF;
        IF had.forgets THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION metal.forget_audit TO %s', had.called);
        END IF;
        EXECUTE format('GRANT SELECT ON metal.audit_chain TO %s', had.called);
    END LOOP;
END
$$;
-- Lines of the audit join the chain with the next heartbeat of any process, and not within the change that writes them: that
-- took as long as the change itself. Until then they are counted as waiting by `audit verify`. No role can change or remove
-- such a line either, except the owner of the tables.
DROP TRIGGER audit_grows ON metal.audit;

-- Most heartbeats find no line that waits, and write nothing then.
CREATE OR REPLACE FUNCTION metal.audit_grows() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM metal.audit AS a WHERE a.number IS NULL) THEN
        PERFORM metal.chain_audit();
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER audit_grows AFTER INSERT OR UPDATE ON metal.leases FOR EACH STATEMENT EXECUTE FUNCTION metal.audit_grows();
