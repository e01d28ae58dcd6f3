-- leave: remove a worker that has released everything. Locks: its row. A claim of the same worker that is still under way
-- holds that row by its foreign key; then this waits, and sees the span that the claim has made.
CREATE FUNCTION batchline.leave_v1(worker uuid) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM FROM batchline.workers AS w WHERE w.id = worker FOR UPDATE;
    DELETE FROM batchline.workers AS w
    WHERE w.id = worker AND NOT EXISTS (SELECT FROM batchline.spans AS s WHERE s.worker_id = w.id);
END
$$;
