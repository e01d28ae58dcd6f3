"""One module a comparison: its first line says what is compared, the rest of its docstring how."""

from types import ModuleType

from benchmarks.comparisons import (
    baselines,
    create,
    create_eager,
    idle,
    ingest,
    ingest_memory,
    output,
    polling,
    run,
    steady,
    upload_memory,
    wake,
)

COMPARISONS: dict[str, ModuleType] = {
    "create": create,
    "create-eager": create_eager,
    "steady": steady,
    "baselines": baselines,
    "ingest": ingest,
    "ingest-memory": ingest_memory,
    "run": run,
    "output": output,
    "idle": idle,
    "wake": wake,
    "polling": polling,
    "upload-memory": upload_memory,
}
