"""`penstock pipeline` as far as it goes without Spark: files, reports, and what is said where something is wrong."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from penstock.cli import pipeline_running
from penstock.protocols.flymq.operations.spark import PipelineReport, StageReport
from penstock.spark.pipelines.lock import DirectoryLock
from penstock.spark.pipelines.model import Connection, load_pipeline
from penstock.spark.pipelines.rebuild import Rebuilt
from penstock.spark.pipelines.tables.delta import DeltaLakeTable
from penstock.testing import RunningBroker
from tests.cli.conftest import Run
from tests.spark.pipelines.rows_by_hand import ids_from

SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}, "country": {"type": "string"}}}
STAGES = [
    StageReport("bronze/orders", "running", 100, 0, 5, 3, 250),
    StageReport("silver/orders", "running", 90, 7, 15, 2, 400, dropped=4),
]


def report(broker: RunningBroker, name: str = "sales", state: str = "running", message: str = "") -> bool:
    with broker.connect() as client:
        return client.pipelines.report(PipelineReport(name, "run-1", 1, state, message, STAGES))


# --- init ---


def test_init_writes_a_file_that_fits_the_topics(run: Run, broker: RunningBroker, tmp_path: Path) -> None:
    with broker.connect() as client:
        client.create_topic("orders", 1)
        client.schemas.register("orders", json.dumps(SCHEMA))
    result = run("pipeline", "init", "sales.toml", "--topic", "orders")
    assert (result.code, result.text) == (0, "wrote sales.toml; run it with: penstock pipeline run sales.toml\n")
    text = (tmp_path / "sales.toml").read_text()
    assert 'name = "sales"' in text
    assert f'bootstrap = "{broker.address}"' in text
    assert "country" in text
    nodes = f"127.0.0.1:1,{broker.address}"
    assert run("pipeline", "init", "nodes.toml", "--topic", "orders", "--server", nodes).code == 0
    assert f'bootstrap = "{nodes}"' in (tmp_path / "nodes.toml").read_text()
    again = run("pipeline", "init", "sales.toml", "--topic", "orders")
    assert again.code == 1
    assert "add --force" in again.err
    assert run("pipeline", "init", "sales.toml", "--topic", "orders", "--format", "iceberg", "--force").code == 0


@pytest.fixture
def secured(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a broker with logins and TLS, which has a topic without a schema. The password is in its variable."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    tls = {"cert": tmp_path / "server.pem", "key": tmp_path / "server.pem"}
    with RunningBroker(dev=True, listeners={"flymq": {"auth": "required", "tls": tls}}) as broker:
        url = f"flymqs://admin@{broker.address}?ca=ca.pem"
        monkeypatch.setenv("PENSTOCK_SERVER", url)
        monkeypatch.setenv("PENSTOCK_PASSWORD", "admin")
        assert run("topic", "create", "orders").code == 0
        yield url


def test_init_writes_how_a_secured_broker_is_reached_without_the_password(
    run: Run, secured: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_PASSWORD")
    monkeypatch.setenv("PENSTOCK_SERVER", secured.replace("admin@", "admin:admin@"))
    assert run("pipeline", "init", "p.toml").code == 0
    text = (tmp_path / "p.toml").read_text()
    assert "admin:" not in text
    pipeline = load_pipeline(tmp_path / "p.toml")
    assert f"flymqs://admin@{pipeline.bootstrap}?ca=ca.pem" == secured
    assert pipeline.connection == Connection(user="admin", tls=True, ca=str(tmp_path / "ca.pem"))


@pytest.mark.parametrize("named_by", ["flag", "variable", "context", "file"])
@pytest.mark.parametrize("arguments", [("run", "--once"), ("rebuild", "silver/orders"), ("replay", "--topic", "gone")])
def test_a_secured_broker_is_reached_however_it_is_named(
    run: Run, secured: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_by: str, arguments: tuple[str, ...]
) -> None:
    where = 'bootstrap = "127.0.0.1:1"\n'
    options: tuple[str, ...] = ()
    connection = ""
    if named_by != "variable":
        monkeypatch.delenv("PENSTOCK_SERVER")
    if named_by == "flag":
        options = ("--server", secured)
    elif named_by == "context":
        monkeypatch.delenv("PENSTOCK_PASSWORD")
        server = secured.replace("ca=ca.pem", f"ca={tmp_path}/ca.pem")
        run("context", "create", "prod", "--server", server, "--password-stdin", input=b"admin\n")
        options = ("--context", "prod")
    elif named_by == "file":
        where = f'bootstrap = "{secured.partition("@")[2].partition("?")[0]}"\n'
        connection = '[connection]\nuser = "admin"\nca = "ca.pem"\n'
    file = f'name = "p"\n{where}topics = ["orders"]\ndirectory = "d"\n[bronze]\n[silver]\n{connection}'
    (tmp_path / "p.toml").write_text(file)
    DeltaLakeTable(None, str(tmp_path / "d" / "bronze" / "orders")).append(ids_from(0), 0, small=True)
    command, *rest = arguments
    refused = run(*options[:2], "pipeline", command, "p.toml", *rest, *(["--to", "x"] if command == "replay" else []))
    assert refused.code == 1
    expected = {
        "run": "topic orders has no schema: register one",
        "rebuild": "topic orders has no schema: register one",
        "replay": "topic not found: gone",
    }
    assert expected[command] in refused.err, "the broker was asked"
    wrong = run("--server", secured.replace("admin@", "admin:nope@"), "pipeline", "run", "p.toml")
    assert (wrong.code, "nope" in wrong.err) == (1, False)


def test_init_without_topics_takes_all_there_are(run: Run, broker: RunningBroker, tmp_path: Path) -> None:
    none = run("pipeline", "init")
    assert none.code == 1
    assert "there is no topic yet" in none.err
    with broker.connect() as client:
        for topic in ("orders", "orders.dlq", "payments"):
            client.create_topic(topic, 1)
    assert run("pipeline", "init").code == 0
    assert 'topics = ["orders", "payments"]' in (tmp_path / "pipeline.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--topic", "gone"), "topic not found: gone"),
        (("--topic", "orders", "--format", "csv"), "'delta' or 'iceberg'"),
        (("--topic", "orders", "--name", "a b"), "'a b' is not a name"),
    ],
)
def test_init_writes_nothing_where_something_is_wrong(
    run: Run, broker: RunningBroker, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    with broker.connect() as client:
        client.create_topic("orders", 1)
    result = run("pipeline", "init", *arguments)
    assert result.code == 1
    assert message in result.err
    assert not (tmp_path / "pipeline.toml").exists()
    (tmp_path / "pipeline.toml").write_text("# mine\n")
    assert run("pipeline", "init", *arguments, "--force").code == 1
    assert (tmp_path / "pipeline.toml").read_text() == "# mine\n", "not even where it may be written over"


def test_init_keeps_patterns_and_looks_at_the_topics_they_fit(run: Run, broker: RunningBroker, tmp_path: Path) -> None:
    with broker.connect() as client:
        for topic in ("orders-eu", "orders-us", "payments"):
            client.create_topic(topic, 1)
    assert run("pipeline", "init", "--topic", "orders-*").code == 0
    text = (tmp_path / "pipeline.toml").read_text()
    assert 'topics = ["orders-*"]' in text
    assert "No schema was found for orders-eu, orders-us." in text
    assert "topic not found: gone-*" in run("pipeline", "init", "-t", "payments", "-t", "gone-*", "--force").err


# --- run, replay, compact: what is wrong is said before Spark starts ---


def test_run_says_what_is_wrong_with_the_file(run: Run, tmp_path: Path) -> None:
    missing = run("pipeline", "run", "gone.toml")
    assert missing.code == 1
    assert "penstock pipeline init" in missing.err
    (tmp_path / "p.toml").write_text('name = "p"\ntopics = ["t"]\n[brnze]\n')
    wrong = run("pipeline", "run", "p.toml")
    assert wrong.code == 1
    assert "p.toml: brnze is not a setting" in wrong.err
    assert "p.toml: directory is missing" in wrong.err


def test_run_without_a_broker_says_so_before_spark_starts(run: Run, tmp_path: Path) -> None:
    with RunningBroker() as broker:
        address = broker.address
    (tmp_path / "p.toml").write_text(
        f'name = "p"\nbootstrap = "{address}"\ntopics = ["t"]\ndirectory = "d"\n[bronze]\n'
    )
    result = run("pipeline", "run", "p.toml", "--once")
    assert result.code == 1
    assert f"cannot connect to flymq://{address}" in result.err
    assert "penstock serve" in result.err
    assert "--server" in result.err


def write_pipeline(broker: RunningBroker, tmp_path: Path, stages: str = "[bronze]", topic: str = "orders") -> None:
    text = f'name = "p"\nbootstrap = "{broker.address}"\ntopics = ["{topic}"]\ndirectory = "d"\n{stages}\n'
    (tmp_path / "p.toml").write_text(text)


@pytest.mark.parametrize(
    ("stages", "topic", "message"),
    [
        ("[bronze]", "gone", "topic not found: gone; create it with"),
        ("[bronze]", "gone-*", "no topic fits gone-*"),
        ("[silver]", "orders", "topic orders has no schema: register one"),
        (
            '[silver]\nschemas = { orders = "gone" }',
            "orders",
            "topic orders follows schema gone, which is not there: register it",
        ),
    ],
)
def test_what_the_broker_can_tell_is_said_before_spark_starts(
    run: Run,
    broker: RunningBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stages: str,
    topic: str,
    message: str,
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with broker.connect() as client:
        client.create_topic("orders", 1)
    write_pipeline(broker, tmp_path, stages, topic)
    result = run("pipeline", "run", "p.toml", "--once")
    assert result.code == 1
    assert message in result.err
    write_pipeline(broker, tmp_path)
    assert "JAVA_HOME is /nowhere, which holds no Java" in run("pipeline", "run", "p.toml", "--once").err
    with DirectoryLock(tmp_path / "d"):
        assert "is in use by process" in run("pipeline", "run", "p.toml", "--once").err


def test_a_second_pipeline_of_one_name_is_refused_before_spark_starts(
    run: Run, broker: RunningBroker, tmp_path: Path
) -> None:
    with broker.connect() as client:
        client.create_topic("orders", 1)
        client.pipelines.report(PipelineReport("p", "somewhere-else.1", 1, "running", "", []))
    write_pipeline(broker, tmp_path)
    result = run("pipeline", "run", "p.toml", "--once")
    assert (result.code, "another pipeline named p is running, with another directory" in result.err) == (1, True)


def test_a_replay_of_a_topic_that_is_not_there_is_refused_before_spark_starts(
    run: Run, broker: RunningBroker, tmp_path: Path
) -> None:
    write_pipeline(broker, tmp_path)
    result = run("pipeline", "replay", "p.toml", "--topic", "gone", "--to", "again")
    assert (result.code, "topic not found: gone" in result.err) == (1, True)


def test_stages_that_do_not_exist_are_refused(run: Run) -> None:
    assert "use bronze, silver or gold" in run("pipeline", "run", "p.toml", "--stage", "tin").err


def test_replay_wants_one_source_and_times(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('name = "p"\ntopics = ["t"]\ndirectory = "d"\n[bronze]\n')
    assert "say what to replay" in run("pipeline", "replay", "p.toml", "--to", "x").err
    both = run("pipeline", "replay", "p.toml", "--to", "x", "--table", "bronze/t", "--topic", "t")
    assert both.code == 2
    late = run("pipeline", "replay", "p.toml", "--to", "x", "--topic", "t", "--from", "earliest")
    assert "Invalid value for --from: earliest is not a time" in late.err


def test_compact_of_nothing_is_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('name = "p"\ntopics = ["t"]\ndirectory = "d"\n[bronze]\n')
    assert json.loads(run("--json", "pipeline", "compact", "p.toml").out) == []
    assert run("pipeline", "compact", "p.toml", "--file-size", "huge").code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("init",),
        ("run", "p.toml"),
        ("replay", "p.toml", "--topic", "t", "--to", "u"),
        ("compact", "p.toml"),
        ("export", "p.toml", "bronze/t", "--to", "d"),
        ("rebuild", "p.toml", "silver/t"),
    ],
)
def test_without_spark_the_extra_is_named(
    run: Run, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "p.toml").write_text('name = "p"\ntopics = ["t"]\ndirectory = "d"\n[bronze]\n')
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else found(name))
    result = run("pipeline", *arguments)
    assert result.code == 1
    assert 'pip install "penstock[spark]"' in result.err


def test_compact_refuses_to_delete_what_a_batch_may_have_just_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('name = "p"\ntopics = ["t"]\ndirectory = "d"\n[bronze]\n')
    refused = run("pipeline", "compact", "p.toml", "--keep", "30m")
    assert refused.code == 1
    assert "must be kept for at least 24 h" in refused.err


def test_compact_needs_no_stop(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('name = "p"\ntopics = ["t"]\ndirectory = "d"\n[bronze]\n')
    table = DeltaLakeTable(None, str(tmp_path / "d" / "bronze" / "t"))
    table.claim("query-1", 0, "checkpoint")
    for batch_id in range(3):
        table.append(ids_from(10 * batch_id), batch_id, small=True)
    with DirectoryLock(tmp_path / "d"):
        [done] = json.loads(run("--json", "pipeline", "compact", "p.toml").out)
    assert done == {"table": "bronze/t", "files_before": 3, "files_after": 1, "deleted_files": 0}
    exported = run("pipeline", "export", "p.toml", "bronze/t", "--to", str(tmp_path / "copy"))
    assert exported.text == f"exported 30 rows of bronze/t to {tmp_path / 'copy'}\n"


@pytest.mark.parametrize(
    ("stages", "table", "message"),
    [
        ("[bronze]\n[silver]", "gold/revenue", "gold/revenue is not a table of silver"),
        ("[bronze]\n[silver]", "silver", "name one as in silver/orders"),
        ("[silver]", "silver/orders", "the file must have both sections"),
        ("[bronze]\n[silver]", "silver/orders", "to make silver from: run the pipeline first"),
    ],
)
def test_a_rebuild_that_cannot_be_is_refused_before_spark_starts(
    run: Run, broker: RunningBroker, tmp_path: Path, stages: str, table: str, message: str
) -> None:
    write_pipeline(broker, tmp_path, stages)
    result = run("pipeline", "rebuild", "p.toml", table)
    assert (result.code, message in result.err) == (1, True), result.err


def test_a_rebuild_names_what_to_remove_of_gold_that_cannot_go_on(
    run: Run, broker: RunningBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pipeline(broker, tmp_path, "[bronze]\n[silver]")
    done = Rebuilt(rows=3, rejects=0, dropped=0, batch=2, chunks=1, resumed=0, to_remove=("d/gold/all", "d/all"))
    monkeypatch.setattr(pipeline_running, "rebuild_table", lambda *arguments, **options: done)
    result = run("pipeline", "rebuild", "p.toml", "silver/orders")
    assert result.text == "rebuilt silver/orders up to batch 2: 3 rows, 0 rejects\n"
    assert "remove d/gold/all, d/all to compute it anew" in result.err
    assert json.loads(run("--json", "pipeline", "rebuild", "p.toml", "silver/orders").out)["to_remove"] == [
        "d/gold/all",
        "d/all",
    ]


# --- status, stop ---


def test_status_shows_every_pipeline_or_one_by_its_stages(run: Run, broker: RunningBroker) -> None:
    report(broker)
    listed = run("pipeline", "status")
    assert listed.text.splitlines()[0].split() == [
        "pipeline",
        "state",
        "stages",
        "rows",
        "rejects",
        "lag",
        "reported",
        "message",
    ]
    assert listed.text.splitlines()[1].split()[:6] == ["sales", "running", "2", "100", "7", "15"]
    one = run("pipeline", "status", "sales")
    assert "silver/orders  running    90        7   15        2      400 ms" in one.text
    assert one.text.endswith("silver/orders: 4 rows did not meet an expectation and were dropped\n")
    described = json.loads(run("--json", "pipeline", "status", "sales").out)
    assert (described["name"], described["stages"][1]["rejects"]) == ("sales", 7)
    assert [described["stages"][1][name] for name in ("dropped", "late", "future")] == [4, 0, 0]
    missing = run("pipeline", "status", "nobody")
    assert missing.code == 1
    assert "no pipeline nobody has reported" in missing.err


def test_a_run_that_says_nothing_for_a_minute_is_lost(run: Run, broker: RunningBroker) -> None:
    report(broker)
    broker.clock.advance(61)
    assert run("pipeline", "status").text.splitlines()[1].split()[1] == "lost"
    assert run("pipeline", "stop", "sales").text == "pipeline sales does not run\n"


def test_stop_asks_the_run(run: Run, broker: RunningBroker) -> None:
    unknown = run("pipeline", "stop", "sales")
    assert unknown.code == 1
    assert unknown.err.startswith("error: no pipeline sales has reported")
    assert not report(broker)
    assert run("pipeline", "stop", "sales", "--no-wait").text == "asked pipeline sales to stop\n"
    assert run("pipeline", "status").text.splitlines()[1].split()[1] == "stopping"
    assert report(broker, state="stopped"), "its answer is that it should"
    assert run("pipeline", "stop", "sales").text == "pipeline sales does not run\n"
