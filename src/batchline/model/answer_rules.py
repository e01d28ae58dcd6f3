"""What an answer must be like to count as completed."""

import msgspec

INVALID_OUTPUT = "invalid_output"
"""The code of a line whose answers never met the rules of its batch."""


class AnswerRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """With any rules, an empty answer and a refusal are not accepted either."""

    # The text of the answer is JSON that meets this JSON Schema (2020-12). Kept as text: models write fields
    # in the order of the schema, and PostgreSQL would not keep it.
    schema: str | None = None
    # The answer's finish_reason is one of these. Of a response, its status.
    finish_reasons: tuple[str, ...] = ()
