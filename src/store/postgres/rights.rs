//! Grants that none of a database's roles should have.

use sqlx::PgConnection;

use super::fault::ErrorMapper;
use crate::store::StoreError;

/// Grants on tables and columns to roles other than the owner: role, privilege, table.
const WIDE: &str = "\
    WITH given AS (
        SELECT c.relname::text AS name, x.grantee, x.privilege_type AS may, NULL::text AS part
        FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS x
        WHERE c.relnamespace = 'metal'::regnamespace AND c.relkind = 'r' AND x.grantee <> c.relowner
        UNION ALL
        SELECT c.relname::text, x.grantee, x.privilege_type, a.attname::text
        FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid CROSS JOIN LATERAL aclexplode(a.attacl) AS x
        WHERE c.relnamespace = 'metal'::regnamespace AND c.relkind = 'r' AND x.grantee <> c.relowner
    )
    SELECT DISTINCT 'the role ' || CASE WHEN g.grantee = 0 THEN 'PUBLIC' ELSE pg_get_userbyid(g.grantee)::text END || ' may '
        || g.may || coalesce(' (' || g.part || ')', '') || ' on metal.' || g.name
        || ': more than any role of the guide (see `store roles postgres`)'
    FROM given AS g
    WHERE g.may = 'TRUNCATE' OR g.may = 'TRIGGER'
        OR g.may <> 'SELECT' AND g.name IN ('meta', 'owner_roles', 'schema_versions')
        OR g.may <> 'SELECT' AND g.name = 'approvals' AND (g.may <> 'UPDATE' OR coalesce(g.part, '') <> 'used_by')
        OR g.may IN ('UPDATE', 'DELETE') AND g.name = 'audit'
        OR g.may = 'INSERT' AND g.name = 'audit' AND coalesce(g.part, '') NOT IN ('namespace', 'name', 'body')
        OR g.may = 'DELETE' AND g.name IN ('locks', 'approvals')
        OR g.may = 'UPDATE' AND g.name = 'locks'
            AND NOT EXISTS (SELECT FROM given AS o WHERE o.name = 'locks' AND o.grantee = g.grantee AND o.may = 'INSERT')
    ORDER BY 1";

/// Lists grants that no role needs.
pub(super) async fn wide(db: &mut PgConnection, pooled: bool, faults: &ErrorMapper) -> Result<Vec<String>, StoreError> {
    let found = sqlx::query_scalar(WIDE).persistent(!pooled).fetch_all(db).await;
    found.map_err(|error| faults.sqlx(&error))
}
