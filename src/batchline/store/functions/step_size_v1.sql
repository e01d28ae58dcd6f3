-- step_size: how many lines the n-th step of a batch has, of `lines` lines that are sent. NULL: all that are left.
--
-- `steps` is from the settings of the batch (model/steps.py). Each size is a number of lines, or a share of them with a
-- percent sign. After the last size, each step is `growth` times as large as the one before; without `growth`, it is the rest.
CREATE FUNCTION batchline.step_size_v1(steps jsonb, n integer, lines integer) RETURNS integer
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    sizes integer := coalesce(jsonb_array_length(steps -> 'sizes'), 0);
    size text := steps -> 'sizes' ->> (least(n, sizes) - 1);
    exact float8;
BEGIN
    IF sizes = 0 OR (n > sizes AND NOT steps ? 'growth') THEN
        RETURN NULL;
    END IF;
    exact := CASE right(size, 1)
        WHEN chr(37) THEN lines * rtrim(size, chr(37))::float8 / 100
        ELSE size::float8
    END;
    IF n > sizes THEN
        exact := exact * (steps ->> 'growth')::float8 ^ (n - sizes);
    END IF;
    -- Rounded first: a tenth of 30 lines is a little more than 3 in binary.
    RETURN greatest(1, least(ceil(round(exact::numeric, 6)), lines));
END
$$;
