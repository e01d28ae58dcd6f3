"""Mistakes in leases: who may send, and until when."""

from mutants.mutant import Mutant

_WORKER = "src/batchline/worker"
_LEASE = ("tests/worker/test_lease.py", "tests/worker/test_claimer.py", "tests/worker/test_heartbeat.py")

LEASE = (
    Mutant(
        "a claim does not renew a lease that is about to end",
        "src/batchline/store/functions/renew_lease_v1.sql",
        "lease_until >= now() + lease * 2 / 3 FOR",
        "lease_until >= now() FOR",
        ("tests/store/test_claim.py",),
    ),
    Mutant(
        "a renewal changes nothing",
        "src/batchline/store/functions/renew_lease_v1.sql",
        "ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until;",
        "ON CONFLICT (id) DO NOTHING;",
        ("tests/store/test_claim.py",),
    ),
    Mutant(
        "a lost lease comes back with a late renewal",
        f"{_WORKER}/lease.py",
        "if not self.lost:",
        "if True:",
        _LEASE,
    ),
    Mutant(
        "a claim counts as a whole new lease, though it renewed nothing",
        f"{_WORKER}/lease.py",
        "used = 0.0 if left is None else self._settings.lease - left",
        "used = 0.0",
        _LEASE,
    ),
    Mutant(
        "a worker sends after its lease has ended",
        f"{_WORKER}/lease.py",
        "return None if self.lost else self.worker.id",
        "return self.worker.id",
        _LEASE,
    ),
    Mutant(
        "a worker that lost its lease continues under its old name",
        f"{_WORKER}/lease.py",
        "        self.worker = self._incarnation()\n        self.release()",
        "        self.release()",
        _LEASE,
    ),
    Mutant(
        "a renewal counts from the answer instead of the request",
        f"{_WORKER}/heartbeat.py",
        "            self._lease.renewed(requested_at)",
        "            self._lease.renewed(self._lease.now())",
        _LEASE,
    ),
    Mutant(
        "a renewal of the old name extends the new one",
        f"{_WORKER}/heartbeat.py",
        "        if self._lease.worker is worker:\n",
        "        if worker is not None:\n",
        _LEASE,
    ),
    Mutant(
        "the heartbeat renews a lost lease",
        f"{_WORKER}/heartbeat.py",
        "            elif self._lease.lost:\n                self._lease.abandon()\n",
        "",
        _LEASE,
    ),
    Mutant(
        "a claim under a lost lease renews the old name",
        f"{_WORKER}/claimer.py",
        "        if self._lease.lost:\n",
        "        if False:\n",
        _LEASE,
    ),
    Mutant(
        "items of a claim are buffered though its name was given up meanwhile",
        f"{_WORKER}/claimer.py",
        "        if self._lease.worker is not worker:\n            # The lease was lost during the claim",
        "        if False:\n            # The lease was lost during the claim",
        _LEASE,
    ),
    Mutant(
        "items are buffered though the name was given up while they were read",
        f"{_WORKER}/claimer.py",
        "            if self._lease.worker is not worker:\n                return True\n",
        "",
        _LEASE,
    ),
    Mutant(
        "a claim is counted from its answer instead of its request",
        f"{_WORKER}/claimer.py",
        "        requested_at = self._lease.now()\n        worker = self._lease.worker\n"
        "        announced, self._announced = self._announced, None\n"
        "        claims, items = await self._send_claim(worker, want, announced)\n",
        "        worker = self._lease.worker\n"
        "        announced, self._announced = self._announced, None\n"
        "        claims, items = await self._send_claim(worker, want, announced)\n"
        "        requested_at = self._lease.now()\n",
        _LEASE,
    ),
    Mutant(
        "a worker that stops drops the verdicts that it has not settled",
        f"{_WORKER}/settler.py",
        "            if not self._verdicts:\n                if self._stopping:",
        "            if not self._verdicts or self._stopping:\n                if self._stopping:",
        ("tests/worker/test_graceful_stop.py", "tests/worker/test_settler.py"),
    ),
    Mutant(
        "verdicts of a settle that failed are lost",
        f"{_WORKER}/settler.py",
        "            self._verdicts[:0] = taken\n",
        "",
        ("tests/worker/test_settler.py",),
    ),
)
