-- lock_keys: lock the keys before add_first_key, in the same transaction, so that two servers that start at once create
-- one key.
--
-- A separate statement because of READ COMMITTED: the next one must see what was committed while this one waited.
-- Locks: the table against other writers; readers are not blocked.
LOCK TABLE batchline.api_keys IN SHARE ROW EXCLUSIVE MODE
