"""The registry's REST API with Confluent's own client, serializers and deserializers, for Avro, JSON Schema and Protobuf."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from penstock.admin.registry import PREFIX, ROUTES, Route
from penstock.broker.access.checks import SYSTEM, Operation, Principal, Resource, ResourceKind, is_allowed
from tests.admin.api.asking import LOGIN_REQUIRED, Asking, asking, new_key, on_loop

FIRST = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
WITH_DEFAULT = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": "string", "default": ""}],
    }
)
INCOMPATIBLE = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]})
JSON_SCHEMA = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}})
ORDERS = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture(scope="module")
def ask() -> Iterator[Asking]:
    with asking(prefix=PREFIX) as found:
        yield found


@pytest.fixture
def client(ask: Asking) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": f"http://{ask.broker.addresses['admin']}{PREFIX}"}) as found:
        yield found


def refusal(action: Any) -> tuple[int, int]:
    with pytest.raises(SchemaRegistryError) as caught:
        action()
    return caught.value.http_status_code, caught.value.error_code


def test_a_schema_is_registered_fetched_and_evolved(client: SchemaRegistryClient) -> None:
    first = client.register_schema("evolving-value", Schema(FIRST, "AVRO"))
    assert client.register_schema("evolving-value", Schema(FIRST, "AVRO")) == first
    assert json.loads(client.get_schema(first).schema_str or "") == json.loads(FIRST)
    second = client.register_schema("evolving-value", Schema(WITH_DEFAULT, "AVRO"))
    assert second != first
    latest = client.get_latest_version("evolving-value")
    assert (latest.version, latest.schema_id, latest.subject) == (2, second, "evolving-value")
    assert client.get_versions("evolving-value") == [1, 2]
    assert client.get_version("evolving-value", 1).schema_id == first
    found = client.lookup_schema("evolving-value", Schema(json.dumps(json.loads(FIRST), indent=2), "AVRO"))
    assert (found.version, found.schema_id) == (1, first)
    assert "evolving-value" in client.get_subjects()


def test_one_definition_has_one_id_whatever_its_subjects(client: SchemaRegistryClient) -> None:
    shared = {client.register_schema(subject, Schema(FIRST, "AVRO")) for subject in ("one-value", "two-value")}
    [schema_id] = shared
    assert {"one-value", "two-value"} <= set(client.get_subjects_by_schema_id(schema_id))
    assert ("one-value", 1) in [(each.subject, each.version) for each in client.get_schema_versions(schema_id)]


def test_what_is_incompatible_is_refused_with_confluents_codes(client: SchemaRegistryClient) -> None:
    client.register_schema("strict-value", Schema(FIRST, "AVRO"))
    assert refusal(lambda: client.register_schema("strict-value", Schema(INCOMPATIBLE, "AVRO"))) == (409, 409)
    assert client.test_compatibility("strict-value", Schema(INCOMPATIBLE, "AVRO")) is False
    assert client.test_compatibility("strict-value", Schema(WITH_DEFAULT, "AVRO")) is True
    assert client.test_compatibility("strict-value", Schema(WITH_DEFAULT, "AVRO"), version=1) is True
    assert client.test_compatibility_all_versions("strict-value", Schema(INCOMPATIBLE, "AVRO")) is False
    client.set_compatibility("strict-value", "NONE")
    assert client.get_compatibility("strict-value") == "NONE"
    client.register_schema("strict-value", Schema(INCOMPATIBLE, "AVRO"))


@pytest.mark.parametrize(
    ("ask_for", "code"),
    [
        (lambda client: client.get_schema(7), (404, 40403)),
        (lambda client: client.get_latest_version("none"), (404, 40401)),
        (lambda client: client.get_version("known-value", 9), (404, 40402)),
        (lambda client: client.get_version("known-value", "first"), (422, 42202)),
        (lambda client: client.get_compatibility("none"), (404, 40408)),
        (lambda client: client.lookup_schema("known-value", Schema(WITH_DEFAULT, "AVRO")), (404, 40403)),
        (lambda client: client.lookup_schema("none", Schema(FIRST, "AVRO")), (404, 40401)),
        (lambda client: client.register_schema("bad-value", Schema("{", "AVRO")), (422, 42201)),
        (lambda client: client.register_schema("bad-value", Schema(FIRST, "XML")), (422, 42201)),
        (
            lambda client: client.register_schema(
                "bad-value", Schema(FIRST, "AVRO", [SchemaReference("Other", "other", 1)])
            ),
            (422, 42201),
        ),
        (lambda client: client.register_schema(":.context:bad", Schema(FIRST, "AVRO")), (422, 42208)),
        (lambda client: client.set_compatibility("known-value", "FULL_TRANSITIVE"), (422, 42203)),
        (lambda client: client.set_compatibility(None, "FULL"), (422, 42205)),
        (lambda client: client.update_mode("known-value", "READONLY"), (422, 42205)),
        (lambda client: client.delete_subject("none"), (404, 40401)),
    ],
)
def test_refusals_have_the_codes_that_clients_know(
    client: SchemaRegistryClient, ask_for: Any, code: tuple[int, int]
) -> None:
    client.register_schema("known-value", Schema(FIRST, "AVRO"))
    assert refusal(lambda: ask_for(client)) == code


def test_configuration_mode_and_types_are_told(client: SchemaRegistryClient) -> None:
    assert client.get_compatibility() == "BACKWARD"
    assert client.set_compatibility(None, "BACKWARD")
    assert (client.get_global_mode(), client.get_mode("any")) == ("READWRITE", "READWRITE")
    assert sorted(client.get_schema_types()) == ["AVRO", "JSON", "PROTOBUF"]
    client.set_compatibility("configured-value", "FULL")
    assert client.get_compatibility("configured-value") == "FULL"
    client.delete_config("configured-value")
    assert client.get_compatibility("configured-value") == "BACKWARD"


def test_versions_and_subjects_are_deleted(client: SchemaRegistryClient) -> None:
    client.register_schema("gone-value", Schema(FIRST, "AVRO"))
    client.register_schema("gone-value", Schema(WITH_DEFAULT, "AVRO"))
    assert client.delete_version("gone-value", 1) == 1
    assert client.delete_version("gone-value", 1, permanent=True) == 1
    assert client.get_versions("gone-value") == [2]
    assert client.delete_subject("gone-value") == [2]
    client.delete_subject("gone-value", permanent=True)
    assert "gone-value" not in client.get_subjects()


def test_avro_goes_out_and_comes_back(client: SchemaRegistryClient) -> None:
    written = AvroSerializer(client, WITH_DEFAULT)({"id": 7, "who": "ann"}, ORDERS)
    assert AvroDeserializer(client)(written, ORDERS) == {"id": 7, "who": "ann"}
    assert AvroDeserializer(client, FIRST)(written, ORDERS) == {"id": 7}


def test_json_goes_out_and_comes_back(client: SchemaRegistryClient) -> None:
    context = SerializationContext("json-orders", MessageField.VALUE)
    written = JSONSerializer(JSON_SCHEMA, client)({"id": 7}, context)
    assert JSONDeserializer(None, schema_registry_client=client)(written, context) == {"id": 7}
    assert client.get_latest_version("json-orders-value").schema.schema_type == "JSON"


def order_class() -> Any:
    """A message with one of the well-known types, from a descriptor that no compiler has seen."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type="TYPE_INT64", label="LABEL_OPTIONAL")
    message.field.add(
        name="at", number=2, type="TYPE_MESSAGE", type_name=".google.protobuf.Timestamp", label="LABEL_OPTIONAL"
    )
    pool = DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def test_protobuf_goes_out_and_comes_back(client: SchemaRegistryClient) -> None:
    context = SerializationContext("proto-orders", MessageField.VALUE)
    order = order_class()
    serializer = ProtobufSerializer(order, client, {"use.deprecated.format": False})
    sent = order(id=7)
    sent.at.seconds = 9
    written = serializer(sent, context)
    read = ProtobufDeserializer(order, {"use.deprecated.format": False}, client)(written, context)
    assert (read.id, read.at.seconds) == (7, 9)


def test_protobuf_as_text_and_as_a_descriptor_is_one_definition(client: SchemaRegistryClient) -> None:
    text = 'syntax = "proto3"; message Item { int64 id = 1; }'
    first = client.register_schema("item-value", Schema(text, "PROTOBUF"))
    serialized = client.get_schema(first, fmt="serialized").schema_str
    assert serialized is not None
    descriptor = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(serialized))
    assert descriptor.message_type[0].name == "Item"
    assert client.register_schema("other-value", Schema(serialized, "PROTOBUF")) == first
    grown = Schema('syntax = "proto3"; message Item { string id = 1; }', "PROTOBUF")
    assert refusal(lambda: client.register_schema("item-value", grown)) == (409, 409)


def test_framed_records_are_decoded_by_the_version_that_wrote_them(client: SchemaRegistryClient, ask: Asking) -> None:
    context = SerializationContext("framed", MessageField.VALUE)
    written = [
        AvroSerializer(client, FIRST)({"id": 1}, context),
        AvroSerializer(client, WITH_DEFAULT)({"id": 2, "who": "ann"}, context),
    ]
    api = Asking(ask.broker, opened=ask.opened)
    api.ok("POST", "/topics", {"name": "framed"})
    records = [{"value_base64": base64.b64encode(value or b"").decode()} for value in written]
    api.ok("POST", "/topics/framed/records", {"records": records})
    api.ok("PUT", "/topics/framed/schema", {"schema": "framed-value"})
    shown = api.ok("GET", "/topics/framed/records")["records"]
    assert [(each["decoded"], each["schema"]) for each in shown] == [
        ({"id": 1}, "framed-value:1"),
        ({"id": 2, "who": "ann"}, "framed-value:2"),
    ]


def test_a_client_logs_in_with_a_password_or_a_key() -> None:
    with asking(listeners=LOGIN_REQUIRED) as ask:
        broker = ask.broker.server.broker
        on_loop(ask.broker, broker.users.create_user(SYSTEM, "ann", "secret", ["admin"]))
        url = f"http://{ask.broker.addresses['admin']}{PREFIX}"
        with SchemaRegistryClient({"url": url, "basic.auth.user.info": "ann:secret"}) as client:
            client.register_schema("orders-value", Schema(FIRST, "AVRO"))
        key = new_key(ask.broker, "reader", "consumer")
        bearer = {
            "bearer.auth.credentials.source": "STATIC_TOKEN",
            "bearer.auth.token": key,
            "bearer.auth.logical.cluster": "lsrc-1",
            "bearer.auth.identity.pool.id": "pool-1",
        }
        with SchemaRegistryClient({"url": url, **bearer}) as client:
            assert client.get_subjects() == ["orders-value"]
            assert refusal(lambda: client.register_schema("orders-value", Schema(WITH_DEFAULT, "AVRO"))) == (403, 40301)
        with SchemaRegistryClient({"url": url}) as client:
            assert refusal(client.get_subjects) == (401, 40101)


# --- access, as for the admin API ---

BODIES = {
    "register": {"schema": FIRST},
    "find": {"schema": FIRST},
    "check_version": {"schema": FIRST},
    "check_latest": {"schema": FIRST},
    "set_config": {"compatibility": "BACKWARD"},
    "set_subject_config": {"compatibility": "FULL"},
    "set_mode": {"mode": "READWRITE"},
}
ONLY = {f"only-{operation.value}": operation for operation in Operation}
VALUES = {"{subject}": "subject", "{version}": "latest", "{id}": "1"}


@pytest.fixture(scope="module")
def principals() -> Iterator[tuple[Asking, dict[str, Asking]]]:
    with asking(prefix=PREFIX, listeners=LOGIN_REQUIRED) as ask:
        broker = ask.broker.server.broker
        for role, operation in ONLY.items():
            on_loop(ask.broker, broker.users.set_role(SYSTEM, role, [operation.value]))
        yield ask, {role: ask.with_key(new_key(ask.broker, f"of-{role}", role)) for role in (*ONLY, "guest")}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_route_is_open_to_those_whom_the_policy_allows(
    principals: tuple[Asking, dict[str, Asking]], route: Route
) -> None:
    ask, by_role = principals
    broker, right = ask.broker.server.broker, route.right
    path = "/".join(VALUES.get(part, part) for part in route.path.split("/"))
    body = BODIES.get(route.handler.__name__)
    resource = Resource(right.kind, "" if right.kind is ResourceKind.BROKER else "subject")
    for role, asks in by_role.items():
        principal = Principal(f"key:of-{role}", frozenset({role}))
        on_loop(ask.broker, broker.schemas.register(SYSTEM, "subject", "avro", FIRST))
        answer = asks(route.method, path, body)
        allowed = is_allowed(broker._accounts.rules, principal, right.operation, resource)
        assert (answer.status not in (401, 403)) is allowed, (role, answer)
    assert ask(route.method, path, body).status == 401


def test_a_page_of_another_origin_and_a_form_can_do_nothing(ask: Asking) -> None:
    path = "/subjects"
    assert ask("GET", path, origin="http://evil.example").status == 403
    form = ask("POST", f"{path}/x/versions", b"schema=1", content_type="text/plain")
    assert (form.status, form.json["error_code"]) == (415, 415)
    assert ask("GET", "/nothing").json["error_code"] == 404
    assert ask("PATCH", path).status == 405
    assert ask("POST", f"{path}/x/versions", b"{").json["error_code"] == 42201
