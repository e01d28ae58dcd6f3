"""A simulated asynchronous provider: OpenAI's background responses, with durable tasks and a ledger.

A submission is accepted after a while, whether or not the caller still waits, and becomes a task. A task
takes its time, then has the answer of the same request without `background`. With a file, tasks survive the
process: each is appended before its submission is answered. On demand answers are lost, tasks vanish, and
keys are ignored.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qs
from uuid import uuid4

import msgspec

from batchline.simulate.answers import render
from batchline.simulate.execution import Requester
from batchline.simulate.faults import TokenBucket
from batchline.simulate.recipes import RecipeReader
from batchline.simulate.refusals import Refusal
from batchline.simulate.settings import SimulateSettings

_PATH = b"/v1/responses"
_KEY = "batchline_key"


class SimulatedTask(msgspec.Struct):
    """A line of the file. `key` is the Idempotency-Key, or else that in the metadata."""

    id: str
    key: str | None
    body: str
    accepted_at: float
    vanishes: bool = False
    cancelled: bool = False


class _Submission(msgspec.Struct):
    background: bool = False
    metadata: dict[str, Any] | None = None


@dataclass(slots=True)
class TaskCounts:
    submissions: int = 0
    replays: int = 0
    polls: int = 0
    lost_answers: int = 0
    refused: int = 0
    # Who waits for the acceptance of a key.
    waiting: dict[str, list[Requester]] = field(default_factory=dict)


class SimulatedTasks:
    def __init__(self, settings: SimulateSettings, loop: asyncio.AbstractEventLoop) -> None:
        self._settings = settings
        self._loop = loop
        self._reader = RecipeReader(settings.seed)
        self._dice = Random(f"tasks {settings.seed}").random
        self._bucket = TokenBucket(settings.rate_limit, time.monotonic) if settings.rate_limit else None
        self._file = Path(settings.tasks_file) if settings.tasks_file else None
        self._forget()
        if self._file is not None and self._file.exists():
            for line in self._file.read_bytes().splitlines():
                self._enter(msgspec.json.decode(line, type=SimulatedTask))

    def _forget(self) -> None:
        self._tasks: dict[str, SimulatedTask] = {}
        self._by_key: dict[str, list[SimulatedTask]] = {}
        self._counts = TaskCounts()

    def reset(self) -> None:
        self._forget()
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _enter(self, task: SimulatedTask) -> None:
        known = self._tasks.get(task.id)
        self._tasks[task.id] = task
        if task.key is not None:
            of_key = self._by_key.setdefault(task.key, [])
            if known is not None:
                of_key.remove(known)
            of_key.append(task)

    def _keep(self, task: SimulatedTask) -> None:
        self._enter(task)
        if self._file is not None:
            with self._file.open("ab") as stream:
                stream.write(msgspec.json.encode(task) + b"\n")

    # --- Requests ------------------------------------------------------------------------------------------

    @staticmethod
    def is_submission(path: bytes, body: bytes) -> bool:
        if path not in (_PATH, b"/responses") or b'"background"' not in body:
            return False
        try:
            return msgspec.json.decode(body, type=_Submission).background
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False

    def submit(self, caller: Requester, key: bytes | None, body: bytes) -> None:
        self._counts.submissions += 1
        metadata = msgspec.json.decode(body, type=_Submission).metadata or {}
        found = key.decode("latin-1") if key is not None else metadata.get(_KEY)
        try:
            if found is not None and not self._settings.keyless and self._replay(caller, found):
                return
            # Refuses a body that could not be answered.
            self._reader.read(_PATH, body)
            self._check_rate()
        except Refusal as refusal:
            caller.answer(refusal.status, refusal.body, refusal.headers)
            return
        if found is not None:
            self._counts.waiting.setdefault(found, [])
        self._loop.call_later(self._settings.accept_ms / 1000, self._accept, caller, found, body)

    def _replay(self, caller: Requester, key: str) -> bool:
        waiting, tasks = self._counts.waiting.get(key), self._by_key.get(key)
        if waiting is not None:
            waiting.append(caller)
        elif tasks:
            self._answer(caller, tasks[0])
        else:
            return False
        self._counts.replays += 1
        return True

    def _accept(self, caller: Requester, key: str | None, body: bytes) -> None:
        vanishes = self._dice() < self._settings.vanish_rate
        task = SimulatedTask(f"resp_{uuid4().hex}", key, body.decode(), time.time(), vanishes)
        self._keep(task)
        if self._dice() < self._settings.lose_rate:
            self._counts.lost_answers += 1
            caller.hang_up()
        else:
            self._answer(caller, task)
        for other in self._counts.waiting.pop(key, []) if key is not None else ():
            self._answer(other, task)

    def show(self, caller: Requester, task_id: str) -> None:
        self._counts.polls += 1
        self._check_rate()
        self._answer(caller, self._task(task_id))

    def cancel(self, caller: Requester, task_id: str) -> None:
        task = self._task(task_id)
        if self._status(task) == "in_progress":
            task = msgspec.structs.replace(task, cancelled=True)
            self._keep(task)
        self._answer(caller, task)

    def search(self, caller: Requester, query: bytes) -> None:
        self._check_rate()
        wanted = parse_qs(query.decode("latin-1")).get(f"metadata[{_KEY}]", [])
        tasks = [task for key in wanted for task in self._by_key.get(key, ())]
        page = {"object": "list", "data": [self._displayed(task) for task in tasks], "has_more": False}
        caller.answer(200, msgspec.json.encode(page))

    def _task(self, task_id: str) -> SimulatedTask:
        task = self._tasks.get(task_id)
        if task is None or task.vanishes:
            raise Refusal(404, f"Response with id '{task_id}' not found.", code="response_not_found")
        return task

    def _check_rate(self) -> None:
        wait_s = self._bucket.wait_s() if self._bucket is not None else 0.0
        if wait_s:
            self._counts.refused += 1
            message = f"Rate limit reached: {self._settings.rate_limit:g} requests per second."
            headers = b"Retry-After: %.3f\r\n" % wait_s
            raise Refusal(429, message, type="requests", code="rate_limit_exceeded", headers=headers)

    # --- Answers -------------------------------------------------------------------------------------------

    def _answer(self, caller: Requester, task: SimulatedTask) -> None:
        if not caller.gone:
            caller.answer(200, msgspec.json.encode(self._displayed(task)))

    def _status(self, task: SimulatedTask) -> str:
        if task.cancelled:
            return "cancelled"
        return (
            "in_progress" if time.time() - task.accepted_at < self._settings.task_ms / 1000 else "completed"
        )

    def _displayed(self, task: SimulatedTask) -> dict[str, Any]:
        response: dict[str, Any] = json.loads(render(self._reader.read(_PATH, task.body.encode())))
        metadata = msgspec.json.decode(task.body, type=_Submission).metadata or {}
        status = self._status(task)
        displayed = {
            "id": task.id,
            "created_at": int(task.accepted_at),
            "background": True,
            "metadata": metadata,
        }
        if status != "completed":
            displayed |= {"status": status, "output": [], "usage": None}
        return response | displayed

    # --- The ledger ----------------------------------------------------------------------------------------

    def report(self) -> dict[str, int]:
        """`tasks` in GET /stats. `keys_with_two_tasks` counts keys that became more than one task."""
        counts = self._counts
        return {
            "accepted": len(self._tasks),
            "submissions": counts.submissions,
            "replays": counts.replays,
            "polls": counts.polls,
            "lost_answers": counts.lost_answers,
            "refused": counts.refused,
            "cancelled": sum(task.cancelled for task in self._tasks.values()),
            "keys_with_two_tasks": sum(len(tasks) > 1 for tasks in self._by_key.values()),
        }

    def record_chunks(self) -> Iterator[bytes]:
        """GET /tasks: all tasks as JSON lines."""
        for task in list(self._tasks.values()):
            line = {"id": task.id, "key": task.key, "status": self._status(task), "vanishes": task.vanishes}
            yield msgspec.json.encode(line) + b"\n"
