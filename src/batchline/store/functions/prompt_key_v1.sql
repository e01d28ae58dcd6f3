-- prompt_key: a key of the beginning of a request's prompt. In the order of these keys, lines whose prompts begin alike are
-- next to each other.
--
-- The prompt is what follows the first of the names `messages`, `prompt`, `input`, `instructions` and `system` in the body, as
-- it is written there: other parameters may come before and differ. The key has a hash of its first 64 bytes, then of its
-- first 128, and so on, up to 32,768 characters. So lines with longer common beginnings are closer, and a key has at most 44
-- bytes, whatever the length of the body. Hashes that collide, or a name that occurs as a value, only make the order worse.
--
-- Bytes, because to cut text takes twice as long. PostgreSQL has no function that hashes bytes before version 18, but one that
-- hashes rows.
CREATE FUNCTION batchline.prompt_key_v1(body text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    start integer := least(
        nullif(strpos(body, '"messages"'), 0), nullif(strpos(body, '"prompt"'), 0), nullif(strpos(body, '"input"'), 0),
        nullif(strpos(body, '"instructions"'), 0), nullif(strpos(body, '"system"'), 0)
    );
    prompt bytea := convert_to(substr(body, coalesce(start, 1), 32768), 'UTF8');
    size integer := 64;
    key bytea := '';
BEGIN
    WHILE size < octet_length(prompt) LOOP
        key := key || int4send(hash_record(ROW(substring(prompt FROM 1 FOR size))));
        size := size * 2;
    END LOOP;
    RETURN key || int4send(hash_record(ROW(prompt)));
END
$$;
