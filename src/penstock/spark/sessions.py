"""A Spark session with the settings that make the source, the sink and the pipelines fast and safe.

What goes into it, in rising precedence: settings that help everywhere, settings that only make sense where driver, executors and
checkpoints are on this machine (left out as soon as a cluster's master is named), and what the caller gives. A running session belongs to
whoever made it: it is returned unchanged, and a warning names the settings that differ. (Spark's own `getOrCreate` would apply them to it,
and with them change the results of other queries.)
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import ConfigError
from penstock.spark.homes import HOME, home_without_zip
from penstock.spark.java import find_java, java_version
from penstock.spark.session_options import hold_password, session_defaults, without_password

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHUFFLE_PARTITIONS_MAX = 16
PYTHON = "spark.pyspark.python"
"""The setting that names the interpreter of all machines."""

JAVA_OPTIONS = "SPARK_SUBMIT_OPTS"
"""The variable with options of Java that are added to those of settings, which may be in spark-defaults.conf, and do not win over them."""
VFORK = "-Djdk.lang.Process.launchMechanism=VFORK"
"""Hadoop's local file system starts a `chmod` for each file and directory that it makes: this way it takes half as long."""
VFORK_JAVA_MAX = 21
"""Later ones warn of it, and then no longer know it."""

logger = logging.getLogger(__name__)

EVERYWHERE = {
    # Half the cost of a Python task: no loopback TCP between the executor and its Python.
    "spark.python.unix.domain.socket.enabled": "true",
    # State outgrows the heap, and some operators (transformWithState) work on nothing else.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # What every other reader of Parquet understands; the default is a type that the format has long given up.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.showConsoleProgress": "false",
}

ON_THIS_MACHINE = {
    # Hadoop's checksummed local file system starts a `chmod` for every file it makes; that is most of a small micro-batch.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # Nothing of a local session needs to be reached from elsewhere. Spark's web page listens on every address, so it is off
    # until somebody turns it on.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def is_local(master: str) -> bool:
    """Whether a master runs everything in this machine's one process."""
    return master == "local" or master.startswith("local[")


def settings(
    app_name: str,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    *,
    processors: int = 1,
    remote: str | None = None,
) -> dict[str, str]:
    """Every setting of the session that `session` would make; `remote` is the address of a Spark Connect server."""
    given = {name: str(value) for name, value in (config or {}).items()}
    if remote:
        # A server has settings of its own. Those of a session are few, and the rest would be refused.
        chosen = {"spark.app.name": app_name, "spark.sql.session.timeZone": EVERYWHERE["spark.sql.session.timeZone"]}
        return {**chosen, **given, "spark.remote": remote}
    master = master or given.get("spark.master") or "local[*]"
    chosen = {"spark.app.name": app_name, **EVERYWHERE}
    if is_local(master):
        chosen |= ON_THIS_MACHINE
        chosen["spark.sql.shuffle.partitions"] = str(min(max(2, processors), SHUFFLE_PARTITIONS_MAX))
    return {**chosen, **given, "spark.master": master}


def build_session(
    app_name: str = "penstock",
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    *,
    environment: MutableMapping[str, str] = os.environ,
) -> SparkSession:
    """See `penstock.spark.session`."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise ConfigError('Spark is not installed: run pip install "penstock[spark]"')
    config = without_password(config or {})
    remote = remote_server(master, config, environment)
    if remote is not None:
        return _connected(settings(app_name, None, config, remote=remote))
    running = running_session()
    if running is not None:
        return with_source(_as_it_is(running, app_name, master, config))
    chosen = settings(app_name, master, config, processors=os.cpu_count() or 1)
    here = is_local(chosen["spark.master"])
    starts_java = "PYSPARK_GATEWAY_PORT" not in environment
    """Otherwise spark-submit has started the virtual machine already, on the Java it chose."""
    if starts_java:
        environment["JAVA_HOME"] = str(find_java(environment))
    if PYTHON in chosen:
        # Spark itself minds this setting only in what spark-submit starts.
        environment["PYSPARK_PYTHON"] = chosen[PYTHON]
    elif here:
        # Workers must find what this interpreter finds; on a cluster it is a path of another machine.
        environment.setdefault("PYSPARK_PYTHON", sys.executable)

    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.config(map=dict[str, bool | float | int | str | None](chosen))
    try:
        with _set(environment, _launch_variables(environment) if starts_java and here else {}):
            session = builder.getOrCreate()
        return with_source(session)
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise ConfigError(
            "Spark's Java process ended as it started; what it prints (penstock pipeline run --verbose shows it) says why; less "
            "memory than spark.driver.memory asks for is a common reason"
        ) from error


def _launch_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables for a virtual machine on this computer that make it start processes in less time."""
    variables = {}
    if (java_version(Path(environment["JAVA_HOME"])) or 0) <= VFORK_JAVA_MAX:
        variables[JAVA_OPTIONS] = f"{VFORK} {environment.get(JAVA_OPTIONS, '')}".rstrip()
    home = home_without_zip(environment)
    if home is not None:
        variables[HOME] = str(home)
    return variables


@contextmanager
def _set(environment: MutableMapping[str, str], variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for as long as the context lasts: what else this process starts does not get them."""
    before = {name: environment.get(name) for name in variables}
    environment.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value


def remote_server(master: str | None, config: Mapping[str, str] | None, environment: Mapping[str, str]) -> str | None:
    """Return the Spark Connect server that is asked for, None if none is. A master that is named wins over the environment."""
    given = config or {}
    if "spark.remote" in given:
        if master is not None or "spark.master" in given:
            raise ConfigError("a session has a master or a remote server: leave out spark.remote or the master")
        return str(given["spark.remote"])
    return None if master is not None or "spark.master" in given else environment.get("SPARK_REMOTE")


def _connected(chosen: Mapping[str, str]) -> SparkSession:
    """Return a session of a Spark Connect server. It needs no Java here."""
    try:
        from pyspark.sql.connect.session import SparkSession as ConnectSession
    except ImportError as error:  # gRPC, mostly
        raise ConfigError(f'Spark Connect is not installed ({error}): run pip install "pyspark[connect]"') from None
    session: Any = ConnectSession.getActiveSession()
    if session is None:
        session = ConnectSession.builder.config(map=dict[str, bool | float | int | str | None](chosen)).create()
    else:
        _warn_of_differences(session, {name: value for name, value in chosen.items() if name != "spark.remote"})
    register_source(session)
    return cast("SparkSession", session)


def running_session() -> SparkSession | None:
    """Return the session of this process, unchanged; None if there is none."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # The public getActiveSession knows only sessions of the calling thread.
    if SparkContext._active_spark_context is None:  # noqa: SLF001
        return None
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def _as_it_is(
    running: SparkSession, app_name: str, master: str | None, config: Mapping[str, str] | None
) -> SparkSession:
    given = {"spark.master": running.conf.get("spark.master", None) or "local", **(config or {})}
    _warn_of_differences(running, settings(app_name, master, given, processors=os.cpu_count() or 1))
    return running


def _warn_of_differences(running: SparkSession, wanted: Mapping[str, str]) -> None:
    differing = differing_settings(running, wanted)
    if differing:
        logger.warning(
            "a Spark session is running and is used as it is, without these settings: %s; stop it first to get a session with them",
            ", ".join(differing),
        )


def differing_settings(session: SparkSession, wanted: Mapping[str, str]) -> list[str]:
    """Return the names of settings that the session has not or has otherwise. Values may be secrets, and are not returned."""
    return sorted(
        name for name, value in wanted.items() if name != "spark.app.name" and session.conf.get(name, None) != value
    )


def register_source(session: SparkSession) -> None:
    """See `penstock.spark.register`."""
    from penstock.spark.source import PenstockDataSource

    defaults = {**session_defaults(session), **parallelism_option(session)}
    hold_password(session)
    # Made here, so that Spark sends it with what it holds instead of by its name.
    made = type(PenstockDataSource.__name__, (PenstockDataSource,), {"defaults": defaults}) if defaults else None
    session.dataSource.register(made or PenstockDataSource)


def parallelism_option(session: SparkSession) -> dict[str, str]:
    """Return the option that tells the source how many tasks run at once, as far as executors have registered."""
    from penstock.spark.options import PARALLELISM

    # Of a Spark Connect server a session does not tell.
    context = getattr(session, "sparkContext", None)
    return {} if context is None else {PARALLELISM: str(context.defaultParallelism)}


def with_source(session: SparkSession) -> SparkSession:
    """Register the source with a session on a cluster: one that Spark finds by itself runs on the interpreter of the driver's environment.

    Also with a session that names its broker: what Spark finds by itself knows nothing of that.
    Sessions made with `newSession` know nothing of what was registered with the first.
    """
    if not is_local(session.conf.get("spark.master", None) or "local") or session_defaults(session):
        register_source(session)
    return session
