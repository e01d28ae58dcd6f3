"""Mistakes in retention: what is deleted, and when."""

from mutants.mutant import Mutant

_MAINTENANCE = "src/batchline/store/sql/maintenance"
_RETENTION = ("tests/store/test_retention.py",)
_OBJECTS = ("tests/store/test_finalize.py", "tests/store/test_retention.py")

RETENTION = (
    Mutant(
        "the age of a batch counts from its creation, so a running one is purged",
        f"{_MAINTENANCE}/purge_old_batches.sql",
        "WHERE b.ended_at < now()",
        "WHERE b.created_at < now()",
        _RETENTION,
    ),
    Mutant(
        "governed batches are purged as early as ordinary ones",
        f"{_MAINTENANCE}/purge_old_batches.sql",
        "      AND b.submitted_by IS NULL\n",
        "",
        ("tests/store/test_operations_retention.py",),
    ),
    Mutant(
        "a batch is purged while one of its files is still there",
        f"{_MAINTENANCE}/purge_batches_of.sql",
        "      AND NOT EXISTS (\n"
        "          SELECT FROM batchline.files AS f WHERE f.id IN (b.output_file_id, b.error_file_id)"
        " AND f.deleted_at IS NULL\n"
        "      )\n",
        "",
        _RETENTION,
    ),
    Mutant(
        "results of a batch that is not being purged are deleted",
        f"{_MAINTENANCE}/drop_results.sql",
        "WHERE b.id = %(batch)s AND b.purging_at IS NOT NULL",
        "WHERE b.id = %(batch)s",
        _RETENTION,
    ),
    Mutant(
        "two workers that delete results wait for each other",
        f"{_MAINTENANCE}/drop_results.sql",
        "        FOR UPDATE SKIP LOCKED",
        "        FOR UPDATE",
        _RETENTION,
    ),
    Mutant(
        "files are deleted before they expire",
        f"{_MAINTENANCE}/delete_expired_files.sql",
        "WHERE expires_at <= now() AND",
        "WHERE expires_at IS NOT NULL AND",
        _RETENTION,
    ),
    Mutant(
        "lines of files that exist are deleted as orphans",
        f"{_MAINTENANCE}/orphan_file.sql",
        "WHERE NOT EXISTS (SELECT FROM batchline.files AS f WHERE f.no = p.file_no)\n",
        "",
        _RETENTION,
    ),
    Mutant(
        "objects that a file refers to are deleted",
        f"{_MAINTENANCE}/garbage_objects.sql",
        "  AND NOT EXISTS (SELECT FROM batchline.files AS f"
        " WHERE f.object_key = o.key AND f.purged_at IS NULL)\n",
        "",
        _OBJECTS,
    ),
    Mutant(
        "objects of a batch that is being finalized are deleted",
        f"{_MAINTENANCE}/garbage_objects.sql",
        "  AND NOT EXISTS (SELECT FROM batchline.batches AS b"
        " WHERE b.id = o.batch_id AND b.ended_at IS NULL)",
        "",
        _OBJECTS,
    ),
    Mutant(
        "parts of an open upload are deleted",
        f"{_MAINTENANCE}/garbage_objects.sql",
        "  AND NOT EXISTS (SELECT FROM batchline.upload_parts AS p WHERE p.object_key = o.key)\n",
        "",
        _OBJECTS,
    ),
    Mutant(
        "young objects are deleted before they can be recorded",
        f"{_MAINTENANCE}/garbage_objects.sql",
        "WHERE o.modified < now() - %(older_than)s::interval",
        "WHERE %(older_than)s::interval IS NOT NULL AND o.modified IS NOT NULL",
        _OBJECTS,
    ),
    Mutant(
        "a dead worker that still finalizes a batch is forgotten",
        f"{_MAINTENANCE}/forget_workers.sql",
        "      AND NOT EXISTS (SELECT FROM batchline.batches AS b"
        " WHERE b.finalizer = w.id AND b.ended_at IS NULL)\n",
        "",
        ("tests/worker/test_maintenance.py", "tests/store/test_retention.py", "tests/store/test_finalize.py"),
    ),
    Mutant(
        "a batch can be created over a file that is being deleted",
        "src/batchline/store/sql/files/delete_file.sql",
        "    FOR UPDATE\n",
        "    FOR NO KEY UPDATE\n",
        _RETENTION,
    ),
)
