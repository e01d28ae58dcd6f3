-- stream_settings: planner settings for a stream, for one transaction: read in the order of the index, in one process.
--
-- By default the planner scans all results in parallel and sorts them, even with good statistics. It expects the last
-- row sooner that way, but it spills the whole output file to disk before it sends the first row, and its parallel
-- workers wait for a slow client. Before PostgreSQL 18, a sort that cannot be avoided then has such a high estimated
-- cost that the plan is compiled, which takes longer than running it: so jit is off.
SELECT
    set_config('enable_sort', 'off', true),
    set_config('max_parallel_workers_per_gather', '0', true),
    set_config('jit', 'off', true)
