-- charge_file: a trigger before a file is inserted or changed: how many of its bytes count for its tenant's quota.
--
-- A deleted file counts no more. But one that a running batch still needs counts until its data is deleted: otherwise a
-- tenant could store any amount in files that are deleted while paused batches keep them. The caller has locked the file's
-- row, which waits for batches that are being created over it (delete_file), so all of them are visible here.
CREATE FUNCTION batchline.charge_file_v1() RETURNS trigger
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF NEW.purged_at IS NOT NULL THEN
        NEW.charged := 0;
    ELSIF NEW.deleted_at IS NULL THEN
        NEW.charged := NEW.bytes;
    ELSIF TG_OP = 'INSERT' THEN
        NEW.charged := 0;
    ELSIF OLD.deleted_at IS NULL THEN
        PERFORM FROM batchline.batches AS b WHERE b.file_id = NEW.id AND b.ended_at IS NULL;
        NEW.charged := CASE WHEN FOUND THEN NEW.bytes ELSE 0 END;
    END IF;
    RETURN NEW;
END
$$;
