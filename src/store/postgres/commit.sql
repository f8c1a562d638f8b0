-- The functions that write: `metal.commit` for locks, and the others for leases, bindings and pruning.

-- Writes the changed approvals of a lock. A runner uses them, and ends them all with their claim.
CREATE FUNCTION metal.write_approvals(change metal.change, claim_ends boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    uses bigint;
    written bigint;
BEGIN
    IF claim_ends THEN
        DELETE FROM metal.approvals AS a WHERE a.lock_key = change.lock_key;
    END IF;
    IF cardinality(change.approvals) > 0
        OR EXISTS (SELECT FROM metal.approvals AS a WHERE a.lock_key = change.lock_key AND a.uid = ANY (change.unapproved))
    THEN
        PERFORM metal.only_for('metal_approver');
        IF EXISTS (SELECT FROM unnest(change.approvals) AS n WHERE NOT metal.answers_for(n.owner)) OR EXISTS (
            SELECT FROM metal.approvals AS a
            WHERE a.lock_key = change.lock_key AND a.uid = ANY (change.unapproved) AND NOT metal.answers_for(a.owner)
        ) THEN
            RAISE EXCEPTION 'metal: permission denied to answer for this owner' USING ERRCODE = '42501';
        END IF;
        DELETE FROM metal.approvals AS a WHERE a.lock_key = change.lock_key AND a.uid = ANY (change.unapproved);
        INSERT INTO metal.approvals (uid, lock_key, owner, body)
        SELECT n.uid, change.lock_key, n.owner, n.body FROM unnest(change.approvals) WITH ORDINALITY
            AS n (uid, owner, body, used_by, position)
        ORDER BY n.position;
        -- Each reader of the lock reads them all.
        IF (SELECT count(*) > 1000 OR sum(octet_length(a.body)) > 1000000
            FROM metal.approvals AS a WHERE a.lock_key = change.lock_key)
        THEN
            RAISE EXCEPTION 'metal: too many approvals for one server' USING ERRCODE = '22023';
        END IF;
    END IF;
    SELECT count(*) INTO uses FROM (
        SELECT FROM unnest(change.used) AS u UNION ALL SELECT FROM unnest(change.approvals) AS n WHERE n.used_by IS NOT NULL
    ) AS u;
    IF uses > 0 THEN
        PERFORM metal.only_for('metal_runner');
        UPDATE metal.approvals AS a SET used_by = u.used_by FROM (
            SELECT u.uid, u.used_by FROM unnest(change.used) AS u
            UNION ALL SELECT n.uid, n.used_by FROM unnest(change.approvals) AS n
        ) AS u
        WHERE a.lock_key = change.lock_key AND a.uid = u.uid AND a.used_by IS NULL AND u.used_by IS NOT NULL;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> uses THEN
            RAISE EXCEPTION 'an approval was used before' USING ERRCODE = 'MT001';
        END IF;
    END IF;
END
$$;

-- Writes the changed records of a lock, and their audit lines.
CREATE FUNCTION metal.write_records(change metal.change, new_revision bigint, moment timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    this_fate text;
    written bigint := 0;
    more bigint;
BEGIN
    -- First the ends: a name can end and begin in one change.
    UPDATE metal.maintenances AS m SET fate = 'gone', ended_at = moment, revision = new_revision, runner = NULL
    WHERE m.uid = ANY (change.withdrawn) AND m.lock_key = change.lock_key AND m.fate = 'active';
    FOREACH this_fate IN ARRAY ARRAY['ended', 'active'] LOOP
        INSERT INTO metal.maintenances AS m
            (uid, lock_key, namespace, name, fate, ended_at, revision, runner, body, role_name)
        SELECT n.uid, change.lock_key, n.namespace, n.name, this_fate, CASE this_fate WHEN 'ended' THEN moment END,
            new_revision, n.runner, n.body, session_user
        FROM unnest(change.records) WITH ORDINALITY AS n (uid, namespace, name, fate, runner, body, position)
        WHERE n.fate = this_fate
        ORDER BY n.position
        ON CONFLICT (uid) DO UPDATE SET fate = excluded.fate, ended_at = excluded.ended_at, revision = excluded.revision,
            runner = excluded.runner, body = excluded.body, role_name = coalesce(m.role_name, excluded.role_name)
        WHERE m.lock_key = excluded.lock_key AND m.fate = 'active';
        GET DIAGNOSTICS more = ROW_COUNT;
        written := written + more;
    END LOOP;
    IF written <> cardinality(change.records) THEN
        RAISE EXCEPTION 'an incarnation was used before' USING ERRCODE = 'MT001';
    END IF;
END
$$;

-- Writes one change if its lock is unchanged since the caller read it. Returns the new revision, or NULL.
CREATE FUNCTION metal.write_change(change metal.change, alone boolean) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    old metal.locks;
    new_revision bigint;
    moment timestamptz := metal.clock();
    approves boolean := cardinality(change.approvals) + cardinality(change.unapproved) + cardinality(change.used) > 0;
    runs boolean := change.head_moved OR change.claim_moved OR NOT approves
        OR cardinality(change.records) + cardinality(change.withdrawn) > 0;
    uid_of CONSTANT text := '^\{"uid":"[^"]*"';
    claim_ends boolean := false;
BEGIN
    IF EXISTS (SELECT FROM metal.schema_versions AS s WHERE s.version > change.format) THEN
        RAISE EXCEPTION 'metal: the store has another format' USING ERRCODE = 'MT004';
    END IF;
    IF change.expected = 0 THEN
        PERFORM metal.only_for('metal_runner');
        INSERT INTO metal.locks (lock_key, generation, last_ticket, revision, commits)
        VALUES (change.lock_key, 0, 0, 0, '') ON CONFLICT (lock_key) DO NOTHING;
    END IF;
    -- Other changes of the group do not wait for a transaction that keeps this row.
    IF alone THEN
        SELECT l.* INTO old FROM metal.locks AS l WHERE l.lock_key = change.lock_key FOR UPDATE;
    ELSE
        SELECT l.* INTO old FROM metal.locks AS l WHERE l.lock_key = change.lock_key FOR UPDATE NOWAIT;
    END IF;
    IF NOT FOUND OR old.revision <> change.expected OR split_part(old.commits, ' ', 1) <> change.newest THEN
        RETURN NULL;
    END IF;
    new_revision := old.revision + 1;
    -- A name that exists already, or an invalid one, could pass for another process's commit.
    IF change.commit_name !~ '^[0-9a-zA-Z-]{16,64}$' OR change.commit_name = ANY (string_to_array(old.commits, ' ')) THEN
        RAISE EXCEPTION 'metal: permission denied: a commit has its own name' USING ERRCODE = '42501';
    END IF;
    IF runs THEN
        PERFORM metal.only_for('metal_runner');
    END IF;
    IF NOT metal.is_owner() THEN
        PERFORM metal.check_foreign(change, old.slot::jsonb #>> '{holder,uid}', moment);
        PERFORM metal.check_records(change, moment);
    END IF;
    IF change.claim_moved THEN
        IF old.claim IS NOT NULL AND NOT metal.belongs_to(old.claim_role) THEN
            RAISE EXCEPTION 'metal: permission denied: the claim belongs to the role %', old.claim_role USING ERRCODE = '42501';
        END IF;
        claim_ends := old.claim IS NOT NULL
            AND substring(old.claim FROM uid_of) IS DISTINCT FROM substring(change.claim FROM uid_of);
    END IF;
    IF change.head_moved AND NOT metal.is_owner() THEN
        PERFORM metal.check_head(old, change, moment);
    END IF;
    PERFORM metal.write_records(change, new_revision, moment);
    PERFORM metal.write_approvals(change, claim_ends);
    UPDATE metal.locks AS l SET revision = new_revision,
        commits = array_to_string((ARRAY[change.commit_name] || string_to_array(nullif(old.commits, ''), ' '))[1:32], ' '),
        generation = CASE WHEN change.head_moved THEN change.generation ELSE old.generation END,
        last_ticket = CASE WHEN change.head_moved THEN change.last_ticket ELSE old.last_ticket END,
        slot = CASE WHEN change.head_moved THEN change.slot ELSE old.slot END,
        claim = CASE WHEN change.claim_moved THEN change.claim ELSE old.claim END,
        claim_role = CASE WHEN change.claim_moved AND (old.claim IS NULL OR claim_ends OR old.claim_role IS NULL)
            THEN session_user ELSE old.claim_role END,
        role_name = session_user
    WHERE l.lock_key = change.lock_key;
    INSERT INTO metal.audit (namespace, name, body)
    SELECT e.namespace, e.name, e.body
    FROM unnest(change.events) WITH ORDINALITY AS e (namespace, name, body, position) ORDER BY e.position;
    IF change.channel <> '' THEN
        PERFORM pg_notify('metal_changes', change.channel);
    END IF;
    RETURN new_revision;
END
$$;

-- Writes changes of different locks. Returns each change's new revision, NULL if another process was first, or an error. A
-- rejected change does not affect the others. One call, so that no process keeps a row locked between two of its messages.
CREATE FUNCTION metal.commit(changes metal.change[])
RETURNS TABLE (item integer, revision bigint, code text, cause text, constraint_name text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    -- One order for all processes prevents deadlocks.
    FOR item IN
        SELECT n FROM generate_subscripts(changes, 1) AS n ORDER BY (changes[n]).lock_key COLLATE "C"
    LOOP
        revision := NULL;
        code := NULL;
        cause := NULL;
        BEGIN
            revision := metal.write_change(changes[item], cardinality(changes) = 1);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, cause = MESSAGE_TEXT, constraint_name = CONSTRAINT_NAME;
        END;
        IF code = 'MT003' THEN
            code := NULL;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Creates or renews a process's lease. A limited length, because a forced release waits for it.
CREATE FUNCTION metal.renew(this_runner text, micros bigint, description text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO metal.leases AS l (runner_id, until, runner, role_name)
    VALUES (this_runner, metal.clock() + least(micros, 86400000000) * interval '1 microsecond', description, session_user)
    ON CONFLICT (runner_id) DO UPDATE SET until = excluded.until, runner = excluded.runner,
        role_name = coalesce(l.role_name, excluded.role_name)
    WHERE metal.belongs_to(l.role_name) AND l.runner_id <> 'sweeper';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'metal: permission denied: the lease belongs to another role' USING ERRCODE = '42501';
    END IF;
END
$$;

-- Ends a lease. The row stays, because a process's absence is measured from there.
CREATE FUNCTION metal.resign(this_runner text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE metal.leases AS l SET until = least(l.until, metal.clock())
    WHERE l.runner_id = this_runner AND metal.belongs_to(l.role_name)
$$;

-- Claims the right to prune. Returns false while another process has it.
CREATE FUNCTION metal.claim_sweep(this_runner text, micros bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO metal.leases AS l (runner_id, until, runner)
    VALUES ('sweeper', metal.clock() + least(micros, 86400000000) * interval '1 microsecond', this_runner)
    ON CONFLICT (runner_id) DO UPDATE SET until = excluded.until, runner = excluded.runner
    WHERE l.until <= metal.clock();
    RETURN FOUND;
END
$$;

-- Binds identifiers to a lock in the given order, and stops at the first one that is bound to another lock. Returns the
-- bindings. Only a role that controls a binding can change it.
CREATE FUNCTION metal.bind(servers text[], wanted text, rebind boolean) RETURNS TABLE (server text, lock_key text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    FOR n IN 1 .. cardinality(servers) LOOP
        -- Usually the binding exists already.
        IF NOT EXISTS (SELECT FROM metal.bindings AS b WHERE b.server = servers[n] AND b.lock_key = wanted) THEN
            INSERT INTO metal.bindings AS b (server, lock_key, role_name) VALUES (servers[n], wanted, session_user)
            ON CONFLICT (server) DO UPDATE
                SET lock_key = excluded.lock_key, role_name = coalesce(b.role_name, excluded.role_name)
            WHERE rebind AND metal.belongs_to(b.role_name);
        END IF;
        RETURN QUERY SELECT b.server, b.lock_key FROM metal.bindings AS b WHERE b.server = servers[n];
        EXIT WHEN NOT EXISTS (SELECT FROM metal.bindings AS b WHERE b.server = servers[n] AND b.lock_key = wanted);
    END LOOP;
END
$$;

-- Deletes at most `most` of each: audit lines above their configured age, and ended records and unused leases older than
-- `keep`. Returns the number.
CREATE FUNCTION metal.prune(keep interval, most bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    deleted bigint;
    total bigint := 0;
    age interval := greatest(keep, (SELECT m.value::interval FROM metal.meta AS m WHERE m.key = 'audit_age'));
BEGIN
    DELETE FROM metal.maintenances WHERE id IN (
        SELECT m.id FROM metal.maintenances AS m WHERE m.fate <> 'active' AND m.ended_at < metal.clock() - keep
        ORDER BY m.ended_at LIMIT most);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    total := total + deleted;
    DELETE FROM metal.audit WHERE id IN (
        SELECT a.id FROM metal.audit AS a WHERE a.at < metal.clock() - age ORDER BY a.at LIMIT most);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    total := total + deleted;
    DELETE FROM metal.leases WHERE runner_id IN (
        SELECT s.runner_id FROM metal.leases AS s
        WHERE s.until < metal.clock() - keep AND s.until < metal.clock() - interval '1 day'
        AND NOT EXISTS (SELECT FROM metal.maintenances AS m WHERE m.runner = s.runner_id AND m.fate = 'active') LIMIT most);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN total + deleted;
END
$$;

REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA metal FROM PUBLIC;
