"""How a batch runs in steps: a few lines first, and more only when these have ended."""

import msgspec


class StepPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Stored with the batch; step_size_v1 and begin_step_v1 read it."""

    # Lines of each step: a number, or a share of all lines that are sent, such as `10%`.
    sizes: tuple[str, ...] = ()
    # After the last size, each step is so many times as large as the one before. None: the rest is one step.
    growth: float | None = None
    # Seconds between the end of a step and the next one.
    pause: float = 0.0
    # Random lines that run before the first step, and are decided on.
    sample: int | None = None

    @property
    def text(self) -> str | None:
        """The sizes as a user gives them; None: there is only a sample."""
        if not self.sizes:
            return None
        repeated = self.growth is not None and (len(self.sizes) > 1 or self.growth != 1)
        return ",".join((*self.sizes, *(("...",) if repeated else ())))
