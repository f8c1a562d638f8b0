//! Controls of the database roles that are disabled.

use sqlx::PgConnection;

use super::{fault::ErrorMapper, schema::FUNCTIONS};
use crate::store::StoreError;

/// Lists missing controls as sentences. `$1` contains the functions' source. Only the schema's
/// owner can disable a control.
const DISABLED: &str = "\
    WITH owner AS (SELECT c.relowner AS oid FROM pg_class AS c WHERE c.oid = 'metal.locks'::regclass),
    allowed (name, roles) AS (VALUES
        ('clock', '{metal_runner,metal_approver,metal_reviewer}'::name[]), ('commit', '{metal_runner,metal_approver}'),
        ('renew', '{metal_runner}'), ('resign', '{metal_runner}'), ('bind', '{metal_runner}'),
        ('claim_sweep', '{metal_runner}'), ('prune', '{metal_runner}')),
    tables AS (SELECT c.* FROM pg_class AS c WHERE c.relnamespace = 'metal'::regnamespace),
    functions AS (SELECT p.* FROM pg_proc AS p WHERE p.pronamespace = 'metal'::regnamespace),
    given AS (
        SELECT x.grantee, x.privilege_type AS may, 'metal.' || t.relname AS name
        FROM tables AS t CROSS JOIN LATERAL aclexplode(t.relacl) AS x WHERE x.privilege_type <> 'SELECT'
        UNION ALL
        SELECT x.grantee, x.privilege_type || ' (' || a.attname || ')', 'metal.' || t.relname
        FROM tables AS t JOIN pg_attribute AS a ON a.attrelid = t.oid CROSS JOIN LATERAL aclexplode(a.attacl) AS x
        WHERE x.privilege_type <> 'SELECT'
        UNION ALL
        SELECT x.grantee, x.privilege_type, 'the schema metal'
        FROM pg_namespace AS n CROSS JOIN LATERAL aclexplode(n.nspacl) AS x
        WHERE n.oid = 'metal'::regnamespace AND x.privilege_type <> 'USAGE'
        UNION ALL
        SELECT x.grantee, 'EXECUTE', 'metal.' || f.proname
        FROM functions AS f CROSS JOIN LATERAL aclexplode(coalesce(f.proacl, acldefault('f', f.proowner))) AS x
        WHERE NOT EXISTS (
            SELECT FROM allowed AS a JOIN pg_roles AS r ON r.rolname = ANY (a.roles)
            WHERE a.name = f.proname AND r.oid = x.grantee)
    ),
    used AS (
        SELECT r.* FROM pg_roles AS r WHERE r.rolname IN ('metal_runner', 'metal_approver', 'metal_reviewer')
        AND has_schema_privilege(r.oid, 'metal'::regnamespace, 'USAGE')
    ),
    problems (line) AS (
        SELECT 'the role ' || CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(g.grantee)::text END
            || ' has ' || g.may || ' on ' || g.name
        FROM given AS g, owner AS o WHERE g.grantee <> o.oid
        UNION ALL
        SELECT 'the function metal.' || f.proname || ' is not that of this program' FROM functions AS f, owner AS o
        WHERE f.proowner <> o.oid OR f.proname <> 'clock' AND NOT EXISTS (
            SELECT FROM regexp_split_to_table($1, 'CREATE FUNCTION metal[.]') AS source
            WHERE starts_with(source, f.proname || '(') AND position('$$' || f.prosrc || '$$' IN source) > 0)
        UNION ALL
        SELECT 'the function metal.' || f.proname || ' does not have its owner''s rights and a fixed search_path'
        FROM functions AS f JOIN allowed AS a ON a.name = f.proname
        WHERE f.proname <> 'clock' AND (NOT f.prosecdef
            OR NOT coalesce(f.proconfig, '{}') @> ARRAY['search_path=pg_catalog, pg_temp'])
        UNION ALL
        SELECT 'the function metal.' || a.name || ' is missing' FROM allowed AS a
        WHERE NOT EXISTS (SELECT FROM functions AS f WHERE f.proname = a.name)
        UNION ALL
        SELECT 'the table metal.' || t.relname || ' has the trigger ' || g.tgname
        FROM tables AS t JOIN pg_trigger AS g ON g.tgrelid = t.oid WHERE NOT g.tgisinternal
        UNION ALL
        SELECT 'the table metal.' || t.relname || ' has the rule ' || w.rulename
        FROM tables AS t JOIN pg_rewrite AS w ON w.ev_class = t.oid WHERE t.relkind = 'r'
        UNION ALL
        SELECT 'the role ' || r.rolname || ' lacks a CONNECTION LIMIT' FROM pg_roles AS r
        WHERE r.rolcanlogin AND NOT r.rolsuper AND r.rolconnlimit < 0
        AND EXISTS (SELECT FROM used AS u WHERE pg_has_role(r.oid, u.oid, 'MEMBER'))
        UNION ALL
        SELECT 'the role ' || u.rolname || ' can administer roles of the server' FROM used AS u
        WHERE u.rolsuper OR u.rolcreaterole
        UNION ALL
        SELECT 'the role PUBLIC has ' || x.privilege_type || ' on the database'
        FROM pg_database AS d CROSS JOIN LATERAL aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) AS x
        WHERE d.datname = current_database() AND x.grantee = 0 AND EXISTS (SELECT FROM used)
    )
    SELECT DISTINCT p.line || ': run the SQL of `store roles postgres` again, and revoke other grants' FROM problems AS p ORDER BY 1";

/// Lists disabled controls, and grants that no role needs.
pub(super) async fn disabled(
    db: &mut PgConnection,
    pooled: bool,
    faults: &ErrorMapper,
) -> Result<Vec<String>, StoreError> {
    let found = sqlx::query_scalar(DISABLED).bind(FUNCTIONS.concat()).persistent(!pooled).fetch_all(db).await;
    found.map_err(|error| faults.sqlx(&error))
}
