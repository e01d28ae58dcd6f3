"""Operations as they are registered: in code, in batchline.toml, with mistakes found at the start."""

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchline.config import SettingsError, load
from batchline.config.settings import ServerSettings
from batchline.governance.operations import InvalidOperation, Operation, operation_of, url_of
from batchline.governance.outcomes import Means, Outcome
from batchline.governance.registry import Registry, UnknownOperation, registry_of
from batchline.governance.schemas import ItemFault
from batchline.governance.templates import InvalidTemplate, InvalidValue, RequestTemplate
from batchline.secrets.masking import MASK, masked, masked_text, secrets_in, without
from batchline.upstreams import urls

SCHEMA = {
    "type": "object",
    "properties": {
        "namespace": {"type": "string"},
        "name": {"type": "string", "minLength": 1},
        "cpu": {"type": "integer", "maximum": 64},
        "password": {"type": "string", "minLength": 12},
        "pin": {"type": "string", "pattern": "^[0-9]+$"},
    },
    "required": ["namespace", "name"],
    "additionalProperties": False,
}

WHOLE = """
[[upstreams]]
name = "gpu"
base_url = "http://127.0.0.1:8000/v1"

[[upstreams]]
name = "cluster"
base_url = "https://kubernetes.example.com"
api_key_env = "CLUSTER_TOKEN"

[[operations]]
name = "vm_resize"
description = "Give a machine more or fewer processors"
upstream = "cluster"
method = "patch"
path = "/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachines/{name}"
content_type = "application/merge-patch+json"
largest_batch = 25
max_attempts = 2
approval = "namespace == 'production'"
redact = ["ticket"]
query = { dryRun = "{dry_run}" }
outcomes = [
  { status = 404, means = "failed" },
  { status = 409, means = "retry", when = "answer.reason == 'Conflict'" },
]
timeout = "30s"

[operations.body.spec.template.spec.domain.cpu]
cores = "{cpu}"

[operations.schema]
type = "object"
required = ["namespace", "name", "cpu"]

[operations.schema.properties]
namespace = { type = "string" }
name = { type = "string" }
cpu = { type = "integer" }
ticket = { type = "string" }
dry_run = { enum = ["All"] }
"""


def an_operation(**changes: Any) -> Operation:
    fields: dict[str, Any] = {
        "name": "vm_thing",
        "request": RequestTemplate("cluster", "/things/{namespace}/{name}"),
        "schema": SCHEMA,
    }
    return Operation(**{**fields, **changes})


def written(folder: Path, text: str) -> ServerSettings:
    path = folder / "batchline.toml"
    path.write_text(text)
    return load(path, {}).server


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(SettingsError) as refused:
        registry_of(written(folder, text))
    return str(refused.value).removeprefix(str(folder / "batchline.toml"))


# --- The registry ------------------------------------------------------------------------------------------


def test_what_is_registered_is_found_by_its_name() -> None:
    one, two = an_operation(name="b"), an_operation(name="a")
    registry = Registry([one, two])
    assert registry.get("b") is one
    assert registry.find("c") is None
    assert registry.all() == (two, one)
    assert "a" in registry
    assert len(registry) == 2
    with pytest.raises(UnknownOperation, match="no operation 'c'"):
        registry.get("c")
    with pytest.raises(InvalidOperation, match="two operations have the name 'a'"):
        Registry([two, two])


def test_an_operations_lanes_have_a_url_that_no_openai_endpoint_has() -> None:
    assert operation_of(url_of("vm_create")) == "vm_create"
    assert operation_of("/v1/chat/completions") is None


def test_the_file_says_all_that_an_operation_is(tmp_path: Path) -> None:
    more = 'self_approval = true\nsubmitters = ["role:admin", "alice"]\n'
    settings = written(tmp_path, WHOLE.replace("redact =", f"{more}redact ="))
    (operation,) = registry_of(settings).all()
    assert operation.name == "vm_resize"
    assert operation.description == "Give a machine more or fewer processors"
    assert (operation.largest_batch, operation.max_attempts, operation.timeout) == (25, 2, 30.0)
    assert operation.approval == "namespace == 'production'"
    assert operation.self_approval
    assert operation.submitters == ("role:admin", "alice")
    assert operation.redact == ("ticket",)
    assert operation.outcomes == (
        Outcome(404, Means.FAILED),
        Outcome(409, Means.RETRY, "answer.reason == 'Conflict'"),
    )
    assert operation.upstream == "cluster"
    assert operation.request is not None
    rendered = operation.request.render({"namespace": "ns", "name": "vm", "cpu": 4, "dry_run": "All"})
    assert rendered.method == "PATCH"
    assert rendered.path == "/apis/kubevirt.io/v1/namespaces/ns/virtualmachines/vm"
    assert rendered.query == "dryRun=All"
    assert rendered.content_type == "application/merge-patch+json"
    assert json.loads(rendered.body or b"") == {
        "spec": {"template": {"spec": {"domain": {"cpu": {"cores": 4}}}}}
    }


def test_an_upstream_for_operations_takes_no_models_unless_it_names_them(tmp_path: Path) -> None:
    settings = written(tmp_path, WHOLE)
    assert [upstream.models for upstream in settings.upstreams] == [("*",), ()]
    named = written(tmp_path, WHOLE.replace('"CLUSTER_TOKEN"', '"CLUSTER_TOKEN"\nmodels = ["m"]'))
    assert [upstream.models for upstream in named.upstreams] == [("*",), ("m",)]


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        (
            "\"namespace == 'production'\"",
            '"namespace =="',
            ", line 20: operations.vm_resize.approval: must be",
        ),
        (
            "\"namespace == 'production'\"",
            '"allways"',
            ", line 20: operations.vm_resize.approval: 'allways' is neither",
        ),
        ("{name}", "{nam}", ", line 16: operations.vm_resize.path: the schema has no field 'nam'"),
        (
            "/{name}",
            "/../{name}",
            ", line 16: operations.vm_resize.path: the path must not have segments of only dots",
        ),
        (
            'upstream = "cluster"',
            'upstream = "elsewhere"',
            ", line 14: there is no upstream 'elsewhere'",
        ),
        ('"patch"', '"TRACE"', ", line 16: operations.vm_resize.path: the method must be one of"),
        (
            "largest_batch = 25",
            "largest_batch = 0",
            ", line 18: operations[0].largest_batch: must be a whole",
        ),
        (
            "largest_batch",
            "largest_bach",
            ", line 18: operations[0].largest_bach: unknown key; did you mean largest_batch?",
        ),
        (
            'means = "retry"',
            'means = "again"',
            ", line 23: operations.vm_resize.outcomes: means must be one of done",
        ),
        (
            'type = "object"',
            'type = "objekt"',
            ", line 32: operations.vm_resize.schema: is not a JSON Schema",
        ),
        (
            'type = "integer"',
            '"$ref" = "#/no"',
            ", line 32: operations.vm_resize.schema: a $ref cannot be resolved",
        ),
        (
            'type = "integer"',
            '"$ref" = "http://a/b"',
            ", line 32: operations.vm_resize.schema: a $ref cannot be resolved",
        ),
        (
            'name = "vm_resize"',
            'name = "VM"',
            ", line 12: operations.VM.name: must begin with a lower-case letter",
        ),
        ('path = "/apis', '# path = "/apis', ", line 11: operations[0].path: is missing"),
        (
            'redact = ["ticket"]',
            'submitters = ["role:admins"]',
            ", line 21: operations.vm_resize.submitters: 'role:admins': the roles are user, approver, admin",
        ),
        (
            'redact = ["ticket"]',
            "submitters = []",
            ", line 21: operations[0].submitters: must be a list of texts that is not empty",
        ),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(
    tmp_path: Path, was: str, becomes: str, said: str
) -> None:
    assert was in WHOLE
    assert refusal(tmp_path, WHOLE.replace(was, becomes)).startswith(said)


def test_two_operations_of_one_name_are_refused(tmp_path: Path) -> None:
    twice = WHOLE + '\n[[operations]]\nname = "vm_resize"\nupstream = "cluster"\npath = "/x"\n'
    assert (
        refusal(tmp_path, twice)
        == ", line 44: operations.vm_resize.name: another operation has the name 'vm_resize'"
    )


# --- Items -------------------------------------------------------------------------------------------------


def test_every_item_is_held_to_the_schema_and_faults_name_their_place() -> None:
    operation = an_operation()
    assert operation.faults([{"namespace": "n", "name": "a"}]) == []
    faults = operation.faults(
        [
            {"namespace": "n", "name": "a"},
            {"name": "a", "cpu": 65},
            [],
            {"namespace": "n", "name": "b", "x": 1},
        ]
    )
    assert faults == [
        ItemFault("items[1]", '"namespace" is a required property'),
        ItemFault("items[1].cpu", "65 is greater than the maximum of 64"),
        ItemFault("items[2]", "must be an object"),
        ItemFault("items[3]", "Additional properties are not allowed ('x' was unexpected)"),
    ]


def test_a_fault_never_quotes_a_secret() -> None:
    operation = an_operation(redact=("pin",))
    (first, second) = operation.faults(
        [
            {"namespace": "n", "name": "a", "password": "hunter2"},
            {"namespace": "n", "name": "a", "pin": "hunter3"},
        ]
    )
    assert first == ItemFault("items[0].password", "does not meet minLength 12")
    assert second == ItemFault("items[1].pin", "does not meet pattern ^[0-9]+$")


def test_an_item_that_no_path_can_hold_is_found_with_the_others() -> None:
    (fault,) = an_operation().faults([{"namespace": "a/b", "name": "a"}])
    assert fault == ItemFault(
        "items[0]", "namespace cannot be used in a path: it is empty or contains a slash"
    )


def test_only_the_first_errors_are_reported() -> None:
    assert len(an_operation().faults([{}] * 100)) == 20


def test_approval_is_always_never_or_by_the_item() -> None:
    production, test = {"namespace": "production"}, {"namespace": "test"}
    assert not an_operation().needs_approval(production)
    assert an_operation(approval="always").needs_approval(test)
    by_item = an_operation(approval="namespace == 'production' || cpu > `16`")
    assert by_item.needs_approval(production)
    assert not by_item.needs_approval(test)
    assert by_item.needs_approval({"namespace": "test", "cpu": 17})


def test_a_rule_that_cannot_be_applied_holds_the_item() -> None:
    assert an_operation(approval="starts_with(name, 'a')").needs_approval({"name": 5})


def test_double_quotes_in_a_rule_are_taken_for_the_field_that_they_are() -> None:
    with pytest.raises(InvalidOperation, match="no field 'production'; write a string as 'production'"):
        an_operation(approval='namespace == "production"')


def test_a_slip_in_a_rule_is_found_without_a_schema_too() -> None:
    with pytest.raises(InvalidOperation, match="'allways' is neither always nor never"):
        an_operation(approval="allways", schema={"type": "object"})
    assert an_operation(approval="cpu").needs_approval({"cpu": 1})


def test_fields_that_a_schema_names_elsewhere_may_be_used_in_rules() -> None:
    schema = {**SCHEMA, "allOf": [{"properties": {"zone": {"type": "string"}}}]}
    assert an_operation(approval="zone == 'eu'", schema=schema).needs_approval({"zone": "eu"})


def test_an_outcome_counts_where_its_expression_holds() -> None:
    operation = an_operation(
        outcomes=(
            Outcome(409, Means.SAME, "answer.reason == 'AlreadyExists'"),
            Outcome(409, Means.DONE, "contains(answer.message, item.name)"),
            Outcome(404, Means.DONE),
        ),
        confirm="/things/{namespace}/{name}",
    )
    assert operation.meaning(409, {"name": "a"}, {"reason": "AlreadyExists"}) is Means.SAME
    assert operation.meaning(409, {"name": "a"}, {"message": "bar"}) is Means.DONE
    assert operation.meaning(409, {"name": "z"}, {"message": "bar"}) is None
    assert operation.meaning(409, {"name": "z"}, "no object") is None
    assert operation.meaning(404, {}, None) is Means.DONE
    assert operation.meaning(200, {}, None) is None


# --- Requests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["..", ".", "...", "a/b", "a\\b", "", "a\nb", "%2e%2e/x"])
def test_no_value_steers_a_path_elsewhere(name: str) -> None:
    with pytest.raises(InvalidValue):
        RequestTemplate("u", "/a/{name}/b").render({"name": name})


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("vm-1", "/a/vm-1/b"),
        ("a b", "/a/a%20b/b"),
        ("a?b#c", "/a/a%3Fb%23c/b"),
        ("%2e%2e", "/a/%252e%252e/b"),
        ("é", "/a/%C3%A9/b"),
        (7, "/a/7/b"),
        ("..x", "/a/..x/b"),
    ],
)
def test_a_value_in_a_path_is_percent_encoded(name: Any, path: str) -> None:
    assert RequestTemplate("u", "/a/{name}/b").render({"name": name}).path == path


@given(st.text(max_size=20), st.text(max_size=20))
@example("..", "x")
@example(".", ".")
@example("%2e%2e", "%2F..%2F")
@example("a?b", "#c")
@example("@evil.example", ":80")
def test_whatever_the_values_are_the_request_goes_where_the_template_says(first: str, second: str) -> None:
    template = RequestTemplate("u", "/fixed/{first}/middle/{second}.json/end", query={"q": "{first}"})
    try:
        rendered = template.render({"first": first, "second": second})
    except InvalidValue:
        return
    url = urls.below("https://host.example/prefix", rendered.path).with_query_string(rendered.query)
    assert (url.scheme, url.host_str, url.port) == ("https", "host.example", None)
    assert url.fragment is None
    segments = [unquote(segment) for segment in url.path_segments or []]
    assert segments == ["prefix", "fixed", first, "middle", f"{second}.json", "end"]
    assert url.query_pairs == [("q", first)]


def test_dots_from_two_fields_that_form_a_parent_folder_are_refused() -> None:
    with pytest.raises(InvalidValue):
        RequestTemplate("u", "/a/{x}{y}").render({"x": ".", "y": "."})


def test_a_value_ends_neither_its_query_nor_its_header() -> None:
    template = RequestTemplate("u", "/a", query={"q": "{x}", "r": "{none}"}, headers={"X-Note": "n {x}"})
    assert template.render({"x": "1&r=2"}).query == "q=1%26r%3D2"
    assert template.render({"x": "1"}).headers == (("X-Note", "n 1"),)
    with pytest.raises(InvalidValue, match="X-Note"):
        template.render({"x": "1\r\nHost: evil"})


@pytest.mark.parametrize(
    "mistake",
    [
        {"path": "no-slash"},
        {"path": "/a?b={c}"},
        {"path": "/a/../b"},
        {"path": "/a//b"},
        {"path": "/{a!r}"},
        {"path": "/{}"},
        {"path": "/{a"},
        {"method": "TRACE"},
        {"headers": {"Authorization": "{a}"}},
        {"headers": {"bad name": "x"}},
        {"body": {"a": ["{b"]}},
    ],
)
def test_a_template_that_cannot_work_is_refused_at_the_start(mistake: dict[str, Any]) -> None:
    with pytest.raises(InvalidTemplate):
        RequestTemplate(**{"upstream": "u", "path": "/a", **mistake})


def test_a_body_keeps_types_and_omits_missing_fields() -> None:
    body = {
        "spec": {"cpu": "{cpu}", "memory": "{memory}Gi", "labels": "{labels}", "on": True},
        "l": ["{cpu}", 1],
    }
    rendered = RequestTemplate("u", "/a", body=body).render({"cpu": 2, "memory": 4})
    assert json.loads(rendered.body or b"") == {"spec": {"cpu": 2, "memory": "4Gi", "on": True}, "l": [2, 1]}
    assert RequestTemplate("u", "/a").render({"x": 1}).body == b'{"x":1}'
    assert RequestTemplate("u", "/a", "DELETE", body=None).render({"x": 1}).body is None


# --- Secrets -----------------------------------------------------------------------------------------------


def test_secrets_are_masked_by_name_as_deep_as_they_are() -> None:
    item = {
        "name": "vm",
        "password": "a",
        "apiKey": "b",
        "labels": {"owner": "x", "auth-token": "c"},
        "disks": [{"dsn": "d", "size": 5}],
        "secret": {"inner": "e"},
        "publicKey": "f",
        "ticket": "g",
        "token": None,
    }
    assert masked(item, ("Ticket",)) == {
        "name": "vm",
        "password": MASK,
        "apiKey": MASK,
        "labels": {"owner": "x", "auth-token": MASK},
        "disks": [{"dsn": MASK, "size": 5}],
        "secret": MASK,
        "publicKey": "f",
        "ticket": MASK,
        "token": None,
    }


@pytest.mark.parametrize(
    ("item", "answer", "displayed"),
    [
        pytest.param({"pin": 123456}, "the pin 123456 is wrong", f"the pin {MASK} is wrong", id="a number"),
        pytest.param({"pin": 123456}, {"echo": 123456}, {"echo": MASK}, id="a number that is repeated"),
        pytest.param(
            {"password": "hunter2", "token": "hunter2-and-more"},
            "hunter2-and-more, hunter2",
            f"{MASK}, {MASK}",
            id="one that begins as another does",
        ),
        pytest.param({"secret": 'a "b" c'}, 'got "a \\"b\\" c"', f'got "{MASK}"', id="as JSON quotes it"),
        pytest.param({"secret": "a b/c?"}, "/x?of=a%20b%2Fc%3F", f"/x?of={MASK}", id="as a URL quotes it"),
        pytest.param({"secret": ["hunter2"]}, {"hunter2": 1}, {MASK: 1}, id="as a name"),
        pytest.param({"secret": True, "vm": "True"}, "True", "True", id="a truth is no secret"),
    ],
)
def test_what_is_secret_in_an_item_is_in_no_answer_however_it_is_quoted(
    item: dict[str, Any], answer: Any, displayed: Any
) -> None:
    # In the order of the item, so that the shorter of two comes first.
    assert without(answer, list(secrets_in(item, ("pin",)))) == displayed


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://user:hunter2@db/x",
        "amqp://hunter2@host",
        "Server=db;User Id=sa;Password=hunter2;Encrypt=yes",
        "Authorization: Bearer hunter2hunter2",
        '{"token": "hunter2 with spaces"}',
        "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----",
        "AccountName=x;AccountKey=hunter2==",
        "sk-hunter2hunter2hunter2hunter2",
        "eyJhbGciOiJIUzI1NiJ9.eyJodW50ZXIyIjoxfQ.hunter2",
    ],
)
def test_secrets_are_masked_by_their_format(text: str) -> None:
    displayed = masked_text(f"before {text} after")
    assert "hunter2" not in displayed
    assert MASK in displayed
    assert displayed.startswith("before")


@pytest.mark.parametrize(
    "run",
    [
        "a-",
        "a.",
        "eyJ-",
        "x://",
        "password-",
        "password ",
        'token="',
        "sk-",
        "-----BEGIN ",
        "-----END ",
        "Bearer ",
    ],
)
def test_masking_takes_no_longer_for_text_that_was_made_for_it(run: str) -> None:
    text = run * (500_000 // len(run))
    # Not the time of other processes.
    started = time.thread_time()
    masked_text(text)
    # A second or less where it is linear, and hours where it is not.
    assert time.thread_time() - started < 60


def test_plain_text_stays_as_it_is() -> None:
    text = 'virtualmachines.kubevirt.io "vm-1" not found at https://host/path?x=1, keys a and b, token'
    assert masked_text(text) == text
