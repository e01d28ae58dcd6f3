-- in_scope: whether a worker serves a routing key: one of `keys` (NULL: all), none that is LIKE one of `excluded`, and
-- LIKE one of `below` (NULL: all). PostgreSQL puts the body in the place of the call.
CREATE FUNCTION batchline.in_scope_v1(key text, keys text[], excluded text[], below text[]) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (keys IS NULL OR key = ANY (keys))
    AND key NOT LIKE ALL (excluded)
    AND (below IS NULL OR key LIKE ANY (below));
