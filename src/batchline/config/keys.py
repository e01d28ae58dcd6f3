"""The tables of batchline.toml and the keys of each, with what reads their values."""

from batchline.config import values
from batchline.config.values import Reader

TABLES = ("server", "limits", "upstreams", "operations", "packs")

SERVER: dict[str, Reader] = {
    "max_file_bytes": values.size,
    "max_lines": values.count(1, 2**31 - 1),
    "max_upload_bytes": values.size,
    "max_part_bytes": values.size,
    "max_json_bytes": values.size,
    "windows": values.windows,
    "input_retention": values.time_or_never,
    "output_retention": values.time_or_never,
    "results_retention": values.time_or_never,
    "operations_retention": values.time_or_never,
    "upload_lifetime": values.time,
    "allow_private_webhooks": values.flag,
    "public_openapi": values.flag,
    "sessions": values.count(1, 1000),
    "streams": values.count(1, 1000),
    "objects": values.text,
    "operation_window": values.window,
}
UPSTREAM: dict[str, Reader] = {
    "name": values.name,
    "base_url": values.url,
    "api_key_env": values.variable,
    "models": values.models,
    "concurrency": values.count(1, 20_000),
    "timeout": values.time,
    "max_attempts": values.count(1, 100),
}
OPERATION: dict[str, Reader] = {
    "name": values.name,
    "upstream": values.text,
    "path": values.text,
    "method": values.method,
    "query": values.text_table,
    "headers": values.text_table,
    "body": values.body,
    "content_type": values.text,
    "description": values.text,
    "schema": values.table,
    "largest_batch": values.count(1, 100_000),
    "max_attempts": values.count(1, 100),
    "approval": values.text,
    "self_approval": values.flag,
    "redact": values.texts,
    "outcomes": values.tables,
    "confirm": values.text,
    "gone_when": values.text,
    "timeout": values.time,
}
LIMITS: dict[str, Reader] = {
    "max_pending_parents": values.count(1, 1_000_000),
    "requests_per_minute": values.count(1, 10_000_000),
    "user_requests_percent": values.count(1, 100),
    "user_pending_parents": values.count(1, 1_000_000),
    "user_pending_children": values.count(1, 1_000_000),
    "cooldown_seconds": values.count(0, 31_536_000),
    "contact_admin": values.text,
}
PACK: dict[str, Reader] = {
    "upstream": values.text,
    "approval": values.rule,
    "self_approval": values.flag,
    "largest_batch": values.counts,
}
REQUIRED = {"upstreams": ("name", "base_url"), "operations": ("name", "upstream", "path")}
