"""The file of a pipeline: what may stand in it, and what is said where something may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.spark.pipelines.model import PATH_NAME_CHARS_MAX, load_pipeline, name_of_path, path_name

WHOLE = """
name = "sales"
bootstrap = "127.0.0.1:19092"
topics = ["orders", "payments-*"]
directory = "tables"
format = "delta"
trigger_ms = "2s"
batch_bytes_max = "64 MiB"
[bronze]
[silver]
schemas = { orders = "order:2" }
[[gold]]
name = "revenue"
sql = "SELECT 1"
watermark_ms = "1m"
topic = "revenue"
key = "country"
[spark]
master = "local[2]"
config = { "spark.driver.memory" = "2g", "spark.ui.enabled" = true }
"""
SMALL = 'name = "p"\ntopics = ["t"]\ndirectory = "d"\n[bronze]\n'


FILE_OF_RULES = """
name = "sales"
topics = ["orders", "payments"]
directory = "tables"
format = "FORMAT"
[bronze]
partition_by = ["date"]
[silver]
expect = { "amount > 0" = "drop" }
[silver.topics.orders]
key = ["id"]
[[gold]]
name = "g"
sql = "SELECT 1"
partition_by = ["country"]
"""


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "pipeline.toml"
    file.write_text(text)
    return file


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    pipeline = load_pipeline(write(tmp_path, WHOLE))
    assert (pipeline.name, pipeline.format, pipeline.trigger_ms) == ("sales", "delta", 2000)
    assert pipeline.batch_bytes_max == 64 << 20
    assert pipeline.directory == str(tmp_path / "tables"), "relative to the file"
    assert pipeline.silver is not None
    assert pipeline.silver.schemas == {"orders": "order:2"}
    assert (pipeline.gold[0].watermark_ms, pipeline.gold[0].mode) == (60_000, "append")
    assert pipeline.spark.config == {"spark.driver.memory": "2g", "spark.ui.enabled": "true"}
    assert pipeline.table("bronze", "orders") == f"{tmp_path}/tables/bronze/orders"


def test_what_is_left_out_has_a_default(tmp_path: Path) -> None:
    pipeline = load_pipeline(write(tmp_path, SMALL))
    assert (pipeline.bootstrap, pipeline.format, pipeline.starting) == ("127.0.0.1:9092", "delta", "earliest")
    assert (pipeline.silver, pipeline.gold, pipeline.spark.master) == (None, [], None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('name = "p"|', "name is missing"),
        ('name = "p"|name = "a b"', "'a b' is not a name"),
        ('topics = ["t"]|topics = []', "topics"),
        ('topics = ["t"]|topics = ["t", "t"]', "named twice"),
        ('topics = ["t"]|topics = [""]', "topics"),
        ('directory = "d"|', "directory is missing"),
        ("[bronze]|", "nothing to do"),
        ("[bronze]|[brnze]", "brnze is not a setting; did you mean bronze?"),
        ("[bronze]|[bronze]\ntable = 1", "bronze.table is not a setting"),
        ("[bronze]|[bronze]\nx = 1", "bronze.x is not a setting; bronze knows partition_by"),
        ('directory = "d"|directory = "d"\nformat = "csv"', "'delta' or 'iceberg'"),
        ('directory = "d"|directory = "d"\nformat = "parquet"', "penstock pipeline export"),
        ('directory = "d"|directory = "d"\n[catalog]\ntype = "rest"', '[catalog] is for format = "iceberg"'),
        (
            'directory = "d"|directory = "d"\nformat = "iceberg"\n[storage]\na = "b"',
            '[storage] is for format = "delta"',
        ),
        ('directory = "d"|directory = "s3://bucket/d"\nformat = "iceberg"', "describe it in [catalog]"),
        ('directory = "d"|directory = "d%20e"', "has a %"),
        ('directory = "d"|directory = "d"\nkeep_ms = "1h"', "keep_ms"),
        ('directory = "d"|directory = "d"\ntrigger_ms = "soon"', "trigger_ms"),
        ("[bronze]|[silver]\nwithout_schema = 1", "silver.without_schema"),
        (
            '[bronze]|[silver]\nunmarked = "t"',
            "'t' names no version of a schema: write one as in orders:2, or use \"auto\" or",
        ),
        ("[bronze]|[silver.topics.t]\nunmarked = 1", "silver.topics.t.unmarked"),
        ('[bronze]|[[gold]]\nname = "g"\nsql = ""', "gold[0].sql is empty"),
        ('[bronze]|[[gold]]\nname = "g"\nsql = "x"\ntable = false', "writes nowhere"),
        ('[bronze]|[[gold]]\nname = "g"\nsql = "x"\nkey = "k"', "has a key and no topic"),
        ('[bronze]|[[gold]]\nname = "g"\nsql = "x"\nmode = "update"', "tables are only appended to"),
        ('[bronze]|[[gold]]\nname = "g"\nsql = "x"\ntopic = "t"', "which the pipeline reads"),
        ('[bronze]|[[gold]]\nname = "g"\nsql = "x"\n[[gold]]\nname = "g"\nsql = "y"', "have one name"),
        ("[bronze]|[bronze", "not valid TOML"),
        (
            'directory = "d"|directory = "d"\nbootstrap = "flymq://ada@host"',
            "pipeline.toml: bootstrap: write host:port",
        ),
        (
            'directory = "d"|directory = "d"\nbootstrap = "flymqs://host?ca=ca.pem"',
            "pipeline.toml: bootstrap: write host:port",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, change: str, message: str) -> None:
    old, new = change.split("|")
    file = write(tmp_path, SMALL.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_pipeline(file)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize(("table_format", "source"), [("delta", "silver"), ("iceberg", "topic")])
def test_rules_of_silver_are_those_of_the_topic_else_those_of_all(
    tmp_path: Path, table_format: str, source: str
) -> None:
    text = FILE_OF_RULES.replace("FORMAT", table_format)
    pipeline = load_pipeline(write(tmp_path, text))
    assert pipeline.silver is not None
    assert pipeline.silver.rules("orders").key == ["id"]
    assert pipeline.silver.rules("payments").expect == {"amount > 0": "drop"}
    assert [pipeline.partition_by(*each) for each in (("bronze", "x"), ("silver", "orders"), ("gold", "g"))] == [
        ["date"],
        [],
        ["country"],
    ]
    [gold] = pipeline.gold
    assert [pipeline.gold_source(gold, topics) for topics in (["payments"], ["payments", "orders"])] == [
        source,
        "topic",
    ]
    with pytest.raises(ConfigError, match=r"reads silver/orders, whose rows change .* set from"):
        pipeline.gold_source(gold.model_copy(update={"source": "silver"}), ["orders"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            'key = ["id"]|kee = ["id"]',
            "silver.topics.orders.kee is not a setting; did you mean silver.topics.orders.key?",
        ),
        ('"drop"|"ignore"', "silver.expect.amount > 0 = \"ignore\" is not known: use 'drop', 'reject' or 'fail'"),
        ('sql = "SELECT 1"|sql = "SELECT 1"\nfrm = 1', "gold[0].frm is not a setting; did you mean gold[0].from?"),
    ],
)
def test_what_is_wrong_with_rules_is_said_with_its_place(tmp_path: Path, change: str, message: str) -> None:
    before, _, after = change.partition("|")
    text = FILE_OF_RULES.replace("FORMAT", "delta")
    assert before in text
    with pytest.raises(ConfigError) as caught:
        load_pipeline(write(tmp_path, text.replace(before, after)))
    assert message in str(caught.value)


def test_a_file_that_is_not_there_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="penstock pipeline init"):
        load_pipeline(tmp_path / "gone.toml")


def test_a_directory_elsewhere_is_left_as_it_is(tmp_path: Path) -> None:
    pipeline = load_pipeline(write(tmp_path, SMALL.replace('"d"', '"s3://bucket/d"\ncheckpoints = "c"')))
    assert (pipeline.directory, pipeline.checkpoints) == ("s3://bucket/d", f"{tmp_path.resolve()}/c")
    assert pipeline.table("bronze", "a/b") == "s3://bucket/d/bronze/a~2Fb"
    assert pipeline.checkpoint("bronze", "a/b") == f"{tmp_path.resolve()}/c/bronze/a~2Fb"


def test_checkpoints_are_beside_the_tables_unless_they_are_elsewhere(tmp_path: Path) -> None:
    pipeline = load_pipeline(write(tmp_path, SMALL))
    assert pipeline.checkpoint("bronze", "t") == f"{tmp_path.resolve()}/d/_checkpoints/bronze/t"


def test_a_directory_of_this_machine_may_be_a_url(tmp_path: Path) -> None:
    pipeline = load_pipeline(write(tmp_path, SMALL.replace('"d"', f'"file://{tmp_path}/d"')))
    assert pipeline.directory == f"{tmp_path.resolve()}/d", "a path: as a URL, Python would take it for a relative one"


def test_options_of_the_library_may_be_numbers(tmp_path: Path) -> None:
    pipeline = load_pipeline(write(tmp_path, SMALL + "[storage]\nAWS_ALLOW_HTTP = true\nTIMEOUT = 5\n"))
    assert pipeline.storage == {"AWS_ALLOW_HTTP": "true", "TIMEOUT": "5"}


def test_a_user_needs_a_password_from_the_environment(tmp_path: Path) -> None:
    pipeline = load_pipeline(write(tmp_path, SMALL + '[connection]\nuser = "ada"\n'))
    with pytest.raises(ConfigError, match="PENSTOCK_PASSWORD"):
        pipeline.connection_settings(None)
    settings = pipeline.connection_settings("secret")
    assert (settings.user, settings.password) == ("ada", "secret")


def test_files_of_tls_are_beside_the_file(tmp_path: Path) -> None:
    pipeline = load_pipeline(write(tmp_path, SMALL + '[connection]\nca = "tls/ca.pem"\nkey = "/etc/key.pem"\n'))
    assert (pipeline.connection.ca, pipeline.connection.key) == (f"{tmp_path.resolve()}/tls/ca.pem", "/etc/key.pem")


def test_links_to_files_of_tls_are_kept(tmp_path: Path) -> None:
    mounted = tmp_path / "..1"
    mounted.mkdir()
    write(mounted, SMALL + '[connection]\nca = "ca.pem"\n').rename(mounted / "p.toml")
    (tmp_path / "..data").symlink_to(mounted.name)
    (tmp_path / "p.toml").symlink_to("..data/p.toml")
    (tmp_path / "ca.pem").symlink_to("..data/ca.pem")
    pipeline = load_pipeline(tmp_path / "p.toml")
    assert pipeline.connection.ca == str(tmp_path / "ca.pem"), "as a secret of Kubernetes is mounted, and renewed"


def test_names_of_topics_are_one_level_of_a_path() -> None:
    assert [path_name(name) for name in ("orders", "shop/orders", "_x", ".x", "ä")] == [
        "orders",
        "shop~2Forders",
        "~5Fx",
        "~2Ex",
        "~C3~A4",
    ]


@pytest.mark.parametrize("name", ["orders", "shop/orders", "_x", ".x", "ä", "a%2Fb", "~7E", "a~b"])
def test_names_of_topics_are_read_back_from_paths(name: str) -> None:
    assert name_of_path(path_name(name)) == name


def test_a_name_that_is_too_long_for_a_path_is_refused() -> None:
    assert len(path_name("x" * PATH_NAME_CHARS_MAX)) == PATH_NAME_CHARS_MAX
    with pytest.raises(ConfigError, match="too long to name a directory: it takes 480 characters"):
        path_name("ä" * 80)
