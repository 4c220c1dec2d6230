"""The file that `init` writes is one that loads, and fits the topics and their columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.spark.pipelines.model import Connection, Pipeline, load_pipeline, parse_pipeline
from penstock.spark.pipelines.template import Columns, render
from penstock.spark.pipelines.views import mentions, view_names

NOBODY = Connection()


def rendered(tmp_path: Path, columns: dict[str, Columns | None], connection: Connection = NOBODY) -> Pipeline:
    file = tmp_path / "p.toml"
    file.write_text(
        render(
            name="p",
            bootstrap="127.0.0.1:9092",
            connection=connection,
            topics=list(columns),
            directory="p-tables",
            table_format="delta",
            columns=columns,
        )
    )
    return load_pipeline(file)


def test_with_a_schema_its_columns_are_in_the_query(tmp_path: Path) -> None:
    columns = {"id": "int64", "country": "string", "amount": "double", "at": "timestamp[us, tz=UTC]"}
    pipeline = rendered(tmp_path, {"shop.orders": columns})
    [gold] = pipeline.gold
    assert (gold.name, gold.event_time) == ("shop_orders_per_minute", "at")
    assert "sum(amount) AS amount" in gold.sql
    assert "GROUP BY window(at, '1 minute'), country" in gold.sql
    assert pipeline.silver is not None
    assert pipeline.silver.without_schema == "error"


def test_without_a_schema_records_are_counted_and_passed_on(tmp_path: Path) -> None:
    pipeline = rendered(tmp_path, {"orders": None, "payments": {"id": "int64"}})
    assert pipeline.topics == ["orders", "payments"]
    assert pipeline.silver is not None
    assert pipeline.silver.without_schema == "pass"
    assert pipeline.gold[0].event_time == "timestamp"


@pytest.mark.parametrize(
    "connection",
    [
        NOBODY,
        Connection(tls=True),
        Connection(user='a "lady"', tls=True, ca="/etc/ca.pem", cert="/etc/cert.pem", key="/etc/key.pem"),
    ],
)
def test_how_the_broker_is_reached_is_in_the_file(tmp_path: Path, connection: Connection) -> None:
    assert rendered(tmp_path, {"orders": None}, connection).connection == connection


def test_views_need_no_quotes_and_are_different() -> None:
    assert view_names(["orders", "shop.orders", "shop-orders", "1st", "Orders"]) == [
        "orders",
        "shop_orders",
        "shop_orders_2",
        "t_1st",
        "Orders_2",
    ]


def test_a_query_mentions_a_view_by_its_whole_name() -> None:
    assert mentions("SELECT count(*) FROM Orders GROUP BY 1", "orders")
    assert mentions("SELECT `orders`.id FROM `orders`", "orders")
    assert not mentions("SELECT orders_eu.id FROM orders_eu", "orders")
    assert not mentions("SELECT count(*) AS reorders FROM payments", "orders")


def test_names_that_sql_or_toml_would_take_for_something_else_are_quoted(tmp_path: Path) -> None:
    columns = {"größe": "string", "null": "double", "at-time": "timestamp[us]"}
    pipeline = rendered(tmp_path, {'"quoted" topic-ä': columns, "x" * 150: {}})
    assert pipeline.topics[0] == '"quoted" topic-ä'
    [gold] = pipeline.gold
    assert (gold.name, gold.event_time) == ("quoted__topic___per_minute", "at-time")
    assert "FROM `_quoted__topic_ä`" in gold.sql
    assert "GROUP BY window(`at-time`, '1 minute'), `größe`" in gold.sql
    assert "sum(`null`) AS `null`" in gold.sql
    assert mentions(gold.sql, view_names(pipeline.topics)[0])


def test_a_name_that_is_too_long_for_a_query_is_cut(tmp_path: Path) -> None:
    [gold] = rendered(tmp_path, {"x" * 150: None}).gold
    assert len(gold.name) == 100
    assert gold.name.endswith("xxx_per_minute")


def test_a_pattern_stays_one_and_the_query_is_over_the_first_topic_it_fits(tmp_path: Path) -> None:
    text = render(
        name="p",
        bootstrap="127.0.0.1:9092",
        connection=NOBODY,
        topics=["orders-*"],
        directory="p-tables",
        table_format="delta",
        columns={"orders-eu": None, "orders-us": None},
    )
    pipeline = parse_pipeline(text.encode(), tmp_path / "p.toml")
    assert pipeline.topics == ["orders-*"]
    assert "FROM orders_eu" in pipeline.gold[0].sql
