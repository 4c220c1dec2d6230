"""Every list of a request has a maximum of its own, not only the size of the frame."""

from __future__ import annotations

import msgspec
import pytest

from penstock import frame_bounds
from penstock.broker.limits import ROLES_PER_PRINCIPAL_CEILING
from penstock.broker.pipelines import STAGES_MAX as BROKER_STAGES_MAX
from penstock.broker.transactions.staging import WINNERS_MAX
from penstock.log.api import PARTITIONS_MAX
from penstock.net.peers import INTRODUCTION_BYTES_MAX
from penstock.net.session import Introduction
from penstock.protocols.bytes import I64, U32, U64, blob32, text16, texts16
from penstock.protocols.flymq.operations import limits
from penstock.protocols.flymq.operations.access import (
    AclSet,
    AuditExport,
    AuditQuery,
    KeyCreate,
    PasswordChange,
    RoleSet,
    UserCreate,
    UserUpdate,
)
from penstock.protocols.flymq.operations.blocks import ReadPlan
from penstock.protocols.flymq.operations.operation import BadRequest, decode_request
from penstock.protocols.flymq.operations.spark import PipelineReport, Stage, StageCommit
from penstock.protocols.flymq.operations.topics import CreateTopic
from penstock.protocols.flymq.operations.transactions import TxnCommit

TEXT = text16("t")
RUN = TEXT + U64.pack(1) + U64.pack(1)
USER = TEXT * 3

LISTS: dict[str, tuple[int, bytes, int, bytes, int]] = {
    "roles of a new user": (UserCreate.opcode, USER, frame_bounds.ROLES_MAX, bytes(2), 0),
    "roles of a user": (UserUpdate.opcode, USER, frame_bounds.ROLES_MAX, bytes(2), 0),
    "roles of a password": (PasswordChange.opcode, USER, frame_bounds.ROLES_MAX, bytes(2), 0),
    "roles of a key": (KeyCreate.opcode, TEXT, frame_bounds.ROLES_MAX, bytes(2), 0),
    "users of an ACL": (AclSet.opcode, TEXT + b"\0", limits.ACL_USERS_MAX, bytes(2), 4),
    "roles of an ACL": (AclSet.opcode, TEXT + b"\0" + texts16([]), frame_bounds.ROLES_MAX, bytes(2), 0),
    "permissions": (RoleSet.opcode, TEXT, limits.PERMISSIONS_MAX, bytes(2), 2),
    "audit types": (AuditQuery.opcode, I64.pack(0) * 2, limits.AUDIT_TYPES_MAX, bytes(2), 16),
    "settings": (CreateTopic.opcode, TEXT + U32.pack(1), limits.SETTINGS_MAX, bytes(4), 0),
    "offsets": (TxnCommit.opcode, TEXT, limits.TXN_OFFSETS_MAX, bytes(16), 0),
    "stages": (PipelineReport.opcode, TEXT * 2 + I64.pack(0) + TEXT * 2, limits.STAGES_MAX, bytes(44), 0),
    "blocks": (Stage.opcode, RUN + TEXT + U32.pack(1) + TEXT, limits.STAGED_BLOCKS_MAX, bytes(8), 0),
    "blocks of a commit": (
        StageCommit.opcode,
        RUN + U32.pack(0) + U32.pack(1) + TEXT * 2,
        limits.STAGED_BLOCKS_MAX,
        bytes(8),
        0,
    ),
    "unstaged records": (StageCommit.opcode, RUN + U32.pack(0), limits.UNSTAGED_MAX, bytes(8), 0),
    "attempts": (StageCommit.opcode, RUN, limits.STAGED_ATTEMPTS_MAX, bytes(6), 0),
    "topics of a plan": (ReadPlan.opcode, b"", limits.PLAN_TOPICS_MAX, bytes(6), 8),
    "partitions of a plan": (ReadPlan.opcode, U32.pack(1) + TEXT, limits.PLAN_PARTITIONS_MAX, bytes(36), 8),
}
"""Opcode, what stands before the list, its maximum, its smallest item, and how many zero bytes follow it."""


@pytest.mark.parametrize("name", LISTS)
def test_a_list_may_have_its_maximum_of_items_and_not_one_more(name: str) -> None:
    opcode, before, items_max, item, after_bytes = LISTS[name]
    most = before + U32.pack(items_max) + item * items_max + bytes(after_bytes)
    assert not isinstance(decode_request(opcode, most), BadRequest)
    refused = decode_request(opcode, before + U32.pack(items_max + 1) + item * (items_max + 1) + bytes(after_bytes))
    assert isinstance(refused, BadRequest)
    assert f": {items_max + 1}, at most {items_max}" in refused.message
    assert "too many " in refused.message


def test_the_query_of_an_export_has_the_same_bound() -> None:
    query = I64.pack(0) * 2 + texts16([""] * (limits.AUDIT_TYPES_MAX + 1)) + bytes(16)
    refused = decode_request(AuditExport.opcode, blob32(query) + TEXT)
    assert isinstance(refused, BadRequest)
    assert "too many types" in refused.message


def test_a_list_may_have_whatever_the_broker_accepts() -> None:
    assert frame_bounds.ROLES_MAX >= ROLES_PER_PRINCIPAL_CEILING
    assert limits.ACL_USERS_MAX >= frame_bounds.ROLES_MAX
    assert limits.STAGES_MAX >= BROKER_STAGES_MAX
    assert limits.STAGED_ATTEMPTS_MAX >= WINNERS_MAX
    assert limits.STAGED_BLOCKS_MAX >= PARTITIONS_MAX
    assert limits.TXN_OFFSETS_MAX >= PARTITIONS_MAX


def test_a_client_with_as_many_roles_as_the_broker_accepts_fits_into_what_nodes_tell_each_other() -> None:
    roles = tuple(f"{number:064}" for number in range(ROLES_PER_PRINCIPAL_CEILING))
    told = Introduction("flymq", "[2001:db8::1]:65535", "CN=" + "x" * 250, "n" * 255, roles, key="k" * 64)
    assert len(msgspec.json.encode(told)) <= INTRODUCTION_BYTES_MAX
