-- forget_schedule: delete what the database knows of a schedule. A worker that has it registers it again, with its next
-- time. Locks: the row; it waits for a worker that stores the items of this schedule.
DELETE FROM batchline.schedules WHERE tenant = %(tenant)s AND name = %(name)s RETURNING 1
