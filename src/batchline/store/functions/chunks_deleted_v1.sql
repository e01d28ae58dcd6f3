-- chunks_deleted: forget the chunks of a batch that is deleted. One that a provider still works on stays until it is cancelled
-- there (abandoned_tasks names it), and is then forgotten (forget_chunk).
--
-- Locks: the chunks' rows, which a relay changes only in single statements.
CREATE FUNCTION batchline.chunks_deleted_v1() RETURNS trigger
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    DELETE FROM batchline.provider_chunks AS c
    WHERE c.batch_id = OLD.id
      AND (
          c.state = 'done'
          OR NOT EXISTS (
              SELECT FROM batchline.abandoned_tasks AS a WHERE a.upstream = c.upstream AND a.task_id = 'chunk:' || c.id
          )
      );
    RETURN NULL;
END
$$;
