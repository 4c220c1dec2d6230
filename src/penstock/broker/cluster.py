"""The cluster that a broker belongs to: one node that leads every partition, or the nodes that share a log in Apache Kafka.

Of those every one serves every partition, and owns shards of the subscriptions; the one that leads decides for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn

from penstock.broker.access.checks import Operation, Principal, on_broker
from penstock.broker.part import Part
from penstock.errors import NotSupported
from penstock.log.nodes import NodeInfo
from penstock.names import is_internal

NAME: Final = "standalone"
SHARED_NAME: Final = "kafka"


class ClusterStatus(NamedTuple):
    name: str
    nodes: Sequence[NodeInfo]
    """Empty where the log is not shared: then this broker is the one node."""
    topics: int
    partitions: int
    partitions_failed: int
    """Those that refuse writes."""
    owners: Sequence[str | None] = ()
    """The node that owns each shard, None where nobody does now; empty where the log is not shared."""


class Cluster(Part):
    @on_broker(Operation.DESCRIBE)
    def status(self, principal: Principal) -> ClusterStatus:
        """How this node is; topics of the broker's own are left out, their failures are not."""
        infos = self._engine.topics().values()
        failed = len(self._engine.failed.reasons())
        visible = [info for info in infos if not is_internal(info.name)]
        nodes = self._engine.nodes()
        name = SHARED_NAME if nodes else NAME
        by_shard = {shard: node.id for node in nodes for shard in node.shards}
        owners = tuple(by_shard.get(shard) for shard in range(self._engine.shards or 0))
        return ClusterStatus(name, nodes, len(visible), sum(info.config.partitions for info in visible), failed, owners)

    @on_broker(Operation.ADMIN)
    def join(self, principal: Principal, peer: str) -> NoReturn:
        raise NotSupported(f"this broker cannot join {peer or 'a cluster'}: {self._why()}")

    @on_broker(Operation.ADMIN)
    def leave(self, principal: Principal) -> NoReturn:
        raise NotSupported(f"this broker cannot leave a cluster: {self._why()}")

    def _why(self) -> str:
        return _WHY_SHARED if self._engine.nodes() else _WHY


_WHY_SHARED: Final = "nodes join by the section [cluster] of their configuration, and leave when they are stopped, which passes on the lead"
_WHY: Final = (
    "its log is embedded, which makes it the one node of its own cluster; the way to more nodes is the Kafka engine, which keeps the "
    "log in Apache Kafka"
)
