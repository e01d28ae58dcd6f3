-- stream_settings: how lines are streamed, for one transaction: in the order of the index, by one process.
--
-- Left alone, the planner scans all results in parallel and sorts them, also with good statistics: faster
-- to the last row by its reckoning, but it spills the whole output file to disk before the first row
-- leaves, and it keeps workers waiting on a slow client. Before PostgreSQL 18 a sort that cannot be avoided
-- then looks so costly that the plan is compiled, which takes longer than to run it: so no jit.
SELECT
    set_config('enable_sort', 'off', true),
    set_config('max_parallel_workers_per_gather', '0', true),
    set_config('jit', 'off', true)
