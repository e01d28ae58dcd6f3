"""Governed Python operations: the rules of an operation, and its items in a worker of the app."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from batchline import Batchline, Context, Fail, InvalidApp, Retry
from batchline.governance.children import reported
from batchline.governance.errors import InvalidSubmission, NotAllowed, TooLarge
from batchline.governance.operations import Operation
from batchline.governance.registry import Registry
from batchline.governance.rules import Rules
from batchline.model import Approval, GovernedBatch
from batchline.secrets.masking import MASK
from batchline.store import operations
from batchline.store.session import Session
from tests.support.governance import (
    ANNA,
    CARLA,
    EMIL,
    GENEROUS,
    append,
    approve_seen,
    audited,
    is_sound,
    submit,
)


@dataclass(frozen=True)
class Resize:
    vm: str
    cpu: int = 1
    env: str = "test"
    pin: str = ""


class Node(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    children: list["Node"] = []


class Account(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    name: str
    password: str = ""

    @pydantic.field_validator("password")
    @classmethod
    def _long(cls, password: str) -> str:
        if password.startswith("bad"):
            raise ValueError("is bad")
        return password


def rules_of(app: Batchline) -> Rules:
    return Rules(Registry(app.worker().governed), GENEROUS)


async def work(app: Batchline, db: Session, batch: GovernedBatch) -> GovernedBatch:
    await app.worker(drain=True).serve()
    over = await _ended(db, batch)
    assert over is not None
    return over


async def _ended(db: Session, batch: GovernedBatch) -> GovernedBatch | None:
    found = await operations.get(db, batch.tenant, batch.id)
    return found if found is not None and found.ended_at is not None else None


async def children(db: Session, batch: GovernedBatch, operation: Operation) -> list[tuple[Any, Any, str]]:
    """(result, error, all that the database has of the output) of each child."""
    found = await operations.children(db, batch.id, status=None, after=0, limit=100)
    displayed = [reported(child, batch, operation) for child in found]
    return [
        (each.result, each.error, child.output or "") for each, child in zip(displayed, found, strict=True)
    ]


def governed(app: Batchline, name: str) -> Operation:
    return next(each for each in app.worker().governed if each.name == name)


# --- Definition --------------------------------------------------------------------------------------------


def test_the_rules_are_those_of_the_decorator_and_the_schema_that_of_the_type(app: Batchline) -> None:
    @app.governed(
        approval="env == 'production'",
        self_approval=True,
        submitters=["role:admin", "ann"],
        redact=["pin"],
        largest_batch=7,
    )
    @app.operation(max_attempts=4, timeout=9)
    async def resize(item: Resize) -> str:
        """Change the size of a machine.

        More about it.
        """
        return item.vm

    rules = governed(app, "resize")
    assert (rules.approval, rules.self_approval, rules.largest_batch) == ("env == 'production'", True, 7)
    assert (rules.submitters, rules.redact) == (("role:admin", "ann"), ("pin",))
    assert (rules.max_attempts, rules.timeout) == (4, 9)
    assert rules.description == "Change the size of a machine."
    assert rules.schema["required"] == ["vm"]
    assert rules.schema["properties"]["cpu"] == {"type": "integer", "default": 1}
    assert rules.url == "python:/operations/resize"


async def test_a_governed_operation_can_still_be_called_and_submitted_by_the_app(app: Batchline) -> None:
    @app.governed
    @app.operation
    async def shout(item: dict[str, str]) -> str:
        return item["word"].upper()

    assert await shout({"word": "a"}) == "A"
    assert await app.amap(shout, [{"word": "b"}]) == ["B"]


def test_a_type_that_contains_itself_has_a_schema_that_does_so_too(app: Batchline) -> None:
    @app.governed
    @app.operation
    def count(node: Node) -> int:
        return 1 + len(node.children)

    schema = governed(app, "count")
    assert not schema.faults([{"name": "a", "children": [{"name": "b"}]}])
    (fault,) = schema.faults([{"name": "a", "children": [{"name": 3}]}])
    assert fault.position == "items[0].children[0].name"


def _number(item: int) -> int:
    return item


def _anything(item):  # type: ignore[no-untyped-def]
    return item


@pytest.mark.parametrize("function", [_number, _anything])
def test_items_that_are_no_objects_are_refused(app: Batchline, function: Any) -> None:
    operation = app.operation(name="given")(function)
    with pytest.raises(InvalidApp, match="items are not objects"):
        app.governed(operation)


@pytest.mark.parametrize("keywords", [{"sink": "rows"}, {"emits": ["other"]}, {"collects": "other"}])
def test_an_operation_whose_results_go_elsewhere_cannot_be_governed(
    app: Batchline, keywords: dict[str, Any]
) -> None:
    operation = app.operation(name="given", **keywords)(lambda item: item)
    with pytest.raises(InvalidApp, match=f"has {next(iter(keywords))}, so it cannot be governed"):
        app.governed(operation)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"approval": "allways"}, "neither always nor never"),
        ({"approval": "enf == 'production'"}, "the schema has no field 'enf'"),
        ({"submitters": ["role:king"]}, "the roles are"),
        ({"submitters": "ann"}, "submitters must be a list"),
        ({"largest_batch": 0}, "largest_batch: must be at least 1"),
    ],
)
def test_a_wrong_rule_is_refused_when_the_app_is_imported(
    app: Batchline, keywords: dict[str, Any], message: str
) -> None:
    @app.operation
    async def resize(item: Resize) -> str:
        return item.vm

    with pytest.raises(InvalidApp, match=message):
        app.governed(**keywords)(resize)


def test_an_unknown_rule_is_an_error(app: Batchline) -> None:
    operation = app.operation(name="given")(lambda item: item)
    with pytest.raises(TypeError, match="no keyword 'aproval'"):
        app.governed(**{"aproval": "always"})(operation)  # type: ignore[call-overload]


# --- Submission --------------------------------------------------------------------------------------------


async def test_items_that_the_type_refuses_are_named_with_their_index_and_without_secrets(
    app: Batchline, db: Session
) -> None:
    @app.governed
    @app.operation
    async def create(account: Account) -> str:
        return account.name

    rules = rules_of(app)
    secret = "bad" + "s3cr3t" * 20
    items = [{"name": "a"}, {"name": "b", "password": secret}]
    with pytest.raises(InvalidSubmission, match="is bad") as refused:
        await submit(db, rules, ANNA, items, operation="create")
    assert refused.value.param == "items[1]"
    assert "s3cr3t" not in refused.value.message
    with pytest.raises(InvalidSubmission) as refused:
        await submit(db, rules, ANNA, [{"name": "a"}, {"name": 3}], operation="create")
    assert refused.value.param == "items[1].name"
    with pytest.raises(TooLarge):
        await submit(db, rules, ANNA, [{"name": "a"}] * 101, operation="create")


async def test_only_submitters_may_submit(app: Batchline, db: Session) -> None:
    @app.governed(submitters=["role:admin"])
    @app.operation
    async def resize(item: Resize) -> str:
        return item.vm

    with pytest.raises(NotAllowed):
        await submit(db, rules_of(app), ANNA, [{"vm": "a"}])
    await submit(db, rules_of(app), EMIL, [{"vm": "a"}])


# --- Items -------------------------------------------------------------------------------------------------


async def test_an_approved_batch_runs_and_is_audited_to_its_end(app: Batchline, db: Session) -> None:
    ran: list[str] = []

    @app.governed(approval="env == 'production'")
    @app.operation
    async def resize(item: Resize, ctx: Context) -> dict[str, Any]:
        ran.append(item.vm)
        return {"vm": item.vm, "by": ctx.operation, "nth": ctx.key}

    rules = rules_of(app)
    batch = await submit(db, rules, ANNA, [{"vm": "a", "env": "production"}, {"vm": "b"}])
    assert batch.approval is Approval.PENDING
    await app.worker(drain=True).serve()
    assert not ran, "nothing runs before the approval"
    await approve_seen(rules, db, CARLA, batch.id)
    over = await work(app, db, batch)
    assert (over.counts.succeeded, sorted(ran)) == (2, ["a", "b"])
    results = [result for result, _, _ in await children(db, over, governed(app, "resize"))]
    assert results == [
        {"vm": "a", "by": "resize", "nth": "1"},
        {"vm": "b", "by": "resize", "nth": "2"},
    ]
    acts = [(action, actor) for action, actor, _ in await audited(db, batch)]
    assert acts[:2] == [("batch.submitted", "anna"), ("batch.approved", "carla")]
    assert [action for action, _ in acts].count("child.ended") == 2
    await is_sound(db)


async def test_secrets_of_items_appear_in_no_result_and_no_error(app: Batchline, db: Session) -> None:
    @app.governed(redact=["pin"])
    @app.operation(max_attempts=2, backoff=(0, 0))
    def resize(item: Resize) -> dict[str, str]:
        match item.vm:
            case "completes":
                return {"note": f"the pin is {item.pin}", "password": "hunter22"}
            case "fails":
                raise Fail(f"no such pin: {item.pin}", code=f"pin_{item.pin}")
            case "large":
                return {"note": f"{item.pin} " * 1000}
            case _:
                raise Retry(f"not yet: {item.pin}")

    wanted = ["completes", "fails", "retries", "large"]
    items = [{"vm": vm, "pin": "geheim77"} for vm in wanted]
    batch = await submit(db, rules_of(app), ANNA, items)
    over = await work(app, db, batch)
    completed, failed, retried, large = await children(db, over, governed(app, "resize"))
    assert completed[0] == {"note": f"the pin is {MASK}", "password": MASK}
    assert (failed[1].code, failed[1].message) == (f"pin_{MASK}", f"no such pin: {MASK}")
    assert (retried[1].code, retried[1].message) == ("Retry", f"not yet: {MASK}")
    assert MASK in large[0]["note"]
    stored = "".join(output for _, _, output in (completed, failed, retried, large))
    assert "geheim77" not in stored
    assert "hunter22" not in stored


@pytest.mark.parametrize("keywords", [{}, {"chunk": 3}])
async def test_failed_items_get_the_attempts_of_the_operation(
    app: Batchline, db: Session, keywords: dict[str, Any]
) -> None:
    attempts: list[str] = []

    def one(item: Resize) -> Retry:
        attempts.append(item.vm)
        return Retry("not yet", after=0)

    if keywords:

        @app.governed
        @app.operation(max_attempts=3, chunk=3)
        async def resize(items: list[Resize]) -> list[Any]:
            return [one(item) for item in items]

    else:

        @app.governed
        @app.operation(name="resize", max_attempts=3)
        async def resize_one(item: Resize) -> str:
            raise one(item)

    batch = await submit(db, rules_of(app), ANNA, [{"vm": "a"}, {"vm": "b"}])
    over = await work(app, db, batch)
    assert (over.counts.failed, sorted(attempts)) == (2, ["a"] * 3 + ["b"] * 3)


async def test_a_held_batch_grows_until_it_is_released(app: Batchline, db: Session) -> None:
    @app.governed(largest_batch=3)
    @app.operation
    async def resize(item: Resize) -> str:
        return item.vm

    rules = rules_of(app)
    batch = await submit(db, rules, ANNA, [{"vm": "a"}], hold=True)
    grown = await append(rules, db, ANNA, batch.id, [{"vm": "b"}])
    assert grown.total == 2
    with pytest.raises(InvalidSubmission):
        await append(rules, db, ANNA, batch.id, [{"vm": 3}])
    with pytest.raises(TooLarge):
        await append(rules, db, ANNA, batch.id, [{"vm": "c"}, {"vm": "d"}])


async def test_a_worker_of_some_operations_leaves_governed_items_of_others(
    app: Batchline, db: Session
) -> None:
    @app.governed
    @app.operation
    async def resize(item: Resize) -> str:
        return item.vm

    @app.operation
    async def other(item: int) -> int:
        return item

    batch = await submit(db, rules_of(app), ANNA, [{"vm": "a"}])
    await app.worker(operations=[other], drain=True).serve()
    assert await _ended(db, batch) is None
    await app.worker(operations=[resize], drain=True).serve()
    assert await _ended(db, batch) is not None
