-- The roles of a coordination store in PostgreSQL. Run this as the owner of the schema metal:
--
--   terraform-provider-metal store roles postgres | psql -v ON_ERROR_STOP=1 --single-transaction DATABASE
--
-- after a first process has opened the store. You can run it again. It revokes all other permissions of PUBLIC and of these three roles.

DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['metal_runner', 'metal_approver', 'metal_reviewer'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
            EXECUTE format('CREATE ROLE %I LOGIN', wanted);
        END IF;
    END LOOP;
    -- A role that can connect can send notifications, and PostgreSQL cannot forbid that.
    EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database());
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO metal_runner, metal_approver, metal_reviewer', current_database());
END
$$;

-- No role can use all connections of the server: 90 of the 100 that PostgreSQL has by default. Each role that you create as a
-- member of these needs its own limit.
ALTER ROLE metal_runner CONNECTION LIMIT 60;
ALTER ROLE metal_approver CONNECTION LIMIT 15;
ALTER ROLE metal_reviewer CONNECTION LIMIT 15;

-- Against mistakes only: each role can override these limits in its session.
ALTER ROLE metal_runner SET idle_in_transaction_session_timeout = '1min';
ALTER ROLE metal_approver SET idle_in_transaction_session_timeout = '1min';
ALTER ROLE metal_reviewer SET idle_in_transaction_session_timeout = '1min';

REVOKE ALL ON SCHEMA metal FROM PUBLIC, metal_runner, metal_approver, metal_reviewer;
REVOKE ALL ON ALL TABLES IN SCHEMA metal FROM PUBLIC, metal_runner, metal_approver, metal_reviewer;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA metal FROM PUBLIC, metal_runner, metal_approver, metal_reviewer;

-- All three roles read. None of them writes a table.
GRANT USAGE ON SCHEMA metal TO metal_runner, metal_approver, metal_reviewer;
GRANT SELECT ON ALL TABLES IN SCHEMA metal TO metal_runner, metal_approver, metal_reviewer;
GRANT EXECUTE ON FUNCTION metal.clock TO metal_runner, metal_approver, metal_reviewer;

-- A runner holds servers, waits for them and claims them. It uses approvals, but cannot approve. An approver adds and withdraws
-- approvals. The function checks each change, and which role sends it.
GRANT EXECUTE ON FUNCTION metal.commit TO metal_runner, metal_approver;
GRANT EXECUTE ON FUNCTION metal.renew, metal.resign, metal.bind, metal.claim_sweep TO metal_runner;

-- history_days: remove this line to protect history from runners. Then only the schema's owner prunes it.
GRANT EXECUTE ON FUNCTION metal.prune TO metal_runner;
