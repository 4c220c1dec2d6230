"""The configuration: its layers, where each value comes from, and what is said about a mistake."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.config import Config, FlyMQListener, Listeners, Topic, load_config
from penstock.errors import ConfigError
from penstock.log.api import Durability, TopicConfig

LISTENER = "[listeners.flymq]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "penstock.toml"


def problems(file: Path | None = None, env: dict[str, str] | None = None, **overrides: object) -> list[str]:
    """The lines of the error that loading ends in, with the file called by its name alone."""
    with pytest.raises(ConfigError) as caught:
        load_config(file, env or {}, overrides)
    return [line.replace(f"{file.parent}/", "") if file else line for line in str(caught.value).splitlines()]


# -- layers and origins ---------------------------------------------------------------------------------------------------


def test_with_no_file_the_flymq_listener_and_the_admin_address_are_on() -> None:
    config = load_config(None, {})
    assert config.listeners.flymq == FlyMQListener()
    assert config.listeners.flymq.bind == "127.0.0.1:9092"
    assert config.admin is not None
    assert config.admin.bind == "127.0.0.1:9600"
    assert set(config.origins.values()) == {"default"}


def test_with_a_file_only_what_it_names_is_on(file: Path) -> None:
    file.write_text("[listeners.flymq]\n")
    config = load_config(file, {})
    assert [name for name, _ in config.listeners.enabled()] == ["flymq"]
    assert config.admin is None
    file.write_text("[listeners.flymq]\n[admin]\n")
    assert load_config(file, {}).admin is not None


def test_a_file_that_turns_no_listener_on_is_an_error_unless_a_later_layer_does(file: Path) -> None:
    file.write_text('durability = "none"\n')
    assert problems(file) == [
        "penstock.toml: no listener is on, so no client could connect: add a [listeners.flymq] section"
    ]
    assert load_config(file, {"PENSTOCK_LISTENERS__FLYMQ__BIND": "127.0.0.1:0"}).listeners.flymq is not None
    assert load_config(file, {"PENSTOCK_LISTENERS__FLYMQ": "{}"}).listeners.flymq == FlyMQListener()


def test_flags_win_over_the_environment_which_wins_over_the_file(file: Path) -> None:
    file.write_text(
        'durability = "none"\n[log]\nsegment_ms = "1h"\nretention_ms = "1d"\nretention_bytes = 5\n' + LISTENER
    )
    config = load_config(
        file,
        {"PENSTOCK_LOG__SEGMENT_MS": "2h", "PENSTOCK_LOG__RETENTION_MS": "2d"},
        {"log.retention_ms": "3d"},
        flags={"log.retention_ms": "--set"},
    )
    assert config.durability == "none"
    assert (config.log.retention_bytes, config.log.segment_ms, config.log.retention_ms) == (
        5,
        7_200_000,
        3 * 86_400_000,
    )
    origins = config.origins
    assert origins["durability"] == f"file {file}"
    assert origins["log.retention_bytes"] == f"file {file}"
    assert origins["log.segment_ms"] == "environment PENSTOCK_LOG__SEGMENT_MS"
    assert origins["log.retention_ms"] == "flag --set"
    assert origins["log.segment_bytes"] == "default"


def test_an_override_without_a_flag_name_is_called_after_its_key() -> None:
    assert load_config(None, {}, {"data_dir": "d"}).origins["data_dir"] == "flag --data-dir"


def test_a_list_of_a_later_layer_replaces_the_whole_list(file: Path) -> None:
    file.write_text(LISTENER + '[[topics]]\nname = "a"\npartitions = 2\n[[topics]]\nname = "b"\n')
    config = load_config(file, {})
    assert config.origins["topics[0].partitions"] == f"file {file}"
    assert config.origins["topics[1].partitions"] == "default"
    config = load_config(file, {"PENSTOCK_TOPICS": '[{"name": "c"}]'})
    assert [topic.name for topic in config.topics] == ["c"]
    assert config.origins["topics[0].name"] == "environment PENSTOCK_TOPICS"
    assert config.origins["topics[0].partitions"] == "default"


def test_origins_and_values_name_the_same_settings(file: Path) -> None:
    config = load_config(None, {"PENSTOCK_TOPICS": '[{"name": "c"}]'})
    assert list(config.origins) == list(config.values)
    assert config.values["topics[0].name"] == "c"
    assert config.values["listeners.flymq.bind"] == "127.0.0.1:9092"


def test_relative_paths_of_a_file_start_at_the_file_and_others_where_the_process_is(tmp_path: Path, file: Path) -> None:
    for name in ("a.pem", "b.pem"):
        (tmp_path / name).touch()
    file.write_text('data_dir = "data"\n[listeners.flymq]\ntls.cert = "a.pem"\ntls.key = "b.pem"\n')
    config = load_config(file, {})
    assert config.data_dir == tmp_path / "data"
    assert config.listeners.flymq is not None
    assert config.listeners.flymq.tls is not None
    assert config.listeners.flymq.tls.key == tmp_path / "b.pem"
    assert load_config(file, {"PENSTOCK_DATA_DIR": "here"}).data_dir == Path("here")
    assert load_config(None, {"PENSTOCK_DATA_DIR": "~/here"}).data_dir == Path.home() / "here"


def test_an_empty_environment_variable_counts_as_unset() -> None:
    assert load_config(None, {"PENSTOCK_DURABILITY": "", "PENSTOCK_NONSENSE": ""}).durability == "fsync"


def test_variables_that_kubernetes_and_the_command_line_set_are_no_settings() -> None:
    env = {
        "PENSTOCK_SERVICE_HOST": "10.0.0.1",
        "PENSTOCK_SERVICE_PORT_FLYMQ": "9092",
        "PENSTOCK_PORT": "tcp://10.0.0.1:9092",
        "PENSTOCK_PORT_9092_TCP_ADDR": "10.0.0.1",
        "PENSTOCK_SERVER": "flymq://other",
        "PENSTOCK_CONFIG": "x.toml",
        "PATH": "/bin",
    }
    assert load_config(None, env).values == Config().values


# -- what people write ----------------------------------------------------------------------------------------------------


def test_units_are_read_in_files_and_in_the_environment(file: Path) -> None:
    file.write_text(
        '[listeners.flymq]\nidle_s_max = "5m"\nheader_s_max = 7\n[log]\nsegment_bytes = "64 MiB"\nretention_ms = "forever"\n'
        '[[topics]]\nname = "t"\nretention_ms = 1000\nretention_bytes = "2 GB"\n'
    )
    config = load_config(file, {"PENSTOCK_LIMITS__RECORD_BYTES_MAX": "1 MiB"})
    assert config.listeners.flymq is not None
    assert (config.listeners.flymq.idle_s_max, config.listeners.flymq.header_s_max) == (300.0, 7.0)
    assert (config.log.segment_bytes, config.log.retention_ms) == (64 << 20, None)
    assert (config.topics[0].retention_ms, config.topics[0].retention_bytes) == (1000, 2_000_000_000)
    assert config.limits.record_bytes_max == 1 << 20


def test_a_topic_takes_what_it_does_not_say_from_the_defaults(file: Path) -> None:
    file.write_text(
        'durability = "interval:50"\n[log]\nretention_ms = "1d"\ncompression = "zstd"\nsegment_ms = "1h"\n'
        + LISTENER
        + '[[topics]]\nname = "plain"\n'
        '[[topics]]\nname = "own"\npartitions = 3\ndurability = "fsync"\nretention_ms = "forever"\ncleanup = "compact"\n'
        'compression = "none"\nsegment_bytes = "1 MiB"\n'
    )
    config = load_config(file, {})
    plain, own = (topic.config(config.topic_defaults) for topic in config.topics)
    assert plain == config.topic_defaults
    assert plain == TopicConfig(
        durability=Durability("interval", 50), retention_ms=86_400_000, compression="zstd", segment_ms=3_600_000
    )
    assert own == TopicConfig(
        partitions=3, durability=Durability("fsync"), cleanup="compact", segment_bytes=1 << 20, segment_ms=3_600_000
    )


def test_defaults_are_those_of_the_log() -> None:
    config = Config()
    assert config.topic_defaults == TopicConfig()


def test_in_code_keywords_are_all_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_DURABILITY", "none")
    config = Config(data_dir=tmp_path, listeners=Listeners(flymq=FlyMQListener(bind="127.0.0.1:0")), admin=None)
    assert config.durability == "fsync"
    assert config.data_dir == tmp_path
    assert config == Config(data_dir=tmp_path, listeners={"flymq": {"bind": "127.0.0.1:0"}}, admin=None)
    assert config.origins["data_dir"] == "code"
    assert config.origins["listeners.flymq.bind"] == "code"
    assert config.origins["listeners.flymq.auth"] == "default"
    assert load_config(None).durability == "none"


def test_a_configuration_does_not_change_once_built() -> None:
    with pytest.raises(ValidationError):
        setattr(Config(), "durability", "none")  # noqa: B010 - the type checker knows that it is read-only


# -- the page that documents it ------------------------------------------------------------------------------------------


def test_the_documented_file_holds_every_setting_with_its_default(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "reference" / "configuration.md").read_text()
    (example,) = [block for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if block.startswith("data_dir")]
    file = tmp_path / "penstock.toml"
    file.write_text(example)
    documented, defaults = load_config(file, {}), Config()
    assert documented.values == defaults.values | {"data_dir": tmp_path / "penstock-data"}
    optional = {
        *(f"listeners.{name}.tls" for name in Listeners.model_fields),
        "admin.tls",
        "kafka.tls",
        "kafka.sasl",
        "cluster",
        "topics",
        "pipelines",
    }
    assert {key for key, origin in documented.origins.items() if origin == "default"} == optional


# -- what is said about mistakes ------------------------------------------------------------------------------------------


def test_an_unknown_setting_names_the_file_and_what_may_be_meant(file: Path) -> None:
    file.write_text(
        'durabilty = "fsync"\nbind = "x"\nretention = 1\nfrobnicate = 1\n[log]\nretention = "1d"\nzap = 1\n'
        '[listeners.flymq]\nbnd = "127.0.0.1:1"\ntls.certificate = "x"\n[[topics]]\nname = "t"\npartition = 3\n'
    )
    assert sorted(problems(file)) == sorted(
        [
            "penstock.toml: durabilty is not a setting; did you mean durability?",
            "penstock.toml: bind is not a setting; did you mean listeners.flymq.bind, listeners.blipmq.bind or listeners.rustlog.bind?",
            "penstock.toml: retention is not a setting; did you mean log.retention_ms, log.retention_bytes or topics.retention_ms?",
            (
                "penstock.toml: frobnicate is not a setting; the top level knows data_dir, engine, durability, listeners, admin, dev, "
                "access, log, kafka, cluster, limits, subscriptions, logging, otel, topics, pipelines"
            ),
            "penstock.toml: log.retention is not a setting; did you mean log.retention_ms or log.retention_bytes?",
            (
                "penstock.toml: log.zap is not a setting; log knows retention_ms, retention_bytes, compression, segment_bytes, segment_ms, "
                "block_bytes_target, journal_bytes, checkpoint_bytes, tail_bytes_per_partition, tail_bytes_max, write_files_max, "
                "reader_threads, maintenance_interval_s, tombstone_ms, merge_block_bytes, compact_dirty_ratio, compact_keys_max, "
                "snapshots_max, reserve_bytes, accept_gaps"
            ),
            "penstock.toml: listeners.flymq.bnd is not a setting; did you mean listeners.flymq.bind?",
            "penstock.toml: listeners.flymq.tls.certificate is not a setting; did you mean listeners.flymq.tls.cert?",
            "penstock.toml: listeners.flymq.tls.cert is missing: add it",
            "penstock.toml: listeners.flymq.tls.key is missing: add it",
            "penstock.toml: topics[0].partition is not a setting; did you mean topics[0].partitions?",
        ]
    )


def test_an_unknown_variable_is_an_error_too() -> None:
    assert problems(env={"PENSTOCK_DATADIR": "x"}) == [
        "environment PENSTOCK_DATADIR is not a setting; did you mean PENSTOCK_DATA_DIR?"
    ]
    assert problems(env={"PENSTOCK_ZZZ": "x"}) == [
        "environment PENSTOCK_ZZZ is not a setting; unset it, or see the settings with: penstock config check"
    ]
    assert problems(env={"PENSTOCK_LOG__ZAP": "1"})[0].startswith(
        "environment PENSTOCK_LOG__ZAP: log.zap is not a setting; log knows retention_ms"
    )


@pytest.mark.parametrize("protocol", ["fujin", "felix"])
def test_quic_beyond_loopback_needs_a_certificate_and_to_know_its_clients(
    tmp_path: Path, file: Path, protocol: str
) -> None:
    file.write_text(f'[listeners.{protocol}]\nbind = "0.0.0.0:0"\ninsecure = true\n')
    assert problems(file) == [
        (
            f'penstock.toml: listeners.{protocol}: bind = "0.0.0.0:0" can be reached from other machines, and QUIC needs a'
            " certificate that they trust: set tls.cert and tls.key, or bind to 127.0.0.1"
        )
    ]
    (tmp_path / "a.pem").touch()
    tls = 'tls.cert = "a.pem"\ntls.key = "a.pem"\n'
    file.write_text(f'[listeners.{protocol}]\nbind = "0.0.0.0:0"\n{tls}')
    (problem,) = problems(file)
    assert "without TLS and authentication" in problem
    file.write_text(f'[listeners.{protocol}]\nbind = "0.0.0.0:0"\n{tls}tls.client_ca = "a.pem"\n')
    assert [name for name, _ in load_config(file, {}).listeners.enabled()] == [protocol]
    file.write_text(f"[listeners.{protocol}]\n")
    assert [name for name, _ in load_config(file, {}).listeners.enabled()] == [protocol]


def test_an_unknown_protocol_is_refused_with_those_there_are(file: Path) -> None:
    file.write_text("[listeners.flymk]\n[listeners.amqp]\n")
    speaks = "it speaks flymq, blipmq, rustlog, fujin, felix"
    assert problems(file) == [
        f"penstock.toml: listeners.flymk: Penstock does not speak flymk; {speaks}. Did you mean listeners.flymq?",
        f"penstock.toml: listeners.amqp: Penstock does not speak amqp; {speaks}",
    ]


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        (
            'durability = "sometimes"',
            "durability: durability 'sometimes' is not known: use fsync, none, or interval:<ms>",
        ),
        ("log.segment_bytes = 1", "log.segment_bytes = 1 is too small: at least 65536"),
        ('log.segment_bytes = "3 GiB"', 'log.segment_bytes = "3 GiB" is too large: at most 2147483648'),
        (
            "limits.users_max = 2000000",
            "limits.users_max = 2000000 is too large: at most 1048576, because one reply of FlyMQ lists no more",
        ),
        (
            "limits.acl_entries_max = 1001",
            "limits.acl_entries_max = 1001 is too large: at most 1000, because one request of FlyMQ lists no more",
        ),
        (
            'listeners.fujin.idle_s_max = "366d"',
            "listeners.fujin.idle_s_max = 31622400.0 is too large: at most 31536000.0",
        ),
        ('log.segment_bytes = "big"', "log.segment_bytes: 'big' is not a size: write a number of bytes"),
        ("log.segment_bytes = true", "log.segment_bytes: write a number, or a text with a unit"),
        ('log.retention_ms = "soon"', "log.retention_ms: 'soon' is not a duration: write a number with a unit"),
        ('log.compression = "gzip"', "log.compression = \"gzip\" is not known: use 'none' or 'zstd'"),
        ('logging.level = "loud"', "logging.level = \"loud\" is not known: use 'debug', 'info', 'warning' or 'error'"),
        ('limits.topics_max = "many"', 'limits.topics_max = "many" is not a whole number'),
        ("limits.topics_max = 1.5", "limits.topics_max = 1.5 is not a whole number"),
        (
            "listeners.blipmq.message_ttl_ms = 0",
            "listeners.blipmq.message_ttl_ms = 0 is too small: at least 1",
        ),
        ("limits.topics_max = 0", "limits.topics_max = 0 is too small: at least 1"),
        ("log.compact_dirty_ratio = 0", "log.compact_dirty_ratio = 0 is too small: more than 0.0"),
        ('log.compact_dirty_ratio = "half"', 'log.compact_dirty_ratio = "half" is not a number'),
        ("data_dir = 5", 'data_dir = 5 is not a text: write it between quotes, as in data_dir = "..."'),
        ("admin = 5", "admin = 5 is not a section: write [admin] in the file, with its settings below"),
        ('admin.bind = ":9"', "admin.bind: ':9' names no host: write \"127.0.0.1:9\" for this machine only"),
        ('admin.insecure = "perhaps"', 'admin.insecure = "perhaps" is neither true nor false'),
        (
            "topics = 1",
            "topics = 1 is not a list: write [[topics]] sections in the file, or a JSON list in the environment",
        ),
        ('topics = [{name = ""}]', "topics[0].name is empty: give it a value"),
        ("topics = [{}]", "topics[0].name is missing: add it"),
        ('topics = [{name = "a//b"}]', "topics[0].name: topic name 'a//b' has a level ''"),
        ('topics = [{name = "__mine"}]', "topics[0].name: topic __mine is internal: names beginning with __ belong"),
        (
            'topics = [{name = "a", partitions = 2000}]',
            "topics[0].partitions: 2000 partitions are too many: limits.partitions_per_topic_max is 1000",
        ),
        (
            'topics = [{name = "a", partitions = 6}, {name = "b", partitions = 5}]\nlimits.partitions_max = 10',
            "topics[1].partitions: all topics together have more partitions than limits.partitions_max, 10",
        ),
        (
            'topics = [{name = "a"}, {name = "b"}]\nlimits.topics_max = 1',
            "topics[1].name: there are more topics than limits.topics_max, 1",
        ),
        (
            'listeners.fujin.group = "a\\u0007b"',
            "listeners.fujin.group: group name 'a\\x07b' contains a control character",
        ),
        (
            'listeners.fujin.aliases.x = {topic = "orders", group = "a\\u0007b"}',
            "listeners.fujin.aliases.x.group: group name 'a\\x07b' contains a control character",
        ),
        (
            'listeners.fujin.aliases.x.topic = "__groups"',
            "listeners.fujin.aliases.x.topic: topic __groups is internal",
        ),
        (
            "listeners.fujin.datagram_bytes = 100",
            'listeners.fujin.datagram_bytes: 100 is out of range: use 1200 to 65000 bytes, or "auto"',
        ),
        (
            'listeners.felix.datagram_bytes = "large"',
            "listeners.felix.datagram_bytes: 'large' is not a size: use 1200 to 65000 bytes, or \"auto\"",
        ),
        ("listeners.felix.datagram_bytes = true", "listeners.felix.datagram_bytes: True is not a size"),
        ('listeners.felix.tokens.t1 = ""', "listeners.felix.tokens.t1 is empty: give it a value"),
        (
            f'listeners.felix.tokens.t1 = "{"s" * 1025}"',
            "listeners.felix.tokens.t1 is too long: at most 1024 characters",
        ),
        ('listeners.blipmq.api_keys = [""]', "listeners.blipmq.api_keys[0] is empty: give it a value"),
        ('topics = [{name = "a"}, {name = "a"}]', "topics names 'a' more than once: keep one of them"),
        ('pipelines = [{name = "a"}]', "pipelines[0].file is missing: add it"),
        (f"pipelines = [{'{},' * 101}]", "pipelines has too many entries: at most 100"),
        ('pipelines = [{name = "../a", file = "a"}]', "pipelines[0].name: '../a' is not the name of a pipeline"),
        (
            'pipelines = [{name = "a", file = "a"}, {name = "a", file = "b"}]',
            "pipelines names 'a' more than once: keep one of them",
        ),
    ],
)
def test_a_wrong_value_is_shown_with_what_is_right(file: Path, toml: str, problem: str) -> None:
    file.write_text(toml + "\n" + LISTENER)
    (line,) = problems(file)
    assert line.removeprefix("penstock.toml: ").startswith(problem)
    assert line.startswith("penstock.toml: ") or "more than once" in problem


def test_a_wrong_value_is_put_down_to_the_layer_it_came_from(file: Path) -> None:
    file.write_text('[listeners.flymq]\nmax_connections = 10\ndialect = "auto"\n')
    env = {"PENSTOCK_LISTENERS__FLYMQ__DIALECT": "klingon"}
    assert problems(file, env, **{"listeners.flymq.max_connections": 0}) == [
        "flag --listeners-flymq-max-connections: listeners.flymq.max_connections = 0 is too small: at least 1",
        (
            "environment PENSTOCK_LISTENERS__FLYMQ__DIALECT: listeners.flymq.dialect = \"klingon\" is not known: use 'auto', 'spec' "
            "or 'native'"
        ),
    ]


def test_lists_in_the_environment_are_json() -> None:
    assert problems(env={"PENSTOCK_TOPICS": "[orders"}) == [
        'environment PENSTOCK_TOPICS is not valid JSON, which a list or a whole section needs there, as in [{"name": "orders"}]'
    ]


def test_a_listener_beyond_loopback_needs_tls_and_authentication_or_a_word_of_consent(
    tmp_path: Path, file: Path
) -> None:
    file.write_text('[listeners.flymq]\nbind = "0.0.0.0:9092"\n')
    assert problems(file) == [
        (
            'penstock.toml: listeners.flymq: bind = "0.0.0.0:9092" can be reached from other machines without TLS and authentication: '
            'bind to 127.0.0.1, or set tls.cert, tls.key and auth = "required", or accept the risk with insecure = true'
        )
    ]
    for name in ("cert.pem", "key.pem", "ca.pem"):
        (tmp_path / name).touch()
    tls = 'tls = {cert = "cert.pem", key = "key.pem", client_ca = "ca.pem"}\n'
    file.write_text('[listeners.flymq]\nbind = "0.0.0.0:9092"\n' + tls)
    assert len(problems(file)) == 1
    file.write_text('[listeners.flymq]\nbind = "0.0.0.0:9092"\nauth = "required"\n' + tls)
    assert load_config(file, {}).listeners.flymq is not None
    file.write_text('[listeners.flymq]\nbind = "0.0.0.0:9092"\ninsecure = true\n')
    assert load_config(file, {}).listeners.flymq is not None


def test_an_admin_address_beyond_loopback_needs_a_word_of_consent(file: Path) -> None:
    file.write_text(LISTENER + '[admin]\nbind = "0.0.0.0:9600"\n')
    assert problems(file) == [
        (
            'penstock.toml: admin: bind = "0.0.0.0:9600" can be reached from other machines without TLS and authentication: '
            'bind to 127.0.0.1, or set tls.cert, tls.key and auth = "required", or accept the risk with insecure = true'
        )
    ]
    file.write_text(LISTENER + '[admin]\nbind = "0.0.0.0:9600"\ninsecure = true\n')
    assert load_config(file, {}).admin is not None


@pytest.mark.parametrize(
    ("flymq", "admin", "required", "probes_open"),
    [
        ({}, {}, False, True),
        ({"auth": "required"}, {}, True, True),
        ({"auth": "required"}, {"auth": "none"}, False, True),
        ({}, {"auth": "required", "probes": "login"}, True, False),
        ({}, {"bind": "0.0.0.0:1", "insecure": True}, False, True),
        ({}, {"bind": "0.0.0.0:1", "insecure": True, "probes": "login"}, False, False),
    ],
)
def test_who_must_log_in_to_the_admin_address(
    tmp_path: Path, flymq: dict[str, Any], admin: dict[str, Any], required: bool, probes_open: bool
) -> None:
    config = Config(data_dir=tmp_path, listeners={"flymq": flymq}, admin=admin)
    assert config.admin is not None
    assert (config.admin_login_required, config.admin.probes_open) == (required, probes_open)


def test_passwords_are_for_loopback_where_nothing_hides_them(tmp_path: Path, file: Path) -> None:
    file.write_text('[listeners.flymq]\nauth = "required"\n')
    assert load_config(file, {}).listeners.flymq is not None
    file.write_text('[listeners.flymq]\nbind = "0.0.0.0:9092"\nauth = "required"\n')
    assert len(problems(file)) == 1
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).touch()
    file.write_text(
        '[listeners.flymq]\nbind = "0.0.0.0:9092"\nauth = "required"\ntls = {cert = "cert.pem", key = "key.pem"}\n'
    )
    assert load_config(file, {}).listeners.flymq is not None


@pytest.mark.parametrize(
    ("toml", "section"),
    [
        ('[listeners.flymq]\nbind = "0.0.0.0:9092"\ninsecure = true\n', "listeners.flymq"),
        ('[listeners.flymq]\n[admin]\nbind = "0.0.0.0:9092"\ninsecure = true\n', "admin"),
    ],
)
def test_development_credentials_are_refused_beyond_loopback_whatever_else_is_said(
    file: Path, toml: str, section: str
) -> None:
    file.write_text(toml)
    assert not load_config(file, {}).dev
    file.write_text("dev = true\n" + toml)
    assert problems(file) == [
        (
            f'dev accepts well-known passwords, and {section}.bind = "0.0.0.0:9092" can be reached from other machines: '
            "bind to 127.0.0.1, or leave dev out and create users"
        )
    ]


def test_a_tls_file_that_is_not_there_is_named(tmp_path: Path, file: Path) -> None:
    (tmp_path / "cert.pem").touch()
    file.write_text('[listeners.flymq]\ntls = {cert = "cert.pem", key = "key.pem"}\n')
    assert problems(file) == [
        "penstock.toml: listeners.flymq.tls: key names key.pem, which is not a file: create it or correct the path"
    ]


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, file: Path) -> None:
    assert problems(file) == [
        "penstock.toml does not exist: check the path, or create it with: penstock config init penstock.toml"
    ]
    file.write_text("data_dir = \n")
    assert problems(file) == ["penstock.toml is not valid TOML: Invalid value (at line 1, column 12)"]
    file.write_bytes(b'data_dir = "\xff"')
    assert problems(file) == ["penstock.toml is not UTF-8 text (byte 12): save it as UTF-8"]
    file.write_bytes(b"#" * (1 << 21))
    assert problems(file)[0].startswith("penstock.toml is larger than 1048576 bytes")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path, {})


def test_a_long_value_is_cut_short_in_the_message(file: Path) -> None:
    file.write_text(f'{LISTENER}dialect = "{"x" * 500}"\n')
    (line,) = problems(file)
    assert "xxx... is not known" in line
    assert len(line) < 200


def test_blocks_that_count_as_small_are_smaller_than_those_they_are_merged_to(file: Path) -> None:
    file.write_text(LISTENER + '[log]\nblock_bytes_target = "64 KiB"\n')
    assert problems(file) == [
        (
            'penstock.toml: log: merge_block_bytes = "64 KiB" is more than half of block_bytes_target = "64 KiB": segments would be '
            'rewritten without larger blocks; set merge_block_bytes = "32 KiB" or less, or raise block_bytes_target'
        )
    ]
    file.write_text(LISTENER + '[log]\nblock_bytes_target = "64 KiB"\nmerge_block_bytes = "32 KiB"\n')
    assert load_config(file, {}).log.merge_block_bytes == 32 << 10


def test_topics_can_be_written_in_code() -> None:
    assert Config(topics=[Topic(name="orders", partitions=3)]).topics[0].partitions == 3


# -- several nodes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster", "problem"),
    [
        ('bind = "10.0.0.1:9700"\ntls = {pem}', None),
        ('bind = "10.0.0.1:9700"', "can be reached from other machines without TLS"),
        ('bind = "0.0.0.0:9700"\ntls = {pem}', "is every address of this machine: set advertise"),
        ('advertise = "0.0.0.0"', 'advertise = "0.0.0.0" is every address of this machine'),
        ('advertise = "node1.example:9700"', "is not a host: write a name or an IP address without a port"),
        ('advertise = "[::1]"', "is not a host: write a name or an IP address without a port or brackets"),
        ('advertise = "::1"', None),
        ("", None),
    ],
)
def test_nodes_of_a_cluster_must_reach_each_other(
    tmp_path: Path, file: Path, cluster: str, problem: str | None
) -> None:
    for name in ("cert", "key", "ca"):
        (tmp_path / name).touch()
    file.write_text(
        'engine = "kafka"\nkafka.bootstrap = ["127.0.0.1:9092"]\n[listeners.flymq]\nbind = "127.0.0.1:9095"\n'
        f'[cluster]\nsecret = "0123456789abcdef"\n{cluster.format(pem=_pem(tmp_path, "ca"))}\n'
    )
    if problem is None:
        assert load_config(file, {}).cluster is not None
    else:
        assert problem in "\n".join(problems(file))


def _pem(directory: Path, *more: str) -> str:
    """A section of files, as one line."""
    return "{" + ", ".join(f'{name} = "{directory / name}"' for name in ("cert", "key", *more)) + "}"
