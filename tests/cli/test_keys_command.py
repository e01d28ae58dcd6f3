"""`batchline keys`."""

import json

from tests.support.processes import batchline


def test_the_commands_create_list_and_revoke(database_url: str) -> None:
    made = batchline(
        "keys",
        "create",
        "ci",
        "--tenant",
        "acme",
        "--role",
        "admin",
        "--json",
        BATCHLINE_DATABASE_URL=database_url,
    )
    assert made.returncode == 0, made.stderr
    key = json.loads(made.stdout)
    assert (key["name"], key["tenant"], key["role"]) == ("ci", "acme", "admin")

    plain = batchline("keys", "create", "plain", BATCHLINE_DATABASE_URL=database_url)
    assert plain.stdout.startswith("bl-")
    assert plain.stdout.count("\n") == 1, "stdout is the key and nothing else"

    listed = batchline("keys", "list", BATCHLINE_DATABASE_URL=database_url)
    assert key["id"] in listed.stdout
    assert key["key"] not in listed.stdout
    only = batchline("keys", "list", "--tenant", "acme", "--json", BATCHLINE_DATABASE_URL=database_url)
    assert [displayed["id"] for displayed in json.loads(only.stdout)["data"]] == [key["id"]]

    assert batchline("keys", "revoke", key["id"], BATCHLINE_DATABASE_URL=database_url).returncode == 0
    again = batchline("keys", "revoke", key["id"], BATCHLINE_DATABASE_URL=database_url)
    assert again.returncode == 1
    assert "no active key" in again.stderr
    assert batchline("keys", "revoke", "nonsense", BATCHLINE_DATABASE_URL=database_url).returncode == 1
