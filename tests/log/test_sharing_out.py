"""Shares of shards: even, and moving as few as that needs, one node at a time."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from penstock.log.sharing_out import share_out

COUNT = 16


def settle(held: dict[str, Collection[int]]) -> dict[str, Collection[int]]:
    """Share out until nothing moves any more, each node releasing what it is not given; nothing is ever given to two."""
    for _ in range(4):
        given = share_out(held, COUNT)
        assert all(not set(given[one]) & set(held[other]) for one in held for other in held if one != other)
        assert given.keys() == held.keys()
        if given == held:
            break
        held = dict(given)
    assert sorted(shard for shards in held.values() for shard in shards) == list(range(COUNT))
    sizes = [len(shards) for shards in held.values()]
    assert max(sizes) - min(sizes) <= 1
    return held


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 16, 20])
def test_shares_are_even_and_stay_as_they_are(nodes: int) -> None:
    held = settle({f"n{number}": () for number in range(nodes)})
    assert share_out(held, COUNT) == held
    assert share_out(dict(reversed(held.items())), COUNT) == held


def test_a_node_that_comes_takes_no_more_than_its_share() -> None:
    held: dict[str, Collection[int]] = {}
    for number in range(8):
        before = dict(held)
        held = settle({**held, f"n{number}": ()})
        moved = sum(len(set(before[node]) - set(held[node])) for node in before)
        assert moved == (0 if not before else len(held[f"n{number}"]))


def test_of_a_node_that_goes_everything_moves_and_nothing_else() -> None:
    held = settle({f"n{number}": () for number in range(4)})
    for node in list(held)[:3]:
        del held[node]
        before, held = held, settle(held)
        assert all(set(before[each]) <= set(held[each]) for each in before)


def test_what_two_nodes_claim_to_hold_is_given_to_one() -> None:
    given = share_out({"one": range(COUNT), "two": range(COUNT)}, COUNT)
    assert len(given["one"]) == COUNT // 2
    assert given["two"] == ()


def test_nobody_gets_shards_that_do_not_exist() -> None:
    assert share_out({"one": (3, 99)}, 4) == {"one": (0, 1, 2, 3)}
    assert share_out({}, 4) == {}
