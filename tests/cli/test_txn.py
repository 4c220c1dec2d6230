"""`penstock txn` against a real broker."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from penstock.testing import RunningBroker
from tests.cli.conftest import Run
from tests.manual import blocks, page, run_shown

MANUAL = page("docs/transactions.md")
ID = re.compile("txn-[0-9a-f]{32}")


def stored(broker: RunningBroker, topic: str) -> list[tuple[bytes | None, bytes]]:
    return [(record.key, record.value or b"") for record in broker.connect().records(topic)]


@pytest.mark.timeout(240)
def test_the_commands_of_the_manual_do_what_it_says(penstock_broker: RunningBroker, tmp_path: Path) -> None:
    printed, shown = run_shown(MANUAL, penstock_broker.url, tmp_path)
    assert printed == shown


def test_the_python_of_the_manual_runs_as_written(penstock_broker: RunningBroker) -> None:
    for code in blocks("python", MANUAL):
        exec(code.replace("127.0.0.1:9092", penstock_broker.address), {})
    with penstock_broker.connect() as client:
        assert [record.value for record in client.records("invoices")] == [b"invoice for three books"]
        assert [record.value for record in client.records("payments")] == [b"29.70", b"-2.00"]
        assert client.lag("orders", "invoicing", 0).lag == 0


def test_the_lines_of_the_input_are_stored_together(run: Run, broker: RunningBroker) -> None:
    result = run("txn", "produce", input=b"orders\tk1\tone\npayments\t\t9.99\norders\t\ta\tb\n")
    assert result.code == 0
    assert ID.sub("ID", result.text) == "committed 3 records in 2 topics: transaction ID\n"
    assert stored(broker, "orders") == [(b"k1", b"one"), (None, b"a\tb")]
    assert stored(broker, "payments") == [(None, b"9.99")]


def test_a_file_is_read_where_one_is_named_and_programs_get_json(run: Run, broker: RunningBroker) -> None:
    Path("in.tsv").write_bytes(b"".join(b"topic-%d\t\t%d\n" % (number % 3, number) for number in range(3_000)))
    result = run("txn", "produce", "in.tsv", "--json")
    answer = json.loads(result.text)
    assert ID.fullmatch(answer["transaction"])
    assert answer["records"] == 3_000
    assert answer["topics"] == {"topic-0": 1_000, "topic-1": 1_000, "topic-2": 1_000}
    assert [value for _, value in stored(broker, "topic-1")] == [b"%d" % number for number in range(1, 3_000, 3)]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"orders\tvalue", "line 2 is not topic, key and value with a tab between them"),
        (b"\xff\t\tvalue", "line 2 names a topic that is not UTF-8 text"),
        (b"\t\tvalue", "topic name has 0 bytes"),
        (b"__groups\t\tvalue", "access denied"),
    ],
)
def test_a_line_that_is_wrong_keeps_everything_out(run: Run, broker: RunningBroker, line: bytes, problem: str) -> None:
    broker.connect().create_topic("orders")
    result = run("txn", "produce", input=b"orders\t\tone\n" + line + b"\n")
    assert (result.code, result.out) == (1, b"")
    assert problem in result.err
    assert stored(broker, "orders") == []


def test_nothing_is_stored_where_the_disk_is_full(run: Run, broker: RunningBroker) -> None:
    broker.connect().create_topic("orders")
    Path("in.tsv").write_bytes(b"".join(b"orders\t\t" + bytes([65 + n]) * (4 << 20) + b"\n" for n in range(5)))
    broker.disk.disk_full()
    result = run("txn", "produce", "in.tsv")
    broker.disk.disk_full_off()
    assert result.code == 1
    assert "no space left" in result.err
    assert stored(broker, "orders") == []


def test_what_became_of_a_commit_can_be_asked(run: Run, broker: RunningBroker) -> None:
    broker.connect().create_topic("orders")
    broker.disk.fail_next_fsync(times=2)
    result = run("txn", "produce", input=b"orders\t\tone\n")
    assert result.code == 1
    (transaction,) = set(ID.findall(result.err))
    assert f"whether it was done, this will tell: penstock txn commit {transaction}\n" in result.err
    again = run("txn", "commit", transaction)
    assert again.code == 1
    assert "restart the broker" in again.err


def test_a_transaction_that_is_open_is_committed_or_rolled_back_by_its_id(run: Run, broker: RunningBroker) -> None:
    client = broker.connect()
    first, second = client.transaction().begin(), client.transaction().begin()
    first.send("orders", b"one")
    second.send("orders", b"two")
    for _ in range(2):
        assert run("txn", "commit", first.id).text == f"transaction {first.id} is committed\n"
        assert run("txn", "rollback", second.id).text == f"nothing of transaction {second.id} is stored\n"
    assert run("txn", "rollback", first.id).err == "error: transaction is not active: committed\n"
    assert run("txn", "commit", second.id).err == "error: transaction is not active: rolled back\n"
    assert run("txn", "commit", "txn-1").err == "error: transaction not found: txn-1\n"
    assert stored(broker, "orders") == [(None, b"one")]


def test_open_transactions_are_listed_until_they_end(run: Run, broker: RunningBroker) -> None:
    assert json.loads(run("txn", "list", "--json").out) == []
    transaction = broker.connect().transaction()
    transaction.__enter__()
    for number in range(7):
        transaction.send(f"topic {number}", b"v")
    broker.clock.advance(5)
    [listed] = json.loads(run("txn", "list", "--json").out)
    assert (listed["id"], listed["owner"], listed["state"], listed["records"]) == (
        transaction.id,
        "anonymous",
        "open",
        7,
    )
    assert (listed["age_ms"], listed["timeout_ms"]) == (5_000, 55_000)
    assert (listed["topics"], listed["topics_total"]) == ([f"topic {number}" for number in range(5)], 7)
    [line] = run("txn", "list").text.splitlines()[1:]
    assert line.split()[:4] == [transaction.id, "anonymous", "open", "5s"]
    assert line.endswith("'topic 4', ...")
    assert run("txn", "rollback", transaction.id).code == 0
    assert json.loads(run("txn", "list", "--json").out) == []
