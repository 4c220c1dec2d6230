"""FlyMQ on the wire: numbers and layouts.

A frame is `AF 01 opcode flags u32-length` and a payload of that length. All integers are big-endian. Replies carry the opcode of
their request (AUTH is answered with 0x71) or 0xFF, in the order of the requests; nothing is sent unasked.

    str = u16 length + UTF-8     s8 = u8 length + UTF-8     blob = u32 length + bytes     T* = u32 count + T...
    RM  = str topic, i32 partition, u64 offset, i64 timestamp_ms, i32 key_size (-1: no key), i32 value_size

    opcode                   request                                              reply
    01 PRODUCE               str topic, blob key (empty: none), blob value,       RM
                             i32 partition (-1: broker chooses)
    02 CONSUME               str topic, i32 partition, u64 offset                 blob key, blob value
    0A CONSUME_ZERO_COPY     as CONSUME                                           as CONSUME
    03 CREATE_TOPIC          str topic, i32 partitions [, {str, str}* config]     bool, str message
    04 METADATA              str topic                                            str topic, {i32 id, i32 leader, u64 oldest,
                                                                                  u64 next}*, {str, str}* config
    05 SUBSCRIBE             str topic, str group, i32 partition, mode            u64 offset
                             (str in the contract, s8 from deployed clients)
    06 COMMIT                str topic, str group, i32 partition, u64 offset      bool
    07 FETCH                 str topic, i32 partition, u64 offset, i32 max        {blob key, blob value, u64 offset}*, u64 next
                             the same, str filter (deployed clients)              u32 count, u64 next, {u64 offset, blob key,
                                                                                  blob value} count times
    0B FETCH_BINARY          as FETCH                                             as FETCH
    08 LIST_TOPICS           -                                                    str*
    09 DELETE_TOPIC          str topic                                            bool
    20 FETCH_DLQ             str topic, i32 max                                   {str id, blob value, str reason, u32 attempts}*;
                                                                                  ours: for each, blob key, i32 partition, i64 offset,
                                                                                  i64 first_failed_ms, i64 failed_ms (-1: unknown)
    21 REPLAY_DLQ            str topic, str id                                    bool, str message
                             str topic, u64 offset                                bool, blob message
                             str topic, u16 0xFFFF, str filter, bool dry_run      bool, str message, u32 count
                             (ours: all that match)
    22 PURGE_DLQ             str topic                                            bool, str message
    30 PRODUCE_DELAYED       str topic, blob value, i64 delay_ms                  RM (offset 0, timestamp: when it is due); ours:
                             [, blob key, i32 partition, u64 ttl_ms] (ours)       str id. Without a delay: as it is stored, no id
    31 CANCEL_DELAYED        str topic, str id                                    bool, str message
    35 PRODUCE_WITH_TTL      str topic, blob value, u64 ttl_ms (0: none)          RM
                             [, blob key, i32 partition] (ours)
    40 TXN_BEGIN             -                                                    str transaction, bool 1
    41 TXN_COMMIT            str transaction                                      str transaction, bool (0: was committed before)
                             [, {str group, str topic, i32 partition,
                             u64 offset}*] (ours: group offsets that are
                             committed with the records)
    42 TXN_ROLLBACK          str transaction                                      str transaction, bool (0: there is none)
    43 TXN_PRODUCE           str transaction, str topic, blob value               RM (offset 0, timestamp 0: the commit decides)
                             [, blob key, i32 partition] (ours)
    44 STAGE                 str application, u64 run, u64 epoch, str attempt,    bool 1, once they are stored (also where they were before)
                             u32 sequence, str topic, {i32 partition,
                             blob block}*; ours, as the next three are:
                             records that are shown to nobody until an epoch
                             of their application is committed. Blocks as
                             `log/block.py` lays them out
    45 STAGE_COMMIT          str application, u64 run, u64 epoch,                 u8: 0 was committed before, 1 done now, 2 decided and
                             {str attempt, u32 requests}*                         still being published: ask again
    46 STAGE_ABORT           str application, u64 run, u64 epoch                  bool (0: it is committed and stays)
    47 BEGIN_RUN             str application, str run, bool lasting               u64 number of the run, i64 last epoch (-1: none)
    50 CLUSTER_JOIN          [str peer]                                           always ERROR: one node
    51 CLUSTER_LEAVE         -                                                    always ERROR: one node
    52 CLUSTER_STATUS        -                                                    str cluster, str leader, {str node, str address,
                                                                                  str state}*, u32 topics, u32 partitions, u32 failed
    10 REGISTER_SCHEMA       str name, s8 type (or str), blob definition          str name, s8 type, u32 version, s8 compatibility
                             [, s8 compatibility]
    11 GET_SCHEMA            str name, u32 version (0: latest)                    u32 1, str name, s8 type, u32 version,
                                                                                  blob definition, s8 compatibility, i64 created_ms
    12 LIST_SCHEMAS          [str name] (empty: all)                              u32 count, {str name-vN, s8 type, u32 version}
                                                                                  count times, {s8 compatibility, i64 created_ms}
                                                                                  count times
    13 VALIDATE_SCHEMA       str schema, blob value                               bool, str* reasons
    14 PRODUCE_WITH_SCHEMA   str topic, str schema, blob value                    RM
                             [, blob key, i32 partition]
                             str topic, blob value, str schema (deployed
                             Python and Java clients)
    15 DELETE_SCHEMA         str name, u32 version (0: all)                       bool, str message
    16 BIND_SCHEMA           str topic, str schema (empty: none); not in the      bool, str message
                             contract
    17 FETCH_BLOCKS          str topic, str id (empty: any), i32 partition,       u64 start, u64 end, u32 missing, then blocks as they
                             u64 offset, u32 max_bytes, u32 skip; not in the      are stored; or the first alone from byte `skip` on,
                             contract                                             where that is asked for or it is too large, and how
                                                                                  many bytes of it are missing then
    18 READ_PLAN             {str topic, {i32 partition, u64 offset, u64 end,     str directory, str proof, str token, {str topic, str id
                             u64 max_bytes}*}*, u32 step_bytes (0: no extents),   (empty: none), bool retained, {i32 partition,
                             u32 wait_ms; not in the contract                     u64 start, u64 end, {str path, u64 end_position,
                                                                                  u64 next, u64 file_bytes (0: it grows),
                                                                                  {u64 offset, u64 position}*}*}*}*
    53 CLUSTER_METADATA      [str topic] (empty: all)                             str cluster, {str topic, {i32 partition, str leader,
                                                                                  str address, u64 epoch, str state,
                                                                                  str* replicas, str* in_sync}*}*
    60 GET_OFFSET            str topic, str group, i32 partition                  u64 offset
    61 RESET_OFFSET          str topic, str group, i32 partition, mode            bool
                             (s8 or str) [, u64 offset]
    62 LIST_GROUPS           -                                                    G* with G = str topic, str group, u32 members,
                                                                                  {i32 partition, u64 offset}*
    63 DESCRIBE_GROUP        str topic (empty: any), str group                    G
                             str group                                            str group, str state, str* members, str* topics,
                                                                                  str coordinator
    64 GET_LAG               str topic, str group, i32 partition                  u64 current, u64 committed, u64 latest, u64 lag
    65 DELETE_GROUP          str topic (empty: any), str group; or str group      bool
    66 SEEK_TO_TIMESTAMP     str topic, str group (empty: commit nothing),        u64 offset
                             i32 partition, i64 timestamp_ms
    70 AUTH                  str user, str password                               (71) contract: bool, str error, str user, str* roles
                                                                                  deployed: bool, str user, s8* roles, str error
                                                                                  not known yet: see `access/replies.py`
    72 WHOAMI                -                                                    bool, str user, str* roles (and as many empty ones),
                                                                                  str* permissions
    73 USER_CREATE           str user, str password, str old (unused),            U = str user, str* roles, str* permissions,
                             str* roles [, bool enabled]                          bool enabled, i64 created_s, i64 updated_s
    74 USER_DELETE           str user                                             bool, str user
    75 USER_UPDATE           as USER_CREATE; no roles: unchanged                  bool, str user
    76 USER_LIST             -                                                    U*
    77 USER_GET              str user                                             U
    78 ACL_SET               str topic, bool public, str* users, str* roles       bool, str topic
    79 ACL_GET               str topic                                            str topic, bool exists, bool public,
                                                                                  bool default_public, str* users, str* roles
    7A ACL_DELETE            str topic                                            bool, str topic
    7B ACL_LIST              -                                                    {str topic, bool exists, bool public, str* users,
                                                                                  str* roles}*, bool default_public
    7C PASSWORD_CHANGE       as USER_CREATE; old: the user's own                  bool, str user
    7D ROLE_LIST             -                                                    {str role, str* permissions, str description}*
    7E ROLE_SET              str role, str* permissions, str description          bool, str role
    7F ROLE_DELETE           str role                                             bool, str role
    80 AUDIT_QUERY           Q = i64 start_s, i64 end_s, str* types, str user,    {u32 length, E}*, i32 total, bool more with
                             str resource, str result, str search, i32 limit,     E = str id, i64 time_ms, str type, str user,
                             i32 offset                                           str client, str resource, str action, str result,
                                                                                  str node, {str, str}*
    81 AUDIT_EXPORT          u32 length, Q, str format (json or csv)              str format, blob
                             [, bool 1] (ours: asked by a client of ours)
    90 KEY_CREATE            str name, str* roles (none: may publish and read);   str key
                             API keys are for other protocols, and these
                             requests not in the contract
    91 KEY_LIST              -                                                    {str name, str* roles, i64 created_ms,
                                                                                  str created_by}*
    92 KEY_REVOKE            str name                                             bool
    A0 PIPELINE_REPORT       str pipeline, str run, i64 started_ms, str state,    bool (1: the run should stop)
                             str message, S* with S = str stage, str state,
                             u64 rows, u64 rejects, i64 lag (-1: unknown),
                             u64 batches, u64 batch_ms; this and the following
                             are not in the contract
    A1 PIPELINE_LIST         -                                                    {str pipeline, str owner, str run, i64 started_ms,
                                                                                  i64 updated_ms, str state, str message,
                                                                                  bool stopping, bool alive, S*}*
    A2 PIPELINE_STOP         str pipeline                                         bool (0: it does not run)
    B0 SNAPSHOT_CREATE       -; not in the contract                               str id, str directory (on the broker's machine)
    B1 SNAPSHOT_RELEASE      str id; not in the contract                          -
    FF ERROR                 never a request                                      contract: bool 0, str message
                                                                                  deployed: u32 1, str message
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from struct import Struct
from typing import Final

from penstock.errors import LimitExceeded

MAGIC = 0xAF
VERSION = 0x01
HEADER = Struct(">BBBBI")
HEADER_BYTES = 8
PAYLOAD_BYTES_MAX = 32 << 20
"""The contract's largest payload; a frame that announces more is refused before any of it is read."""

FLAG_BINARY = 0x01
COMPRESSION_MASK = 0x0E
COMPRESSION_GZIP = (0x02, 0x06)
"""The selectors that mean gzip. Deployed brokers take 0x06 (zstd by name) for gzip and ignore 0x04 and 0x08; so must we."""

PARTITION_AUTO = -1
RECORD_METADATA = Struct(">iQqii")
"""Partition, offset, timestamp, key size, value size: a PRODUCE reply behind its topic."""
PARTITION_METADATA = Struct(">iiQQ")
GROUP_OFFSET = Struct(">iQ")
LAG = Struct(">QQQQ")
PRODUCE_FIXED_BYTES = 12
"""Of a PRODUCE payload, beside topic, key and value: two lengths and the partition."""
ROW_FIXED_BYTES = 16
"""Of one record in a FETCH reply: two lengths and the offset."""
FETCH_RECORDS_DEFAULT = 10
"""What a FETCH with a maximum of zero or less asks for."""

ERROR_CODE = 1
"""The only code that deployed brokers send."""
ERROR_MARK = "E: "
"""Begins every error text in the contract's form: deployed Python and Java clients drop six bytes of an ERROR payload that is not in
their own form, and the contract's fields take only three."""
ERROR_TEXT_BYTES_MAX = 8_000
"""Above some 14 KB those clients would take the mark for a length that fits."""


class Opcode(IntEnum):
    """Every operation of the contract; CLUSTER_METADATA and the audit trail, which deployed clients know; and two of our own for roles."""

    PRODUCE = 0x01
    CONSUME = 0x02
    CREATE_TOPIC = 0x03
    METADATA = 0x04
    SUBSCRIBE = 0x05
    COMMIT = 0x06
    FETCH = 0x07
    LIST_TOPICS = 0x08
    DELETE_TOPIC = 0x09
    CONSUME_ZERO_COPY = 0x0A
    FETCH_BINARY = 0x0B
    REGISTER_SCHEMA = 0x10
    GET_SCHEMA = 0x11
    LIST_SCHEMAS = 0x12
    VALIDATE_SCHEMA = 0x13
    PRODUCE_WITH_SCHEMA = 0x14
    DELETE_SCHEMA = 0x15
    BIND_SCHEMA = 0x16
    FETCH_BLOCKS = 0x17
    READ_PLAN = 0x18
    FETCH_DLQ = 0x20
    REPLAY_DLQ = 0x21
    PURGE_DLQ = 0x22
    PRODUCE_DELAYED = 0x30
    CANCEL_DELAYED = 0x31
    PRODUCE_WITH_TTL = 0x35
    TXN_BEGIN = 0x40
    TXN_COMMIT = 0x41
    TXN_ROLLBACK = 0x42
    TXN_PRODUCE = 0x43
    STAGE = 0x44
    STAGE_COMMIT = 0x45
    STAGE_ABORT = 0x46
    BEGIN_RUN = 0x47
    CLUSTER_JOIN = 0x50
    CLUSTER_LEAVE = 0x51
    CLUSTER_STATUS = 0x52
    CLUSTER_METADATA = 0x53
    GET_OFFSET = 0x60
    RESET_OFFSET = 0x61
    LIST_GROUPS = 0x62
    DESCRIBE_GROUP = 0x63
    GET_LAG = 0x64
    DELETE_GROUP = 0x65
    SEEK_TO_TIMESTAMP = 0x66
    AUTH = 0x70
    AUTH_RESPONSE = 0x71
    WHOAMI = 0x72
    USER_CREATE = 0x73
    USER_DELETE = 0x74
    USER_UPDATE = 0x75
    USER_LIST = 0x76
    USER_GET = 0x77
    ACL_SET = 0x78
    ACL_GET = 0x79
    ACL_DELETE = 0x7A
    ACL_LIST = 0x7B
    PASSWORD_CHANGE = 0x7C
    ROLE_LIST = 0x7D
    ROLE_SET = 0x7E
    ROLE_DELETE = 0x7F
    AUDIT_QUERY = 0x80
    AUDIT_EXPORT = 0x81
    KEY_CREATE = 0x90
    KEY_LIST = 0x91
    KEY_REVOKE = 0x92
    PIPELINE_REPORT = 0xA0
    PIPELINE_LIST = 0xA1
    PIPELINE_STOP = 0xA2
    SNAPSHOT_CREATE = 0xB0
    SNAPSHOT_RELEASE = 0xB1
    ERROR = 0xFF


REPLY_ONLY = frozenset({Opcode.AUTH_RESPONSE, Opcode.ERROR})


_LESS: Final[Mapping[int, str]] = {
    Opcode.READ_PLAN: "plan fewer topics at a time",
    Opcode.LIST_SCHEMAS: "name the schema whose versions to list",
    Opcode.FETCH_DLQ: "ask for fewer dead letters",
    Opcode.CLUSTER_METADATA: "name a topic",
    Opcode.LIST_GROUPS: "describe one group at a time",
    Opcode.DESCRIBE_GROUP: "name a topic too",
    Opcode.AUDIT_QUERY: "set a smaller limit",
    Opcode.AUDIT_EXPORT: "set a smaller limit",
}
"""How to get a smaller reply."""


def frame(opcode: int, payload: bytes = b"", flags: int = FLAG_BINARY) -> bytes:
    return header(opcode, len(payload), flags) + payload


def header(opcode: int, payload_bytes: int, flags: int = FLAG_BINARY) -> bytes:
    """The header of a request or reply. Raises LimitExceeded where the contract allows no frame of that size."""
    if payload_bytes > PAYLOAD_BYTES_MAX:
        raise LimitExceeded(
            f"{Opcode(opcode).name} takes a frame of {payload_bytes} bytes, at most {PAYLOAD_BYTES_MAX} are allowed: "
            + _LESS.get(opcode, "ask for less at a time")
        )
    return HEADER.pack(MAGIC, VERSION, opcode, flags, payload_bytes)
