"""What `run` was asked for, and what became of it."""

from dataclasses import dataclass, field

from rich.console import Console

from batchline.batches.cost import BatchCost
from batchline.batches.forecast import Forecast
from batchline.cli.display.console import err, out
from batchline.cli.output_plan import OutputPlan
from batchline.cli.resuming import ResumeCommand
from batchline.cli.targets import Outputs, OutputTarget
from batchline.config.settings import TraceSettings, WorkerSettings
from batchline.files.inputs.input_set import InputSet
from batchline.hooks.hook import Hooks
from batchline.model import Batch, BatchChange, CauseCount, PauseReason, RunSettings
from batchline.store.hooks import HookDelivery
from batchline.traces.tracing import Tracing
from batchline.upstreams.rate_budgets import RateBudgets


@dataclass(frozen=True, slots=True)
class RunOrder:
    """The arguments of the command, checked."""

    inputs: InputSet
    settings: RunSettings
    outputs: Outputs
    plan: OutputPlan
    # Write the output while the batch runs.
    follow: bool
    # Add the input's columns to the output.
    join: bool
    # Options that the manifest shows.
    how: dict[str, object]
    window: str
    worker: WorkerSettings
    fresh: bool
    retry_failed: bool
    hooks: Hooks
    as_json: bool
    command: ResumeCommand
    # New values for a batch that is continued.
    change: BatchChange
    # Lines to run first, before the user decides about the rest.
    sample: int | None = None
    yes: bool = False
    traces: TraceSettings = field(default_factory=TraceSettings)
    # None: nothing is traced.
    tracing: Tracing | None = None
    # Requests and tokens per minute.
    budgets: RateBudgets = field(default_factory=RateBudgets)

    @property
    def output(self) -> OutputTarget:
        return self.plan.output

    @property
    def errors(self) -> OutputTarget:
        """Where to look for lines that failed: the error file, or the table."""
        return self.plan.errors or self.plan.output

    def console(self) -> Console:
        """The console for messages: stdout, unless the lines go there."""
        return err() if self.output.is_stdout else out()

    @property
    def retry_command(self) -> str:
        command = self.command.without_sample()
        return command.plus(*(() if self.retry_failed else ("--retry-failed",)))

    @property
    def silent(self) -> bool:
        return self.as_json or self.output.is_stdout


@dataclass(frozen=True, slots=True)
class RunOutcome:
    batch: Batch
    resumed: bool
    finished_before: bool
    interrupted: bool
    hook_deliveries: tuple[HookDelivery, ...] = ()
    causes: tuple[CauseCount, ...] = ()
    # Why a rule has paused the batch.
    pause: PauseReason | None = None
    cost: BatchCost | None = None
    forecast: Forecast | None = None
