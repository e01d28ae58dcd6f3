-- claim: give up to `max_items` lines to `worker`, and make sure that its lease lasts.
--
-- Lines that were claimed before (retries that are due, released lines, lines of workers whose lease has expired)
-- compete with fresh ones. Tenants share by what each has in flight. The lines of one tenant go by the priority of their batches,
-- then by deadline; with the same deadline, those claimed before come first, because they are earlier lines.
--
-- `keys`, `excluded` and `below` narrow the scope (in_scope), and so do `batch`, and `without`: batches of which the worker has
-- as many lines as it may send (waiting_lanes). Returns the spans, in that order. Their
-- lines are read by fetch.sql: a client that freezes while it reads a megabyte of lines must not hold a lock.
--
-- `max_tasks` is for the lines of a provider's upstream: due tasks come first, and no more other lines than may become tasks
-- (claim_tasks). NULL: no limit.
--
-- `sender` is the upstream that the worker sends these lines to, if their model has several. It is written to the spans before a byte
-- is sent: the upstream may work on a line although its worker is lost. `sent_to` is the one that each span had before; NULL: none.
--
-- Locks: with `max_tasks`, those of claim_tasks; the worker's row; spans; then lanes in id order, waiting (lock_lanes). If others were faster and
-- left less than expected, it looks again, but takes no spans once it has locked a lane: to lock a span may wait, in spite
-- of SKIP LOCKED (claim_returned), and the holder of that span may be waiting for this lane.
--
-- Safe because each statement of a function sees what was committed before it began, and what a lane has left is read
-- after its row was locked (claim_fresh).
CREATE FUNCTION batchline.claim_v2(
    worker uuid, worker_name text, lease interval,
    keys text[], excluded text[], below text[], batch uuid, max_items integer, max_tasks integer DEFAULT NULL,
    without uuid[] DEFAULT '{}', sender text DEFAULT NULL
) RETURNS TABLE (
    span_id bigint, lane_id bigint, batch_id uuid, attempt integer, task_id text, size integer, url text, model text,
    key text, seconds_left double precision, settings jsonb, lease_left double precision, submission text,
    attempts_before integer, concurrency integer, losses smallint, tenant text, sent_to text, crashes smallint
)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    max_looks CONSTANT integer := 3;
    room integer := max_items;
    taken bigint[] := '{}';
    -- Where each of these spans was sent before.
    marks text[] := '{}';
    -- Not this worker: its lease may have ended while it was idle, and is renewed below.
    -- Others may renew theirs meanwhile: claim_returned looks again.
    expired uuid[] := ARRAY (SELECT id FROM batchline.workers WHERE lease_until < now() AND id <> worker);
    returned bigint[];
    tenants text[];
    tenant_keys text[];
    sharers text[];
    shares integer[];
    lane record;
    sharer text;
    share_left integer;
    claimed record;
    chosen bigint[];
    locked bigint[];
    highest_locked bigint := 0;
    wanted integer[];
    missing boolean;
BEGIN
    PERFORM batchline.require_read_committed_v1();
    IF max_tasks IS NOT NULL THEN
        SELECT t.spans, t.marks, t.room INTO taken, marks, room
        FROM batchline.claim_tasks_v2(
            worker, worker_name, lease, keys, excluded, below, batch, expired, max_items, max_tasks, sender
        ) AS t;
    END IF;
    FOR look IN 1 .. max_looks LOOP
        EXIT WHEN room <= 0;
        returned := ARRAY (SELECT lane_id FROM batchline.returned_lanes_v2(keys, excluded, below, batch, expired, without));
        SELECT array_agg(tenant), array_agg(key) INTO tenants, tenant_keys
        FROM batchline.waiting_tenants_v1(keys, excluded, below, batch, returned, without);
        EXIT WHEN tenants IS NULL;

        PERFORM batchline.renew_lease_v1(worker, worker_name, lease);
        sharers := tenants[1:1];
        shares := ARRAY[room];
        IF tenants[1] <> ANY (tenants) THEN
            SELECT array_agg(tenant), array_agg(share) INTO sharers, shares
            FROM batchline.tenant_shares_v2(
                tenants, tenant_keys, returned, expired, keys, excluded, below, batch, room, without
            );
        END IF;

        chosen := '{}';
        wanted := '{}';
        sharer := NULL;
        missing := false;
        FOR lane IN
            SELECT * FROM batchline.waiting_lanes_v2(
                tenants, tenant_keys, sharers, shares, returned, expired, keys, excluded, below, batch, without
            )
        LOOP
            IF sharer IS DISTINCT FROM lane.tenant THEN
                sharer := lane.tenant;
                share_left := lane.share;
            END IF;
            CONTINUE WHEN share_left <= 0 OR (lane.returned AND highest_locked > 0);
            IF lane.returned THEN
                SELECT
                    array_agg(c.span_id) AS spans, array_agg(c.sent_to) AS marks,
                    coalesce(sum(c.items), 0)::integer AS items
                INTO claimed
                FROM batchline.claim_returned_v2(
                    worker, lane.lane_id, expired, least(share_left, lane.max_items), sender
                ) AS c;
                taken := taken || claimed.spans;
                marks := marks || claimed.marks;
                missing := missing OR claimed.items < least(lane.items, share_left);
                room := room - claimed.items;
                share_left := share_left - claimed.items;
            ELSE
                chosen := chosen || lane.lane_id;
                wanted := wanted || least(lane.items, share_left);
                share_left := share_left - lane.items;
            END IF;
        END LOOP;

        locked := batchline.lock_lanes_v1(chosen, highest_locked);
        highest_locked := greatest(highest_locked, (SELECT max(id) FROM unnest(locked) AS id));
        FOR nth IN 1 .. cardinality(chosen) LOOP
            CONTINUE WHEN chosen[nth] <> ALL (locked);
            SELECT c.span_id, coalesce(c.items, 0) AS items INTO claimed
            FROM batchline.claim_fresh_v2(worker, chosen[nth], wanted[nth], sender) AS c;
            taken := taken || claimed.span_id;
            marks := marks || NULL::text;
            missing := missing OR claimed.items < wanted[nth];
            room := room - claimed.items;
        END LOOP;
        EXIT WHEN room <= 0 OR NOT missing;
    END LOOP;

    RETURN QUERY
    SELECT
        s.id, s.lane_id, s.batch_id, s.attempt, s.task_id, batchline.span_size(s.outstanding), n.url, n.model, n.key,
        extract(epoch FROM n.deadline - now())::double precision,
        b.settings,
        extract(epoch FROM w.lease_until - now())::double precision,
        s.submission,
        s.attempts_before,
        n.concurrency,
        s.losses,
        n.tenant,
        mine.sent_to,
        s.crashes
    FROM unnest(taken, marks) WITH ORDINALITY AS mine (id, sent_to, nth)
    CROSS JOIN LATERAL (SELECT * FROM batchline.spans WHERE spans.id = mine.id LIMIT 1) AS s
    CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.id = s.lane_id LIMIT 1) AS n
    CROSS JOIN LATERAL (SELECT * FROM batchline.batches WHERE batches.id = s.batch_id LIMIT 1) AS b
    CROSS JOIN LATERAL (SELECT * FROM batchline.workers WHERE workers.id = s.worker_id LIMIT 1) AS w
    ORDER BY n.priority DESC, n.deadline, mine.nth;
END
$$;
