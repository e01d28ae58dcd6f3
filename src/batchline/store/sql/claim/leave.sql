-- leave: remove a worker that has released everything. See functions/leave_v1.sql.
SELECT batchline.leave_v1(%(worker)s)
