-- abandon_tasks: note tasks that a provider has accepted too late, to be cancelled there: the batch was frozen or deleted while
-- the item was being submitted. Tasks of batches that still run are left alone: another worker may have found them.
--
-- One element in each array is for one task. Locks: only its own rows.
INSERT INTO batchline.abandoned_tasks (upstream, task_id, batch_id, lane_id, url, model, settings)
SELECT t.upstream, t.task_id, t.batch_id, t.lane_id, t.url, t.model, t.settings::jsonb
FROM unnest(
    %(upstreams)s::text[], %(tasks)s::text[], %(batches)s::uuid[], %(lanes)s::bigint[], %(urls)s::text[],
    %(models)s::text[], %(settings)s::text[]
) AS t (upstream, task_id, batch_id, lane_id, url, model, settings)
WHERE NOT EXISTS (SELECT FROM batchline.batches AS b WHERE b.id = t.batch_id AND b.finalizing_at IS NULL)
ON CONFLICT DO NOTHING
