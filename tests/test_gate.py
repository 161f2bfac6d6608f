"""The gate: who may come in, who waits, and that every place is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatcodec.gateway.errors import ApiError
from chatcodec.gateway.gate import Gate

PATIENCE = 60.0


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def in_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await test()

    asyncio.run(run())


class Guest:
    """A task that enters, stays until it is told to leave, and says what became of it."""

    def __init__(self, gate: Gate, places: int = 1, log: list[Guest] | None = None) -> None:
        self.places = places
        self.inside = False
        self.error: ApiError | None = None
        self.leave = asyncio.Event()
        self._log = log
        self.task = asyncio.create_task(self._stay(gate))

    async def _stay(self, gate: Gate) -> None:
        try:
            async with gate.enter(self.places):
                self.inside = True
                if self._log is not None:
                    self._log.append(self)
                try:
                    await self.leave.wait()
                finally:
                    self.inside = False
        except ApiError as error:
            self.error = error


def test_so_many_are_inside_at_once_and_the_others_come_in_their_order() -> None:
    async def test() -> None:
        gate, order = Gate(2, 10, PATIENCE), []
        guests = [Guest(gate, log=order) for _ in range(6)]
        await settled()
        assert (gate.running, gate.waiting) == (2, 4)
        for inside in range(6):
            assert order == guests[: min(inside + 2, 6)]
            guests[inside].leave.set()
            await settled()
        assert order == guests
        assert (gate.running, gate.waiting) == (0, 0)

    in_loop(test)


def test_a_full_queue_is_told_to_come_again() -> None:
    async def test() -> None:
        gate = Gate(1, 1, PATIENCE)
        inside, waiting, refused = Guest(gate), Guest(gate), Guest(gate)
        await settled()
        assert inside.inside
        assert not waiting.task.done()
        assert refused.error is not None
        assert refused.error.status == 429
        assert int(refused.error.headers["Retry-After"]) >= 1
        for guest in (inside, waiting):
            guest.leave.set()
        await asyncio.gather(inside.task, waiting.task)
        assert (gate.running, gate.waiting) == (0, 0)

    in_loop(test)


def test_who_waits_too_long_is_told_to_come_again() -> None:
    async def test() -> None:
        gate = Gate(1, 5, 0.02)
        inside, late = Guest(gate), Guest(gate)
        await late.task
        assert late.error is not None
        assert late.error.status == 429
        assert int(late.error.headers["Retry-After"]) >= 1
        assert (gate.running, gate.waiting) == (1, 0)
        inside.leave.set()
        await inside.task
        assert gate.running == 0

    in_loop(test)


def test_no_queue_at_all() -> None:
    async def test() -> None:
        gate = Gate(1, 0, PATIENCE)
        inside, refused = Guest(gate), Guest(gate)
        await settled()
        assert inside.inside
        assert refused.error is not None
        inside.leave.set()
        await inside.task

    in_loop(test)


def test_one_who_wants_many_places_waits_for_them_and_is_not_passed_by() -> None:
    async def test() -> None:
        gate, order = Gate(4, 10, PATIENCE), []
        first, second = Guest(gate, 2, order), Guest(gate, 2, order)
        large, small = Guest(gate, 3, order), Guest(gate, 1, order)
        await settled()
        assert order == [first, second]
        first.leave.set()
        await settled()
        assert order == [first, second]
        assert gate.running == 2
        second.leave.set()
        await settled()
        assert order == [first, second, large, small]
        assert gate.running == 4
        for guest in (large, small):
            guest.leave.set()
        await asyncio.gather(large.task, small.task)
        assert gate.running == 0

    in_loop(test)


def test_one_who_wants_more_places_than_there_are_gets_them_all() -> None:
    async def test() -> None:
        gate = Gate(2, 10, PATIENCE)
        greedy, other = Guest(gate, 16), Guest(gate)
        await settled()
        assert greedy.inside
        assert not other.inside
        assert gate.running == 2
        greedy.leave.set()
        await settled()
        assert other.inside
        assert gate.running == 1
        other.leave.set()
        await other.task
        assert gate.running == 0

    in_loop(test)


def test_one_who_leaves_the_queue_lets_those_behind_him_in() -> None:
    async def test() -> None:
        gate = Gate(2, 10, PATIENCE)
        inside, large, small = Guest(gate), Guest(gate, 2), Guest(gate)
        await settled()
        assert not small.inside
        large.task.cancel()
        await settled()
        assert small.inside
        assert (gate.running, gate.waiting) == (2, 0)
        for guest in (inside, small):
            guest.leave.set()
        await asyncio.gather(inside.task, small.task)
        assert gate.running == 0

    in_loop(test)


def test_one_who_is_cancelled_just_as_his_turn_comes_gives_it_on() -> None:
    async def test() -> None:
        gate = Gate(1, 10, PATIENCE)
        inside, cancelled, next_one = Guest(gate), Guest(gate), Guest(gate)
        await settled()
        inside.leave.set()
        while gate.waiting == 2:
            await asyncio.sleep(0)
        # His turn has come, but he has not been told.
        assert not cancelled.inside
        cancelled.task.cancel()
        await settled()
        assert cancelled.task.cancelled()
        assert next_one.inside
        next_one.leave.set()
        await next_one.task
        assert (gate.running, gate.waiting) == (0, 0)

    in_loop(test)


def test_an_error_inside_gives_the_place_back() -> None:
    async def test() -> None:
        gate = Gate(1, 0, PATIENCE)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                async with gate.enter():
                    raise ZeroDivisionError
        assert gate.running == 0

    in_loop(test)


STEPS = st.one_of(
    st.tuples(st.just("come"), st.integers(1, 6)),
    st.tuples(st.just("leave"), st.integers(0, 30)),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("tick"), st.integers(1, 4)),
)


@given(st.integers(1, 5), st.integers(0, 6), st.lists(STEPS, max_size=60))
def test_whatever_comes_no_place_is_taken_twice_and_none_is_lost(
    places: int, queue: int, steps: list[tuple[str, int]]
) -> None:
    async def test() -> None:
        gate, order = Gate(places, queue, PATIENCE), []
        guests: list[Guest] = []

        def check() -> None:
            inside = sum(min(guest.places, places) for guest in guests if guest.inside)
            assert inside <= gate.running <= places
            assert gate.waiting <= queue

        def check_order() -> None:
            """Nobody came in before one who still waits and came sooner."""
            waiting = [guest for guest in guests if not guest.task.done() and guest not in order]
            assert len(waiting) == gate.waiting
            if waiting and order:
                assert max(map(guests.index, order)) < min(map(guests.index, waiting))

        for step, number in steps:
            if step == "come":
                guests.append(Guest(gate, number, order))
            elif step == "tick":
                for _ in range(number):
                    await asyncio.sleep(0)
                    check()
                if number == 4:
                    await settled()
                    check_order()
            elif guests:
                guest = guests[number % len(guests)]
                if step == "leave":
                    guest.leave.set()
                else:
                    guest.task.cancel()
            check()
        await settled()
        check_order()
        left = [guest for guest in guests if not guest.task.done()]
        for guest in left:
            guest.leave.set()
        # Whoever still waits gets his turn, since each goes again.
        await asyncio.wait_for(asyncio.gather(*(guest.task for guest in left)), 5)
        check()
        assert all(guest in order or guest.error or guest.task.cancelled() for guest in guests)
        assert (gate.running, gate.waiting) == (0, 0)

    in_loop(test)
