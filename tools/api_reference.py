"""Write the reference of all calls of the HTTP API from their definitions.

    python -m tools.api_reference

The whole page is written: docs/reference/api.md.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from batchline.api.app import ROUTERS

PAGE = Path(__file__).parents[1] / "docs/reference/api.md"
_HEAD = """# Every call of the HTTP API

This page is written by `make format` from the server's routes. [HTTP API](http-api.md) and
[governed operations](../how-to/governed-operations.md) explain the calls. A server with registered operations
has one more call for each of them: its `/openapi.json` and `/docs` show these, too.
"""
_METHODS = ("get", "post", "put", "patch", "delete")
# What refers to a named object.
_REF = "#/components/schemas/"
_JSON = "application/json"

Schema = Mapping[str, Any]


def rendered() -> str:
    app = FastAPI(title="Batchline")
    for router in ROUTERS:
        app.include_router(router)
    document = app.openapi()
    objects = document["components"]["schemas"]
    used = [name for name in objects if not name.startswith(("HTTPValidationError", "ValidationError"))]
    return "\n".join(
        (
            _HEAD,
            *(line for path, calls in document["paths"].items() for line in _calls(path, calls)),
            "## Objects\n",
            *(line for name in sorted(used) for line in _object(name, objects[name])),
        )
    )


def _calls(path: str, calls: Schema) -> Iterator[str]:
    for method in _METHODS:
        if method in calls:
            yield from _call(f"{method.upper()} {path}", calls[method])


def _call(name: str, call: Schema) -> Iterator[str]:
    yield f"## `{name}`\n"
    if text := call.get("description", ""):
        yield f"{text.strip()}\n"
    # The key is the same for all calls.
    parameters = [each for each in call.get("parameters", ()) if each["name"].lower() != "authorization"]
    if parameters:
        yield from ("| parameter | in | type | |", "|---|---|---|---|", *map(_parameter, parameters), "")
    for kind, content in call.get("requestBody", {}).get("content", {}).items():
        yield f"Body (`{kind}`): {_type(content['schema'])}\n"
        yield from _fields(content["schema"])
    yield f"Answers: {', '.join(_answers(call['responses']))}\n"


def _parameter(each: Schema) -> str:
    name = f"`{each['name']}`{' (required)' if each.get('required') else ''}"
    notes = [each.get("description", ""), "" if each.get("required") else _default(each["schema"])]
    return f"| {name} | {each['in']} | {_type(each['schema'])} | {_cell(' '.join(filter(None, notes)))} |"


def _answers(responses: Schema) -> Iterator[str]:
    for status, answer in sorted(responses.items()):
        schema = answer.get("content", {}).get(_JSON, {}).get("schema", {})
        # The framework's own, which the server replaces with a 400.
        if not schema.get("$ref", "").endswith("/HTTPValidationError"):
            yield f"{status} {_type(schema)}" if schema and int(status) < 400 else status


def _object(name: str, schema: Schema) -> Iterator[str]:
    yield f"### {name}\n"
    if text := schema.get("description", ""):
        yield f"{' '.join(text.split())}\n"
    if "enum" in schema:
        yield f"{_values(schema['enum'])}\n"
    yield from _fields(schema)


def _fields(schema: Schema) -> Iterator[str]:
    required = schema.get("required", ())
    rows = [_field(field, each, field in required) for field, each in schema.get("properties", {}).items()]
    if rows:
        yield from ("| field | type | |", "|---|---|---|", *rows, "")


def _field(name: str, schema: Schema, required: bool) -> str:
    notes = [schema.get("description", ""), "" if required else _default(schema)]
    return f"| `{name}` | {_type(schema)} | {_cell(' '.join(filter(None, notes)))} |"


def _default(schema: Schema) -> str:
    default = schema.get("default")
    return "(optional)" if default is None else f"(default `{default}`)"


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REF)
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return _values([schema["const"]])
    if "enum" in schema:
        return _values(schema["enum"])
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(_type(each) for each in schema[several])
    match schema.get("type"):
        case "array":
            return f"list of {_type(schema.get('items', {}))}"
        case "object" if isinstance(values := schema.get("additionalProperties"), dict):
            return f"object of {_type(values)}"
        case str(kind):
            return f"{kind}{_bounds(schema)}"
    return "any"


def _values(values: list[Any]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _bounds(schema: Schema) -> str:
    low = schema.get("minimum", schema.get("minLength"))
    high = schema.get("maximum", schema.get("maxLength"))
    unit = " characters" if "maxLength" in schema or "minLength" in schema else ""
    if low is None and high is None:
        return ""
    if high is None:
        return f", at least {low:,}{unit}"
    return f", {low or 0:,} to {high:,}{unit}" if low is not None else f", at most {high:,}{unit}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(rendered())
