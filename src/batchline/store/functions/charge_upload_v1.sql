-- charge_upload: a trigger before an upload is inserted or cancelled: a pending upload reserves the size that its file will
-- have. The file that it becomes takes the reservation over (count_stored).
CREATE FUNCTION batchline.charge_upload_v1() RETURNS trigger
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    NEW.charged := CASE WHEN TG_OP = 'INSERT' AND NEW.cancelled_at IS NULL THEN NEW.bytes ELSE 0 END;
    RETURN NEW;
END
$$;
