"""The two distributions: what is in them, and that what is installed from them works with no more than they declare.

`penstock-client` is installed into an environment of its own, from the package index, with the versions of constraints.txt.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterable, Mapping
from email.message import Message
from email.parser import Parser
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import pytest

import penstock
from penstock.testing import RunningBroker

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "client"
SOURCE = ROOT / "src"
OURS = {path.name for path in SOURCE.iterdir()}
FROM_THE_PLATFORM = {"pyspark"}
"""What a cluster brings: installing another one would replace it."""
OF_TABLES_ONLY = {"deltalake", "pyiceberg"}
"""Needed by `penstock.spark.table` alone, which says so."""
INSTALL_S_MAX = 240

OVER_TCP = """
import sys, penstock
flymq, blipmq, rustlog = sys.argv[1:]
with penstock.connect(flymq) as client:
    client.create_topic("orders", partitions=1)
    client.send("orders", b"one", key=b"k")
    client.send_many("orders", [b"value %d" % n for n in range(100)])
    print(len(list(client.records("orders", group="billing"))))
with penstock.connect(rustlog) as client:
    client.send_many("orders", [b"two", b"three"])
    print(len(list(client.records("orders", group="audit"))))
with penstock.connect(blipmq) as client:
    subscription = client.subscribe("orders")
    client.send("orders", b"four")
    print([message.value for message in client.records("orders", subscription=subscription)])
print(*(name for name in ("uvloop", "structlog", "pydantic", "qh3") if name in sys.modules))
try:
    penstock.connect("fujin://127.0.0.1:1")
except penstock.errors.PenstockError as error:
    print(error.code, error)
"""
OVER_QUIC = """
import sys, penstock
fujin, felix = sys.argv[1:]
with penstock.connect(fujin) as client:
    client.send("letters", b"one")
    with client.reader("letters", pull=True) as reader:
        print([message.value for message in reader.fetch(10)])
with penstock.connect(felix) as client:
    with client.subscribe("letters") as subscription:
        client.send("letters", b"two")
        print(subscription.next().value)
"""


class Wheels(NamedTuple):
    broker: Path
    client: Path


def run(*command: Path | str, cwd: Path | None = None, timeout_s: float = 60) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=timeout_s)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """Both, built as a release builds them, but for the environment of the build."""
    directory = tmp_path_factory.mktemp("wheels")
    for source in (ROOT, CLIENT):
        run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", directory, cwd=source)
    return Wheels(*(next(directory.glob(f"{name}-*.whl")) for name in ("penstock", "penstock_client")))


def contents(wheel: Path) -> Mapping[str, bytes]:
    """The files of a wheel that are installed as modules."""
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


distributions = cache(packages_distributions)


def libraries(modules: Iterable[bytes], declared: set[str]) -> set[str]:
    """The libraries that modules import, by the names under which they are installed: of several with one module, those declared."""
    imported: set[str] = set()
    for module in modules:
        for node in ast.walk(ast.parse(module)):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
    found: set[str] = set()
    for name in imported - sys.stdlib_module_names - OURS:
        owners = {owner.lower().replace("_", "-") for owner in distributions()[name]}
        found |= owners & declared or owners
    return found


def names(requirements: Iterable[str]) -> set[str]:
    return {requirement.partition(">")[0].partition("=")[0] for requirement in requirements}


# --- what is in them ---


def test_the_wheel_of_the_broker_has_all_modules_and_nothing_else(wheels: Wheels) -> None:
    files = [path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    expected = {path.relative_to(SOURCE).as_posix() for path in files}
    assert set(contents(wheels.broker)) == expected


def test_the_wheel_of_the_client_is_a_part_of_the_other_byte_for_byte(wheels: Wheels) -> None:
    whole, part = contents(wheels.broker), contents(wheels.client)
    assert part.items() <= whole.items()
    assert {"penstock/py.typed", "pyspark_penstock/py.typed"} < set(part)
    assert not [name for name in part if name.startswith(("penstock/cli/", "penstock/server", "penstock/log/embedded"))]


def test_the_client_declares_what_its_modules_import(wheels: Wheels) -> None:
    client = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
    modules = {name: code for name, code in contents(wheels.client).items() if name.endswith(".py")}
    extras = {extra: names(of_extra) for extra, of_extra in client["optional-dependencies"].items()}
    declared = names(client["dependencies"]).union(*extras.values())
    assert libraries(modules.values(), declared) <= declared | FROM_THE_PLATFORM | OF_TABLES_ONLY
    for_quic = [code for name, code in modules.items() if name.startswith("penstock/quic/")]
    assert libraries(for_quic, declared) == extras["quic"]
    of_clients = [
        code for name, code in modules.items() if name.startswith(("penstock/clients/", "penstock/protocols/"))
    ]
    assert libraries(of_clients, declared) == names(client["dependencies"]) | extras["uvloop"]


def test_both_ask_for_the_same_versions_and_pythons() -> None:
    broker, client = (tomllib.loads((path / "pyproject.toml").read_text())["project"] for path in (ROOT, CLIENT))
    asked = {*client["dependencies"], *(each for of in client["optional-dependencies"].values() for each in of)}
    assert asked <= {*broker["dependencies"], *broker["optional-dependencies"]["spark"]}
    assert client["requires-python"] == broker["requires-python"]
    pythons = [
        [each for each in of["classifiers"] if each.startswith("Programming Language")] for of in (broker, client)
    ]
    assert pythons[0] == pythons[1]


@pytest.mark.parametrize("which", ["broker", "client"])
def test_the_index_gets_a_page_a_licence_and_a_version(wheels: Wheels, which: str) -> None:
    fields = metadata(getattr(wheels, which))
    assert fields["Version"] == penstock.__version__ == version("penstock")
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields["License-File"] == "LICENSE"
    assert fields["Description-Content-Type"] == "text/markdown"
    assert str(fields.get_payload()).startswith("# ")


# --- what is installed from them ---


@pytest.fixture(scope="module")
def environment(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with penstock-client and what it declares."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, with_pip=False, symlinks=True)
    python = directory / "bin" / "python"
    install(python, str(wheels.client))
    return python


def install(python: Path, *requirements: str) -> None:
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--no-compile",
    )
    run(*pip, "--constraint", ROOT / "constraints.txt", *requirements, timeout_s=INSTALL_S_MAX)


@pytest.mark.timeout(300)
def test_the_clients_over_tcp_work_with_msgspec_and_numpy_alone(
    environment: Path, penstock_broker: RunningBroker, tmp_path: Path
) -> None:
    urls = (penstock_broker.url, penstock_broker.blipmq_url, penstock_broker.rustlog_url)
    printed = run(environment, "-W", "error", "-c", OVER_TCP, *urls, cwd=tmp_path).splitlines()
    assert printed == [
        "101",
        "103",
        "[b'four']",
        "",
        'config fujin:// runs over QUIC, which needs qh3: run pip install "penstock-client[quic]"',
    ]


@pytest.mark.timeout(300)
def test_the_clients_over_quic_work_with_their_extra(
    environment: Path, wheels: Wheels, penstock_broker: RunningBroker, tmp_path: Path
) -> None:
    install(environment, f"{wheels.client}[quic]")
    penstock_broker.connect().create_topic("letters")
    urls = (penstock_broker.fujin_url, penstock_broker.felix_url)
    printed = run(environment, "-W", "error", "-c", OVER_QUIC, *urls, cwd=tmp_path).splitlines()
    assert printed == ["[b'one']", "b'two'"]


@pytest.mark.timeout(300)
def test_both_work_in_one_environment(wheels: Wheels, tmp_path: Path) -> None:
    venv.create(tmp_path / "environment", with_pip=False, symlinks=True)
    python = tmp_path / "environment" / "bin" / "python"
    install(python, "--no-deps", str(wheels.broker), str(wheels.client))
    (site,) = tmp_path.glob("environment/lib/python*/site-packages")
    # The libraries of the environment that runs this test, without what a .pth file there adds: the source tree.
    (site / "libraries.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    assert penstock.__version__ in run(python, "-m", "penstock", "--version", cwd=tmp_path)
    place = run(python, "-c", "import penstock.server; print(penstock.server.__file__)", cwd=tmp_path)
    assert place.startswith(str(site))
