from __future__ import annotations

import asyncio

from penstock.clients.window import Window


async def entered(window: Window, requests: int, size_bytes: int) -> asyncio.Task[None]:
    """Ask to enter and let it run until it is in or waits."""
    task = asyncio.create_task(window.enter(requests, size_bytes))
    await turn()
    return task


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_requests_beyond_the_bound_wait_until_others_leave() -> None:
    window = Window(requests_max=2, bytes_max=100)
    assert (await entered(window, 2, 10)).done()
    waiting = await entered(window, 1, 10)
    assert not waiting.done()
    window.leave(2, 10)
    await turn()
    assert waiting.done()


async def test_bytes_beyond_the_bound_wait_too() -> None:
    window = Window(requests_max=10, bytes_max=100)
    await window.enter(1, 60)
    waiting = await entered(window, 1, 60)
    assert not waiting.done()
    window.leave(1, 60)
    await waiting


async def test_a_request_larger_than_the_window_passes_alone() -> None:
    window = Window(requests_max=2, bytes_max=100)
    await window.enter(1, 1000)
    waiting = await entered(window, 1, 1)
    assert not waiting.done()
    window.leave(1, 1000)
    await waiting


async def test_a_small_request_does_not_overtake_a_large_one_that_waits() -> None:
    window = Window(requests_max=10, bytes_max=100)
    await window.enter(1, 60)
    large = await entered(window, 1, 60)
    small = await entered(window, 1, 1)
    assert not large.done()
    assert not small.done()
    window.leave(1, 60)
    await asyncio.gather(large, small)


async def test_who_stops_waiting_lets_the_next_one_through() -> None:
    window = Window(requests_max=10, bytes_max=100)
    await window.enter(1, 60)
    large = await entered(window, 1, 60)
    small = await entered(window, 1, 1)
    large.cancel()
    await turn()
    assert large.cancelled()
    assert small.done()


async def test_who_is_cancelled_just_as_its_turn_came_gives_its_place_back() -> None:
    window = Window(requests_max=1, bytes_max=100)
    await window.enter(1, 1)
    first = await entered(window, 1, 1)
    second = await entered(window, 1, 1)
    window.leave(1, 1)
    first.cancel()
    await turn()
    assert first.cancelled()
    assert second.done()
