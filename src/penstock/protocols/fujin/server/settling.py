"""ACK and NACK: what becomes of the records that a reader was given.

Each id has its own result, and a request as a whole never fails: callers of deployed clients would not hear of it. ACK is answered once
it is on disk, so what was acknowledged does not come again, also not after a crash; NACK is answered at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from penstock.broker.deliveries.subscription import Subscription
from penstock.errors import PenstockError
from penstock.protocols.fujin.codec import reply_encoding
from penstock.protocols.fujin.codec.messages import Settle
from penstock.protocols.fujin.server.stream import FujinStream
from penstock.protocols.fujin.wire import ID, UNKNOWN_ID, Request


class Settling:
    """For one reader. `settled` is called when something has changed that may make room for more records."""

    __slots__ = ("_outstanding", "_session", "_settled", "unanswered")

    def __init__(self, session: FujinStream, outstanding: dict[int, int], settled: Callable[[], None]) -> None:
        """`outstanding`: by tag, what the reader was given ids of; those that are settled are taken out."""
        self._session = session
        self._outstanding = outstanding
        self._settled = settled
        self.unanswered = 0

    def settle(self, subscription: Subscription, command: Settle, held_bytes: int) -> None:
        acknowledged = command.request == Request.ACK
        try:
            errors = (self._acknowledge if acknowledged else self._refuse)(subscription, command.ids)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            reason = self._session.reason(error, len(command.ids))
            self._answer(command, held_bytes, [reason] * len(command.ids))
            return
        if acknowledged and None in errors:
            self.unanswered += 1
            self._session.broker.subscriptions.when_durable(partial(self._durable, command, held_bytes, errors))
        else:
            self._answer(command, held_bytes, errors)
        self._settled()

    def _acknowledge(self, subscription: Subscription, ids: Sequence[bytes]) -> list[str | None]:
        known = list(map(self._find, ids))
        tags = list(dict.fromkeys(tag for tag in known if tag is not None))
        settled = self._session.broker.subscriptions.acknowledge_many(
            self._session.principal, subscription.topic, subscription, tags
        )
        done = {tag for tag, was_in_flight in zip(tags, settled, strict=True) if was_in_flight}
        for tag in tags:
            del self._outstanding[tag]
        results: list[str | None] = []
        for each in known:
            results.append(self._result(each in done))
            done.discard(each or 0)  # once
        return results

    def _refuse(self, subscription: Subscription, ids: Sequence[bytes]) -> list[str | None]:
        refuse = self._session.broker.subscriptions.refuse
        results: list[str | None] = []
        for each in ids:
            tag = self._find(each)
            refused = tag is not None and refuse(self._session.principal, subscription.topic, subscription, tag)
            if tag is not None:
                del self._outstanding[tag]
            results.append(self._result(refused))
        if None in results:
            # This reader looks again when the first may be delivered; others are told by the next sweep.
            self._session.call_later(subscription.policy.delay_ms(1) / 1000, self._settled)
        return results

    def _find(self, message_id: bytes) -> int | None:
        """The tag of an id that this stream was given and has not settled yet."""
        if len(message_id) != ID.size:
            return None
        tag: int = ID.unpack(message_id)[0]
        return tag if tag in self._outstanding else None

    def _result(self, settled: bool) -> str | None:
        if settled:
            return None
        self._session.stats.errors += 1
        return UNKNOWN_ID

    def _durable(
        self, command: Settle, held_bytes: int, errors: list[str | None], failure: PenstockError | None
    ) -> None:
        self.unanswered -= 1
        if failure is not None:
            reason = self._session.reason(failure, errors.count(None))
            errors = [f"not stored yet: {reason}" if error is None else error for error in errors]
        self._answer(command, held_bytes, errors)
        self._session.advance_soon()

    def _answer(self, command: Settle, held_bytes: int, errors: Sequence[str | None]) -> None:
        self._session.send(reply_encoding.settled(command.request, command.correlation_id, command.ids, errors))
        self._session.stream.release(held_bytes)
