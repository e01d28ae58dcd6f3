"""`batchline run`: its options. `cli/run` does the work."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
import typer
from msgspec import UNSET

from batchline.cli import options
from batchline.cli.answer_options import AnswerOptions, with_rules
from batchline.cli.arrangement_options import ArrangementOptions
from batchline.cli.display.console import CommandError, err, print_json
from batchline.cli.display.failures import failure_lines
from batchline.cli.errors import reported_errors
from batchline.cli.failure_limits import with_failure_limits
from batchline.cli.forecast import estimate
from batchline.cli.inputs import RowOptions, default_output, input_options, opened_inputs
from batchline.cli.option_groups import given_options, grouped
from batchline.cli.options import Exit
from batchline.cli.output_plan import OutputOptions, plan_run
from batchline.cli.relay_options import RelayOptions, check_relayed
from batchline.cli.resuming import ResumeCommand, resume_command
from batchline.cli.run import report
from batchline.cli.run.command import run
from batchline.cli.run.order import RunOrder, RunOutcome
from batchline.cli.runtime import open_runtime, run_async, written_files
from batchline.cli.server_settings import hooks_in
from batchline.cli.spending import SpendingOptions, with_spending
from batchline.cli.step_options import StepOptions
from batchline.cli.targets import Outputs
from batchline.cli.tracing import trace_settings
from batchline.cli.upstream_options import UpstreamOptions, check_window
from batchline.config.settings import UpstreamSettings, WorkerSettings
from batchline.files.inputs.input_set import InputSet
from batchline.model import BatchChange, RunSettings
from batchline.model.concurrency import concurrency_text
from batchline.upstreams.rate_budgets import budget_of


def register(app: typer.Typer) -> None:
    app.command("run", rich_help_panel=options.PANEL_RUN)(grouped(run_inputs))


@dataclass(frozen=True, slots=True)
class HookOptions:
    on_end: options.RunOnEnd = None
    on_end_command: options.RunOnEndCommand = None
    on_end_timeout: options.RunOnEndTimeout = None
    on_end_env: options.RunOnEndEnv = None


def run_inputs(
    inputs: options.Inputs,
    *,
    sending: UpstreamOptions,
    relaying: RelayOptions,
    rows: RowOptions,
    answers: AnswerOptions,
    writing: OutputOptions,
    concurrency: options.Concurrency = None,
    requests_per_minute: options.RequestsPerMinute = None,
    tokens_per_minute: options.TokensPerMinute = None,
    body_memory: options.RunBodyMemory = None,
    window: options.Window = options.DEFAULT_WINDOW,
    priority: options.Priority = None,
    caps: SpendingOptions,
    sample: options.Sample = None,
    yes: Annotated[bool, typer.Option("--yes", help="After --sample, run the rest without asking.")] = False,
    only_estimate: Annotated[
        bool, typer.Option("--estimate", help="Send nothing; print a rough forecast of tokens and cost.")
    ] = False,
    max_failed: options.MaxFailed = None,
    staging: StepOptions,
    arranging: ArrangementOptions,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over, and send every line again.")] = False,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            help="If it has ended, run the lines again that are not completed, and only these.",
        ),
    ] = False,
    hooks: HookOptions,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Run every line of INPUT against a model server. The same command again continues where it stopped.

    Lines that an earlier run has answered are not sent again, unless --fresh is given.

    Exit code 0: all lines completed. 1: some did not; the error file says why. 2: bad input or usage; nothing
    was sent. 3: paused: too many lines failed, a cap is reached, or the sample is done. 130: interrupted.

    Examples:

        batchline run prompts.jsonl --upstream http://127.0.0.1:8000/v1
        batchline run a.csv --upstream http://gpu:8000 --model M --prompt '{{text}}' -o b.csv
        batchline run a.jsonl --upstream https://models.example --api-key-env KEY
    """
    command = resume_command(inputs)
    with reported_errors(as_json), _interruptible(command), ExitStack() as stack:
        if fresh and retry_failed:
            raise CommandError(
                "--fresh sends every line again, --retry-failed only those that are not completed;"
                " give one of them"
            )
        spending = caps.spending()
        how = input_options(rows)
        if only_estimate:
            found = stack.enter_context(opened_inputs(inputs, how, data_dir))
            estimate(found, spending, database, data_dir, as_json)
            return
        server = relaying.applied(_server(sending, concurrency))
        server = _with_rates(server, requests_per_minute, tokens_per_minute)
        check_window(window)
        rules = answers.rules()
        end_hooks = hooks_in(WorkerSettings(**given_options(hooks)))
        plan = plan_run(writing, default_output(inputs[0]))
        outputs = Outputs(written_files(data_dir), writing.force)
        if as_json and plan.output.is_stdout:
            raise CommandError("--json prints one document on stdout; give -o FILE for the lines")
        found = stack.enter_context(opened_inputs(inputs, how, data_dir, plan.targets))
        plan.check(outputs, found.originals)
        settings = with_spending(with_failure_limits(server.run_settings(), max_failed), spending)
        settings = arranging.applied(staging.applied(settings, max_failed, sample))
        check_relayed(with_rules(settings, rules))
        order = RunOrder(
            inputs=found,
            settings=_reserved(with_rules(settings, rules), command),
            outputs=outputs,
            plan=plan,
            follow=writing.follow,
            join=writing.join,
            how=_displayed(server, found, writing),
            window=window,
            worker=_worker_settings(server, body_memory),
            fresh=fresh,
            retry_failed=retry_failed,
            hooks=end_hooks,
            as_json=as_json,
            command=command,
            sample=sample,
            yes=yes,
            traces=trace_settings(caps.config),
            budgets=budget_of(server, spending),
            # An option that is given replaces what `batchline change` has set.
            change=BatchChange(
                priority=UNSET if priority is None else priority,
                concurrency=UNSET if concurrency is None else None,
            ),
        )
        with open_runtime(database, data_dir, to_work=True) as runtime:
            outcome = run_async(run(order, runtime))
        _tell(order, outcome)
        raise typer.Exit(report.exit_code_of(outcome))


@contextmanager
def _interruptible(command: ResumeCommand) -> Iterator[None]:
    """Say how to continue after Ctrl-C while inputs are read or files are written, and if nobody reads stdout
    any more. While requests are sent, `run` itself stops at Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        raise CommandError(
            f"interrupted; nothing is lost; continue with\n  {command}", Exit.INTERRUPTED
        ) from None
    except BrokenPipeError:
        raise CommandError(
            f"the reader of stdout has left; nothing is lost; continue with\n  {command}", Exit.SOME_FAILED
        ) from None


def _server(given: UpstreamOptions, concurrency: int | None) -> UpstreamSettings:
    server = given.settings()
    return server if concurrency is None else replace(server, concurrency=concurrency)


def _with_rates(server: UpstreamSettings, requests: int | None, tokens: int | None) -> UpstreamSettings:
    if requests is not None and tokens is not None and tokens < requests:
        raise CommandError(
            f"--tpm {tokens} is less than --rpm {requests}, and each request has at least one token"
        )
    return replace(server, requests_per_minute=requests, tokens_per_minute=tokens)


def _reserved(settings: RunSettings, command: ResumeCommand) -> RunSettings:
    """Workers leave the batch to `run`, unless they are asked to take it.

    Not that of a provider: its tasks are counted by routing key, from all workers.
    """
    reserved = settings.provider is None
    return msgspec.structs.replace(settings, reserved=reserved, command=command.stored)


def _worker_settings(server: UpstreamSettings, body_memory: int | None) -> WorkerSettings:
    usual = WorkerSettings(concurrency=server.concurrency)
    return usual if body_memory is None else replace(usual, body_memory=body_memory)


def _displayed(server: UpstreamSettings, inputs: InputSet, writing: OutputOptions) -> dict[str, object]:
    """What the manifest shows of the options. The batch has the others."""
    return {
        "concurrency": concurrency_text(server.concurrency),
        "rows": inputs.template,
        "select": writing.select or None,
        "join": writing.join,
    }


def _tell(order: RunOrder, outcome: RunOutcome) -> None:
    if order.as_json:
        print_json(report.describe(order, outcome))
    else:
        # The summary is last, because it can end with the command to give next.
        for line in failure_lines(outcome.causes):
            order.console().print(f"  {line}", markup=False)
        console = err() if outcome.interrupted else order.console()
        for line in report.summary_lines(order, outcome):
            console.print(line, markup=False)
    for line in report.failed_hooks(order, outcome):
        err().print(line, markup=False)
