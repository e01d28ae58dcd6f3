"""Compares a batch's input with its output and error files: is each request answered once, under its own id?

Works for any files in OpenAI's format. The files are read side by side. Of files in input order, hardly more
than the current lines are kept in memory. Of others, the ids that are read and not matched yet are kept.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

import msgspec

# How far the input is read ahead for an id before the next output line is looked at.
_PATIENCE = 10_000
_OWN_ID = re.compile(r"batch_req_[0-9a-f]{32}_(\d+)")


class LinesDamaged(Exception):
    """The lines of a file cannot be read any further."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(reason)
        self.file = file


class Problem(StrEnum):
    DAMAGED = "damaged"
    INVALID_JSON = "invalid_json"
    MISSING = "missing"
    UNKNOWN = "unknown"
    DUPLICATED = "duplicated"
    SWAPPED = "swapped"
    OUT_OF_ORDER = "out_of_order"
    MISPLACED = "misplaced"
    DIGEST = "digest_mismatch"
    COUNT = "count_mismatch"


class ReconcileFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    problem: Problem
    file: str
    message: str
    line: int | None = None
    custom_id: str | None = None

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{where}: {self.problem.value}: {self.message}"


class LineFile(msgspec.Struct, frozen=True):
    """The lines of a file, which can be read again. Reading can raise LinesDamaged."""

    name: str
    lines: Iterable[bytes]


class Findings:
    """All counts, and the first findings of each problem."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.counts: Counter[Problem] = Counter()
        self.listed: list[ReconcileFinding] = []

    def add(self, finding: ReconcileFinding) -> None:
        self.counts[finding.problem] += 1
        if self.counts[finding.problem] <= self._limit:
            self.listed.append(finding)


class _AnswerLine(msgspec.Struct):
    custom_id: str
    id: str | None = None
    response: "_Status | None" = None
    error: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def completed(self) -> bool:
        answered = self.response is not None and 200 <= self.response.status_code < 300
        return answered and bytes(self.error) == b"null"


class _Status(msgspec.Struct):
    status_code: int = 200


class _RequestId(msgspec.Struct):
    custom_id: str


_read_line = msgspec.json.Decoder(_AnswerLine).decode
_read_id = msgspec.json.Decoder(_RequestId).decode
_read_any = msgspec.json.Decoder().decode


class _Answers:
    """The lines of an output or error file, one at a time."""

    def __init__(self, file: LineFile, findings: Findings, only_completed: bool | None) -> None:
        self.name = file.name
        self._findings = findings
        self._only_completed = only_completed
        self._lines = self._read(file)
        self._highest = 0
        self.waited = 0
        self.advance()

    def advance(self) -> None:
        self.head = next(self._lines, None)
        self.waited = 0

    def _read(self, file: LineFile) -> Iterator[tuple[int, _AnswerLine]]:
        for number, text in _numbered(file, self._findings):
            try:
                line = _decoded(text)
            except (ValueError, RecursionError) as error:
                message = f"not a line of a batch's output: {error}"
                self._findings.add(ReconcileFinding(Problem.INVALID_JSON, file.name, message, number))
                continue
            if self._only_completed is not None and line.completed != self._only_completed:
                kind = (
                    "a completed line in the error file" if line.completed else "a failed line in the output"
                )
                self._add(Problem.MISPLACED, number, line.custom_id, f"{line.custom_id!r} is {kind}")
            yield number, line

    def matched(self, number: int, line: _AnswerLine, input_line: int) -> None:
        """Look at a line whose request is known."""
        own = _OWN_ID.fullmatch(line.id or "")
        if own is not None and int(own[1]) != input_line:
            message = (
                f"the answer of input line {own[1]} is under {line.custom_id!r}, which is line {input_line}"
            )
            self._add(Problem.SWAPPED, number, line.custom_id, message)
        if input_line < self._highest:
            message = f"{line.custom_id!r} (input line {input_line}) comes after input line {self._highest}"
            self._add(Problem.OUT_OF_ORDER, number, line.custom_id, message)
        self._highest = max(self._highest, input_line)

    def _add(self, problem: Problem, number: int, custom_id: str, message: str) -> None:
        self._findings.add(ReconcileFinding(problem, self.name, message, number, custom_id))


def reconcile(requests: LineFile, output: LineFile, errors: LineFile | None, findings: Findings) -> int:
    """Add what is wrong to `findings`. Returns the number of requests."""
    return _Reconciling(requests, output, errors, findings).run()


class _Reconciling:
    def __init__(
        self, requests: LineFile, output: LineFile, errors: LineFile | None, findings: Findings
    ) -> None:
        self._requests = requests
        self._findings = findings
        # Without an error file, failed lines may be in the output, as `vllm run-batch` writes them.
        files = [_Answers(output, findings, None if errors is None else True)]
        if errors is not None:
            files.append(_Answers(errors, findings, False))
        self._answers: Sequence[_Answers] = files
        # Requests that have no answer yet, and answers whose request is not known yet, by custom_id.
        self._open: dict[str, int] = {}
        self._ahead: dict[str, list[tuple[_Answers, int, _AnswerLine]]] = {}

    def run(self) -> int:
        total = 0
        for number, text in _numbered(self._requests, self._findings):
            total += 1
            try:
                custom_id = _read_id(text).custom_id
            except (msgspec.DecodeError, RecursionError) as error:
                self._invalid_request(number, text, error)
                continue
            self._request(number, custom_id)
            for answers in self._answers:
                self._drain(answers)
        for answers in self._answers:
            while answers.head is not None:
                self._drain(answers)
                self._put_ahead(answers)
        self._conclude()
        return total

    def _request(self, number: int, custom_id: str) -> None:
        if custom_id in self._open:
            self._add_duplicate(
                self._requests.name, number, custom_id, f"also on line {self._open[custom_id]}"
            )
        elif found := self._ahead.pop(custom_id, None):
            answers, line_number, line = found[0]
            answers.matched(line_number, line, number)
            for other, other_number, _ in found[1:]:
                self._add_duplicate(other.name, other_number, custom_id, "answered before")
        else:
            self._open[custom_id] = number

    def _drain(self, answers: _Answers) -> None:
        """Match as many lines as possible. A line that waits too long for its request is put aside."""
        while answers.head is not None:
            number, line = answers.head
            input_line = self._open.pop(line.custom_id, None)
            if input_line is not None:
                answers.matched(number, line, input_line)
                answers.advance()
                continue
            answers.waited += 1
            if answers.waited <= _PATIENCE:
                return
            self._put_ahead(answers)

    def _put_ahead(self, answers: _Answers) -> None:
        if answers.head is not None:
            number, line = answers.head
            self._ahead.setdefault(line.custom_id, []).append((answers, number, line))
            answers.advance()

    def _conclude(self) -> None:
        """Say why ids are left. Only then is the input read again, to see which of them it has."""
        left = {*self._open, *self._ahead}
        seen: Counter[str] = Counter()
        if left:
            seen.update(custom_id for custom_id in self._request_ids() if custom_id in left)
        for custom_id, number in self._open.items():
            if seen[custom_id] > 1:
                self._add_duplicate(self._requests.name, number, custom_id, "also on an earlier line")
            else:
                message = f"{custom_id!r} has neither an answer nor an error"
                self._add(Problem.MISSING, self._requests.name, number, custom_id, message)
        for custom_id, found in self._ahead.items():
            for answers, number, _ in found:
                if seen[custom_id]:
                    self._add_duplicate(answers.name, number, custom_id, "answered before")
                else:
                    message = f"{custom_id!r} is not in the input"
                    self._add(Problem.UNKNOWN, answers.name, number, custom_id, message)

    def _request_ids(self) -> Iterator[str]:
        # What is wrong with the lines was found before.
        for _, text in _numbered(self._requests, Findings(0)):
            try:
                yield _read_id(text).custom_id
            except (msgspec.DecodeError, RecursionError):
                continue

    def _invalid_request(self, number: int, text: bytes, error: Exception) -> None:
        message = f"not a request: {error}"
        self._findings.add(ReconcileFinding(Problem.INVALID_JSON, self._requests.name, message, number))

    def _add_duplicate(self, file: str, number: int, custom_id: str, how: str) -> None:
        self._add(Problem.DUPLICATED, file, number, custom_id, f"{custom_id!r} is {how}")

    def _add(self, problem: Problem, file: str, number: int, custom_id: str, message: str) -> None:
        self._findings.add(ReconcileFinding(problem, file, message, number, custom_id))


def _decoded(text: bytes) -> _AnswerLine:
    # The fields that are skipped must be JSON, too, and in UTF-8.
    _read_any(text)
    return _read_line(text)


def _numbered(file: LineFile, findings: Findings) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, up to the first damage. Empty lines have numbers, too."""
    number = 0
    try:
        for number, line in enumerate(file.lines, 1):
            if text := line.strip(b" \t\r\n").removeprefix(b"\xef\xbb\xbf"):
                yield number, text
    except LinesDamaged as error:
        findings.add(ReconcileFinding(Problem.DAMAGED, error.file, f"after line {number}: {error}"))
