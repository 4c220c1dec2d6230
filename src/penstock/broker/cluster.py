"""The cluster that a broker on the embedded log is: one node that leads every partition."""

from __future__ import annotations

from typing import Final, NamedTuple, NoReturn

from penstock.broker.access.checks import Operation, Principal, on_broker
from penstock.broker.part import Part
from penstock.errors import NotSupported
from penstock.names import is_internal

NAME: Final = "standalone"


class ClusterStatus(NamedTuple):
    name: str
    nodes: int
    topics: int
    partitions: int
    partitions_failed: int
    """Those that refuse writes."""


class Cluster(Part):
    @on_broker(Operation.DESCRIBE)
    def status(self, principal: Principal) -> ClusterStatus:
        """How this node is; topics of the broker's own are left out, their failures are not."""
        infos = self._engine.topics().values()
        failed = sum(
            self._engine.partition(info.name, index).failure is not None
            for info in infos
            for index in range(info.config.partitions)
        )
        visible = [info for info in infos if not is_internal(info.name)]
        return ClusterStatus(NAME, 1, len(visible), sum(info.config.partitions for info in visible), failed)

    @on_broker(Operation.ADMIN)
    def join(self, principal: Principal, peer: str) -> NoReturn:
        raise NotSupported(f"this broker cannot join {peer or 'a cluster'}: {_WHY}")

    @on_broker(Operation.ADMIN)
    def leave(self, principal: Principal) -> NoReturn:
        raise NotSupported(f"this broker cannot leave a cluster: {_WHY}")


_WHY: Final = (
    "its log is embedded, which makes it the one node of its own cluster; the way to more nodes is the Kafka engine, which keeps the "
    "log in Apache Kafka"
)
