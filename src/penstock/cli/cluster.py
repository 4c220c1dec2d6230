"""`penstock cluster`: the nodes that share a log, and which one leads."""

from __future__ import annotations

import typer

from penstock.cli import terminal
from penstock.cli.broker import connected
from penstock.cli.options import wants_json


def cluster(context: typer.Context) -> None:
    """List the nodes of the cluster, and which one leads.

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
                    {"id": node, "address": address, "state": state, "leads": node == found.leader}
                    for node, address, state in found.nodes
                ],
                "topics": found.topics,
                "partitions": found.partitions,
                "partitions_failed": found.partitions_failed,
            }
        )
        return
    terminal.print_table(
        ["node", "address", "state", "role"],
        [
            (terminal.name(node), terminal.visible(address), state, "leads" if node == found.leader else "follows")
            for node, address, state in found.nodes
        ],
    )
    if found.partitions_failed:
        terminal.print_note(f"{found.partitions_failed} partitions failed: penstock status says why")
