"""Helm charts, rendered without Helm.

The library gotpl has Go's template language and Helm's functions, in Python. What Helm does around them is
here: values over defaults, the schema of values, one template after the other. Where the program `helm` is
installed, a test compares the two (tests/system/test_deploy_files.py).
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeAlias

import jsonschema_rs
import yaml
from gotpl.exts.helm import HelmTemplateEngine

Manifest: TypeAlias = dict[str, Any]


def rendered(
    chart: Path, values: Mapping[str, Any], *, release: str = "prod", namespace: str = "batches"
) -> list[Manifest]:
    """The objects of an install, hooks included. Raises TemplateError of gotpl, or ValidationError of
    jsonschema_rs."""
    about = _loaded(chart / "Chart.yaml")
    merged = _merged(_loaded(chart / "values.yaml"), values)
    jsonschema_rs.validate(json.loads((chart / "values.schema.json").read_text()), merged)
    sources = {path.name: path.read_text() for path in sorted((chart / "templates").iterdir())}
    context = {
        "Values": merged,
        "Chart": {
            "Name": about["name"],
            "Version": about["version"],
            "AppVersion": about["appVersion"],
        },
        "Release": {"Name": release, "Namespace": namespace, "Service": "Helm", "IsInstall": True},
    }
    engine = HelmTemplateEngine.from_sources(sources)
    texts = [engine.render_template(name, context) for name in sources if name.endswith(".yaml")]
    # An error of the notes fails an install, too.
    engine.render_template("NOTES.txt", context)
    return [found for text in texts for found in yaml.safe_load_all(text) if found]


def _loaded(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def _merged(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """As Helm does it: tables are merged, null removes a default, and everything else replaces it."""
    merged = deepcopy(dict(defaults))
    for key, value in values.items():
        if value is None:
            merged.pop(key, None)
        else:
            both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
            merged[key] = _merged(merged[key], value) if both else value
    return merged
