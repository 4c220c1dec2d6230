"""Which schema a topic follows, and which version of it a batch is decoded by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from penstock.admin.registry import PREFIX
from penstock.broker.schemas.reference import parse_reference
from penstock.errors import InvalidRequest, SchemaNotFound
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.pipelines.decoding import decoder
from penstock.spark.pipelines.files import LocalFiles
from penstock.spark.pipelines.schemas import Plans, batch_to_repeat, check_unmarked, check_versions, schema_of
from penstock.testing import RunningBroker

FILES = LocalFiles()
FIRST = '{"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]}'
SECOND = (
    '{"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}, '
    '{"name": "n", "type": "string", "default": ""}]}'
)
THIRD = SECOND.replace('"default": ""', '"default": "none"')


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with RunningBroker(admin=True) as broker:
        yield broker


@pytest.fixture
def client(broker: RunningBroker) -> FlyMQClient:
    client = broker.connect()
    client.create_topic("orders", 1)
    return client


@pytest.fixture
def delete_softly(broker: RunningBroker) -> Iterator[Callable[[str, int], None]]:
    """As a client of the registry does."""
    connection = HTTPConnection(broker.addresses["admin"], timeout=30)

    def delete(name: str, number: int) -> None:
        connection.request("DELETE", f"{PREFIX}/subjects/{name}/versions/{number}")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, str(number).encode())

    yield delete
    connection.close()


def test_a_topic_follows_what_is_named_else_what_it_is_bound_to_else_what_has_its_name(client: FlyMQClient) -> None:
    assert schema_of(client, "orders", {}) is None
    client.schemas.register("orders", "{}")
    assert str(schema_of(client, "orders", {})) == "orders"
    client.schemas.register("order", "{}")
    client.schemas.bind("orders", "order:1")
    assert str(schema_of(client, "orders", {})) == "order:1"
    assert str(schema_of(client, "orders", {"orders": "other:7:shop.Order"})) == "other:7:shop.Order"


def test_each_batch_takes_the_newest_version_and_knows_the_others(client: FlyMQClient, tmp_path: Path) -> None:
    client.schemas.register("orders", FIRST, "avro")
    reference = schema_of(client, "orders", {})
    assert reference is not None
    plans = Plans(client, "orders", reference, FILES, str(tmp_path / "pin.json"))
    assert (plans.newest().version.number, plans.newest().others) == (1, ())
    client.schemas.register("orders", SECOND, "avro")
    newest = plans.newest()
    assert (newest.version.number, [each.number for each in newest.others]) == (2, [1])


def test_a_plan_that_was_written_down_is_found_again_whatever_is_registered_since(
    client: FlyMQClient, tmp_path: Path
) -> None:
    client.schemas.register("orders", 'syntax = "proto3"; message O { int32 id = 1; }', "protobuf")
    reference = schema_of(client, "orders", {})
    assert reference is not None
    pin = tmp_path / "below" / "pin.json"
    plans = Plans(client, "orders", reference, FILES, str(pin))
    assert plans.pinned() is None
    plan = plans.newest()
    assert plan.version.form, "compiled once, on the driver"
    plans.pin(plan)
    written = pin.stat().st_mtime_ns
    plans.pin(plan)
    assert pin.stat().st_mtime_ns == written, "written when it changes, not with every batch"
    client.schemas.delete("orders")
    again = Plans(client, "orders", reference, FILES, str(pin))
    assert again.pinned() == plan
    with pytest.raises(SchemaNotFound):
        again.newest()


@pytest.mark.parametrize(
    ("offsets", "commits", "repeated"),
    [([], [], None), ([0], [], 0), ([0, 1], [0, 1], None), ([9, 10, 11], [9, 10], 11), ([11], [9], 11)],
)
def test_a_batch_that_was_begun_and_not_finished_is_the_one_that_is_repeated(
    tmp_path: Path, offsets: list[int], commits: list[int], repeated: int | None
) -> None:
    for name, numbers in (("offsets", offsets), ("commits", commits)):
        (tmp_path / name).mkdir()
        for number in numbers:
            (tmp_path / name / str(number)).write_text("v1")
        (tmp_path / name / ".0.crc").write_text("")
    assert batch_to_repeat(FILES, str(tmp_path)) == repeated
    assert batch_to_repeat(FILES, str(tmp_path / "nothing")) is None


def test_the_version_that_is_named_gives_the_columns_and_reads_unmarked_records(
    client: FlyMQClient, tmp_path: Path
) -> None:
    for definition in (FIRST, SECOND):
        client.schemas.register("orders", definition, "avro")
    reference = parse_reference("orders:1")
    plan = Plans(client, "orders", reference, FILES, str(tmp_path / "pin.json")).newest()
    assert (plan.version.number, [each.number for each in plan.others], plan.unmarked_version) == (1, [2], 1)
    assert plan.version.registry_id != plan.others[0].registry_id > 0
    latest = Plans(client, "orders", parse_reference("orders"), FILES, str(tmp_path / "pin.json")).newest()
    assert (latest.version.number, latest.unmarked_version) == (2, None)


def test_avro_without_a_mark_may_be_of_a_version_that_was_deleted_since(client: FlyMQClient, tmp_path: Path) -> None:
    client.schemas.register("orders", FIRST, "avro")
    pin = str(tmp_path / "pin.json")
    plans = Plans(client, "orders", parse_reference("orders"), FILES, pin)
    assert plans.newest().unmarked_version == 1
    client.schemas.register("orders", SECOND, "avro")
    client.schemas.delete("orders", 2)
    plan = plans.newest()
    assert (plan.version.number, plan.others, plan.unmarked_version) == (1, (), None)
    plans.pin(plan)
    pinned = Plans(client, "orders", parse_reference("orders"), FILES, pin).pinned()
    assert pinned is not None
    assert pinned.unmarked_version is None
    named = Plans(client, "orders", parse_reference("orders:1"), FILES, pin).newest()
    assert named.unmarked_version == 1, "whoever names a version says which one wrote them"


def test_a_version_that_was_deleted_softly_still_reads_what_it_wrote(
    client: FlyMQClient, delete_softly: Callable[[str, int], None], tmp_path: Path
) -> None:
    for definition in (FIRST, SECOND, THIRD):
        client.schemas.register("orders", definition, "avro")

    def numbers(reference: str) -> tuple[int, list[int]]:
        plan = Plans(client, "orders", parse_reference(reference), FILES, str(tmp_path / "pin.json")).newest()
        return plan.version.number, [each.number for each in plan.others]

    plans = Plans(client, "orders", parse_reference("orders"), FILES, str(tmp_path / "pin.json"))
    for number in (1, 3):
        delete_softly("orders", number)
    assert numbers("orders") == (2, [1, 3]), "the latest is one that is not deleted"
    assert numbers("orders:1") == (1, [2, 3])
    newest = plans.newest()
    assert [each.number for each in newest.others] == [1, 3]
    assert newest.unmarked_version is None
    read = decoder(newest).decode([b"\x0e"], [b"orders:1"])
    assert (read.columns[0].to_pylist(), read.reasons) == ([7], [None])
    check_versions(client, "orders", parse_reference("orders"), "orders:1")
    client.schemas.delete("orders", 1)
    assert [each.number for each in plans.newest().others] == [3], "that was for good"
    delete_softly("orders", 2)
    assert numbers("orders:3") == (3, [2])
    with pytest.raises(SchemaNotFound, match="register it"):
        plans.newest()


def test_a_version_of_another_kind_is_no_part_of_a_plan(client: FlyMQClient, tmp_path: Path) -> None:
    client.schemas.register("orders", "{}", compatibility="none")
    client.schemas.register("orders", FIRST, "avro")
    plan = Plans(client, "orders", parse_reference("orders"), FILES, str(tmp_path / "pin.json")).newest()
    assert (plan.kind, plan.version.number, plan.others, plan.unmarked_version) == ("avro", 2, (), None)


@pytest.mark.parametrize(
    ("reference", "unmarked", "version", "reads"),
    [
        ("orders", "auto", 2, None),
        ("orders", "orders:1", 2, 1),
        ("orders:1", "orders:2", 1, 2),
        ("orders:1", "reject", 1, None),
        ("orders", "read", 2, 2),
    ],
)
def test_unmarked_records_are_read_by_the_version_that_wrote_them_and_a_repeated_batch_does_the_same(
    client: FlyMQClient, tmp_path: Path, reference: str, unmarked: str, version: int, reads: int | None
) -> None:
    for definition in (FIRST, SECOND):
        client.schemas.register("orders", definition, "avro")
    pin = str(tmp_path / "pin.json")
    parsed = parse_reference(reference)
    check_versions(client, "orders", parsed, unmarked)
    plans = Plans(client, "orders", parsed, FILES, pin, unmarked)
    plan = plans.newest()
    assert (plan.version.number, plan.unmarked_version) == (version, reads)
    plans.pin(plan)
    assert Plans(client, "orders", parsed, FILES, pin).pinned() == plan


@pytest.mark.parametrize(
    ("unmarked", "reason"),
    [
        ("payments:1", "unmarked is payments:1, and the schema is orders: name a version of that"),
        ("orders:9", "unmarked is orders:9, which is not there"),
        ("orders:1", "or not of the type of the latest version"),
    ],
)
def test_a_version_that_cannot_have_written_unmarked_records_is_refused(
    client: FlyMQClient, unmarked: str, reason: str
) -> None:
    client.schemas.register("orders", "{}", compatibility="none")
    client.schemas.register("orders", FIRST, "avro")
    reference = parse_reference("orders")
    with pytest.raises((InvalidRequest, SchemaNotFound), match=reason):
        Plans(client, "orders", reference, FILES, "nowhere", unmarked).newest()
    with pytest.raises((InvalidRequest, SchemaNotFound), match=reason):
        check_versions(client, "orders", reference, unmarked)


def test_a_version_without_the_message_cannot_have_written_unmarked_records(client: FlyMQClient) -> None:
    first = 'syntax = "proto3"; message A { int32 x = 1; }'
    for definition in (first, f"{first} message B {{ int32 y = 1; }}"):
        client.schemas.register("orders", definition, "protobuf")
    check_versions(client, "orders", parse_reference("orders:2:A"), "orders:1")
    with pytest.raises(InvalidRequest, match=r"unmarked is orders:1: .*B.*; name a version that has the message"):
        check_versions(client, "orders", parse_reference("orders:2:B"), "orders:1")


def test_what_to_do_with_unmarked_records_is_a_choice_or_names_a_version() -> None:
    for unmarked in ("auto", "read", "reject", "orders:1"):
        check_unmarked(unmarked)
    for unmarked in ("latest", "orders", "orders:1:Order", ":1", ""):
        with pytest.raises(InvalidRequest, match=r"names no version of a schema: .*, or use auto, read, reject"):
            check_unmarked(unmarked)
