"""`penstock serve` on a disk that misbehaves: what `BrokerProcess` runs when it is given a `DiskFault`.

    python -m penstock.testing.serving --config penstock.toml --disk '{"type": "crash", "at": "commit write segment:3:half"}'

The broker is the one of `penstock serve` in everything but its disk. Nothing in production code knows of these faults.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from penstock import logs
from penstock.config import load_config
from penstock.serving import run
from penstock.testing.crashing import CrashDisk
from penstock.testing.diskfaults import CountOperations, DiskFault, make_disk


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.testing.serving", description="Run a broker on a disk that misbehaves."
    )
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--disk", required=True, help="the fault, as JSON")
    given = parser.parse_args(args)
    fault: DiskFault = msgspec.json.decode(given.disk, type=DiskFault)
    config = load_config(given.config)
    logs.configure(config.logging.level, form=config.logging.format)
    config.data_dir.mkdir(parents=True, exist_ok=True)
    disk = make_disk(fault, config.data_dir)
    run(config, _announce, disk=disk)
    if isinstance(fault, CountOperations):
        assert isinstance(disk, CrashDisk)
        Path(fault.file).write_bytes(msgspec.json.encode(disk.operations))


def _announce(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
