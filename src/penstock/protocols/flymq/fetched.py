"""A FETCH reply as it came. Where the next fetch goes on can be read before the records are decoded, so both can go on at once."""

from __future__ import annotations

from penstock.clients.records import FetchResult, Record
from penstock.errors import ProtocolViolation
from penstock.protocols.bytes import U64
from penstock.protocols.flymq.reply_decoding import decode_fetched

_COUNT_BYTES = 4
_EMPTY_BYTES = _COUNT_BYTES + U64.size


class EncodedFetch:
    """`native`: the reply has the layout of deployed brokers, which they choose where the request has a filter."""

    __slots__ = ("_native", "_partition", "_payload", "_topic", "next_offset")

    def __init__(self, topic: str, partition: int, payload: bytes, *, native: bool) -> None:
        if len(payload) < _EMPTY_BYTES:
            raise ProtocolViolation(f"a FETCH reply has at least {_EMPTY_BYTES} bytes, not {len(payload)}")
        self._topic = topic
        self._partition = partition
        self._payload = payload
        self._native = native
        self.next_offset: int = U64.unpack_from(payload, _COUNT_BYTES if native else len(payload) - U64.size)[0]

    def decode(self) -> FetchResult:
        topic, partition = self._topic, self._partition
        rows = decode_fetched(self._payload, native=self._native)
        if rows.keys is None:
            records = [
                Record(topic, partition, offset, None, value)
                for offset, value in zip(rows.offsets, rows.values, strict=True)
            ]
        else:
            records = [
                Record(topic, partition, offset, key, value)
                for offset, key, value in zip(rows.offsets, rows.keys, rows.values, strict=True)
            ]
        return FetchResult(records, rows.next_offset)
