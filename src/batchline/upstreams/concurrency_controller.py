"""Finds how many requests in flight an upstream gains from, and follows it (docs/decisions/0025).

It stays at one limit, and now and then tries a higher or a lower one for a few rounds of answers. Of each two
limits it compares the goodput. If goodput rises as much as the limit, the upstream has room: the limit rises,
by more each time. If it rises less, the knee lies between the two, where Little's law says. If it does not
rise, the upstream queues: the lower limit is as good. Latencies that become much longer at the same limit
lower it at once.

A refusal ends a try at once. The next one has to wait until there were enough answers, so that tries alone
refuse about one percent. A share of refusals that does not depend on the limit is not held against it.

Workers that share an upstream do not know of each other. Time is cut into slots of the wall clock: all of
them try higher limits in even slots and lower ones in odd slots. So each sees what all of them gain: alone,
each would gain at the cost of the others.

Pure: time comes from the caller. `value` lies between 1 and the ceiling.
"""

import math
from collections.abc import Callable
from enum import Enum, auto

from batchline.upstreams.answer_window import AnswerWindow, MeasuredLimit, elasticity
from batchline.upstreams.limit_signal import Signal
from batchline.upstreams.server_load import ServerLoad
from batchline.upstreams.usual_refusals import UsualRefusals

# Small, because an upstream that runs one request at a time takes as many turns to answer the first ones. The
# third of them shows it.
START = 3
# Latencies below this are not worth lowering the limit for: the worker itself takes as long.
_NEGLIGIBLE = 0.01
# Above: the upstream has room. Below: it queues. Between: the knee is between the two limits.
_ROOM, _QUEUES = 0.85, 0.25
# The third answer takes so many times as long as the first: the upstream runs one request at a time.
_ONE_AFTER_ANOTHER = 2.5
# While the limit doubles at the start, less than this ends it.
_START_GAIN = 0.5
# A try lasts so many rounds at most if the figures are not sure before.
_MAX_ROUNDS = 3
# As many answers as the limit are a round, but at least so many: fewer say little.
_MIN_ROUND = 4
# After so many rounds at the same limit, older ones count half.
_MEMORY = 6
# A limit that a lower one has confirmed is compared with a lower one again in every eighth odd slot only.
_CHECK = 8
# Answers to wait for after each refusal of a try. Rounds of answers at most; fewer while the limit grows.
_PER_REFUSAL, _MAX_WAIT, _MAX_WAIT_GROWING = 100, 10, 4
# A share of refusals below this does not count as usual.
_NO_REFUSALS = 0.005
# Slots are this many latencies long, or up to twice as many: powers of two, so that those of workers that
# measure different latencies begin together.
_APART, _SHORTEST = 4, 0.1
# A latency that rises by this at the same limit lowers it.
_SUSPICIOUS = 1.4


class _Phase(Enum):
    START = auto()
    STAY = auto()
    UP = auto()
    DOWN = auto()


# Read for every answer: a member of an Enum takes as long to look up as all sums of one answer.
_STARTING, _STAY, _UP, _DOWN = _Phase.START, _Phase.STAY, _Phase.UP, _Phase.DOWN


class ConcurrencyController:
    """`wall_clock` is Unix time, the same for all workers."""

    def __init__(self, ceiling: int, wall_clock: Callable[[], float]) -> None:
        self.ceiling = ceiling
        self.value = min(START, ceiling)
        # Raised with each change of the value. Whoever sends a request notes it.
        self.round = 0
        self.signal = Signal.STARTING
        self._wall_clock = wall_clock
        self._phase = _STARTING
        # The limit at which it stays, by how much it tries, and whether the last try was gained fully.
        self._level = self.value
        self._step = 1
        self._growing = False
        # It grows, but a larger step was refused: the next ones are half as large.
        self._bounded = False
        # A lower limit has shown less goodput.
        self._confirmed = False
        # Since the value has changed.
        self._answers = self._refusals = 0
        # This round; all at this level; this try and its rounds.
        self._window, self._base = AnswerWindow(), AnswerWindow()
        self._tried, self._rounds = AnswerWindow(), 0
        self._slot_end = 0.0
        self._latency = 0.0
        # At the start: how long the first answer took, and the answers at half the limit.
        self._first = 0.0
        self._previous: MeasuredLimit | None = None
        # Answers to wait for before the next try.
        self._owed = 0.0
        self._cuts = self._refused_tries = 0
        self._usual = UsualRefusals()
        # All answers and refusals at this level, and those at a higher one that was left because of them.
        self._stayed = AnswerWindow()
        self._blamed: MeasuredLimit | None = None
        # The level before everything was refused; 0: something is answered.
        self._before_outage = 0

    # --- What happens --------------------------------------------------------------------------------------

    def answered(self, now: float, seconds: float, in_flight: int, sent_in: int, tokens: int = 0) -> None:
        """An answer came after so long. `in_flight` counts it; `sent_in` is the round in which it was
        sent."""
        if self._owed > 0:
            self._owed -= 1
        if self._before_outage:
            self._resume(now)
        if sent_in != self.round:
            return
        self._answers += 1
        phase, value = self._phase, self.value
        # One turn of answers shows the change itself, not the limit.
        if self._answers <= value and phase is not _STARTING:
            return
        window = self._window
        window.add(seconds, tokens)
        if in_flight >= value:
            window.full += 1
        if phase is _STARTING:
            self._start(now, seconds)
        elif window.answers >= value and window.answers >= _MIN_ROUND:
            self._end_round(now)

    def refused(self, now: float, sent_in: int) -> None:
        """It refused a request, at once or after some work."""
        if sent_in != self.round:
            if self._owed > 0:
                self._owe()
            return
        self._refusals += 1
        if self._answers > self.value:
            self._window.refusals += 1
        if self._phase is _UP:
            if self._usual.share < _NO_REFUSALS or self._too_many(0.1):
                self._abandon_try(now)
        elif self._phase is _STARTING:
            if self._previous is None or self._too_many(0.15):
                self._cut(now, self.value // 2, Signal.REFUSED)
        elif self._too_many(0.1):
            self._cuts += 1
            if not self._answers:
                self._before_outage = max(self._before_outage, self._level)
            self._cut(now, int(self._level * (0.9 if self._cuts < 2 else 0.6)), Signal.REFUSED)

    def timed_out(self, now: float, in_flight: int, sent_in: int) -> None:
        """A request that was not alone has timed out. One round of them halves the limit once."""
        if sent_in == self.round:
            self._cut(now, min(self.value, in_flight) // 2, Signal.TIMED_OUT)
            self._owe()

    def load(self, now: float, load: ServerLoad) -> None:
        """The upstream reports what runs and waits there, from all clients."""
        room = load.running + math.isqrt(load.running) + 1
        everything = load.running + load.waiting
        level = self.value if self._phase is _STARTING else self._level
        # Half a round after a change, the upstream may not show it yet.
        if everything <= room or 2 * self._answers < self.value or level <= 1:
            return
        self._cut(now, max(int(level * room / everything), level // 2), Signal.LOAD)

    def resize(self, ceiling: int) -> None:
        self.ceiling = ceiling
        self._level = min(self._level, ceiling)
        if self.value > ceiling:
            self._set(ceiling)

    # --- The start: double until goodput does not follow ---------------------------------------------------

    def _start(self, now: float, seconds: float) -> None:
        window, before = self._window, self._previous
        if window.answers == 1:
            self._first = seconds
        if before is None and self._is_queued(seconds):
            self._latency = self._first
            self._cut(now, 1, Signal.QUEUES)
            return
        wanted = max(2, self.value)
        early = before is not None and window.answers > 2 and self._is_far_above(before, wanted)
        if window.answers < wanted and not early:
            return
        if not window.crowded:
            self.signal, self._window = Signal.IDLE, AnswerWindow()
            return
        here = MeasuredLimit(self.value, window)
        self._latency = max(window.mean, 1e-6)
        if before is not None and window.mean >= _NEGLIGIBLE and (early or _ends_start(before, here)):
            self._end_start(now, before, here)
        elif self.value >= self.ceiling:
            self._move(self.value, Signal.CEILING)
            self._stay(now)
        else:
            self.signal, self._previous, self._window = Signal.STARTING, here, AnswerWindow()
            self._set(self.value * 2)

    def _is_queued(self, seconds: float) -> bool:
        """Whether the first requests, which were sent at once, are answered one after the other."""
        return self._window.answers > 2 and seconds > max(_ONE_AFTER_ANOTHER * self._first, _NEGLIGIBLE)

    def _is_far_above(self, before: MeasuredLimit, wanted: int) -> bool:
        """Whether latencies are so much longer already that the others need not be waited for."""
        return self._window.seconds > 2.5 * before.window.mean * wanted

    def _end_start(self, now: float, before: MeasuredLimit, here: MeasuredLimit) -> None:
        knee = max(1, round(here.limit * before.window.mean / here.window.mean))
        self._latency = before.window.mean
        self._move(knee, Signal.KNEE)
        self._stay(now)

    # --- Rounds of answers ---------------------------------------------------------------------------------

    def _end_round(self, now: float) -> None:
        window, self._window = self._window, AnswerWindow()
        if not window.crowded:
            self.signal = Signal.IDLE
            self._stay(now)
        elif self._phase is _STAY:
            self._end_round_at_level(now, window)
        else:
            self._end_round_of_try(now, window)

    def _end_round_at_level(self, now: float, window: AnswerWindow) -> None:
        # Several rounds: one alone may be too short to tell.
        self._stayed.merge(window)
        if self._level > 1 and self._usual.is_exceeded(self._stayed):
            self._blame(now, MeasuredLimit(self._level, self._stayed))
            return
        self._blamed = None
        # With one in flight, the limit cannot be the reason.
        learn = self._usual.accept if self._level == 1 else self._usual.add
        learn(window)
        if not window.refusals:
            self._cuts = 0
        if self._base.answers and _is_slower(self._base, window):
            self._slow_down(now, window)
            return
        self._remember(window)
        if now >= self._slot_end and self._owed <= 0 and self.ceiling > 1:
            self._try(now)

    def _remember(self, window: AnswerWindow) -> None:
        if self._base.answers and _is_slower(window, self._base):
            # It became faster: what was before tells nothing any more.
            self._base = AnswerWindow()
        if self._base.answers > _MEMORY * window.answers:
            self._base.fade()
        self._base.merge(window)
        self._latency = max(self._base.mean, 1e-6)

    def _slow_down(self, now: float, window: AnswerWindow) -> None:
        """It queues, or its answers take longer for another reason: a try of the limit before tells."""
        level, mean = self._level, self._base.mean
        self._latency = mean
        self._move(max(level // 2, round(level * mean / window.mean)), Signal.SLOWER)
        self._step, self._owed = max(1, level - self._level), 0.0
        self._stay(now)

    # --- Tries ---------------------------------------------------------------------------------------------

    def _try(self, now: float) -> None:
        slot = math.floor(self._wall_clock() / self._slot())
        up = slot % 2 == 0 or self.signal is Signal.REFUSED
        if up and self._level < self.ceiling:
            self._begin(now, _UP)
        elif self._level > 1 and (not self._confirmed or slot // 2 % _CHECK == 0):
            self._begin(now, _DOWN)
        else:
            self._stay(now)

    def _begin(self, now: float, phase: _Phase) -> None:
        self._slot_end = now + self._left()
        self._phase, self._window, self._tried, self._rounds = phase, AnswerWindow(), AnswerWindow(), 0
        self._set(self._level + (self._step if phase is _UP else -self._step))

    def _stay(self, now: float) -> None:
        """Keep to the level until the slot ends in which the last try began."""
        if self._phase is _STAY or self._phase is _STARTING:
            self._slot_end = now + self._left()
        self._phase, self._window = _STAY, AnswerWindow()
        self._set(self._level)

    def _slot(self) -> float:
        return math.pow(2, math.ceil(math.log2(max(_APART * self._latency, _SHORTEST))))

    def _left(self) -> float:
        slot = self._slot()
        return slot - self._wall_clock() % slot

    def _end_round_of_try(self, now: float, window: AnswerWindow) -> None:
        self._tried.merge(window)
        self._rounds += 1
        here, tried = MeasuredLimit(self._level, self._base), MeasuredLimit(self.value, self._tried)
        if here.limit == tried.limit or not self._base.answers:
            self._stay(now)
            return
        low, high = (here, tried) if self._phase is _UP else (tried, here)
        gain = elasticity(low, high)
        sure = gain.error <= 0.1 or gain.surely_above(_ROOM - 0.25) or gain.surely_below(_QUEUES)
        if sure or self._rounds >= _MAX_ROUNDS:
            follow = self._follow_up if self._phase is _UP else self._follow_down
            follow(now, low, high, gain.value)

    def _follow_up(self, now: float, low: MeasuredLimit, high: MeasuredLimit, gain: float) -> None:
        if gain > _ROOM:
            self._rise(now, low.limit, high)
            return
        # While it grows, the lower limit is known to be below the knee.
        between = gain > _QUEUES or self._growing or high.window.mean < _NEGLIGIBLE
        self._move(_between(low.limit, high.limit, gain) if between else low.limit, Signal.KNEE)
        self._stay(now)

    def _rise(self, now: float, low: int, high: MeasuredLimit) -> None:
        """All workers see the same gain, so the next try needs no slot."""
        step, growing = self._step, self._growing
        bounded = self._bounded and step > _usual_step(low)
        at_ceiling = high.limit >= self.ceiling
        self._move(high.limit, Signal.CEILING if at_ceiling else Signal.GROWING)
        self._base, self._growing, self._bounded = high.window, True, bounded
        larger = min(high.limit, max(self._step, step * (3 if growing else 1)))
        self._step = step // 2 if bounded else larger
        if at_ceiling:
            self._stay(now)
        else:
            self._begin(now, _UP)

    def _follow_down(self, now: float, low: MeasuredLimit, high: MeasuredLimit, gain: float) -> None:
        if gain < _QUEUES and high.window.mean > _NEGLIGIBLE:
            step = self._step
            self._move(low.limit, Signal.QUEUES)
            self._base, self._step = low.window, max(1, min(2 * step, low.limit // 2))
            if low.limit > 1:
                self._begin(now, _DOWN)
                return
        else:
            self._move(high.limit if gain > _ROOM else _between(low.limit, high.limit, gain), Signal.KNEE)
            self._confirmed = gain > _ROOM
        self._stay(now)

    # --- Refusals and time-outs ----------------------------------------------------------------------------

    def _too_many(self, share: float) -> bool:
        """More refusals in this round than usual, and than so large a share of what was sent in it."""
        # Refusals come sooner than answers, so what is in flight counts as well.
        sent = self._answers + self._refusals + self.value
        usual = self._usual.share * sent
        return self._refusals > usual + 3 * math.sqrt(usual) + share * sent + 1.5

    def _blame(self, now: float, low: MeasuredLimit) -> None:
        """Refusals at the limit where it stays: because of the limit, until a lower one shows the same."""
        blamed, self._blamed = self._blamed, low
        refused = low.window.refused
        if blamed is not None and blamed.limit > low.limit:
            before = blamed.window.refused
            # If the upstream takes as many as before, and refuses the rest.
            expected = max(0.0, 1 - blamed.limit * (1 - before) / low.limit)
            if refused > (before + expected) / 2:
                self._usual.accept(blamed.window)
                self._usual.accept(low.window)
                self._move(blamed.limit, self.signal)
                self._stay(now)
                return
        taken = max(int(low.limit * (1 - refused)), low.limit * 3 // 4)
        self._cut(now, min(taken, low.limit - 1), Signal.REFUSED)

    def _abandon_try(self, now: float) -> None:
        level, step = self._level, self._step
        if self._growing and step > _usual_step(level):
            self._bounded, self._step, self._confirmed = True, step // 2, True
            self.signal = Signal.REFUSED
        else:
            self._give_back(level, step)
        self._stay(now)
        self._owe()

    def _give_back(self, level: int, step: int) -> None:
        """A worker that takes all slots gives some back, or one that comes later would never get any."""
        self._refused_tries += 1
        back = level // 16 or int(level >= 6 and self._refused_tries % 3 == 0)
        self._move(level - back, Signal.REFUSED)
        # By the root: what is given back is proportional, so that shares become equal.
        self._step = math.isqrt(level) if level >= 16 else max(1, min(step // 2, _usual_step(level)))
        self._confirmed = True

    def _resume(self, now: float) -> None:
        """It answers again, after it had refused everything."""
        before, self._before_outage = self._before_outage, 0
        self._owed = self._cuts = 0
        if before // 2 > self._level:
            self._move(before // 2, Signal.GROWING)
            self._step, self._growing, self._bounded = before - before // 2, True, True
            self._stay(now)
            self._slot_end = now

    def _owe(self) -> None:
        rounds = _MAX_WAIT_GROWING if self._growing else _MAX_WAIT
        self._owed = min(self._owed + _PER_REFUSAL, max(_PER_REFUSAL, rounds * self.value))

    def _cut(self, now: float, level: int, signal: Signal) -> None:
        before = self.value if self._phase is _STARTING else self._level
        self._move(max(1, level), signal)
        self._base, self._owed = AnswerWindow(), 0.0
        # The knee is between the two.
        self._growing, self._bounded, self._step = True, True, max(1, (before - self._level) // 2)
        self._stay(now)

    # --- Changes -------------------------------------------------------------------------------------------

    def _move(self, level: int, signal: Signal) -> None:
        """Stay at another level from now on."""
        level = max(1, min(level, self.ceiling))
        if level != self._level:
            self._base, self._stayed, self._confirmed = AnswerWindow(), AnswerWindow(), False
        self._level = level
        self._step, self._growing, self._bounded = _usual_step(self._level), False, False
        self.signal = signal

    def _set(self, value: int) -> None:
        value = max(1, min(value, self.ceiling))
        if value != self.value:
            self.value = value
            self.round += 1
            self._answers = self._refusals = 0


def _between(low: int, high: int, gain: float) -> int:
    """The knee, if goodput rises fully below it and not at all above it."""
    return round(low * math.pow(high / low, min(max(gain, 0.0), 1.0)))


def _ends_start(before: MeasuredLimit, here: MeasuredLimit) -> bool:
    gain = elasticity(before, here)
    return gain.value + gain.error / 2 < _START_GAIN


def _usual_step(level: int) -> int:
    """As much as the noise of so many latencies allows to tell."""
    return max(1, round(max(math.sqrt(level), level / 12)))


def _is_slower(before: AnswerWindow, after: AnswerWindow) -> bool:
    noise = max(before.spread, after.spread) * math.sqrt(1 / before.answers + 1 / after.answers)
    return after.mean > _NEGLIGIBLE and after.mean > _SUSPICIOUS * before.mean * (1 + 2 * noise)
