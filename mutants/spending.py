"""Mistakes in caps: what is reserved, for how long, and when a batch is paused."""

from mutants.mutant import Mutant

_RESERVE = "src/batchline/store/functions/reserve_budget_v1.sql"
_KEEPER = "src/batchline/worker/spending.py"
_STORE = ("tests/store/test_budgets.py",)
_WORKER = ("tests/worker/test_spending.py",)
_ALONE = ("tests/worker/test_spending_keeper.py",)

SPENDING = (
    Mutant(
        "a reservation does not lock the batch",
        _RESERVE,
        "    PERFORM FROM batchline.batches AS b WHERE b.id = batch FOR NO KEY UPDATE;\n",
        "    PERFORM FROM batchline.batches AS b WHERE b.id = batch;\n",
        _STORE,
    ),
    Mutant(
        "what other workers hold is not counted",
        _RESERVE,
        "facts.max_cost - facts.cost - held_cost - others.cost",
        "facts.max_cost - facts.cost - held_cost",
        _STORE,
    ),
    Mutant(
        "what a lost worker held is free again",
        _RESERVE,
        "    WHERE newest.holder <> reserve_budget_v1.holder;\n",
        "    WHERE newest.holder <> reserve_budget_v1.holder\n"
        "      AND EXISTS (SELECT FROM batchline.workers AS w\n"
        "                  WHERE w.id = newest.worker_id AND w.lease_until >= now());\n",
        _STORE,
    ),
    Mutant(
        "a batch is paused while requests of others may make room",
        _RESERVE,
        " AND NOT in_flight AND NOT others.in_flight THEN",
        " AND NOT in_flight THEN",
        _STORE,
    ),
    Mutant(
        "a request without an answer frees its reservation",
        _KEEPER,
        "            self.unconfirmed += reserved\n",
        "            pass\n",
        _WORKER,
    ),
    Mutant(
        "a worker does not record that nothing of its hold will be free again",
        _KEEPER,
        "self.recorded != (self.held, self.busy)",
        "self.recorded[0] != self.held",
        _ALONE,
    ),
    Mutant(
        "an item that is cancelled keeps its grant",
        _KEEPER,
        "                self.ended(item, amount, _NOTHING)\n",
        "                pass\n",
        _ALONE,
    ),
    Mutant(
        "a settle that is repeated after a lost lease counts as stored by this worker",
        _KEEPER,
        "                of_others = sender is None or answer.sender != sender\n",
        "                of_others = False\n",
        _ALONE,
    ),
    Mutant(
        "a reservation ends with the answer, before its verdict is stored",
        _KEEPER,
        "            self.settling += actual\n",
        "            pass\n",
        _WORKER,
    ),
)
