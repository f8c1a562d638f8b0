-- When a record ended: what may be forgotten is found by it.
ALTER TABLE maintenances ADD COLUMN ended_at TEXT;
UPDATE maintenances SET ended_at = json_extract(body, '$.detached_at') WHERE active = 0;
CREATE INDEX maintenances_ended ON maintenances (ended_at) WHERE active = 0;
CREATE INDEX audit_at ON audit (at);
