-- Lines of the audit join the chain with the next heartbeat of any process, and not within the change that writes them: that
-- took as long as the change itself. Until then they are counted as waiting by `audit verify`. No role can change or remove
-- such a line either, except the owner of the tables.
DROP TRIGGER audit_grows ON metal.audit;

-- As before, but without a write when no line waits.
CREATE OR REPLACE FUNCTION metal.chain_audit() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    last metal.audit_chain%ROWTYPE;
    line metal.audit%ROWTYPE;
    next_hash bytea;
BEGIN
    IF NOT EXISTS (SELECT FROM metal.audit AS a WHERE a.number IS NULL) THEN
        RETURN;
    END IF;
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
CREATE TRIGGER audit_grows AFTER INSERT OR UPDATE ON metal.leases FOR EACH STATEMENT EXECUTE FUNCTION metal.audit_grows();
