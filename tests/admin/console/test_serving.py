"""The console in a real browser: clicks and typing, on a real broker."""

from __future__ import annotations

import base64
import io
import json
import re
from urllib.parse import quote

import fastavro
import pytest
from playwright.sync_api import Browser, expect

from penstock.admin.console.serving import HEADERS, PREFIX, Console
from penstock.broker.access.checks import SYSTEM
from penstock.broker.deliveries.deadletter_entries import FailedRecord
from penstock.broker.pipelines import Report, Stage
from penstock.cli.record_json import parse_json_lines
from penstock.record_headers import encode_headers
from tests.admin.api.asking import LOGIN_REQUIRED, Asking, asking, new_key, on_loop
from tests.admin.console.browsing import at, dialog_of, sample

pytestmark = pytest.mark.timeout(180)


def test_a_topic_is_created_written_to_browsed_followed_and_deleted(chromium: Browser, ask: Asking) -> None:
    with at(chromium, ask.broker, "/topics") as page:
        page.get_by_role("button", name="Create topic").click()
        dialog_of(page, "Create", Name="site/hall", Partitions="2", Retention="soon")
        expect(page.locator("dialog .error")).to_contain_text("retention_ms")  # refused in the broker's words
        dialog_of(page, "Create", Retention="7d")
        expect(page.get_by_role("heading", name="site/hall")).to_be_visible()
        expect(page).to_have_url(re.compile("/console/topics/site%2Fhall$"))

        page.get_by_role("button", name="Browse records").click()
        page.get_by_role("button", name="Produce").click()
        dialog_of(
            page, "Produce", Key="k1", Value='{"n": 12345678901234567890, "x": "<b>bold</b>"}', Headers="source=test"
        )
        row = page.get_by_role("row").filter(has_text="k1")
        row.click()
        panel = page.get_by_label("One record")
        expect(panel).to_contain_text("12345678901234567890")  # as it was written, whatever JavaScript makes of it
        expect(panel).to_contain_text("<b>bold</b>")
        expect(panel).to_contain_text("source")
        assert page.locator("#main b").count() == 0

        page.get_by_role("button", name="Live tail").click()
        expect(page.get_by_role("button", name="Pause")).to_have_attribute("aria-pressed", "true")
        ask.ok("POST", "/topics/site%2Fhall/records", {"records": [{"value": "arrived later"}]})
        expect(page.get_by_role("cell", name="arrived later")).to_be_visible()
        page.get_by_role("button", name="Pause").click()

        page.get_by_label("Filter").fill("later")
        page.get_by_role("button", name="Go").click()
        expect(page.get_by_role("status").filter(has_text="scanned")).to_contain_text("1 records shown, 2 scanned")
        expect(page).to_have_url(re.compile("filter=later"))
        page.reload()  # the address is the view
        expect(page.get_by_role("cell", name="arrived later")).to_be_visible()
        expect(page.get_by_role("cell", name="k1")).to_have_count(0)

        page.goto(
            f"http://{ask.broker.addresses['admin']}{PREFIX}/topics/site%2Fhall/records?at=offset&partition=0&offset=99"
        )
        expect(page.locator(".empty")).to_be_visible()
        page.get_by_label("Begin at").first.select_option("time")
        page.get_by_label("Time", exact=True).fill("2020-01-01T00:00")
        page.get_by_label("Partition").select_option("")
        page.get_by_role("button", name="Go").click()
        expect(page.get_by_role("row")).to_have_count(3)

        page.get_by_role("link", name="site/hall").click()
        page.get_by_role("button", name="Delete", exact=True).click()
        dialog_of(page, "Delete the topic", **{"Type site/hall to confirm": "hall"})
        expect(page.locator("dialog .error")).to_contain_text("That is not site/hall")
        dialog_of(page, "Delete the topic", **{"Type site/hall to confirm": "site/hall"})
        expect(page.locator(".toast").last).to_contain_text("deleted")
    assert ask("GET", "/topics/site%2Fhall").status == 404


AVRO = {"type": "record", "name": "Sale", "fields": [{"name": "id", "type": "long"}, {"name": "sum", "type": "double"}]}


def test_numbers_of_decoded_records_keep_their_digits(chromium: Browser, ask: Asking) -> None:
    ask.ok("POST", "/schemas/sale", {"type": "avro", "definition": json.dumps(AVRO)})
    ask.ok("POST", "/topics", {"name": "sales", "schema": "sale"})
    out = io.BytesIO()
    fastavro.schemaless_writer(out, AVRO, {"id": 9007199254740993, "sum": 2.0})
    value = base64.b64encode(out.getvalue()).decode()
    ask.ok("POST", "/topics/sales/records", {"records": [{"value_base64": value}]})
    with at(chromium, ask.broker, "/topics/sales/records") as page:
        row = page.get_by_role("row").filter(has_text="9007199254740993")
        expect(row).to_contain_text('"sum":2.0')
        row.click()
        expect(page.get_by_label("One record")).to_contain_text("9007199254740993")
        for number, count in (("9007199254740992", 0), ("9007199254740993", 1)):
            page.get_by_label("Filter").fill(f"$.id = {number}")
            page.get_by_role("button", name="Go").click()
            expect(page.get_by_role("status").filter(has_text="scanned")).to_contain_text(f"{count} records shown")


def test_records_are_found_by_json_path_and_header(chromium: Browser, ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": "found"})
    records = [
        {
            "key": f"k{number}",
            "value": json.dumps({"number": number, "customer": {"name": f"Ann {number}"}}),
            "headers": [{"name": "the source", "value": "web" if number % 2 else "shop"}],
        }
        for number in range(10)
    ]
    ask.ok("POST", "/topics/found/records", {"records": records})
    with at(chromium, ask.broker, "/topics/found/records") as page:
        rows = page.get_by_role("table", name="Records").locator("tbody tr")
        shown = page.get_by_label("Filter")
        expect(rows).to_have_count(10)
        page.get_by_role("button", name="Add condition").click()
        dialog = page.locator("dialog[open]")
        dialog_of(page, "Add")
        expect(page.locator("dialog .error")).to_contain_text("Give the path")
        dialog.get_by_label("Operator").select_option(">")
        dialog_of(page, "Add", Path_or_name="number", Compared_with="5")
        expect(rows).to_have_count(4)
        expect(shown).to_have_value("$.number > 5")
        page.get_by_role("button", name="Add condition").click()
        dialog.get_by_label("Field").select_option("header")
        dialog_of(page, "Add", Path_or_name="the source", Compared_with="web")
        expect(shown).to_have_value('$.number > 5 and $header."the source" = web')
        expect(rows).to_have_count(2)
        page.reload()  # the address is the view
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("k9")

        shown.fill("ann 3")  # text, to which a condition is added
        page.get_by_role("button", name="Add condition").click()
        dialog.get_by_label("Field").select_option("key")
        dialog.get_by_label("Operator").select_option("exists")
        expect(dialog.get_by_label("Compared with")).to_be_hidden()
        dialog_of(page, "Add")
        expect(shown).to_have_value('$value contains "ann 3" and $key exists')
        expect(rows).to_have_count(1)

        shown.fill("$.number == 3")
        page.get_by_role("button", name="Go").click()
        expect(page.get_by_role("alert")).to_contain_text("filter has no operator == (after $.number): use =, !=")
        expect(
            page.get_by_role("button", name="Download")
        ).to_be_disabled()  # what it would have is not what was asked for


def test_one_record_has_an_address_and_is_shown_in_several_ways(chromium: Browser, ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": "views"})
    value = '{"n":12345678901234567890,"f":1.0,"x":[1]}'
    ask.ok("POST", "/topics/views/records", {"records": [{"value": value}, {"value": "plain"}, {"key": "gone"}]})
    address = ask.broker.addresses["flymq"]
    permitted = {"permissions": ["clipboard-read", "clipboard-write"]}
    with at(chromium, ask.broker, "/topics/views/records", **permitted) as page:
        page.get_by_role("row").filter(has_text="12345678901234567890").click()
        expect(page).to_have_url(re.compile("record=0%3A0"))
        shown = page.get_by_label("Value", exact=True)
        expect(shown).to_contain_text('  "n": 12345678901234567890,\n  "f": 1.0,')
        page.get_by_role("button", name="Text", exact=True).click()
        expect(shown).to_have_text(value)
        page.get_by_role("button", name="Hex", exact=True).click()
        expect(shown).to_have_text(value.encode().hex(" "))
        expect(page.get_by_role("button", name="Hex", exact=True)).to_have_attribute("aria-pressed", "true")
        for name, code in [
            ("CLI", f"penstock consume 'views' --partition 0 --from 0 --max 1 --server 'flymq://{address}'"),
            ("Python", f'penstock.connect("flymq://{address}")'),
            ("Spark", f'.option("penstock.bootstrap", "{address}").option("subscribe", "views")'),
        ]:
            page.get_by_role("button", name=f"Copy as {name}").click()
            expect(page.locator(".toast").last).to_contain_text("Copied.")
            assert code in page.evaluate("navigator.clipboard.readText()")
        page.goto(page.url.replace("record=0%3A0", "record=0%3A1"))
        expect(shown).to_have_text("plain")
        page.get_by_role("button", name="Close").click()
        expect(page.get_by_label("One record")).to_have_count(0)
        assert "record=" not in page.url


HOSTILE = """'"><script>document.title='taken'</script>%2e%zz&#x3c; \u202e\U0001f600"""


def test_hostile_names_are_shown_as_they_are_and_lead_to_their_pages(chromium: Browser, ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": HOSTILE})
    quoted = quote(HOSTILE, safe="")
    record = {"key": HOSTILE, "value": HOSTILE, "headers": [{"name": HOSTILE, "value": HOSTILE}]}
    ask.ok("POST", f"/topics/{quoted}/records", {"records": [record]})
    ask.ok("POST", f"/groups/{quoted}/reset", {"topic": HOSTILE, "to": "earliest"})
    with at(chromium, ask.broker, "/topics") as page:
        page.get_by_role("link", name=HOSTILE, exact=True).click()
        expect(page.get_by_role("heading", name=HOSTILE, exact=True)).to_be_visible()
        page.get_by_role("button", name="Browse records").click()
        page.get_by_role("table", name="Records").locator("tbody tr").click()
        expect(page.get_by_label("One record")).to_contain_text(HOSTILE)
        page.keyboard.press("Escape")
        page.get_by_role("link", name="Groups").click()
        page.get_by_role("link", name=HOSTILE, exact=True).first.click()
        expect(page.get_by_role("heading", name=HOSTILE, exact=True)).to_be_visible()
        assert page.locator("#main script, #main img").count() == 0
        page.goto(f"http://{ask.broker.addresses['admin']}{PREFIX}/topics/%zz")  # no text at all
        expect(page.get_by_role("alert")).to_contain_text("topic not found: %zz")
        assert "taken" not in page.title()
    ask.ok("DELETE", f"/topics/{quoted}")


def test_dead_letters_are_inspected_and_replayed(chromium: Browser, ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": "returns"})
    dead_letters = ask.broker.server.broker.dead_letters
    failed = [
        FailedRecord("returns", 0, n, b"v%d" % n, None, encode_headers([("source", b"web")]), reason, 3, 1, 2)
        for n, reason in enumerate(["too late", "too late", "too large"])
    ]

    async def failing() -> None:
        await dead_letters.ensure_topics(failed)
        await dead_letters.append(failed)

    on_loop(ask.broker, failing())
    with at(chromium, ask.broker, "/dead-letters") as page:
        page.get_by_role("link", name="returns", exact=True).click()
        page.get_by_role("button", name="too late: 2").click()
        expect(page.get_by_text("2 dead letters would be written")).to_be_visible()
        page.get_by_label("Replay those that match").fill("$value = v1")
        page.get_by_role("button", name="Dry run").click()
        expect(page.get_by_text("1 dead letters would be written")).to_be_visible()
        page.get_by_role("row").filter(has_text="too large").click()
        expect(page.get_by_label("One dead letter")).to_contain_text("v2")
        page.get_by_label("One dead letter").get_by_role("button", name="Replay", exact=True).click()
        expect(page.get_by_role("row").filter(has_text="too large")).to_have_count(0)
        page.get_by_role("row").filter(has_text="v0").click()
        page.get_by_role("button", name="Edit and replay").click()
        expect(page.locator("dialog").get_by_label("Value", exact=True)).to_have_value("v0")
        expect(page.locator("dialog").get_by_label("Headers")).to_have_value("source=web")
        dialog_of(page, "Replay", Value="v0, mended", Key="k0", Headers="source")
        expect(page.locator("dialog .error")).to_contain_text("Header source has no value")
        dialog_of(page, "Replay", Headers="source=by hand\nwhy=a=b")
        expect(page.get_by_role("row").filter(has_text="v0")).to_have_count(0)
        page.get_by_label("Replay those that match").fill("too late")
        page.get_by_role("button", name="Dry run").click()
        expect(page.get_by_text("1 dead letters would be written")).to_be_visible()
        page.get_by_role("button", name="Replay them").click()
        expect(page.get_by_text("Every dead letter was replayed.")).to_be_visible()
    records = ask.ok("GET", "/topics/returns/records")["records"]
    assert {each["value"]["text"] for each in records} == {"v0, mended", "v1", "v2"}
    assert {each["key"]["text"] for each in records if each["key"]} == {"k0"}
    headers = {each["value"]["text"]: [(h["name"], h["value"]["text"]) for h in each["headers"]] for each in records}
    assert headers["v0, mended"] == [("source", "by hand"), ("why", "a=b")]
    assert headers["v1"] == [("source", "web")]


def test_what_is_not_edited_of_a_dead_letter_stays_byte_by_byte(chromium: Browser, ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": "lines"})
    dead_letters = ask.broker.server.broker.dead_letters
    failed = [FailedRecord("lines", 0, 0, b"one\r\ntwo\r", b"\xff\x00", None, "no", 3, 1, 2)]

    async def failing() -> None:
        await dead_letters.ensure_topics(failed)
        await dead_letters.append(failed)

    on_loop(ask.broker, failing())
    with at(chromium, ask.broker, "/dead-letters/lines") as page:
        page.get_by_role("table", name="Dead letters").locator("tbody tr").click()
        page.get_by_role("button", name="Edit and replay").click()
        dialog_of(page, "Replay", **{"Key, base64": "not base64"})
        expect(page.locator("dialog .error")).to_contain_text("key_base64 is not base64")
        dialog_of(page, "Replay", **{"Key, base64": "/wE="})
        expect(page.get_by_text("Every dead letter was replayed.")).to_be_visible()
    [record] = ask.ok("GET", "/topics/lines/records")["records"]
    assert (record["key"]["base64"], record["value"]["text"]) == ("/wE=", "one\r\ntwo\r")


def test_records_are_downloaded_in_full(chromium: Browser, ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": "files/x"})
    records = [
        {"value": "long " * 2000, "key": "k", "headers": [{"name": "h", "value_base64": "/w=="}]},
        {"value_base64": "AP8="},
        {"key": "gone"},
    ]
    ask.ok("POST", "/topics/files%2Fx/records", {"records": records})
    with at(chromium, ask.broker, "/topics/files%2Fx/records") as page:
        with page.expect_download() as found:
            page.get_by_role("button", name="Download").click()
        assert found.value.suggested_filename == "files_x.jsonl"
        lines = found.value.path().read_bytes().splitlines()
        page.get_by_role("row").filter(has_text="00 ff").click()
        with page.expect_download() as found:
            page.get_by_role("button", name="Download value").click()
        assert found.value.path().read_bytes() == b"\x00\xff"
    assert list(parse_json_lines(lines, 1)) == [
        (b"k", b"long " * 2000, [("h", b"\xff")]),
        (None, b"\x00\xff", []),
        (b"gone", None, []),
    ]


def test_what_is_wrong_is_told_with_what_to_do(chromium: Browser, ask: Asking) -> None:
    sample(ask)
    ask.broker.server.engine.stats.corrupt_blocks += 1
    sample(ask)
    with at(chromium, ask.broker) as page:
        expect(page.get_by_role("alert")).to_contain_text("Blocks with wrong checksums were read in the last hour: 1")
        expect(page.get_by_role("alert")).to_contain_text("Run penstock verify")


def test_a_pipeline_is_watched_and_asked_to_stop(chromium: Browser, ask: Asking) -> None:
    pipelines = ask.broker.server.broker.pipelines

    def report(rows: int, rejects: int, lag: int) -> bool:
        stages = [
            Stage("bronze", "running", rows, 0, lag, 3, 250),
            Stage("silver", "running", rows, rejects, lag, 3, 90),
        ]
        return bool(on_loop(ask.broker, pipelines.report(SYSTEM, "shop", Report("r1", 1, "running", "", stages))))

    for rows, rejects, lag in ((0, 0, 12), (100, 0, 30), (180, 4, 2)):
        assert not report(rows, rejects, lag)
        sample(ask)
    with at(chromium, ask.broker, "/pipelines") as page:
        expect(page.get_by_role("row").filter(has_text="shop")).to_contain_text("360")  # rows of both stages
        page.get_by_role("link", name="shop").click()
        stages = page.get_by_role("table", name="Stages").locator("tbody tr")
        expect(stages).to_have_text(["bronzerunning1800" + "000" + "23250 ms", "silverrunning1804" + "000" + "2390 ms"])
        expect(page.get_by_role("img", name=re.compile("^Lag: 2 now, at most 30 in "))).to_be_visible()
        expect(page.get_by_role("img", name=re.compile("^Batch time: 250 ms now"))).to_be_visible()
        page.get_by_label("Stage", exact=True).select_option("silver")
        expect(page.get_by_role("img", name=re.compile("^Batch time: 90 ms now"))).to_be_visible()
        expect(page).to_have_url(re.compile("stage=silver"))
        page.get_by_role("button", name="Stop").click()
        dialog_of(page, "Stop", **{"Type shop to confirm": "shop"})
        expect(page.get_by_text("asked to stop")).to_be_visible()
        assert report(200, 4, 0)
        page.goto(f"http://{ask.broker.addresses['admin']}{PREFIX}/pipelines/none")
        expect(page.get_by_role("alert")).to_contain_text("No pipeline none has reported.")


def test_the_frames_of_a_connection_are_shown_field_by_field(chromium: Browser, ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": "inspected"})
    with at(chromium, ask.broker, "/inspector") as page, ask.broker.connect() as client:
        client.topics()
        expect(page.get_by_role("heading", name="Protocol inspector")).to_be_visible()
        page.evaluate("document.querySelector('h1').dataset.old = ''")
        page.get_by_role("button", name="Refresh").click()
        expect(page.locator("h1[data-old]")).to_have_count(0)  # what is checked on the old page is not on the new one
        page.get_by_label("Show keys, values and headers").check()
        page.get_by_role("row").filter(has_text="flymq").last.get_by_role("button", name="Inspect").click()
        expect(page.get_by_role("status").filter(has_text="running")).to_be_visible()
        client.send("inspected", b"<i>markup</i>", key=b"k")
        page.get_by_role("row").filter(has_text="PRODUCE_ONCE").first.click()
        frame = page.get_by_label("One frame")
        expect(frame).to_contain_text("<i>markup</i>")
        expect(frame).to_contain_text("inspected")
        page.get_by_label("Filter frames").fill("no such frame")
        expect(page.get_by_text("No frame matches.")).to_be_visible()
        client.close()
        expect(page.get_by_role("status").filter(has_text="the connection is closed")).to_be_visible()
        page.get_by_role("button", name="Stop and forget").click()
        expect(page.get_by_role("heading", name="Protocol inspector")).to_be_visible()
        page.get_by_role("button", name="Inspect the next one").click()
        expect(page.get_by_role("status").filter(has_text="waits for a connection")).to_be_visible()
        with ask.broker.connect() as another:
            another.topics()
            expect(page.get_by_role("row").filter(has_text="LIST_TOPICS").first).to_be_visible()
    assert page.is_closed()


def test_an_incompatible_schema_is_refused_and_the_reason_is_shown(chromium: Browser, ask: Asking) -> None:
    with at(chromium, ask.broker, "/schemas") as page:
        page.get_by_role("button", name="Register schema").click()
        dialog_of(
            page, "Register", Name="order", Definition='{"type": "object", "properties": {"id": {"type": "integer"}}}'
        )
        draft = page.get_by_label("Draft of the next version")
        draft.fill('{"type": "object", "properties": {"id": {"type": "string"}}}')
        page.get_by_role("button", name="Check").click()
        expect(page.get_by_text("It cannot be the next version:")).to_be_visible()
        expect(page.locator("li")).to_contain_text("id")
        page.get_by_role("button", name="Register", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("id")
        draft.fill('{"type": "object", "properties": {"id": {"type": ["integer", "null"]}}}')
        page.get_by_role("button", name="Register", exact=True).click()
        expect(page.locator(".diff .add").first).to_be_visible()
        expect(page.get_by_text("Version 2, registered")).to_be_visible()
        page.get_by_label("Version", exact=True).select_option("1")
        expect(page.get_by_text("Version 1, registered")).to_be_visible()
        page.get_by_label("A value to try").fill('{"id": "x"}')
        page.get_by_role("button", name="Try").click()
        expect(page.locator("ul.bad li")).to_contain_text("x")
        assert [each["version"] for each in ask.ok("GET", "/schemas/order")] == [1, 2]
        page.get_by_role("button", name="Delete", exact=True).click()
        dialog_of(page, "Delete the schema", **{"Type order to confirm": "order"})
        expect(page).to_have_url(re.compile("/console/schemas$"))  # what a toast says is gone after some seconds
        expect(page.get_by_role("heading", name="Schemas", exact=True)).to_be_visible()
        expect(page.get_by_role("link", name="order", exact=True)).to_have_count(0)
    assert ask("GET", "/schemas/order").status == 404


def test_a_login_shows_rights_and_ends_with_its_key(chromium: Browser) -> None:
    with asking(listeners=LOGIN_REQUIRED) as ask:
        key = new_key(ask.broker, "mine", "admin")
        with at(chromium, ask.broker, "/access/keys") as page:
            page.get_by_label("User", exact=True).fill("nobody")
            page.get_by_label("Password").fill("guess")
            page.get_by_role("button", name="Log in").click()
            expect(page.get_by_role("alert")).to_contain_text("invalid username or password")
            page.get_by_label("or an API key").fill(key)
            page.get_by_role("button", name="Log in").click()
            expect(page.locator(".who")).to_have_text("key:mine")

            page.get_by_role("link", name="rights", exact=True).click()
            expect(page.get_by_role("table", name="Rights").get_by_role("row").nth(1)).to_contain_text("role admin")
            page.get_by_role("link", name="Users").click()
            page.get_by_role("button", name="Create user").click()
            dialog_of(page, "Create", Name="ann", Password="first", Roles="consumer")
            page.get_by_role("row", name=re.compile("^ann ")).get_by_role("button", name="Password").click()
            dialog_of(page, "Set", New_password="second")
            expect(page.locator(".toast").last).to_contain_text("The password of ann is set.")
            assert ask.with_password("ann", "first")("GET", "/topics").status == 401
            assert ask.with_password("ann", "second")("GET", "/topics").status == 200
            page.get_by_role("link", name="API keys").click()
            page.get_by_role("button", name="Create key").click()
            dialog_of(page, "Create", Name="<img src=x>", Roles="consumer")
            expect(page.get_by_label("API key", exact=True)).to_contain_text("pk_")
            dialog_of(page, "Done")
            expect(page.get_by_role("cell", name="<img src=x>")).to_be_visible()
            page.get_by_role("row", name=re.compile("^mine ")).get_by_role("button", name="Revoke").click()
            dialog_of(page, "Revoke", **{"Type mine to confirm": "mine"})
            expect(page.get_by_role("heading", name="Log in")).to_be_visible()
            expect(page.get_by_role("alert")).to_contain_text("logged out")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_reached_by_keyboard_on_a_narrow_screen(chromium: Browser, ask: Asking, scheme: str) -> None:
    pages = {"o": "Overview", "t": "Topics", "g": "Groups and subscriptions", "d": "Dead letters", "s": "Schemas"}
    pages |= {"p": "Pipelines", "a": "Access", "i": "Protocol inspector", "c": "Configuration"}
    size = {"width": 400, "height": 800}
    with at(chromium, ask.broker, "/topics", color_scheme=scheme, viewport=size) as page:
        expect(page.get_by_role("heading", name="Topics")).to_be_visible()
        for key, heading in pages.items():
            page.keyboard.press("g")
            page.keyboard.press(key)
            expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]  # only tables scroll sideways
        page.keyboard.press("/")
        page.keyboard.type("flymq")
        expect(page).to_have_url(re.compile("search=flymq"))
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(16, 21, 28)") is (scheme == "dark")


def test_its_files_have_a_strict_policy_and_are_not_sent_twice(ask: Asking) -> None:
    page = Asking(ask.broker, prefix=PREFIX, opened=ask.opened)
    first = page("GET", "/assets/app.js")
    assert first.headers["content-type"].startswith("text/javascript")
    assert "script-src 'self'" in first.headers["content-security-policy"]
    assert "unsafe" not in HEADERS["content-security-policy"]
    assert "require-trusted-types-for 'script'" in HEADERS["content-security-policy"]
    assert page("GET", "/assets/app.js", if_none_match=first.headers["etag"]).status == 304
    assert page("GET", "/topics/x").headers["content-type"].startswith("text/html")
    assert page("GET", "/assets/none.js").status == 404
    assert page("GET", "/assets/../__init__.py").status == 404
    assert page("POST", "").status == 405
    assert page("GET", "x").status == 404


def test_no_file_of_it_refers_to_another_place_or_makes_markup_of_data() -> None:
    for name, response in Console()._files.items():
        text = bytes(response.body).decode()
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text), (
            name
        )
