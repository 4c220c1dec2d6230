"""Which node gets which shards: as even as can be, moving as few as that needs.

A shard that has to move is given to nobody until the node that holds it has let go of it, so that nothing of it is under way in two places.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

_Node = TypeVar("_Node")


def share_out(held: Mapping[_Node, Collection[int]], count: int) -> dict[_Node, tuple[int, ...]]:
    """Return the shards of each node from now on. `held` has what each holds now, in the order in which larger shares are given."""
    if not held:
        return {}
    least, larger = divmod(count, len(held))
    taken: set[int] = set()
    kept: dict[_Node, list[int]] = {}
    # Who holds most keeps the larger shares, so that nothing moves without need.
    for node in sorted(held, key=lambda each: -len(held[each])):
        theirs = sorted(shard for shard in held[node] if shard < count and shard not in taken)
        share = least + (1 if larger and len(theirs) > least else 0)
        larger -= share > least
        kept[node] = theirs[:share]
        taken.update(theirs)
    free = [shard for shard in range(count) if shard not in taken]
    wanted = {node: least - len(theirs) for node, theirs in kept.items()}
    for node in held:  # larger shares that nobody had already
        if larger and wanted[node] >= 0:
            wanted[node] += 1
            larger -= 1
    while free:
        node = max(held, key=lambda each: wanted[each])
        kept[node].append(free.pop(0))
        wanted[node] -= 1
    return {node: tuple(sorted(theirs)) for node, theirs in kept.items()}
