"""Options of `run` and `submit` that say what answers must be like."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from uuid import UUID

import msgspec
import typer
from msgspec.structs import replace

from batchline.batches.answers import CHECKED_ENDPOINTS, AnswerCheck, InvalidAnswerSchema
from batchline.cli.display.console import CommandError
from batchline.model import AnswerRules, RunSettings
from batchline.store import files
from batchline.store.session import Session

_PANEL = "Valid answers"
# Larger schemas would slow down every claim.
_MAX_SCHEMA = 64 * 1024

Schema = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        metavar="FILE",
        rich_help_panel=_PANEL,
        help="A JSON Schema. An answer that does not match it is requested again.",
    ),
]
Require = Annotated[
    list[str] | None,
    typer.Option(
        "--require",
        metavar="RULE",
        rich_help_panel=_PANEL,
        help="finish_reason=stop, or answer: neither empty nor a refusal. Repeatable.",
    ),
]


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    schema: Schema = None
    require: Require = None

    def rules(self) -> AnswerRules | None:
        """None if every answer is good. Raises CommandError."""
        if self.schema is None and not self.require:
            return None
        rules = AnswerRules(
            schema=None if self.schema is None else _schema(self.schema),
            finish_reasons=_finish_reasons(self.require or ()),
        )
        try:
            AnswerCheck(rules)
        except InvalidAnswerSchema as error:
            raise CommandError(f"--schema {self.schema}: not a JSON Schema: {error}") from error
        return rules


def with_rules(settings: RunSettings, rules: AnswerRules | None) -> RunSettings:
    if rules is not None and settings.provider is not None:
        raise CommandError("--schema and --require do not work with --provider")
    return replace(settings, answers=rules)


async def check_endpoints(session: Session, file_id: UUID, settings: RunSettings) -> None:
    """Refuse rules for lines whose answers have no text. Raises CommandError."""
    if settings.answers is None:
        return
    for endpoint in await files.endpoints(session, file_id):
        if endpoint not in CHECKED_ENDPOINTS:
            raise CommandError(
                f"--schema and --require: answers of {endpoint} have no text to check; nothing was sent"
            )


def _schema(path: Path) -> str:
    """Without white space between its parts, so that its layout does not matter."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CommandError(f"--schema {path} cannot be read: {error.strerror}") from error
    if len(content) > _MAX_SCHEMA:
        raise CommandError(f"--schema {path}: the file has more than {_MAX_SCHEMA // 1024} KiB")
    try:
        schema = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CommandError(f"--schema {path}: not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise CommandError(f'--schema {path}: a JSON Schema is an object, such as {{"type": "object"}}')
    return msgspec.json.format(content, indent=-1).decode()


def _finish_reasons(given: Sequence[str]) -> tuple[str, ...]:
    reasons: list[str] = []
    for rule in given:
        name, _, value = rule.partition("=")
        if name == "finish_reason" and value:
            reasons.append(value)
        elif rule != "answer":
            raise CommandError(
                f"--require {rule!r}: give finish_reason=VALUE, such as finish_reason=stop, or answer"
            )
    return tuple(dict.fromkeys(reasons))
