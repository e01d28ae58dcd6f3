"""Inject the faults of a schedule, at their times, into their targets, for their durations."""

import asyncio
import signal
from collections import Counter
from collections.abc import Sequence

from chaos.clients import Placed
from chaos.proxy import Proxy
from chaos.schedule import AT_UPSTREAM, EVERYBODY, STORM, Fault, Stroke, orders_of
from chaos.world import World


class Nemesis:
    """Injects faults. Faults that create batches add them to `orders`, and their tasks to `submitting`."""

    def __init__(self, world: World, orders: list[Placed], submitting: list[asyncio.Task[None]]) -> None:
        self._world = world
        self._orders = orders
        self._submitting = submitting
        self._flooding: dict[Stroke, asyncio.Task[None]] = {}
        self.struck: Counter[Fault] = Counter()
        """Faults that had an effect: a dead worker cannot be killed."""

    async def rage(self, strokes: Sequence[Stroke]) -> None:
        """Inject faults for the whole storm. The caller ends the faults that still last then."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        striking = [asyncio.create_task(self._strike_at(begun + stroke.at, stroke)) for stroke in strokes]
        try:
            await asyncio.sleep(STORM)
        finally:
            for task in (*striking, *self._flooding.values()):
                task.cancel()
            ended = await asyncio.gather(*striking, *self._flooding.values(), return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _strike_at(self, when: float, stroke: Stroke) -> None:
        await asyncio.sleep(when - asyncio.get_running_loop().time())
        if await self._begin(stroke):
            self.struck[stroke.fault] += 1
            await asyncio.sleep(stroke.lasts)
            await self._end(stroke)

    async def _begin(self, stroke: Stroke) -> bool:
        world = self._world
        match stroke.fault:
            case Fault.KILL_WORKER:
                return world.workers[stroke.whom].kill(stroke.lasts)
            case Fault.SHIFT_CLOCK:
                rate = 1 + stroke.strength / 7200 * 0.05
                return world.workers[stroke.whom].kill(stroke.lasts, (stroke.strength, rate))
            case Fault.FREEZE_WORKER:
                return world.workers[stroke.whom].freeze()
            case Fault.KILL_SERVER:
                return world.server.kill(stroke.lasts)
            case Fault.KILL_POSTGRES:
                return world.postgres.kill(signal.SIGKILL)
            case Fault.STOP_POSTGRES:
                return world.postgres.kill(signal.SIGQUIT)
            case Fault.CUT:
                return sum(proxy.cut() for proxy in self._proxies(stroke)) > 0
            case Fault.HALF_OPEN:
                return sum(proxy.open_half(stroke.strength > 0.5) for proxy in self._proxies(stroke)) > 0
            case Fault.DELAY:
                for proxy in self._proxies(stroke):
                    proxy.delay = stroke.strength
                return True
            case Fault.FULL_STORE:
                world.fill_store()
                return True
            case Fault.LOST_STORE:
                return world.lose_store()
            case Fault.CANCEL | Fault.PAUSE:
                return await self._ask(stroke)
            case Fault.FAIL_FINALIZING:
                return await self._block(stroke)
            case Fault.READ_ONLY:
                return await world.postgres.refuse_writes()
            case Fault.FULL_DATABASE:
                return world.postgres.fill_disk()
            case Fault.HOLD_SNAPSHOT:
                return await asyncio.to_thread(world.postgres.hold_snapshot)
            case Fault.FLOOD:
                self._flooding[stroke] = asyncio.create_task(world.clients.flood())
                self._order(stroke)
                return True
            case Fault.DOWN | Fault.RESTART:
                return await world.upstream.go_down()
            case Fault.STARVE:
                world.upstream.be(stroke.fault, stroke.strength)
                self._order(stroke)
                return True
            case _:
                world.upstream.be(stroke.fault, stroke.strength)
                return True

    async def _end(self, stroke: Stroke) -> None:
        world = self._world
        match stroke.fault:
            case Fault.FREEZE_WORKER:
                world.workers[stroke.whom].thaw()
            case Fault.KILL_POSTGRES | Fault.STOP_POSTGRES:
                await world.postgres.up()
            case Fault.HALF_OPEN | Fault.DELAY:
                for proxy in self._proxies(stroke):
                    proxy.heal()
            case Fault.FULL_STORE:
                world.empty_store()
            case Fault.LOST_STORE:
                world.find_store()
            case Fault.PAUSE:
                await world.clients.resume(self._orders[stroke.whom])
            case Fault.FAIL_FINALIZING:
                world.unblock_outputs()
            case Fault.READ_ONLY:
                await world.postgres.accept_writes()
            case Fault.FULL_DATABASE:
                await world.postgres.free_disk()
            case Fault.HOLD_SNAPSHOT:
                world.postgres.release_snapshots()
            case Fault.FLOOD:
                self._flooding[stroke].cancel()
            case Fault.DOWN | Fault.RESTART:
                await world.upstream.come_up()
            case fault if fault in AT_UPSTREAM:
                world.upstream.stop_being(fault)

    async def _ask(self, stroke: Stroke) -> bool:
        placed = self._orders[stroke.whom]
        # Wait until the batch exists; other faults may have delayed it.
        await placed.made.wait()
        if stroke.fault is Fault.PAUSE:
            return await self._world.clients.pause(placed)
        await self._world.clients.cancel(placed)
        return placed.cancelled

    async def _block(self, stroke: Stroke) -> bool:
        placed = self._orders[stroke.whom]
        await placed.made.wait()
        assert placed.batch_id is not None
        return self._world.block_outputs(placed.batch_id)

    def _order(self, stroke: Stroke) -> None:
        brought = [Placed(order) for order in orders_of(stroke, self._orders[0].order.name)]
        self._orders += brought
        self._submitting.append(asyncio.create_task(self._submit(brought)))

    async def _submit(self, brought: Sequence[Placed]) -> None:
        """Submit orders one after another: this process plays all clients and must not overload itself."""
        for placed in brought:
            await self._world.clients.submit(placed)

    def _proxies(self, stroke: Stroke) -> list[Proxy]:
        everybody = stroke.whom == EVERYBODY
        return self._world.all_proxies() if everybody else [self._world.proxies[stroke.whom]]
