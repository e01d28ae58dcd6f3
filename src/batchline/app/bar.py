"""The progress bar of `wait(progress=True)`: on stderr, or in the output of a notebook's cell."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from batchline.app.progress import BatchProgress


class ProgressBar:
    """One bar per stage. `displayed` false: none at all. `title` is what a stage is called for people."""

    def __init__(self, displayed: bool, title: Callable[[str], str] = str) -> None:
        self._title = title
        self._bars: dict[str, TaskID] = {}
        self._progress = None
        if displayed:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[failed]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )

    def show(self, progress: BatchProgress) -> None:
        if self._progress is None:
            return
        for name, stage in progress.stages.items():
            if name not in self._bars:
                self._bars[name] = self._progress.add_task(self._title(name), total=stage.total, failed="")
            self._progress.update(
                self._bars[name],
                total=stage.total,
                completed=stage.completed + stage.failed,
                failed=f"{stage.failed:,} failed" if stage.failed else "",
            )

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
