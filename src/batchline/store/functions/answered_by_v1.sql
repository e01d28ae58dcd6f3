-- answered_by: the upstream that answers the lines of a batch for one model, for a comparison: with or without /v1, as for `run`.
-- It is the one that the batch names, or the one that served the model on the server when the batch was created (`served_by`).
-- Empty if neither is known; NULL if the model has an upstream whose answers are not reused: an asynchronous provider.
CREATE FUNCTION batchline.answered_by_v1(settings jsonb, model text) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$
SELECT regexp_replace(
    CASE
        WHEN settings ? 'upstream' THEN settings ->> 'upstream'
        WHEN settings ? 'served_by' THEN settings -> 'served_by' ->> model
        ELSE ''
    END,
    '(/v1)?/?$',
    ''
)
$$;
