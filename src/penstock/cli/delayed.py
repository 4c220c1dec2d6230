"""`penstock delayed`: cancel."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import terminal
from penstock.cli.broker import complete_topic, connected
from penstock.cli.options import ServerOption

app = typer.Typer(no_args_is_help=True, help="Cancel delayed records.")


@app.command()
def cancel(
    context: typer.Context,
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC", help="Where it would go.", autocompletion=complete_topic, show_default=False),
    ],
    delayed_id: Annotated[
        str, typer.Argument(metavar="ID", help="What `penstock produce --delay` printed.", show_default=False)
    ],
    server: ServerOption = None,
) -> None:
    """Cancel a pending delayed record.

    Examples:
    $ penstock delayed cancel orders 1700000005000-17
    """
    with connected(context, server) as client:
        client.cancel(topic, delayed_id)
    print(f"cancelled {terminal.visible(delayed_id)} of {terminal.visible(topic)}")


# One command alone would be taken for the whole program.
@app.callback()
def delayed() -> None:
    pass
