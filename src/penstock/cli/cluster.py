"""`penstock cluster`: the nodes that share a log, which one leads, and who owns which shards."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from penstock.cli import terminal
from penstock.cli.broker import connected
from penstock.cli.options import wants_json


def cluster(context: typer.Context) -> None:
    """List the nodes of the cluster, which one leads, and the shards of
    subscriptions that each owns.

    A broker with the embedded engine, or without [cluster] in its
    configuration, is the only node.

    Examples:
    $ penstock cluster
    $ penstock cluster --json
    """
    with connected(context) as client:
        found = client.access.cluster_status()
    if wants_json(context):
        terminal.print_json(
            {
                "name": found.name,
                "nodes": [
                    {
                        "id": node,
                        "address": address,
                        "state": state,
                        "leads": node == found.leader,
                        "shards": _shards(found.owners, node),
                    }
                    for node, address, state in found.nodes
                ],
                "topics": found.topics,
                "partitions": found.partitions,
                "partitions_failed": found.partitions_failed,
            }
        )
        return
    terminal.print_table(
        ["node", "address", "state", "role", "shards"],
        [
            (
                terminal.name(node),
                terminal.visible(address),
                state,
                "leads" if node == found.leader else "follows",
                ",".join(map(str, _shards(found.owners, node))) or ("-" if found.owners else "all"),
            )
            for node, address, state in found.nodes
        ],
    )
    if "" in found.owners:
        terminal.print_note(f"{found.owners.count('')} shards have no owner: their subscriptions wait for one")
    if found.partitions_failed:
        terminal.print_note(f"{found.partitions_failed} partitions failed: penstock status says why")


def _shards(owners: Sequence[str], node: str) -> list[int]:
    return [shard for shard, owner in enumerate(owners) if owner == node]
