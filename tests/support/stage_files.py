"""batchline.toml with stages, for tests."""

from pathlib import Path

SUMMARIZE = """
[stages.summarize]
model = "small"
prompt = "Summarize: {{ text }}"
emits = ["translate"]
output = "summary"
"""
TRANSLATE = """
[stages.translate]
model = "large"
prompt = "Translate: {{ summary }}"
"""


def stage_file(folder: Path, url: str, *stages: str, upstream: str = "") -> Path:
    """A file with one upstream for all models, and these stages."""
    path = folder / "batchline.toml"
    path.write_text(f'[[upstreams]]\nname = "sim"\nbase_url = "{url}"\n{upstream}\n' + "\n".join(stages))
    return path
