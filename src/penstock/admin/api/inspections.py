"""The protocol inspector: open connections, and the frames of one of them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Final

import msgspec

from penstock.admin.api.table import Call, Reply, Request, endpoint
from penstock.admin.inspector import FRAMES_MAX, Direction, Inspection, Seen, State
from penstock.broker.access.checks import BROKER, Declaration, Operation, ResourceKind, authorize
from penstock.errors import EntryNotFound, InvalidRequest, LimitExceeded

INSPECT: Final = Declaration(Operation.ADMIN, ResourceKind.BROKER)


class ConnectionState(Reply, frozen=True):
    listener: str
    peer: str
    certificate: str | None
    """The subject of the client certificate, if TLS has verified one."""


class NewInspection(Request, frozen=True):
    listener: str
    peer: str = ""
    """One of the connections; the next one of the listener if it is left out."""
    payloads: bool = False
    """Show keys, values and headers too, and not only their sizes. Credentials are never shown."""


class InspectionState(Reply, frozen=True):
    id: str
    listener: str
    peer: str
    """Empty while it waits for a connection."""
    state: State
    """waiting for a connection; running; closed with the connection; full; stopped, also when nobody has read it for a minute."""
    more_streams: bool
    """The connection has had more streams than the 256 that are decoded."""


class FrameField(Reply, frozen=True):
    name: str
    value: str


class InspectedFrame(Reply, frozen=True):
    number: int
    at_ms: int
    direction: Direction
    stream: int
    """Of QUIC; 0 elsewhere."""
    name: str
    size: int
    fields: list[FrameField]


class InspectedFrames(Reply, frozen=True):
    inspection: InspectionState
    frames: list[InspectedFrame]


class FramesQuery(Request, frozen=True):
    after: Annotated[int, msgspec.Meta(ge=0, le=FRAMES_MAX)] = 0
    """How many frames the caller has; later ones are returned."""


@endpoint("GET", "/connections", asks=INSPECT)
async def list_connections(call: Call) -> list[ConnectionState]:
    """List open connections, at most 1,000."""
    authorize(call.broker.access, call.principal, INSPECT.operation, BROKER)
    return [ConnectionState(*each) for each in call.given.inspector.connections()]


@endpoint(
    "POST",
    "/inspections",
    asks=INSPECT,
    status=HTTPStatus.CREATED,
    errors=(InvalidRequest, EntryNotFound, LimitExceeded),
)
async def start_inspection(call: Call, body: NewInspection) -> InspectionState:
    """Start recording the frames of a connection: at most 4 MiB, 1,000 frames and 256 streams."""
    principal = call.principal
    authorize(call.broker.access, principal, INSPECT.operation, BROKER)
    inspection = call.given.inspector.start(body.listener, body.peer, payloads=body.payloads)
    details = {"peer": body.peer or "the next", "payloads": str(body.payloads).lower()}
    call.broker.audit.note(principal, "inspection.start", body.listener, details=details)
    return _state(inspection)


@endpoint("GET", "/inspections", asks=INSPECT)
async def list_inspections(call: Call) -> list[InspectionState]:
    """List the inspections there are."""
    authorize(call.broker.access, call.principal, INSPECT.operation, BROKER)
    return [_state(each) for each in call.given.inspector.all()]


@endpoint("GET", "/inspections/{inspection}", asks=INSPECT, errors=(InvalidRequest, EntryNotFound))
async def get_inspection(call: Call, query: FramesQuery) -> InspectedFrames:
    """Return the frames of an inspection, decoded field by field."""
    authorize(call.broker.access, call.principal, INSPECT.operation, BROKER)
    inspection = call.given.inspector.get(call.path["inspection"])
    await inspection.decode(call.worker())
    seen = inspection.frames[query.after :]
    return InspectedFrames(_state(inspection), [_frame(number, each) for number, each in enumerate(seen, query.after)])


@endpoint("DELETE", "/inspections/{inspection}", asks=INSPECT, errors=(EntryNotFound,))
async def stop_inspection(call: Call) -> None:
    """End an inspection, and forget what it noted."""
    authorize(call.broker.access, call.principal, INSPECT.operation, BROKER)
    call.given.inspector.stop(call.path["inspection"])


def _state(inspection: Inspection) -> InspectionState:
    return InspectionState(
        inspection.id, inspection.listener, inspection.peer, inspection.state, inspection.more_streams
    )


def _frame(number: int, seen: Seen) -> InspectedFrame:
    frame = seen.frame
    fields = [FrameField(name, value) for name, value in frame.fields]
    return InspectedFrame(number, seen.at_ms, seen.direction, seen.stream, frame.name, frame.size_bytes, fields)
