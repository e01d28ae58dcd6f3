-- lock_keys, before add_first_key in one transaction: two servers that start at once make one key.
--
-- A statement of its own because of READ COMMITTED: the next one must see what was committed while this one
-- waited. Locks: the table against others who write it; readers go on.
LOCK TABLE batchline.api_keys IN SHARE ROW EXCLUSIVE MODE
