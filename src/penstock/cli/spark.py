"""`penstock spark`: pack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import terminal
from penstock.cli.options import wants_json
from penstock.cli.program import Program
from penstock.errors import ConfigError
from penstock.spark.packing import NAME, pack

app = Program(help="Prepare Spark clusters.", server=None)


@app.command("pack")
def pack_archive(
    context: typer.Context,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the archive.", show_default=True)
    ] = Path(NAME),
) -> None:
    """Pack what executors need into one archive for spark.archives.

    Executors need pyarrow, and the Python version and the architecture of this
    machine; the archive has the rest. An existing FILE is replaced.

    Examples:
    $ penstock spark pack
    $ penstock spark pack -o /shared/penstock.tar.gz
    """
    try:
        packed = pack(output)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}") from error
    if wants_json(context):
        terminal.print_json({"path": str(packed.path), "bytes": packed.size_bytes, "files": packed.files})
        return
    print(f"packed {packed.files} files into {terminal.visible(str(packed.path))}: {packed.size_bytes / 1e6:.1f} MB")
    terminal.hint(f"use it with: spark.archives={packed.path}#penstock and spark.executorEnv.PYTHONPATH=penstock")


# One command alone would be taken for the whole program.
@app.callback()
def spark() -> None:
    pass
