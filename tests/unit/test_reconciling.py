"""Reconciling the files of a batch: each mistake is found, under its name and at its line."""

import json
import random
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from batchline.tables import reconciling
from batchline.tables.reconciling import Findings, LineFile, reconcile


def requests(count: int) -> list[bytes]:
    return [
        json.dumps({"custom_id": f"q-{n}", "url": "/x", "body": {}}).encode() for n in range(1, count + 1)
    ]


def answer(number: int, *, custom_id: str | None = None, ours: bool = True, failed: bool = False) -> bytes:
    own = f"batch_req_{'0' * 32}_{number}" if ours else f"batch_req_{number}x"
    response = None if failed else {"status_code": 200, "body": {}}
    error = {"code": "c", "message": "m"} if failed else None
    found = {"id": own, "custom_id": custom_id or f"q-{number}", "response": response, "error": error}
    return json.dumps(found).encode()


def found(
    inputs: Sequence[bytes], output: Sequence[bytes], errors: Sequence[bytes] | None = None
) -> list[tuple[str, str, int | None]]:
    findings = Findings(100)
    failed = None if errors is None else LineFile("err", errors)
    reconcile(LineFile("in", inputs), LineFile("out", output), failed, findings)
    return [(each.problem.value, each.file, each.line) for each in findings.listed]


def test_complete_files_have_no_findings() -> None:
    output = [answer(n) for n in range(1, 101) if n % 5]
    errors = [answer(n, failed=True) for n in range(1, 101) if n % 5 == 0]
    assert found(requests(100), output, errors) == []
    assert found([b"\xef\xbb\xbf" + requests(1)[0], b"", b"\r\n"], [answer(1), b"\n"]) == []


def test_failed_lines_may_be_in_the_output_if_there_is_no_error_file() -> None:
    assert found(requests(2), [answer(1), answer(2, failed=True)]) == []


def test_missing_lines_are_named() -> None:
    assert found(requests(3), [answer(1), answer(3)]) == [("missing", "in", 2)]
    assert found(requests(2), []) == [("missing", "in", 1), ("missing", "in", 2)]


def test_lines_that_nobody_requested_are_named() -> None:
    assert found(requests(2), [answer(1), answer(2), answer(9)]) == [("unknown", "out", 3)]


@pytest.mark.parametrize("position", [1, 2, 3])
def test_a_duplicate_is_found_wherever_it_is(position: int) -> None:
    output = [answer(1), answer(2), answer(3)]
    output.insert(position, answer(1))
    assert found(requests(3), output) == [("duplicated", "out", position + 1)]


def test_a_line_in_both_files_is_a_duplicate() -> None:
    kinds = found(requests(2), [answer(1), answer(2)], [answer(2, failed=True)])
    assert kinds == [("duplicated", "err", 1)]


def test_duplicates_in_the_input_are_named() -> None:
    inputs = requests(3)
    assert found([*inputs, inputs[0]], [answer(n) for n in (1, 2, 3)]) == [("duplicated", "in", 4)]
    assert found([inputs[0], inputs[0]], [answer(1)]) == [("duplicated", "in", 2)]


def test_an_answer_under_the_id_of_another_request_is_found_in_our_own_files() -> None:
    output = [answer(1, custom_id="q-2"), answer(2, custom_id="q-1"), answer(3)]
    kinds = found(requests(3), output)
    assert sorted(kind for kind, _, _ in kinds) == ["out_of_order", "swapped", "swapped"]


def test_lines_in_another_order_are_found_and_nothing_else() -> None:
    output = [answer(n, ours=False) for n in (1, 3, 2, 4)]
    assert found(requests(4), output) == [("out_of_order", "out", 3)]


def test_completed_lines_in_the_error_file_are_misplaced_and_the_other_way_round() -> None:
    kinds = found(requests(2), [answer(1, failed=True)], [answer(2)])
    assert kinds == [("misplaced", "out", 1), ("misplaced", "err", 1)]


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"custom_id":1}', b'{"custom_id":"q-1","x":\xff}', b"null"])
def test_lines_that_are_not_json_of_a_batch_are_named(text: bytes) -> None:
    assert ("invalid_json", "out", 1) in found(requests(1), [text, answer(1)])
    assert ("invalid_json", "in", 1) in found([text, *requests(1)], [answer(1, ours=False)])


def test_findings_beyond_the_limit_are_only_counted() -> None:
    findings = Findings(3)
    total = reconcile(LineFile("in", requests(10)), LineFile("out", []), None, findings)
    assert (total, len(findings.listed), findings.counts[reconciling.Problem.MISSING]) == (10, 3, 10)


@pytest.mark.parametrize("patience", [0, 3, 10_000])
def test_random_mistakes_are_all_found_whatever_the_patience(
    patience: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciling, "_PATIENCE", patience)
    for seed in range(60):
        chance = random.Random(seed)
        numbers = list(range(1, 60))
        missing = set(chance.sample(numbers, chance.randrange(4)))
        doubled = set(chance.sample(sorted(set(numbers) - missing), chance.randrange(4)))
        unknown = chance.randrange(3)
        answered = (
            [n for n in numbers if n not in missing] + sorted(doubled) + [100 + n for n in range(unknown)]
        )
        if seed % 2:
            chance.shuffle(answered)
        findings = Findings(1000)
        output = LineFile("out", [answer(n, ours=False) for n in answered])
        reconcile(LineFile("in", requests(59)), output, None, findings)
        by_kind: dict[str, list[str | None]] = {}
        for each in findings.listed:
            by_kind.setdefault(each.problem.value, []).append(each.custom_id)
        assert sorted(map(str, by_kind.get("missing", []))) == sorted(f"q-{n}" for n in missing), seed
        assert sorted(map(str, by_kind.get("duplicated", []))) == sorted(f"q-{n}" for n in doubled), seed
        assert len(by_kind.get("unknown", [])) == unknown, seed


@dataclass(frozen=True)
class _Many:
    """Lines that are made when they are read."""

    count: int
    of_output: bool

    def __iter__(self) -> Iterator[bytes]:
        for number in range(1, self.count + 1):
            if self.of_output and number == 5:
                yield answer(1)
            yield answer(number) if self.of_output else requests_line(number)


def requests_line(number: int) -> bytes:
    return b'{"custom_id":"q-%d"}' % number


def test_files_in_order_need_no_memory_for_each_line_even_with_a_duplicate() -> None:
    findings = Findings(10)
    tracemalloc.start()
    reconcile(LineFile("in", _Many(60_000, False)), LineFile("out", _Many(60_000, True)), None, findings)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [(each.problem.value, each.line) for each in findings.listed] == [("duplicated", 5)]
    assert peak < 4 * 2**20, f"{peak:,} bytes"
