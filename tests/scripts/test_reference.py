"""The generated pages of the manual are what the code declares, and leave nothing out."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from pydantic import BaseModel, Field

from penstock.admin.metrics import families
from penstock.cli.config_template import section_of
from penstock.config import Config
from penstock.docstrings import field_docs
from penstock.errors import PenstockError
from penstock.protocols.flymq.operations.operation import OPERATIONS
from scripts.reference import cli, configuration, errors, flymq, metrics, python
from scripts.reference.markdown import DOCS, paragraphs, prose, table
from scripts.reference.pages import PAGES


@pytest.mark.parametrize("path", [path.relative_to(DOCS).as_posix() for path in PAGES])
def test_the_page_is_current(path: str) -> None:
    page = DOCS / path
    assert page.exists(), f"docs/{path} is missing: run `make reference`"
    assert page.read_text() == PAGES[page](), f"docs/{path} is stale: run `make reference`"


def test_every_page_of_the_reference_folder_is_generated() -> None:
    assert {path for path in PAGES if "reference" in path.parts} == set((DOCS / "reference").rglob("*.md"))


def headings(text: str, level: int) -> list[str]:
    return re.findall(rf"^{'#' * level} (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)


def test_every_flymq_operation_has_a_section() -> None:
    assert sorted(headings(flymq.page(), 3)) == sorted(
        f"0x{opcode:02X} {kind.opcode_name}" for opcode, kind in OPERATIONS.items()
    )


def test_every_command_has_a_section_with_every_option() -> None:
    page = cli.page()
    for words, command in cli.walk(cli.root(), ("penstock",)):
        heading = " ".join(words)
        assert heading in headings(page, 2) + headings(page, 3)
        section = re.split(r"^##+ ", page.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
        for each in () if cli.names(command) else [each for each in command.params if not each.hidden]:
            assert each.help, f"{heading}: {each.name} has no help text"
            assert (each.opts[0] if each.opts[0].startswith("-") else each.metavar) in section


def settings(kind: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in kind.model_fields.items():
        below = section_of(field)
        if below is None:
            yield f"{prefix}{name}"
        else:
            yield from settings(below, f"{prefix}{name}.")


def test_every_setting_has_a_row_with_its_variable() -> None:
    page = configuration.page()
    known = set(settings(Config))
    assert len(known) > 150
    for key in known:
        if not key.startswith(("topics.", "pipelines.", "listeners.fujin.aliases.")):
            assert f"`{configuration.variable(key)}`" in page, key
    for name in ("topic", "group", "start"):
        assert f"| `{name}` |" in page.partition("aliases.<name>]`\n")[2]


def test_types_bounds_and_defaults_of_settings_are_as_one_writes_them() -> None:
    class Sample(BaseModel):
        idle_s_max: float = Field(300.0, ge=1)
        cache_bytes: int = Field(4 << 20, ge=1 << 10, le=1 << 30)
        ratio: float = Field(0.5, gt=0, le=1)
        required: str

    rows = {
        name: (configuration.type_words(name, field), configuration.default_words(Sample, name, field))
        for name, field in Sample.model_fields.items()
    }
    assert rows == {
        "idle_s_max": ("duration, at least 1s", "`5m`"),
        "cache_bytes": ("size, 1 KiB to 1 GiB", "`4 MiB`"),
        "ratio": ("number, more than 0, at most 1", "`0.5`"),
        "required": ("string", "required"),
    }


def test_every_metric_has_a_row() -> None:
    rows = set(re.findall(r"^\| `(penstock_\w+)`", metrics.page(), re.MULTILINE))
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families(metrics.no_figures())}
    assert rows == names
    assert "| `penstock_group_lag_records` | gauge | `group`, `topic`, `partition` |" in metrics.page()


def every_error(base: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield base
    for kind in base.__subclasses__():
        yield from every_error(kind)


def test_every_error_has_a_row_and_a_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)`[^|]*\| `\w+` \|[^|]*\| (.*) \|$", errors.page(), re.MULTILINE)
    ours = {kind.__name__ for kind in every_error(PenstockError) if kind.__module__ == "penstock.errors"}
    assert {name for name, meaning in rows if meaning} == ours
    own = [kind.__name__ for kind in errors.every_error() if "__doc__" not in vars(kind) or not kind.__doc__]
    assert own == [], "errors without a docstring of their own"


def test_every_client_page_has_the_methods_of_its_client() -> None:
    page = python.client_page("FlyMQ")
    assert {"FlyMQClient.send", "FlyMQClient.records", "client.schemas.register"} <= set(headings(page, 3))
    assert {"FlyMQClient", "Transaction", "client.access"} <= set(headings(page, 2))
    assert "### FlyMQClient.send\n\n```python\nsend(\n    topic: str,\n" in page
    assert "### RecordMetadata" in page.partition("## Results")[2]


def test_a_table_keeps_bars_inside_of_its_cells() -> None:
    assert table(["a", "b"], [("x | y", "two\nlines")]) == "| a | b |\n|---|---|\n| x \\| y | two lines |\n"
    assert table(["a"], []) == ""


def test_angle_brackets_are_text_except_in_code() -> None:
    assert prose("interval:<ms> or `interval:<ms>`") == "interval:&lt;ms> or `interval:<ms>`"


def test_docstrings_become_paragraphs_and_code() -> None:
    assert paragraphs("One\ntwo.\n```python\na\n\nb\n```\nThree.\n\n    code()\n") == (
        "One two.\n\n```python\na\n\nb\n```\n\nThree.\n\n```python\ncode()\n```"
    )


def test_strings_below_fields_are_found_in_bases_too() -> None:
    docs = field_docs(Config.model_fields["listeners"].default.fujin.__class__)
    assert docs["streams_max"].startswith("Streams that a client")
    assert docs["auth"].startswith("`required`")
