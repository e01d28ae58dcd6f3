-- array_create: create a batch: one row, for any number of lines.
INSERT INTO batches (id, file_id, expires_at)
VALUES (%(batch)s, '00000000-0000-7000-8000-000000000001', now() + interval '24 hours')
