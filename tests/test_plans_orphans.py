"""A plan guard, as in test_plans, for the orphans' duty."""

from tests.test_plans import Ground, ground

__all__ = ["ground"]


def test_clearing_away_orphans_reads_a_chunk_of_them(ground: Ground) -> None:
    with ground.stage.db.transaction(force_rollback=True):
        # As sessions do: a file with few lines is read by its key too.
        ground.stage.db.execute("SET LOCAL enable_seqscan = off")
        # File 1 has no row in `files`: it was deleted by deleting that.
        ground.stage.db.execute("INSERT INTO file_lanes VALUES (1, 0, 'm', '/v1/embeddings', 20000)")
        plan = ground.explain("drop_orphan_lines", chunk=100)

    assert "lines" not in plan.seq_scans
    assert plan.rows["lines"] == 2 * 100, "each is found, and deleted"
