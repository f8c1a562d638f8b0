-- The lines of the audit are a chain: `number` is the place of a line, `hash` is made of the line and of the hash before it.
-- The program computes it, also for the lines that are there (`store/chain.rs`). `meta` has the end of the chain under
-- 'audit', and what was pruned of it under 'audit/pruned', each as number and hash. Lines are chained in the order
-- of their ids, so that no index of the numbers has to be kept.
ALTER TABLE audit ADD COLUMN number INTEGER;
ALTER TABLE audit ADD COLUMN hash TEXT;
