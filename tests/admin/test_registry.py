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
        (lambda client: client.set_compatibility("known-value", "SIDEWAYS"), (422, 42203)),
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


def test_versions_and_subjects_are_deleted_softly_and_then_for_good(client: SchemaRegistryClient) -> None:
    first = client.register_schema("gone-value", Schema(FIRST, "AVRO"))
    client.register_schema("gone-value", Schema(WITH_DEFAULT, "AVRO"))
    assert refusal(lambda: client.delete_version("gone-value", 1, permanent=True)) == (404, 40407)
    assert client.delete_version("gone-value", 1) == 1
    assert refusal(lambda: client.delete_version("gone-value", 1)) == (404, 40406)
    assert client.get_versions("gone-value") == [2]
    assert client.get_versions("gone-value", deleted=True) == [1, 2]
    assert refusal(lambda: client.get_version("gone-value", 1)) == (404, 40402)
    assert client.get_version("gone-value", 1, deleted=True).schema_id == first
    assert client.get_schema(first).schema_str == FIRST  # readers of its records still find it
    assert client.delete_version("gone-value", 1, permanent=True) == 1
    assert client.get_versions("gone-value", deleted=True) == [2]

    assert refusal(lambda: client.delete_subject("gone-value", permanent=True)) == (404, 40405)
    assert client.delete_subject("gone-value") == [2]
    assert refusal(lambda: client.delete_subject("gone-value")) == (404, 40404)
    assert "gone-value" not in client.get_subjects()
    assert "gone-value" in client.get_subjects(deleted=True)
    assert refusal(lambda: client.get_versions("gone-value")) == (404, 40401)
    client.delete_subject("gone-value", permanent=True)
    assert "gone-value" not in client.get_subjects(deleted=True)
    assert refusal(lambda: client.get_versions("gone-value", deleted=True)) == (404, 40401)


def test_a_schema_that_comes_back_after_a_soft_deletion_has_its_id_and_a_new_version(ask: Asking) -> None:
    address = f"http://{ask.broker.addresses['admin']}{PREFIX}"
    with SchemaRegistryClient({"url": address}) as client:
        first = client.register_schema("back-value", Schema(FIRST, "AVRO"))
        client.delete_subject("back-value")
    with SchemaRegistryClient({"url": address}) as client:  # with an empty cache
        assert client.register_schema("back-value", Schema(FIRST, "AVRO")) == first
        assert client.get_versions("back-value", deleted=True) == [1, 2]
        assert client.get_latest_version("back-value").version == 2
        assert client.get_versions("back-value") == [2]


def test_records_of_a_soft_deleted_version_are_still_read(ask: Asking, client: SchemaRegistryClient) -> None:
    client.register_schema("kept-value", Schema(FIRST, "AVRO"))
    context = SerializationContext("kept", MessageField.VALUE)
    written = AvroSerializer(client, FIRST, conf={"auto.register.schemas": False})({"id": 7}, context)
    client.register_schema("kept-value", Schema(WITH_DEFAULT, "AVRO"))
    api = Asking(ask.broker, opened=ask.opened)
    api.ok("POST", "/topics", {"name": "kept", "schema": "kept-value"})
    value = base64.b64encode(written).decode()
    api.ok("POST", "/topics/kept/records", {"records": [{"value_base64": value}]})
    client.delete_version("kept-value", 1)
    [record] = api.ok("GET", "/topics/kept/records")["records"]
    assert (record["decoded"], record["schema"], record["fault"]) == ({"id": 7}, "kept-value:1", None)
    assert api("PUT", "/topics/kept/schema", {"schema": "kept-value:1"}).code == "schema_not_found"
    assert refusal(lambda: client.delete_subject("kept-value")) == (422, 42208)  # the topic is bound to it


ADDRESS = json.dumps(
    {"type": "record", "name": "Address", "namespace": "shop", "fields": [{"name": "city", "type": "string"}]}
)
CUSTOMER = json.dumps(
    {
        "type": "record",
        "name": "Customer",
        "namespace": "shop",
        "fields": [{"name": "home", "type": "Address"}, {"name": "work", "type": ["null", "shop.Address"]}],
    }
)


def test_avro_with_references_goes_out_and_comes_back(ask: Asking, client: SchemaRegistryClient) -> None:
    client.register_schema("address", Schema(ADDRESS, "AVRO"))
    reference = SchemaReference("shop.Address", "address", 1)
    schema = Schema(CUSTOMER, "AVRO", [reference])
    context = SerializationContext("customers", MessageField.VALUE)
    customer = {"home": {"city": "Oslo"}, "work": None}
    written = AvroSerializer(client, schema)(customer, context)
    assert AvroDeserializer(client)(written, context) == customer
    found = client.get_latest_version("customers-value")
    assert (found.schema.schema_str, found.schema.references) == (CUSTOMER, [reference])
    assert client.lookup_schema("customers-value", schema).schema_id == found.schema_id
    assert client.get_schema(found.schema_id).references == [reference]  # type: ignore[arg-type]
    assert client.get_referenced_by("address", 1) == [found.schema_id]

    assert refusal(lambda: client.delete_subject("address")) == (422, 42206)
    assert refusal(lambda: client.delete_version("address", 1)) == (422, 42206)
    api = Asking(ask.broker, opened=ask.opened)
    assert api("DELETE", "/schemas/address").code == "invalid_request"
    assert "city" in api.ok("GET", "/schemas/customers-value")[0]["definition"]  # which needs no other
    api.ok("POST", "/topics", {"name": "customers", "schema": "customers-value"})
    api.ok("POST", "/topics/customers/records", {"records": [{"value_base64": base64.b64encode(written).decode()}]})
    [record] = api.ok("GET", "/topics/customers/records")["records"]
    assert record["decoded"] == customer
    api.ok("DELETE", "/topics/customers")
    client.delete_subject("customers-value")
    client.delete_subject("customers-value", permanent=True)
    assert client.delete_subject("address") == [1]


def test_json_with_references_goes_out_and_comes_back(client: SchemaRegistryClient) -> None:
    city = json.dumps({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
    client.register_schema("city", Schema(city, "JSON"))
    order = json.dumps({"title": "Order", "type": "object", "properties": {"to": {"$ref": "city.json"}}})
    schema = Schema(order, "JSON", [SchemaReference("city.json", "city", 1)])
    context = SerializationContext("parcels", MessageField.VALUE)
    written = JSONSerializer(schema, client)({"to": {"name": "Oslo"}}, context)
    read = JSONDeserializer(None, schema_registry_client=client)(written, context)
    assert read == {"to": {"name": "Oslo"}}
    closed = Schema(json.dumps({**json.loads(order), "required": ["to"]}), "JSON", schema.references)
    assert not client.test_compatibility("parcels-value", closed)


PROTO_REFERENCE = SchemaReference("x.proto", "other-proto", 1)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (Schema(CUSTOMER, "AVRO", [SchemaReference("shop.Address", "missing", 1)]), "schema not found: missing"),
        (Schema(CUSTOMER, "AVRO", [SchemaReference("shop.Address", "other-kind", 1)]), "other-kind is json"),
        (Schema(CUSTOMER, "AVRO", [SchemaReference("shop.Address", "other-kind", 0)]), "from 1 on"),
        (Schema(CUSTOMER, "AVRO"), "unknown type shop.Address"),
        (
            Schema('syntax = "proto3"; import "y.proto"; message A { M m = 1; }', "PROTOBUF", [PROTO_REFERENCE]),
            "y.proto",
        ),
        (Schema("message A {}", "PROTOBUF", [SchemaReference("schema.proto", "other-proto", 1)]), "another one"),
    ],
)
def test_references_that_lead_nowhere_are_refused(client: SchemaRegistryClient, schema: Schema, words: str) -> None:
    client.register_schema("other-kind", Schema(JSON_SCHEMA, "JSON"))
    client.register_schema("other-proto", Schema('syntax = "proto3"; message M { int32 a = 1; }', "PROTOBUF"))
    with pytest.raises(SchemaRegistryError, match=words) as caught:
        client.register_schema("nowhere-value", schema)
    assert (caught.value.http_status_code, caught.value.error_code) == (422, 42201)


ADDED = [{"name": "id", "type": "long"}, {"name": "who", "type": "string", "default": ""}]
OTHER = [{"name": "id", "type": "long"}, {"name": "who", "type": "long"}]


def avro(fields: list[dict[str, str]]) -> Schema:
    return Schema(json.dumps({"type": "record", "name": "Order", "fields": fields}), "AVRO")


@pytest.mark.parametrize("transitive", [True, False])
def test_a_transitive_level_compares_with_every_version(client: SchemaRegistryClient, transitive: bool) -> None:
    subject = f"transitive-{transitive}-value"
    level = "FORWARD_TRANSITIVE" if transitive else "FORWARD"
    client.set_compatibility(subject, level)
    assert client.get_compatibility(subject) == level
    client.register_schema(subject, avro(ADDED))
    client.register_schema(subject, avro(ADDED[:1]))
    # Readers of the version before ignore the field, and those of the first find another type in it.
    assert client.test_compatibility(subject, avro(OTHER)) is not transitive
    if transitive:
        assert refusal(lambda: client.register_schema(subject, avro(OTHER))) == (409, 409)
        assert client.delete_version(subject, 1) == 1
    assert client.test_compatibility(subject, avro(OTHER))  # what is deleted does not count
    client.register_schema(subject, avro(OTHER))


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


COUNTRY = 'syntax = "proto3"; package shop; enum Country { UNKNOWN = 0; FR = 1; }'
ADDRESS_FILE = (
    'syntax = "proto3"; package shop; import "country.proto"; message Address { string city = 1; Country in = 2; }'
)
PARCEL = """syntax = "proto3"; package shop; import "shop/address.proto"; import "google/protobuf/timestamp.proto";
message Parcel { Address to = 1; google.protobuf.Timestamp at = 2; int64 id = 3; }"""


def parcel_class() -> Any:
    """A message with one of another file, which has an enum of a third, as a compiler makes them."""
    country = descriptor_pb2.FileDescriptorProto(name="country.proto", package="shop", syntax="proto3")
    country.enum_type.add(name="Country").value.add(name="UNKNOWN", number=0)
    country.enum_type[0].value.add(name="FR", number=1)
    address = descriptor_pb2.FileDescriptorProto(name="shop/address.proto", package="shop", syntax="proto3")
    address.dependency.append("country.proto")
    message = address.message_type.add(name="Address")
    message.field.add(name="city", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
    message.field.add(name="in", number=2, type="TYPE_ENUM", type_name=".shop.Country", label="LABEL_OPTIONAL")
    parcel = descriptor_pb2.FileDescriptorProto(name="parcel.proto", package="shop", syntax="proto3")
    parcel.dependency.extend(["shop/address.proto", "google/protobuf/timestamp.proto"])
    message = parcel.message_type.add(name="Parcel")
    message.field.add(name="to", number=1, type="TYPE_MESSAGE", type_name=".shop.Address", label="LABEL_OPTIONAL")
    stamp = ".google.protobuf.Timestamp"
    message.field.add(name="at", number=2, type="TYPE_MESSAGE", type_name=stamp, label="LABEL_OPTIONAL")
    message.field.add(name="id", number=3, type="TYPE_INT64", label="LABEL_OPTIONAL")
    pool = DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    for file in (country, address, parcel):
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("shop.Parcel"))


def test_the_serializer_registers_what_a_protobuf_message_imports(client: SchemaRegistryClient) -> None:
    context = SerializationContext("proto-parcels", MessageField.VALUE)
    parcel = parcel_class()
    sent = parcel(id=7)
    sent.to.city = "Lyon"
    written = ProtobufSerializer(parcel, client, {"use.deprecated.format": False})(sent, context)
    read = ProtobufDeserializer(parcel, {"use.deprecated.format": False}, client)(written, context)
    assert (read.id, read.to.city) == (7, "Lyon")
    registered = client.get_latest_version("proto-parcels-value")
    assert registered.schema.references == [SchemaReference("shop/address.proto", "shop/address.proto", 1)]
    address = client.get_latest_version("shop/address.proto")
    assert address.schema.references == [SchemaReference("country.proto", "country.proto", 1)]
    assert client.get_referenced_by("shop/address.proto", 1) == [registered.schema_id]
    refused = refusal(lambda: client.delete_version("shop/address.proto", 1))
    assert refused == (422, 42206)
    serialized = client.get_schema(registered.schema_id, fmt="serialized").schema_str  # type: ignore[arg-type]
    assert serialized is not None
    descriptor = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(serialized))
    assert [*descriptor.dependency] == ["shop/address.proto", "google/protobuf/timestamp.proto"]


def test_protobuf_in_words_with_references_is_the_definition_that_a_serializer_sends(
    client: SchemaRegistryClient,
) -> None:
    """Two clients, one with text and one with descriptors, mean one schema; later versions are compared through what they import."""
    client.register_schema("words/country", Schema(COUNTRY, "PROTOBUF"))
    to_country = [SchemaReference("country.proto", "words/country", 1)]
    client.register_schema("words/address", Schema(ADDRESS_FILE, "PROTOBUF", to_country))
    schema = Schema(PARCEL, "PROTOBUF", [SchemaReference("shop/address.proto", "words/address", 1)])
    number = client.register_schema("words-value", schema)
    assert client.get_latest_version("words-value").schema.schema_str == PARCEL
    parcel = parcel_class()
    serializer = ProtobufSerializer(parcel, client, {"use.deprecated.format": False})
    serializer(parcel(id=1), SerializationContext("descriptors", MessageField.VALUE))
    assert client.get_latest_version("descriptors-value").schema_id == number
    changed = ADDRESS_FILE.replace("string city", "int64 city")
    client.register_schema("words/other", Schema(changed, "PROTOBUF", to_country))
    later = Schema(PARCEL, "PROTOBUF", [SchemaReference("shop/address.proto", "words/other", 1)])
    assert refusal(lambda: client.register_schema("words-value", later)) == (409, 409)


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


@pytest.mark.parametrize("version", ["00000000001" + "9" * 5000, "9" * 5000, "%C2%B2", "0", "newest"])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_version_that_is_no_number_is_refused_and_no_bug(ask: Asking, method: str, version: str) -> None:
    ask.ok("POST", "/subjects/numbered/versions", {"schema": FIRST})
    for subject in ("numbered", "missing"):
        answer = ask(method, f"/subjects/{subject}/versions/{version}?permanent=true")
        assert answer.status in (404, 422), answer.content
