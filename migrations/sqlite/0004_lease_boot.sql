-- The end of a lease by the boot clock of its machine, in nanoseconds, which no change of the wall clock moves, and the
-- boot that this clock belongs to. NULL in rows of older versions and where the system does not tell: then `until` counts.
ALTER TABLE leases ADD COLUMN machine TEXT;
ALTER TABLE leases ADD COLUMN boot TEXT;
ALTER TABLE leases ADD COLUMN namespace TEXT;
ALTER TABLE leases ADD COLUMN boot_until INTEGER;
