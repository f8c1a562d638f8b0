-- Whose server it is and what its owner allowed, as one document: it is read and written with the lock, never alone.
ALTER TABLE locks ADD COLUMN ownership TEXT;

-- The cost of listing claims does not grow with the machines that were ever asked for.
CREATE INDEX locks_owned ON locks (lock_key) WHERE ownership IS NOT NULL;
