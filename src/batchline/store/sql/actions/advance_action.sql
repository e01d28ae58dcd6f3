-- advance_action: count a batch as done, or as refused for a `reason`, and go on after it. Runs under hold_action.
UPDATE batchline.bulk_actions
SET position_at = %(position_at)s,
    position_id = %(batch)s,
    due_at = now() + %(lease)s,
    done = done + (%(reason)s::text IS NULL)::integer,
    failed_count = failed_count + (%(reason)s::text IS NOT NULL)::integer,
    failed = CASE
        WHEN %(reason)s::text IS NULL OR jsonb_array_length(failed) >= %(max_failed)s::integer THEN failed
        ELSE failed || jsonb_build_array(jsonb_build_array(%(batch)s::uuid, %(reason)s::text))
    END
WHERE id = %(id)s
