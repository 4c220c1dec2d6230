"""Lists in replies: none is built further than a frame holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from penstock.errors import LimitExceeded
from penstock.protocols.flymq import wire
from penstock.protocols.flymq.access.messages import AclDescription, AuditRecord, RoleDescription, UserDescription
from penstock.protocols.flymq.access.replies import encode_acls, encode_audit, encode_roles, encode_users
from penstock.protocols.flymq.keys.layouts import encode_keys
from penstock.protocols.flymq.keys.messages import KeyDescription
from penstock.protocols.flymq.pipelines.layouts import encode_pipelines
from penstock.protocols.flymq.pipelines.messages import PipelineDescription
from penstock.protocols.flymq.reply_encoding import (
    encode_cluster_metadata_reply,
    encode_group_summary,
    encode_groups,
    encode_names,
)
from penstock.protocols.flymq.reply_messages import GroupState
from penstock.protocols.flymq.schemas.messages import SchemaInfo
from penstock.protocols.flymq.schemas.replies import encode_schemas
from penstock.protocols.flymq.wire import Opcode, counted_rows

PAYLOAD_BYTES_MAX = 2000
NAME = "x" * 20
LISTS: dict[Opcode, tuple[Callable[[Any], bytes], Any]] = {
    Opcode.LIST_TOPICS: (encode_names, NAME),
    Opcode.CLUSTER_METADATA: (partial(encode_cluster_metadata_reply, "c", "n", "a"), (NAME, [True, False])),
    Opcode.LIST_GROUPS: (encode_groups, GroupState(NAME, NAME, 1, {0: 7})),
    Opcode.DESCRIBE_GROUP: (lambda topics: encode_group_summary("g", "Empty", [], topics, "a"), NAME),
    Opcode.USER_LIST: (encode_users, UserDescription(NAME, [NAME], [], True, 0, 0)),
    Opcode.ROLE_LIST: (encode_roles, RoleDescription(NAME, ["read"], NAME)),
    Opcode.ACL_LIST: (partial(encode_acls, default_public=False), AclDescription(NAME, True, True, [NAME], [])),
    Opcode.AUDIT_QUERY: (
        partial(encode_audit, total=1, more=False),
        AuditRecord("id", 0, "login", NAME, "::1", NAME, "read", "ok", "n", {}),
    ),
    Opcode.KEY_LIST: (encode_keys, KeyDescription(NAME, [NAME], 0, NAME)),
    Opcode.PIPELINE_LIST: (encode_pipelines, PipelineDescription(NAME, NAME, NAME, 0, 0, "", "", False, True, [])),
    Opcode.LIST_SCHEMAS: (encode_schemas, SchemaInfo(NAME, "json", 1, "none", 0, None)),
}


@dataclass
class Endless:
    """Items of a list that has no end, and how many were taken."""

    item: Any
    taken: int = 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.taken += 1
            yield self.item


@pytest.mark.parametrize("opcode", LISTS, ids=lambda opcode: opcode.name)
def test_a_list_that_fits_no_frame_is_refused_at_the_first_item_that_does_not(
    opcode: Opcode, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, item = LISTS[opcode]
    monkeypatch.setattr(wire, "PAYLOAD_BYTES_MAX", PAYLOAD_BYTES_MAX)
    items = Endless(item)
    with pytest.raises(LimitExceeded, match=f"{opcode.name} takes a frame of at least"):
        encode(items)
    assert items.taken <= PAYLOAD_BYTES_MAX // len(NAME)
    assert len(encode([item])) < PAYLOAD_BYTES_MAX, "a short one is answered"


def test_rows_that_just_fit_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PAYLOAD_BYTES_MAX", 24)
    assert counted_rows(Opcode.LIST_TOPICS, [b"0123456789"] * 2) == b"\0\0\0\2" + b"0123456789" * 2
    with pytest.raises(LimitExceeded, match="at least 25 bytes, at most 24 are allowed"):
        counted_rows(Opcode.LIST_TOPICS, [b"0123456789", b"0123456789", b"!"])
