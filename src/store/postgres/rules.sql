-- The rules of `metal.commit`: which role can write what. They run with the rights of their caller, `metal.commit`, and no role
-- can call them. The owner of the schema is exempt.

-- Returns true if the login role owns the tables. It repairs, imports and restores without the limits of the other roles.
CREATE FUNCTION metal.is_owner() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT pg_catalog.pg_has_role(session_user, c.relowner, 'MEMBER')
    FROM pg_catalog.pg_class AS c WHERE c.oid = 'metal.locks'::pg_catalog.regclass
$$;

-- Returns true if the login role is `wanted`, a member of it, or the owner.
CREATE FUNCTION metal.belongs_to(wanted name) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT wanted IS NULL OR wanted = session_user OR metal.is_owner() OR EXISTS (
        SELECT FROM pg_catalog.pg_roles AS known
        WHERE known.rolname = wanted AND pg_catalog.pg_has_role(session_user, known.oid, 'MEMBER')
    )
$$;

-- Returns true if the login role can approve for an owner.
CREATE FUNCTION metal.answers_for(this_owner text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (SELECT FROM metal.owner_roles AS listed WHERE listed.owner = this_owner) OR EXISTS (
        SELECT FROM metal.owner_roles AS listed WHERE listed.owner = this_owner AND metal.belongs_to(listed.role_name)
    )
$$;

-- Rejects a call of a role that is not a runner.
CREATE FUNCTION metal.only_for(wanted name) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT metal.belongs_to(wanted) THEN
        RAISE EXCEPTION 'metal: permission denied: % is not a member of %', session_user, wanted USING ERRCODE = '42501';
    END IF;
END
$$;

-- Returns true if a process of another role has a lease for this record.
CREATE FUNCTION metal.is_driven(this_runner text, moment timestamptz) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM metal.leases AS l
        WHERE l.runner_id = this_runner AND l.until > moment AND NOT metal.belongs_to(l.role_name)
    )
$$;

-- Returns true if the record is past `expires_after` or its window, or lost its queue position.
CREATE FUNCTION metal.has_expired(this metal.maintenances, moment timestamptz) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN b.body ->> 'phase' = 'Pending' THEN
            extract(epoch FROM CASE
                WHEN (b.body ->> 'keeps_place')::boolean THEN b.body ->> 'requested_at'
                WHEN this.runner IS NULL THEN coalesce(b.body ->> 'detached_at', b.body ->> 'requested_at')
                ELSE coalesce((SELECT l.until::text FROM metal.leases AS l WHERE l.runner_id = this.runner),
                    b.body #>> '{attachment,since}')
                END::timestamptz)
            + (b.body #>> CASE WHEN (b.body ->> 'keeps_place')::boolean THEN '{spec,expires_after,secs}'::text[]
                ELSE '{spec,hold_place_for,secs}' END)::numeric <= extract(epoch FROM moment)
        ELSE (b.body ->> 'closes_at')::timestamptz <= moment
            OR extract(epoch FROM (b.body ->> 'admitted_at')::timestamptz)
                + (b.body #>> '{spec,expires_after,secs}')::numeric <= extract(epoch FROM moment)
        END IS TRUE
    FROM (SELECT this.body::jsonb AS body) AS b
$$;

-- Returns true if the login role can write and end a record: its own one, or another role's whose time and process ended.
CREATE FUNCTION metal.controls(this metal.maintenances, moment timestamptz) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT metal.belongs_to(this.role_name) OR NOT metal.is_driven(this.runner, moment) AND metal.has_expired(this, moment)
$$;

-- Rejects writes to another role's record, except for what the protocol requires:
-- work under its lock notes what it changed, a holder hands the server over, and records end after their time.
CREATE FUNCTION metal.check_foreign(change metal.change, holder text, moment timestamptz) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    written record;
    was jsonb;
    became jsonb;
    hold metal.maintenances;
    handed CONSTANT text[] :=
        '{phase,admitted_at,closes_at,allowed,gates,update,prior,booted,drives,boot_writes,last_power,took_over}';
    noted CONSTANT text[] := '{phase,booted,drives,boot_writes}';
BEGIN
    FOR written IN
        SELECT m AS old, n.fate, n.body FROM metal.maintenances AS m LEFT JOIN unnest(change.records) AS n ON n.uid = m.uid
        WHERE m.lock_key = change.lock_key AND m.fate = 'active' AND m.role_name <> session_user
            AND (n.uid IS NOT NULL OR m.uid = ANY (change.withdrawn))
    LOOP
        CONTINUE WHEN metal.controls(written.old, moment);
        was := (written.old).body::jsonb;
        became := written.body::jsonb;
        SELECT m.* INTO hold FROM metal.maintenances AS m
        WHERE m.uid = was #>> '{spec,parent}' AND m.lock_key = change.lock_key AND m.fate = 'active';
        CONTINUE WHEN FOUND AND metal.controls(hold, moment);
        -- The caller read the lock before this process renewed its lease. It reads again.
        IF written.fate IS NULL AND was ->> 'phase' = 'Pending' AND metal.is_driven((written.old).runner, moment) THEN
            RAISE EXCEPTION 'metal: the process of % returned', (written.old).name USING ERRCODE = 'MT003';
        END IF;
        CONTINUE WHEN written.fate = 'active' AND was ->> 'phase' = 'Pending' AND was #>> '{spec,hand_over}' = 'direct'
            AND holder IS NOT NULL AND change.slot::jsonb #>> '{holder,uid}' = (written.old).uid
            AND was - handed = became - handed;
        CONTINUE WHEN written.fate = 'active' AND jsonb_array_length(coalesce(was #> '{spec,allow_under}', '[]')) > 0
            AND was - noted = became - noted AND NOT EXISTS (
                SELECT FROM unnest(ARRAY['Pending', 'Preparing', 'InMaintenance', 'Releasing']) AS p
                WHERE (was -> 'phase' ? p) <> (became -> 'phase' ? p)
            )
            AND EXISTS (
                SELECT FROM metal.maintenances AS m WHERE m.lock_key = change.lock_key AND m.fate = 'active'
                AND m.role_name = session_user AND m.body::jsonb #>> '{spec,parent}' = (written.old).uid
            );
        RAISE EXCEPTION 'metal: permission denied: %/% belongs to the role %',
            (written.old).namespace, (written.old).name, (written.old).role_name USING ERRCODE = '42501';
    END LOOP;
END
$$;

-- Rejects records that name another record, end without an audit line, or block their server for a long time.
CREATE FUNCTION metal.check_records(change metal.change, moment timestamptz) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF EXISTS (
        SELECT FROM unnest(change.records) AS n, LATERAL (SELECT n.body::jsonb AS body) AS b
        WHERE b.body ->> 'uid' IS DISTINCT FROM n.uid OR b.body ->> 'id' IS DISTINCT FROM n.namespace || '/' || n.name
            OR (b.body ->> 'calls_until')::timestamptz > moment + interval '1 day'
    ) THEN
        RAISE EXCEPTION 'metal: permission denied: a record has the fields of another record' USING ERRCODE = '42501';
    END IF;
    IF EXISTS (
        WITH over AS (
            SELECT m.uid, m.body::jsonb #>> '{spec,parent}' AS parent FROM metal.maintenances AS m
            LEFT JOIN unnest(change.records) AS n ON n.uid = m.uid
            WHERE m.lock_key = change.lock_key AND m.fate = 'active' AND (n.fate = 'ended' OR m.uid = ANY (change.withdrawn))
        )
        SELECT FROM over WHERE NOT EXISTS (
            SELECT FROM unnest(change.events) AS e WHERE e.body::jsonb ->> 'uid' IN (over.uid, over.parent)
        )
    ) THEN
        RAISE EXCEPTION 'metal: permission denied: a record ends with a line of the audit log' USING ERRCODE = '42501';
    END IF;
END
$$;

-- Rejects numbers that jump, a second holder, and work of others under the lock. Called before the records are written.
CREATE FUNCTION metal.check_head(old metal.locks, change metal.change, moment timestamptz) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    was jsonb := old.slot::jsonb -> 'holder';
    became jsonb := change.slot::jsonb -> 'holder';
    hold metal.maintenances;
    after jsonb;
BEGIN
    -- 64 transitions share a commit.
    IF change.generation NOT BETWEEN old.generation AND old.generation + 1000
        OR change.last_ticket NOT BETWEEN old.last_ticket AND old.last_ticket + 1000
    THEN
        RAISE EXCEPTION 'metal: permission denied: generations and tickets grow in small steps' USING ERRCODE = '42501';
    END IF;
    IF became ->> 'uid' IS DISTINCT FROM was ->> 'uid' THEN
        SELECT m.* INTO hold FROM metal.maintenances AS m
        WHERE m.uid = was ->> 'uid' AND m.lock_key = change.lock_key AND m.fate = 'active';
        IF FOUND THEN
            SELECT n.body::jsonb INTO after FROM unnest(change.records) AS n WHERE n.uid = hold.uid AND n.fate = 'active';
            -- A completed operation frees the lock and stays.
            IF NOT metal.controls(hold, moment) OR NOT (
                hold.uid = ANY (change.withdrawn)
                OR EXISTS (SELECT FROM unnest(change.records) AS n WHERE n.uid = hold.uid AND n.fate = 'ended')
                OR coalesce(after -> 'phase' ? 'InMaintenance' AND after #>> '{spec,kind}' <> 'Maintenance', false)
            ) THEN
                RAISE EXCEPTION 'metal: permission denied: %/% holds the server', hold.namespace, hold.name
                    USING ERRCODE = '42501';
            END IF;
        END IF;
        IF became ->> 'uid' IS NOT NULL AND NOT EXISTS (
            SELECT FROM unnest(change.records) AS n WHERE n.uid = became ->> 'uid' AND n.fate = 'active'
        ) THEN
            RAISE EXCEPTION 'metal: permission denied: the holder is not admitted in this change' USING ERRCODE = '42501';
        END IF;
    END IF;
    IF became ->> 'acting' IS DISTINCT FROM was ->> 'acting' AND became ->> 'acting' IS NOT NULL AND NOT EXISTS (
        SELECT FROM metal.maintenances AS m
        JOIN metal.maintenances AS h ON h.uid = became ->> 'uid' AND h.lock_key = m.lock_key AND h.fate = 'active'
        WHERE m.uid = became ->> 'acting' AND m.lock_key = change.lock_key AND m.fate = 'active'
            AND m.body::jsonb #>> '{spec,parent}' = h.uid AND metal.belongs_to(m.role_name)
            AND (metal.controls(h, moment) OR jsonb_array_length(coalesce(h.body::jsonb #> '{spec,allow_under}', '[]')) > 0)
    ) THEN
        RAISE EXCEPTION 'metal: permission denied: other work acts under the lock' USING ERRCODE = '42501';
    END IF;
END
$$;
