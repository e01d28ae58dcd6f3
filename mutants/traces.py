"""Mistakes in traces: what they reveal to whom, and whether they are one trace per line."""

from mutants.mutant import Mutant

_LINES = "src/batchline/traces/lines.py"
_CONVENTIONS = "src/batchline/traces/conventions.py"
_UNIT = ("tests/unit/test_traces.py",)

TRACES = (
    Mutant(
        "an upstream that nobody has chosen gets the ids of traces",
        "src/batchline/executors/http.py",
        "                if upstream.traced:\n",
        "                if trace.traceparent:\n",
        ("tests/unit/test_trace_headers.py",),
    ),
    Mutant(
        "each process has its own ids for a line",
        "src/batchline/traces/span.py",
        "blake2b(batch_id.bytes + line_no",
        "blake2b(os.urandom(16) + line_no",
        _UNIT,
    ),
    Mutant(
        "a verdict that came too late ends the line in its trace",
        _LINES,
        "if counts and isinstance(verdict, _ENDS):",
        "if isinstance(verdict, _ENDS):",
        _UNIT,
    ),
    Mutant(
        "a trace has whatever an upstream writes as the name of a model",
        _CONVENTIONS,
        "type(value) is str and _NAME.fullmatch(value)",
        "type(value) is str",
        _UNIT,
    ),
    Mutant(
        "new settings of a batch forget the trace of its submission",
        "src/batchline/store/sql/batches/change_settings.sql",
        "'traceparent', settings -> 'traceparent'",
        "'traceparent', NULL::jsonb",
        ("tests/store/test_trace_context.py",),
    ),
    Mutant(
        "a log has the message of an error about a line",
        "src/batchline/secrets/tracebacks.py",
        "(message not shown)",
        "{cause}",
        ("tests/worker/test_item_logs.py",),
    ),
)
