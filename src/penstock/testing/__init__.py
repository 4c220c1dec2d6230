"""Test your programs against a real broker, and a broker against its promises.

- `RunningBroker`: a broker inside the test's process, ready in milliseconds, with a clock to move and a disk that fails on demand;
- `BrokerProcess`: `penstock serve` as a child process, to be killed;
- `Journal`, `check`, `ProducerLoad`, `read_everything`: the delivery checker and what feeds it;
- `Workload`, `Torture`: every kind of load on a broker process, and faults under it, as in `penstock torture`.

pytest finds the fixtures `penstock_broker` and `penstock_broker_factory` by itself once Penstock is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.broker import RunningBroker
    from penstock.testing.checker import ReadRecord, Report, Rule, Violation, check
    from penstock.testing.clock import ManualClock
    from penstock.testing.faults import FaultyDisk
    from penstock.testing.journal import Attempt, Journal
    from penstock.testing.load import LoadSummary, ProducerLoad, read_everything
    from penstock.testing.process import BrokerProcess
    from penstock.testing.torture import Torture
    from penstock.testing.workload import Workload

__all__ = [
    "Attempt",
    "BrokerProcess",
    "FaultyDisk",
    "Journal",
    "LoadSummary",
    "ManualClock",
    "ProducerLoad",
    "ReadRecord",
    "Report",
    "Rule",
    "RunningBroker",
    "Torture",
    "Violation",
    "Workload",
    "check",
    "read_everything",
]

# pytest imports this package in every run to find the fixtures; what they need is imported when it is used.
_HOMES = {
    "broker": ("RunningBroker",),
    "checker": ("ReadRecord", "Report", "Rule", "Violation", "check"),
    "clock": ("ManualClock",),
    "faults": ("FaultyDisk",),
    "journal": ("Attempt", "Journal"),
    "load": ("LoadSummary", "ProducerLoad", "read_everything"),
    "process": ("BrokerProcess",),
    "torture": ("Torture",),
    "workload": ("Workload",),
}
_MODULES = {name: f"penstock.testing.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
