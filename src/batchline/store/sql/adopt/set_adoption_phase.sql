-- set_adoption_phase: record that a phase was reached, in the transaction that reaches it. Locks: the row of the adoption,
-- which the caller has locked.
UPDATE batchline.adoption
SET phase = %(phase)s::text,
    prepared_at = CASE WHEN %(event)s::text = 'prepared' THEN now() ELSE prepared_at END,
    cutover_at = CASE WHEN %(event)s::text = 'cutover' THEN now() ELSE cutover_at END,
    cutover_seconds = CASE
        WHEN %(event)s::text = 'cutover' THEN extract(epoch FROM clock_timestamp() - now())
        ELSE cutover_seconds
    END,
    rolled_back_at = CASE WHEN %(event)s::text = 'rollback' THEN now() ELSE rolled_back_at END,
    finished_at = CASE WHEN %(event)s::text = 'finish' THEN now() ELSE finished_at END,
    next_page = 0
