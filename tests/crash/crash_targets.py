"""The operations at which crash tests end a broker, by what the log is doing then."""

from __future__ import annotations

from penstock.testing.crashing import CrashAt

APPEND = (
    CrashAt("commit write segment", moment="half"),
    CrashAt("commit flush segment"),
    CrashAt("commit flush segment", moment="after"),
)
JOURNAL = (
    CrashAt("commit write journal", moment="half"),
    CrashAt("commit flush journal"),
    CrashAt("commit flush journal", moment="after"),
    CrashAt("commit write segment", moment="after"),
)
CHECKPOINT = (CrashAt("checkpoint unlink journal"), CrashAt("checkpoint unlink journal", moment="after"))
ROLL = (
    CrashAt("commit truncate segment"),
    CrashAt("commit create index"),
    CrashAt("commit rename index", moment="after"),
    CrashAt("commit create segment", moment="after"),
)
INDEX = (CrashAt("commit write index", moment="half"), CrashAt("commit rename index"))
REWRITE = (
    CrashAt("maintenance rename draft"),
    CrashAt("maintenance rename draft", moment="after"),
    CrashAt("maintenance rename swap"),
    CrashAt("maintenance rename swap", moment="after"),
)
RETENTION = (CrashAt("* rename segment", moment="after"), CrashAt("* unlink deleted", moment="after"))
TOPIC = (
    CrashAt("other create metadata"),
    CrashAt("other rename metadata", moment="after"),
    CrashAt("other rename topic", moment="after"),
    CrashAt("other remove topic", moment="half"),
    CrashAt("other remove topic", moment="after"),
)
REDO = (CrashAt("other write segment", moment="half"), CrashAt("sync flush segment"), CrashAt("other unlink journal"))
TORN_TAIL = (
    CrashAt("other create torn"),
    CrashAt("other truncate segment"),
    CrashAt("sync flush segment", moment="after"),
)
CLOSE = (CrashAt("other create marker"), CrashAt("other rename marker", moment="after"))


def named(at: CrashAt) -> str:
    """Return a name for a test that is run for each of several operations."""
    return f"{at.moment}-{at.kind.replace(' ', '-')}"
