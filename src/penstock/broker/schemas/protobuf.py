"""Protobuf schemas: a definition with one or several messages, of which records are one.

A record must decode as the message, with every required field and without any field that the message does not have: bytes decode as
unknown fields all too easily. Decoding is the protobuf library's own: linear in time, at most 100 levels deep.

A definition may import others that were registered before (see `bundling`); its form is then a FileDescriptorSet, with itself as the last.

Which message a record is: the first of the definition, or the one that a reference names ("orders:shop.Order", "orders:Order").
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, Final, Self

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from penstock.broker.schemas.bundling import MAIN_FILE, files_of
from penstock.broker.schemas.definition import Checker, Definition, Fault, shortened
from penstock.broker.schemas.protobuf_compatibility import problems_following, problems_reading
from penstock.broker.schemas.protoc import compile_definition, compile_descriptors
from penstock.errors import InvalidRequest, SchemaInvalid

COST: Final = 2
IMPORTS: Final = {
    f"google/protobuf/{name}.proto": f"google.protobuf.{name}_pb2"
    for name in (
        "any",
        "api",
        "descriptor",
        "duration",
        "empty",
        "field_mask",
        "source_context",
        "struct",
        "timestamp",
        "type",
        "wrappers",
    )
}
"""The well-known types: what every definition may import, and where the library has them."""
_ONE_FILE: Final = b"\n%c%s" % (len(MAIN_FILE), MAIN_FILE.encode())


class ProtobufDefinition(Definition):
    kind = "protobuf"
    cost = COST

    def __init__(self, form: bytes) -> None:
        self._form = form
        self._file = _loaded(form)

    @classmethod
    def parse(cls, text: str) -> Self:
        compiled = descriptor_pb2.FileDescriptorSet()
        for name, own in files_of(text):
            compiled.file.append(_compiled(name, own, compiled))
        file = compiled.file[-1]
        if file.name != MAIN_FILE:
            raise SchemaInvalid(f"the last file of the definition is {file.name}: name it {MAIN_FILE}")
        whole = file if len(compiled.file) == 1 else compiled
        definition = cls(whole.SerializeToString(deterministic=True))
        if not file.message_type and not file.enum_type:
            raise SchemaInvalid("the definition has no message: a record is one")
        return definition

    @classmethod
    def load(cls, text: str, form: bytes, cost: int) -> Self:
        return cls(form)

    @property
    def form(self) -> bytes:
        return self._form

    @property
    def identity(self) -> bytes:
        return hashlib.sha256(self._form).digest()

    def checker(self, message: str) -> Checker:
        return _ProtobufChecker(self.message_class(message), self.message_path(message))

    def message_class(self, message: str) -> type[Message]:
        """The class of the message that records are; empty for the first one. Raises InvalidRequest if there is none such."""
        if not message:
            descriptor = next(iter(self._file.message_types_by_name.values()), None)
            if descriptor is None:
                raise InvalidRequest("the definition has no message: it is there for others to import")
        else:
            descriptor = self._message(message)
        return GetMessageClass(descriptor)

    def message_path(self, message: str) -> tuple[int, ...]:
        """The place of a message in the definition, or in the message around it, and so on. Raises InvalidRequest."""
        descriptor: Any = self.message_class(message).DESCRIPTOR
        path: list[int] = []
        while descriptor is not None:
            around = descriptor.containing_type
            beside = self._file.message_types_by_name.values() if around is None else around.nested_types
            path.insert(0, [each.full_name for each in beside].index(descriptor.full_name))
            descriptor = around
        return tuple(path)

    def message_at(self, path: Sequence[int]) -> str:
        """The full name of the message at a place, the inverse of `message_path`. Raises InvalidRequest."""
        beside, descriptor = list(self._file.message_types_by_name.values()), None
        for index in path:
            if not 0 <= index < len(beside):
                raise InvalidRequest(f"the definition has no message at {'.'.join(map(str, path))}")
            descriptor = beside[index]
            beside = list(descriptor.nested_types)
        return "" if descriptor is None else str(descriptor.full_name)

    def _message(self, name: str) -> Any:
        package = self._file.package
        for full_name in (name, f"{package}.{name}"):
            try:
                descriptor = self._file.pool.FindMessageTypeByName(full_name)
            except KeyError:
                continue
            if descriptor.file.name == MAIN_FILE:
                return descriptor
        known = ", ".join(self._file.message_types_by_name)
        raise InvalidRequest(shortened(f"the definition has no message {name!r}: it has {known}"))

    def problems_reading(self, writer: Self) -> list[str]:
        return problems_reading(self._file, writer._file)

    def problems_following(self, older: Self) -> list[str]:
        return problems_following(self._file, older._file)


def _descriptor_in(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """The descriptor that a definition is in base64, as Confluent's clients register it; None if it is a definition in words."""
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None


def _compiled(name: str, text: str, imported: descriptor_pb2.FileDescriptorSet) -> descriptor_pb2.FileDescriptorProto:
    """One file of a definition, behind those that it may import. Raises SchemaInvalid."""
    descriptor = _descriptor_in(text)
    known = {each.name for each in imported.file}
    if name in known or name in IMPORTS:
        raise SchemaInvalid(f"the definition has two files {name}: leave one of them out")
    if descriptor is not None:
        descriptor.name = MAIN_FILE
        descriptor.ClearField("source_code_info")
        files = _well_known(descriptor.dependency)
        files.file.extend(imported.file)
        files.file.append(descriptor)
        compiled = compile_descriptors(files.SerializeToString())
    elif imported.file:
        files = _well_known(IMPORTS)
        files.file.extend(imported.file)
        compiled = compile_definition(text, files.SerializeToString())
    else:
        compiled = compile_definition(text)
    [file] = descriptor_pb2.FileDescriptorSet.FromString(compiled).file
    file.name = name
    for each in (*file.dependency, *file.option_dependency):
        if each not in IMPORTS and each not in known:
            raise SchemaInvalid(
                f"{each} is imported: only the well-known types, google/protobuf/..., and files that are given as references can be"
            )
    return file


def own_descriptor(form: bytes) -> bytes:
    """The descriptor of a definition without those of what it imports."""
    return _files(form)[-1].SerializeToString(deterministic=True)


def _files(form: bytes) -> Sequence[descriptor_pb2.FileDescriptorProto]:
    """The files of a form. A descriptor begins with the name of its file, and a set with a whole descriptor."""
    if form.startswith(_ONE_FILE):
        return [descriptor_pb2.FileDescriptorProto.FromString(form)]
    return descriptor_pb2.FileDescriptorSet.FromString(form).file


def _well_known(names: Iterable[str]) -> descriptor_pb2.FileDescriptorSet:
    """Those files of the well-known types, behind what they import."""
    files = descriptor_pb2.FileDescriptorSet()
    added: set[str] = set()

    def add(imported: FileDescriptor) -> None:
        if imported.name not in added:
            added.add(imported.name)
            for each in imported.dependencies:
                add(each)
            imported.CopyToProto(files.file.add())

    for name in names:
        if name in IMPORTS:
            add(import_module(IMPORTS[name]).DESCRIPTOR)
    return files


def _loaded(form: bytes) -> FileDescriptor:
    """The definition in a pool of its own, with what it imports."""
    pool = DescriptorPool()
    files = _files(form)
    added = {each.name for each in files}

    def add(serialized: bytes, imports: Iterable[str]) -> None:
        for name in imports:
            if name not in added:
                added.add(name)
                imported: FileDescriptor = import_module(IMPORTS[name]).DESCRIPTOR
                add(imported.serialized_pb, [each.name for each in imported.dependencies])
        pool.AddSerializedFile(serialized)

    try:
        for file in files:
            add(file.SerializeToString(), (*file.dependency, *file.option_dependency))
        return pool.FindFileByName(MAIN_FILE)
    except (TypeError, KeyError) as error:
        raise SchemaInvalid(shortened(f"the protobuf library does not take the definition: {error}")) from None


class _ProtobufChecker:
    def __init__(self, message: type[Message], message_path: tuple[int, ...]) -> None:
        self._message = message
        self.message_path = message_path
        self._has_required = _has_required(message.DESCRIPTOR)

    def first_fault(self, values: Sequence[bytes]) -> Fault | None:
        for row, value in enumerate(values):
            reason = self._reason(value)
            if reason is not None:
                return Fault(row, reason)
        return None

    def faults(self, value: bytes) -> list[str]:
        reason = self._reason(value)
        return [] if reason is None else [reason]

    def _reason(self, value: bytes) -> str | None:
        try:
            message: Any = self._message.FromString(value)
        except DecodeError as error:
            return shortened(str(error))
        if self._has_required and not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors())
            return shortened(f"required fields are missing: {missing}")
        size = message.ByteSize()
        message.DiscardUnknownFields()
        if message.ByteSize() != size:
            return f"there are fields or enum values that {self._message.DESCRIPTOR.full_name} does not have"
        return None


def _has_required(message: Any) -> bool:
    """Whether the message, or one inside it, has a field that must be there, or may have one in an extension."""
    seen, waiting = {message.full_name}, [message]
    while waiting:
        each = waiting.pop()
        if each.is_extendable:
            return True
        for field in each.fields:
            if field.is_required:
                return True
            inner = field.message_type
            if inner is not None and inner.full_name not in seen:
                seen.add(inner.full_name)
                waiting.append(inner)
    return False
