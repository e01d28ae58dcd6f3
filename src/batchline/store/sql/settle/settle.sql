-- settle: take the verdicts of one worker. See functions/settle_v2.sql.
--
-- Who waits for results is notified of each batch that has none left to wait for. Its end, with its files, comes later. The
-- notification is not part of the function, so that programs of an earlier version can share it.
SELECT
    batch_id, ended, finished, closing, paused, step_ended, emitted, refused,
    CASE WHEN finished THEN pg_notify('batchline', 'finished ' || batch_id) IS NULL END AS notified
FROM batchline.settle_v2(
    %(worker)s,
    %(spans)b,
    %(kinds)b,
    %(status_codes)b,
    %(delays)b,
    %(ordinals)b,
    %(sizes)b,
    %(input_tokens)b,
    %(cached_tokens)b,
    %(output_tokens)b,
    %(reasoning_tokens)b,
    %(costs)b,
    %(ended_groups)b,
    %(ended_line_nos)b,
    %(ended_ordinals)b,
    %(ended_input_tokens)b,
    %(ended_output_tokens)b,
    %(outputs)b,
    %(ended_upstream)b,
    %(ended_settling)b,
    %(retried_groups)b,
    %(retried_ordinals)b,
    %(error_codes)b,
    %(messages)b,
    %(retried_upstream)b,
    %(retried_settling)b,
    %(causes)b,
    %(lanes)b,
    %(batches)s,
    %(cause_keys)b,
    %(cause_codes)b,
    %(cause_messages)b,
    %(senders)b,
    %(emitted_groups)b,
    %(emitted_urls)b,
    %(emitted_ids)b,
    %(emitted_bodies)b
)
