"""Every table of the broker with the types of its keys and values, for checking records of internal topics without a broker.

A table itself is made where it is used (see `table.py`); a test compares this list with the tables of a running broker.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.broker.access.api_keys import KEYS_TOPIC, ApiKey
from penstock.broker.access.directory import ACLS_TOPIC, ROLES_TOPIC, USERS_TOPIC, Acl, Role, User
from penstock.broker.deliveries.deadletters import DEADLETTERS_TOPIC, MarkKey
from penstock.broker.deliveries.shards import SUBSCRIPTIONS_TOPIC
from penstock.broker.deliveries.stored import StoredSubscription
from penstock.broker.groups.coordinator import MEMBERS_TOPIC
from penstock.broker.groups.membership import MemberKey, StoredMember
from penstock.broker.groups.offsets import GROUPS_TOPIC, CommittedOffset, OffsetKey
from penstock.broker.idempotence.stored import PRODUCERS_TOPIC, ProducerKey, StoredProducer, StoredRequest
from penstock.broker.pipelines import PIPELINES_TOPIC, Pipeline
from penstock.broker.schemas.entries import Entry, EntryKey
from penstock.broker.schemas.registry import SCHEMAS_TOPIC
from penstock.broker.transactions.applications import APPLICATIONS_TOPIC, Application
from penstock.broker.transactions.entries import COMMITS_TOPIC, TICKETS_TOPIC, CommitEntry, TicketEntry, TicketKey
from penstock.broker.transactions.transactions import TRANSACTIONS_TOPIC, Outcome
from penstock.log.block import Block

TABLES: Final[dict[str, tuple[Any, Any]]] = {
    ACLS_TOPIC: (str, Acl),
    APPLICATIONS_TOPIC: (str, Application),
    COMMITS_TOPIC: (str, CommitEntry),
    DEADLETTERS_TOPIC: (MarkKey, bytes),
    GROUPS_TOPIC: (OffsetKey, CommittedOffset),
    KEYS_TOPIC: (str, ApiKey),
    MEMBERS_TOPIC: (MemberKey, StoredMember),
    PIPELINES_TOPIC: (str, Pipeline),
    PRODUCERS_TOPIC: (ProducerKey, StoredProducer | StoredRequest),
    ROLES_TOPIC: (str, Role),
    SCHEMAS_TOPIC: (EntryKey, Entry),
    SUBSCRIPTIONS_TOPIC: (int, StoredSubscription),
    TICKETS_TOPIC: (TicketKey, TicketEntry),
    TRANSACTIONS_TOPIC: (str, Outcome),
    USERS_TOPIC: (str, User),
}


class TableRecords:
    """Checks that the records of tables are what a start expects to read."""

    def __init__(self) -> None:
        self._decoders = {
            topic: (msgspec.msgpack.Decoder(key), msgspec.msgpack.Decoder(value))
            for topic, (key, value) in TABLES.items()
        }

    def fault(self, topic: str, block: Block) -> str | None:
        """Return what is wrong with the first bad record of a block, None if all are good or the topic is not a table."""
        decoders = self._decoders.get(topic)
        if decoders is None:
            return None
        key_decoder, value_decoder = decoders
        keys = block.keys() or [None] * block.count
        for offset, key, value in zip(block.offsets(), keys, block.values(), strict=True):
            try:
                key_decoder.decode(key or b"")
                if value is not None:
                    value_decoder.decode(value)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                return f"table {topic}: the record at offset {offset} cannot be read ({error}), and a broker would not start"
        return None
