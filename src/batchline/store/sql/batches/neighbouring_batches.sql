-- neighbouring_batches: of each batch, the ids before and after its own, which tell how many digits of it are unique. No
-- locks; two probes of the primary key for each.
SELECT
    wanted.id,
    (SELECT b.id FROM batchline.batches AS b WHERE b.id < wanted.id ORDER BY b.id DESC LIMIT 1) AS before,
    (SELECT b.id FROM batchline.batches AS b WHERE b.id > wanted.id ORDER BY b.id LIMIT 1) AS after
FROM unnest(%(batches)s::uuid[]) AS wanted (id)
