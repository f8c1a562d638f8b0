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

REVOKE ALL ON SCHEMA metal FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA metal FROM PUBLIC, metal_runner, metal_approver, metal_reviewer;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA metal FROM PUBLIC, metal_runner, metal_approver, metal_reviewer;

-- All three roles read.
GRANT USAGE ON SCHEMA metal TO metal_runner, metal_approver, metal_reviewer;
GRANT SELECT ON ALL TABLES IN SCHEMA metal TO metal_runner, metal_approver, metal_reviewer;
GRANT EXECUTE ON FUNCTION metal.clock TO metal_runner, metal_approver, metal_reviewer;
GRANT EXECUTE ON FUNCTION metal.commit TO metal_runner, metal_approver;

-- A runner holds servers, waits for them and claims them. It uses approvals, but cannot approve.
GRANT INSERT, UPDATE ON metal.locks, metal.maintenances, metal.leases, metal.bindings TO metal_runner;
GRANT INSERT (namespace, name, body) ON metal.audit TO metal_runner;
GRANT UPDATE (used_by) ON metal.approvals TO metal_runner;

-- history_days: remove these two lines to protect history from runners. Then only the schema's owner prunes it.
GRANT DELETE ON metal.maintenances, metal.leases TO metal_runner;
GRANT EXECUTE ON FUNCTION metal.forget_audit, metal.audit_age TO metal_runner;

-- An approver adds and withdraws approvals by one function, and does not write tables.
GRANT EXECUTE ON FUNCTION metal.answer TO metal_approver;
