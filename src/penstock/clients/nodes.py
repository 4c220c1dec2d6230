"""Which node of several a client connects to.

Each client has an order of its own: drawn when it is made, so that clients with equal addresses spread over the nodes, or that of the
address if it says so. The first is tried first. One that cannot be reached, or whose connection was lost, is left for the one after it, and
is tried again after all others. A client that has left its first node returns to it in a quiet moment: `penstock.clients.returning`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Final

from penstock.clients.url import Address
from penstock.errors import LimitExceeded, ProtocolViolation, ShuttingDown, Unreachable

PASSED_OVER: Final = (ProtocolViolation, LimitExceeded, ShuttingDown)
"""What a node may answer to the first that is said to it, while another one would serve: it is something else, full, or about to stop."""


class Nodes:
    """The nodes of an address in the order of one client, and which of them is next."""

    def __init__(self, address: Address, random: Random) -> None:
        self.address = address
        nodes = address.nodes
        self._nodes = nodes if address.in_order else tuple(random.sample(nodes, len(nodes)))
        self._next = 0

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def first(self) -> Address:
        """The one that a client returns to."""
        return self._nodes[0]

    def in_turn(self) -> Iterator[Address]:
        """Yield each once. Stop the iteration at the one that answers. Who stops it for another reason must `leave` the node, or it would
        be the first again."""
        first = self._next
        for step in range(len(self._nodes)):
            node = self._nodes[(first + step) % len(self._nodes)]
            yield node
            self.leave(node)

    def passes_over(self, node: Address, error: BaseException) -> bool:
        """Whether to go on with the next one. If not, the node is left, and the error is for the caller."""
        if len(self._nodes) > 1 and isinstance(error, PASSED_OVER):
            return True
        self.leave(node)
        return False

    def leave(self, node: Address) -> None:
        """Begin with the one after it from now on, unless another was left for that one already."""
        if self._nodes[self._next] is node:
            self._next = (self._next + 1) % len(self._nodes)

    def returned(self) -> None:
        """Begin with the first from now on."""
        self._next = 0


def unreachable(address: Address, reasons: Mapping[str, str], tried: str = "") -> Unreachable:
    """The error if no node can be reached, with the reason for each host that was tried."""
    [first, *others] = set(reasons.values())
    reason = first if not others else ", ".join(f"{host} ({why})" for host, why in reasons.items())
    return Unreachable(f"cannot connect to {address}: {reason}{tried}")
