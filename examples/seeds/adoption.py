"""Migration and rollback of lazy request creation: adopt a small database with one row per request."""

from pathlib import Path

import psycopg

from examples.seeds.site import Site, simulated

OLD = [Path(__file__).with_name(name) for name in ("old_tables.sql", "old_requests.sql")]
COUNTS = "SELECT state, count(*) FROM {}requests GROUP BY state"


def verify(site: Site) -> None:
    for script in OLD:
        site.sql(script.read_text())
    site.say(f"old requests: {_states(site, '')}")
    with simulated("--latency", "5") as upstream:
        for phase in ("prepare",), ("cutover", "--upstream", upstream.url), ("verify",):
            for line in site.run("adopt", *phase).splitlines()[:2]:
                site.say(f"adopt {phase[0]}: {line}")
        adopted = _states(site, "batchline.")
        expected = {"completed": 60, "failed": 5, "pending": 135}
        site.check("finished requests are results, and all others are pending", adopted == expected, adopted)
        site.check("failed attempts are history", site.rows()["retry_attempts"] == 20)
        sent = site.read("adopt", "status")["possibly_sent"]
        site.check(
            "what the dead daemon may have sent is listed", len(sent) == 5, [one["custom_id"] for one in sent]
        )
        site.check("an old daemon cannot claim any more", not _old_daemon_claims(site))
        site.run("worker", "--max-items", "50")
    site.say(f"a worker has run 50: {_states(site, 'batchline.')}")
    for line in site.run("adopt", "rollback").splitlines()[:2]:
        site.say(f"adopt rollback: {line}")
    back = _states(site, "")
    expected = {"completed": 110, "failed": 5, "pending": 85}
    site.check(
        "the old rows have what finished meanwhile, and pending rows for the rest", back == expected, back
    )
    site.check("an old daemon can claim again", _old_daemon_claims(site))


def _states(site: Site, prefix: str) -> dict[str, int]:
    return dict(sorted(site.sql(COUNTS.format(prefix))))


def _old_daemon_claims(site: Site) -> bool:
    try:
        claimed = site.sql(
            """
            UPDATE requests SET state = 'claimed', daemon_id = gen_random_uuid(), claimed_at = now()
            WHERE id IN (SELECT id FROM requests WHERE state = 'pending' LIMIT 10 FOR UPDATE SKIP LOCKED)
            RETURNING id
            """
        )
    except psycopg.DatabaseError as error:
        if "is read-only" not in str(error):
            raise
        return False
    return len(claimed) == 10
