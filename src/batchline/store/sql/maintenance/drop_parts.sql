-- drop_parts: forget parts whose objects were removed.
DELETE FROM batchline.upload_parts WHERE id = ANY (%(parts)s::uuid[])
