"""A database URL names the schema of the tables; what is left is what libpq understands."""

import pytest

from batchline.store.address import Address, InvalidSchema, in_schema_of, parse


@pytest.mark.parametrize(
    ("url", "conninfo", "schema"),
    [
        ("postgresql://u@h/app", "postgresql://u@h/app", "batchline"),
        ("postgresql://u@h/app?schema=jobs", "postgresql://u@h/app", "jobs"),
        (
            "postgres://u:p%40@h:1/app?sslmode=disable&schema=jobs",
            "postgres://u:p%40@h:1/app?sslmode=disable",
            "jobs",
        ),
        ("postgresql:///app?schema=_j2&host=/run/pg", "postgresql:///app?host=/run/pg", "_j2"),
        ("host=h dbname=app", "host=h dbname=app", "batchline"),
        ("host=h schema=jobs dbname=app", "host=h dbname=app", "jobs"),
        ("schema='jobs' dbname=app", "dbname=app", "jobs"),
        ("dbname=app application_name=schema", "dbname=app application_name=schema", "batchline"),
        ("", "", "batchline"),
    ],
)
def test_the_schema_is_taken_out_of_the_url(url: str, conninfo: str, schema: str) -> None:
    assert parse(url) == Address(conninfo, schema)


@pytest.mark.parametrize("name", ["Jobs", "pg_jobs", "a-b", 'a"b', "1a", "", "x" * 64, "a;DROP SCHEMA b"])
def test_a_name_that_needs_quotes_is_refused(name: str) -> None:
    with pytest.raises(InvalidSchema, match="not a valid name"):
        parse(f"postgresql://h/app?schema={name}")


def test_two_schemas_are_refused() -> None:
    with pytest.raises(InvalidSchema, match="more than once"):
        parse("postgresql://h/app?schema=a&schema=b")


@pytest.mark.parametrize(
    "url", ["postgresql://h/app", "postgresql://h/app?ssl=no", "host=h", "host=h schema=x"]
)
def test_two_addresses_of_one_database_share_the_schema(url: str) -> None:
    direct = parse(in_schema_of(url, "postgresql://pooler/app?schema=jobs"))
    assert direct == Address(parse(url).conninfo, "jobs")
