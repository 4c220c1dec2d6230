"""Which dissector decodes the frames of which protocol, for the protocol inspector of the admin address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.inspection import DissectorFactory
from penstock.protocols.blipmq.inspection import BlipMQDissector
from penstock.protocols.felix.inspection import FelixDissector
from penstock.protocols.flymq.inspection import FlyMQDissector
from penstock.protocols.fujin.inspection import FujinDissector
from penstock.protocols.rustlog.inspection import RustLogDissector

DISSECTORS: Final[Mapping[str, DissectorFactory]] = {
    "flymq": FlyMQDissector,
    "blipmq": BlipMQDissector,
    "rustlog": RustLogDissector,
    "fujin": FujinDissector,
    "felix": FelixDissector,
}
