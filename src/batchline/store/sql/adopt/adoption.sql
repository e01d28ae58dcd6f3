-- adoption: the state of the adoption, if there is one. Locks: none.
SELECT
    source,
    shape,
    phase,
    next_page,
    lines,
    lines_seconds,
    results,
    results_seconds,
    cutover_seconds,
    prepared_at,
    cutover_at,
    rolled_back_at,
    finished_at
FROM batchline.adoption
