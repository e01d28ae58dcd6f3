-- changed_files: files that were numbered and have other templates now: more, fewer or changed ones.
--
-- One pass over the old templates. Locks: none.
SELECT f.file_no
FROM batchline.adopted_files AS f
LEFT JOIN (
    SELECT t.file_id, count(*) AS templates, max(t.updated_at) AS updated_at
    FROM batchline.source_templates AS t
    GROUP BY t.file_id
) AS current_state ON current_state.file_id = f.file_id
WHERE coalesce(current_state.templates, 0) <> f.line_count OR current_state.updated_at > f.numbered_at
ORDER BY f.file_no
