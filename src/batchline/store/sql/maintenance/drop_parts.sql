-- drop_parts: delete the rows of parts whose objects were removed.
DELETE FROM batchline.upload_parts WHERE id = ANY (%(parts)s::uuid[])
