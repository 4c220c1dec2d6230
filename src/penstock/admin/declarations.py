"""What may be started on the machine of the broker: the sections `[[pipelines]]`."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator

from penstock.settings import ExpandedPath, Section

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Also the name of a file: that of its log."""


def _pipeline_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not the name of a pipeline: use letters, digits, '.', '_' and '-', at most 100, as in the pipeline file"
        )
    return name


class DeclaredPipeline(Section):
    """A pipeline that may be started."""

    name: Annotated[str, AfterValidator(_pipeline_name)]
    """The name of the pipeline, as in its file."""
    file: ExpandedPath
    """The file that describes it, as `penstock pipeline run` takes it."""
    password_file: ExpandedPath | None = None
    """A file with the password of the user that the pipeline file names under `[connection]`."""
    autostart: bool = False
    """Start it with the broker."""
