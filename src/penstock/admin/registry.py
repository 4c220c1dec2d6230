"""The schema registry's REST API as Confluent's clients speak it, below `/registry` of the admin address.

A subject is a schema of the broker, and an id is the registry id of a definition: the same under every subject that has it. What the
broker's schemas have no counterpart for is refused with the code that clients know: contexts, other modes than
READWRITE.

A deletion is soft unless it is `permanent`, which a soft one must precede. What is soft-deleted is shown with `deleted=true` and by its id.

A definition of Protobuf may come as text or, as Confluent's Python serializer sends it, as a descriptor in base64; `format=serialized`
asks for the latter.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeVar, get_args
from urllib.parse import parse_qsl

import msgspec
import structlog
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from penstock.admin.api.application import ROUTE, Application, Door, read_body
from penstock.admin.api.problems import HttpProblem, status_of
from penstock.admin.api.routing import Routes
from penstock.broker.access.checks import BROKER, Declaration, Operation, Principal, ResourceKind, authorize
from penstock.broker.broker import Broker
from penstock.broker.schemas.bundling import Link
from penstock.broker.schemas.operations import Schemas
from penstock.broker.schemas.protobuf import own_descriptor
from penstock.broker.schemas.reference import LATEST, Compatibility, parse_version
from penstock.broker.schemas.registry import COMPATIBILITY_DEFAULT, SchemaVersion
from penstock.errors import (
    IncompatibleSchema,
    InvalidRequest,
    PenstockError,
    SchemaInvalid,
    SchemaNotFound,
)

PREFIX: Final = "/registry"
CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
BODY_TYPES: Final = frozenset({CONTENT_TYPE, "application/vnd.schemaregistry+json", "application/json"})
TYPES: Final = ("AVRO", "JSON", "PROTOBUF")
LEVELS: Final = tuple(level.upper() for level in get_args(Compatibility))
MODE: Final = "READWRITE"
DESCRIBE_BROKER: Final = Declaration(Operation.DESCRIBE, ResourceKind.BROKER)
ADMIN_BROKER: Final = Declaration(Operation.ADMIN, ResourceKind.BROKER)

log = structlog.get_logger(__name__)


class RegistryError(Exception):
    """A refusal in the registry's own form."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def subject_not_found(subject: str) -> RegistryError:
    return RegistryError(40401, f"Subject '{subject}' not found.")


def version_not_found(version: object) -> RegistryError:
    return RegistryError(40402, f"Version {version} not found.")


class GivenReference(msgspec.Struct, frozen=True):
    name: str
    subject: str
    version: int


class Given(msgspec.Struct, frozen=True):
    """A definition as clients send it. What else they send, such as metadata and rules, is not kept."""

    schema: str
    schemaType: str = "AVRO"  # noqa: N815  as it is on the wire
    references: list[GivenReference] | None = None

    @property
    def links(self) -> tuple[Link, ...]:
        return tuple(Link(each.name, each.subject, each.version) for each in self.references or ())


class GivenLevel(msgspec.Struct, frozen=True):
    compatibility: str


_Body = TypeVar("_Body", Given, GivenLevel)


@dataclass(frozen=True, slots=True)
class Call:
    broker: Broker
    principal: Principal
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes

    @property
    def subject(self) -> str:
        return self.path["subject"]

    def versions(self, *, deleted: bool | None = None) -> list[SchemaVersion]:
        """The versions of the subject, with those that are soft-deleted if the query or the caller asks for them.

        Raises RegistryError for a subject without such versions.
        """
        deleted = self.is_set("deleted") if deleted is None else deleted
        versions = list(self.broker.schemas.versions(self.principal, self.subject, deleted=deleted))
        if not versions:
            self._check_known()
            raise subject_not_found(self.subject)
        return versions

    def _check_known(self) -> None:
        """Raises AccessDenied if the caller may not know whether there is such a subject."""
        with suppress(SchemaNotFound):
            self.broker.schemas.get(self.principal, self.subject)

    def version(self, *, deleted: bool | None = None) -> SchemaVersion:
        versions, text = self.versions(deleted=deleted), self.path["version"]
        if text in ("latest", "-1"):
            return versions[-1]
        number = parse_version(text)
        if number is None:
            raise RegistryError(
                42202,
                f"The specified version '{text[:50]}' is not a valid version id: use a number from 1 on, or latest",
            )
        found = next((each for each in versions if each.version == number), None)
        if found is None:
            raise version_not_found(text)
        return found

    def given(self) -> Given:
        given = self._decoded(Given)
        if given.schemaType not in TYPES:
            raise RegistryError(42201, f"Schema type {given.schemaType[:50]!r} is not known: use {', '.join(TYPES)}")
        if any(each.version < 1 for each in given.references or ()):
            raise RegistryError(42201, "A reference names a version of a subject: use a number from 1 on")
        return given

    def level(self) -> str:
        level = self._decoded(GivenLevel).compatibility.upper()
        if level not in LEVELS:
            raise RegistryError(
                42203,
                f"Invalid compatibility level {level[:50]!r}: use {', '.join(LEVELS)}",
            )
        return level

    def _decoded(self, kind: type[_Body]) -> _Body:
        try:
            return msgspec.json.decode(self.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RegistryError(42201, f"The body cannot be read: {error}") from None

    def is_set(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"


Handler = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    right: Declaration
    """What the operation of the broker asks the access policy for."""
    handler: Handler


ROUTES: Final[list[Route]] = []


def route(method: str, path: str, asks: Any) -> Callable[[Handler], Handler]:
    """Declare what answers a request. `asks` is the operation of the broker that is called, or a Declaration."""

    def declare(handler: Handler) -> Handler:
        ROUTES.append(Route(method, path, asks if isinstance(asks, Declaration) else asks.declaration, handler))
        return handler

    return declare


class RegistryApi(Application):
    """The ASGI application below `/registry`."""

    def __init__(self, broker: Broker, door: Door) -> None:
        self._broker = broker
        self._door = door
        self._routes = Routes((each.method, each.path, each) for each in ROUTES)

    async def _respond(self, request: HttpRequest) -> Response:
        try:
            caller = await self._door.admit(request)
            path = request.scope["raw_path"].decode("ascii", "replace").removeprefix(PREFIX)
            found, parameters = self._routes.find(request.method, path)
            request.scope[ROUTE] = PREFIX + found.path
            body = await read_body(request, caller, self._door.limits)
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if request.method in ("POST", "PUT") and kind not in BODY_TYPES:
                raise HttpProblem(
                    HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "not_json", f"the body must be JSON: send it as {CONTENT_TYPE}"
                )
            query = dict(parse_qsl(request.url.query))
            answer = await found.handler(Call(self._broker, caller.principal, parameters, query, body))
        except RegistryError as refusal:
            return _refused(int(str(refusal.code)[:3]), refusal.code, str(refusal))
        except HttpProblem as refusal:
            return _refused(refusal.status, refusal.status, str(refusal), refusal.headers)
        except PenstockError as error:
            return _refused(*_status_and_code(error), error.message)
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)  # which nobody reads
        except Exception:
            log.exception("registry_request_failed", method=request.method, path=request.url.path)
            return _refused(500, 50001, "the broker could not answer because of a bug: its log has the details")
        return Response(msgspec.json.encode(answer), media_type=CONTENT_TYPE)


def _refused(status: int, code: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    content = msgspec.json.encode({"error_code": int(code), "message": message})
    return Response(content, status, dict(headers or {}), media_type=CONTENT_TYPE)


def _status_and_code(error: PenstockError) -> tuple[int, int]:
    if isinstance(error, IncompatibleSchema):
        return 409, 409
    if isinstance(error, SchemaInvalid):
        return 422, 42201
    if isinstance(error, SchemaNotFound):
        return 404, 40403
    if isinstance(error, InvalidRequest):
        return 422, 42208
    status = status_of(type(error))
    return status, {401: 40101, 403: 40301, 500: 50001}.get(status, int(status))


# --- subjects and versions ---


def _shown(version: SchemaVersion, text: str) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "subject": version.name,
        "version": version.version,
        "id": version.registry_id,
        "schema": text,
    }
    shown |= _references(version.links)
    # Clients take a definition without a type for Avro.
    return shown if version.type == "avro" else {**shown, "schemaType": version.type.upper()}


def _references(links: Iterable[Link]) -> dict[str, Any]:
    shown = [{"name": each.name, "subject": each.schema, "version": each.version} for each in links]
    return {"references": shown} if shown else {}


def _text(call: Call, version: SchemaVersion) -> str:
    if version.type == "protobuf" and call.query.get("format") == "serialized":
        return base64.b64encode(
            own_descriptor(call.broker.schemas.form(call.principal, version.name, version.version))
        ).decode()
    return version.given


@route("GET", "/subjects", Schemas.versions)
async def list_subjects(call: Call) -> list[str]:
    prefix = call.query.get("subjectPrefix", "")
    versions = call.broker.schemas.versions(call.principal, deleted=call.is_set("deleted"))
    names = dict.fromkeys(each.name for each in versions if each.deleted or not call.is_set("deletedOnly"))
    return [name for name in names if name.startswith(prefix)]


@route("GET", "/subjects/{subject}/versions", Schemas.get)
async def list_versions(call: Call) -> list[int]:
    return [each.version for each in call.versions()]


@route("POST", "/subjects/{subject}/versions", Schemas.register)
async def register(call: Call) -> dict[str, Any]:
    given = call.given()
    version = await call.broker.schemas.register(
        call.principal, call.subject, given.schemaType.lower(), given.schema, links=given.links
    )
    return {
        "id": version.registry_id,
        "version": version.version,
        "schema": given.schema,
        "schemaType": given.schemaType,
        **_references(given.links),
    }


@route("POST", "/subjects/{subject}", Schemas.find)
async def find(call: Call) -> dict[str, Any]:
    given = call.given()
    try:
        version = await call.broker.schemas.find(
            call.principal, call.subject, given.schemaType.lower(), given.schema, given.links
        )
    except SchemaNotFound:
        call.versions()
        raise RegistryError(40403, "Schema not found") from None
    return _shown(version, _text(call, version))


@route("DELETE", "/subjects/{subject}", Schemas.delete)
async def delete_subject(call: Call) -> list[int]:
    versions, permanent = call.versions(deleted=True), call.is_set("permanent")
    live = [each.version for each in versions if not each.deleted]
    if permanent and live:
        raise RegistryError(40405, f"Subject '{call.subject}' was not deleted first before being permanently deleted")
    if not permanent and not live:
        raise RegistryError(
            40404, f"Subject '{call.subject}' was soft deleted.Set permanent=true to delete permanently"
        )
    _check_not_referred_to(call, versions)
    await call.broker.schemas.delete(call.principal, call.subject, soft=not permanent)
    return [each.version for each in versions] if permanent else live


@route("GET", "/subjects/{subject}/versions/{version}", Schemas.get)
async def get_version(call: Call) -> dict[str, Any]:
    version = call.version()
    return _shown(version, _text(call, version))


@route("GET", "/subjects/{subject}/versions/{version}/schema", Schemas.get)
async def get_text(call: Call) -> Any:
    version = call.version()
    return msgspec.Raw(version.given.encode()) if version.type != "protobuf" else _text(call, version)


@route("GET", "/subjects/{subject}/versions/{version}/referencedby", Schemas.get)
async def referenced_by(call: Call) -> list[int]:
    version = call.version()
    referrers = call.broker.schemas.referrers(call.principal, version.name, version.version)
    return sorted({each.registry_id for each in referrers})


def _check_not_referred_to(call: Call, versions: Iterable[SchemaVersion]) -> None:
    """Raises RegistryError for versions that others refer to."""
    for version in versions:
        if any(
            each.name != version.name
            for each in call.broker.schemas.referrers(call.principal, version.name, version.version)
        ):
            raise RegistryError(
                42206,
                f"One or more references exist to the schema {{subject={version.name},version={version.version}}}.",
            )


@route("DELETE", "/subjects/{subject}/versions/{version}", Schemas.delete)
async def delete_version(call: Call) -> int:
    permanent = call.is_set("permanent")
    latest = call.path["version"] in ("latest", "-1")
    version = call.version(deleted=not latest)
    place = f"Subject '{call.subject}' Version {version.version}"
    if permanent and not version.deleted:
        raise RegistryError(40407, f"{place} was not deleted first before being permanently deleted")
    if not permanent and version.deleted:
        raise RegistryError(40406, f"{place} was soft deleted.Set permanent=true to delete permanently")
    _check_not_referred_to(call, [version])
    await call.broker.schemas.delete(call.principal, call.subject, version.version, soft=not permanent)
    return version.version


# --- ids ---


def _with_id(call: Call) -> list[SchemaVersion]:
    text = call.path["id"]
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise RegistryError(40403, f"Schema {text[:50]} not found")
    try:
        return call.broker.schemas.with_id(call.principal, int(text))
    except SchemaNotFound:
        raise RegistryError(40403, f"Schema {text} not found") from None


@route("GET", "/schemas/ids/{id}", Schemas.with_id)
async def get_by_id(call: Call) -> dict[str, Any]:
    version = _with_id(call)[0]
    shown = _shown(version, _text(call, version))
    return {name: shown[name] for name in ("schema", "schemaType", "references") if name in shown}


@route("GET", "/schemas/ids/{id}/schema", Schemas.with_id)
async def get_text_by_id(call: Call) -> Any:
    version = _with_id(call)[0]
    return msgspec.Raw(version.given.encode()) if version.type != "protobuf" else _text(call, version)


@route("GET", "/schemas/ids/{id}/subjects", Schemas.with_id)
async def subjects_of_id(call: Call) -> list[str]:
    return list(dict.fromkeys(each.name for each in _with_id(call)))


@route("GET", "/schemas/ids/{id}/versions", Schemas.with_id)
async def versions_of_id(call: Call) -> list[dict[str, Any]]:
    return [{"subject": each.name, "version": each.version} for each in _with_id(call)]


@route("GET", "/schemas/types", DESCRIBE_BROKER)
async def list_types(call: Call) -> list[str]:
    authorize(call.broker.access, call.principal, Operation.DESCRIBE, BROKER)
    return list(TYPES)


# --- compatibility, configuration and mode ---


async def _check(call: Call, version: int) -> dict[str, Any]:
    given = call.given()
    problems = await call.broker.schemas.check(
        call.principal, call.subject, given.schemaType.lower(), given.schema, version=version, links=given.links
    )
    answer: dict[str, Any] = {"is_compatible": not problems}
    return {**answer, "messages": problems} if call.is_set("verbose") else answer


@route("POST", "/compatibility/subjects/{subject}/versions/{version}", Schemas.check)
async def check_version(call: Call) -> dict[str, Any]:
    latest = call.path["version"] in ("latest", "-1")
    return await _check(call, LATEST if latest else call.version().version)


@route("POST", "/compatibility/subjects/{subject}/versions", Schemas.check)
async def check_latest(call: Call) -> dict[str, Any]:
    return await _check(call, LATEST)


@route("GET", "/config", DESCRIBE_BROKER)
async def get_config(call: Call) -> dict[str, str]:
    authorize(call.broker.access, call.principal, Operation.DESCRIBE, BROKER)
    return {"compatibilityLevel": COMPATIBILITY_DEFAULT.upper()}


@route("PUT", "/config", ADMIN_BROKER)
async def set_config(call: Call) -> dict[str, str]:
    authorize(call.broker.access, call.principal, Operation.ADMIN, BROKER)
    level = call.level()
    if level != COMPATIBILITY_DEFAULT.upper():
        raise RegistryError(
            42205, f"The global compatibility level stays {COMPATIBILITY_DEFAULT.upper()}: set that of a subject"
        )
    return {"compatibility": level}


@route("GET", "/config/{subject}", Schemas.compatibility)
async def get_subject_config(call: Call) -> dict[str, str]:
    level = call.broker.schemas.compatibility(call.principal, call.subject)
    if level is None and not call.is_set("defaultToGlobal"):
        raise RegistryError(40408, f"Subject '{call.subject}' does not have subject-level compatibility configured")
    return {"compatibilityLevel": (level or COMPATIBILITY_DEFAULT).upper()}


@route("PUT", "/config/{subject}", Schemas.set_compatibility)
async def set_subject_config(call: Call) -> dict[str, str]:
    level = call.level()
    await call.broker.schemas.set_compatibility(call.principal, call.subject, level.lower())
    return {"compatibility": level}


@route("DELETE", "/config/{subject}", Schemas.set_compatibility)
async def delete_subject_config(call: Call) -> dict[str, str]:
    before = call.broker.schemas.compatibility(call.principal, call.subject)
    if before is None:
        raise subject_not_found(call.subject)
    await call.broker.schemas.set_compatibility(call.principal, call.subject, COMPATIBILITY_DEFAULT)
    return {"compatibilityLevel": before.upper()}


@route("GET", "/mode", DESCRIBE_BROKER)
@route("GET", "/mode/{subject}", DESCRIBE_BROKER)
async def get_mode(call: Call) -> dict[str, str]:
    authorize(call.broker.access, call.principal, Operation.DESCRIBE, BROKER)
    return {"mode": MODE}


@route("PUT", "/mode", ADMIN_BROKER)
@route("PUT", "/mode/{subject}", ADMIN_BROKER)
async def set_mode(call: Call) -> dict[str, str]:
    authorize(call.broker.access, call.principal, Operation.ADMIN, BROKER)
    raise RegistryError(42205, f"The mode stays {MODE}: this registry has no other")
