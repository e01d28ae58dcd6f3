"""One module a comparison: its first line says what is compared, the rest of its docstring how."""

from types import ModuleType

from benchmarks.comparisons import (
    baselines,
    create,
    create_eager,
    flight_memory,
    idle,
    ingest,
    ingest_memory,
    output,
    polling,
    queues,
    queues_crash,
    queues_growth,
    queues_idle,
    queues_wake,
    queues_zombie,
    run,
    scripts,
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
    "flight-memory": flight_memory,
    "scripts": scripts,
    "queues": queues,
    "queues-growth": queues_growth,
    "queues-idle": queues_idle,
    "queues-wake": queues_wake,
    "queues-crash": queues_crash,
    "queues-zombie": queues_zombie,
}
