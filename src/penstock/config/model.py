"""Every setting of a broker with its default, one class for each section of the file; those of listeners are in `listeners.py`.

Names end with their unit (`_bytes`, `_ms`, `_s`), which is the unit of a plain number; text may carry another ("128 MiB", "7d").
Built from keywords (`Config(data_dir=..., listeners={"flymq": {"bind": "127.0.0.1:0"}})`) a Config reads neither files nor the
environment; `penstock.config.load_config` layers those. A Config is immutable.

The strings below the fields are the reference: docs/reference/configuration.md is generated from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, PrivateAttr, SecretStr, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from penstock.admin.declarations import DeclaredPipeline
from penstock.broker.access.defaults import AccessDefaults
from penstock.broker.deliveries.policy import DeliveryPolicy
from penstock.broker.limits import BrokerLimits
from penstock.config.listeners import (
    BlipMQListener,
    FelixListener,
    FlyMQListener,
    FujinListener,
    Listener,
    RustLogListener,
    Tls,
)
from penstock.config.values import (
    Bind,
    Compression,
    DurabilityText,
    HttpUrl,
    OptionalDurationMs,
    OptionalSize,
    SegmentBytes,
    SegmentMs,
)
from penstock.log.api import PARTITIONS_MAX, Durability, TopicConfig
from penstock.log.embedded.options import EngineOptions
from penstock.log.kafka.settings import KafkaSettings
from penstock.net.limits import AdminLimits, FlowLimits
from penstock.settings import ExpandedPath, Seconds, Section, TopicName
from penstock.units import Address, format_size, is_loopback, parse_address

PIPELINES_DECLARED_MAX = 100


class Listeners(Section):
    """`[listeners]`: one section for each protocol; a protocol that a file does not name is off."""

    flymq: FlyMQListener | None = None
    blipmq: BlipMQListener | None = None
    rustlog: RustLogListener | None = None
    fujin: FujinListener | None = None
    felix: FelixListener | None = None

    def enabled(self) -> Iterator[tuple[str, Listener]]:
        """Yield each configured listener with the name of its protocol."""
        for name in type(self).model_fields:
            settings = getattr(self, name)
            if settings is not None:
                yield name, settings


class _AdminEndpoint(Section):
    """Where to listen, and how that is secured."""

    bind: Bind = "127.0.0.1:9600"
    """The address of `/livez`, `/readyz`, `/health`, `/metrics`, `/api/v1` and `/console`."""
    tls: Tls | None = None
    auth: Literal["auto", "none", "required"] = "auto"
    """Whether the API requires a login: a session, or an API key as a bearer token. `none`: everybody on this machine is trusted, and the
    API is off if other machines can reach the address. `auto`: `required` if `listeners.flymq.auth` is."""
    probes: Literal["auto", "open", "login"] = "auto"
    """Whether `/livez`, `/readyz`, `/health` and `/metrics` require a login as well. `auto`: `open` on loopback and with `insecure`,
    else `login`."""
    insecure: bool = False
    """Allow an address that other machines can reach without TLS and authentication."""

    @property
    def probes_open(self) -> bool:
        exposed = not is_loopback(parse_address(self.bind).host)
        return self.probes == "open" or (self.probes == "auto" and (not exposed or self.insecure))

    @model_validator(mode="after")
    def _is_safe(self) -> _AdminEndpoint:
        secured = self.tls is not None and self.auth == "required"
        if not secured and not self.insecure and not is_loopback(parse_address(self.bind).host):
            raise ValueError(
                f'bind = "{self.bind}" can be reached from other machines without TLS and authentication: bind to 127.0.0.1, '
                'or set tls.cert, tls.key and auth = "required", or accept the risk with insecure = true'
            )
        return self


class Admin(AdminLimits, _AdminEndpoint):
    """`[admin]`: the HTTP address of health checks, metrics and the admin API."""


class Access(AccessDefaults):
    """`[access]`: authorization on listeners with `auth = "required"`."""


class ClusterTls(Section):
    """`[cluster.tls]`: nodes prove to each other who they are. All three are PEM files."""

    cert: ExpandedPath
    """The certificate chain of this node, for the name in `advertise`, as a server and as a client."""
    key: ExpandedPath
    """The private key of the certificate."""
    ca: ExpandedPath
    """CA certificates of all nodes."""

    @model_validator(mode="after")
    def _files_exist(self) -> ClusterTls:
        for name, path in (("cert", self.cert), ("key", self.key), ("ca", self.ca)):
            if not path.is_file():
                raise ValueError(f"{name} names {path}, which is not a file: create it or correct the path")
        return self


class Cluster(Section):
    """`[cluster]`: this broker is one of several nodes on one Apache Kafka cluster. All nodes have the same `[kafka]`, `[access]`,
    `[limits]` and `secret`, and every node has this section."""

    bind: Bind = "127.0.0.1:9700"
    """The address for connections of other nodes."""
    advertise: str | None = None
    """The name or address by which other nodes reach the listeners of this one. The host of `bind` if left out."""
    node: str | None = Field(None, min_length=1, max_length=100)
    """The name of this node; no other has it. Its advertised address if left out."""
    secret: SecretStr = Field(min_length=16)
    """What nodes know each other by, the same on all of them: at least 16 characters."""
    shards: int = Field(16, ge=1, le=256)
    """Parts that subscriptions are divided into, and shared out among the nodes. The same on all of them, and never changed."""
    tls: ClusterTls | None = None
    insecure: bool = False
    """Allow connections between machines without TLS."""

    def reaches(self, bind: str) -> bool:
        """Whether nodes of this cluster can connect to an address of this machine."""
        return is_loopback(parse_address(self.bind).host) or not is_loopback(parse_address(bind).host)

    @model_validator(mode="after")
    def _is_safe(self) -> Cluster:
        if self.tls is None and not self.insecure and not is_loopback(parse_address(self.bind).host):
            raise ValueError(
                f'bind = "{self.bind}" can be reached from other machines without TLS: bind to 127.0.0.1, set tls.cert, tls.key and '
                "tls.ca, or accept the risk with insecure = true"
            )
        host = parse_address(self.bind).host if self.advertise is None else self.advertise
        if host in ("0.0.0.0", "::"):  # noqa: S104 - it is compared
            setting = f'bind = "{self.bind}"' if self.advertise is None else f'advertise = "{self.advertise}"'
            raise ValueError(
                f"{setting} is every address of this machine: set advertise to the one by which other nodes reach it"
            )
        try:
            is_host = parse_address(str(Address(host, 0))).host == host
        except ValueError:
            is_host = False
        if not is_host:
            raise ValueError(
                f'advertise = "{self.advertise}" is not a host: write a name or an IP address without a port or brackets, as in '
                '"node1.example"; ports are those of the listeners'
            )
        return self


_TOPIC = TopicConfig()


class _TopicDefaults(Section):
    """What a topic has unless it has settings of its own."""

    retention_ms: OptionalDurationMs = _TOPIC.retention_ms
    """Retention by time: records older than this are deleted."""
    retention_bytes: OptionalSize = _TOPIC.retention_bytes
    """Retention by size: a partition larger than this loses its oldest segments."""
    compression: Compression = _TOPIC.compression
    """Compression of blocks."""
    segment_bytes: SegmentBytes = _TOPIC.segment_bytes
    """A segment of this size is sealed, and a new one is started."""
    segment_ms: SegmentMs = _TOPIC.segment_ms
    """A segment of this age is sealed too, so that retention by time can delete it."""


class Log(EngineOptions, _TopicDefaults):
    """`[log]`: how records are stored unless a topic has settings of its own, and resources of the storage engine. Retention applies to
    each partition and deletes whole segments."""

    @model_validator(mode="after")
    def _merged_blocks_are_large(self) -> Log:
        largest = self.block_bytes_target // 2  # what merging makes at least of blocks, on average
        if self.merge_block_bytes > largest:
            raise ValueError(
                f'merge_block_bytes = "{format_size(self.merge_block_bytes)}" is more than half of block_bytes_target = '
                f'"{format_size(self.block_bytes_target)}": segments would be rewritten without larger blocks; set merge_block_bytes = '
                f'"{format_size(largest)}" or less, or raise block_bytes_target'
            )
        return self


class Topic(Section):
    """`[[topics]]`: a topic that is created at start if it does not exist, and altered if it has other settings than those given here.
    For a new topic, settings that are left out come from `[log]`; an existing one keeps its own."""

    name: TopicName
    """The name of the topic."""
    partitions: int = Field(_TOPIC.partitions, ge=1, le=PARTITIONS_MAX)
    """The number of partitions; at most `limits.partitions_per_topic_max`."""
    durability: DurabilityText | None = None
    """When an append is acknowledged: `fsync`, `interval:<ms>` or `none`."""
    retention_ms: OptionalDurationMs = None
    """Retention by time."""
    retention_bytes: OptionalSize = None
    """Retention by size, for each partition."""
    cleanup: Literal["delete", "compact"] = _TOPIC.cleanup
    """`compact` keeps the latest record of each key; `delete` keeps all records until retention deletes them."""
    compression: Compression | None = None
    """Compression of blocks."""
    segment_bytes: SegmentBytes | None = None
    """The size at which a segment is sealed."""
    segment_ms: SegmentMs | None = None
    """The age at which a segment is sealed."""

    @property
    def given(self) -> frozenset[str]:
        """The settings that are not left out."""
        return frozenset(self.model_fields_set - {"name"})

    def config(self, defaults: TopicConfig) -> TopicConfig:
        """Return the settings with which the log stores this topic. A retention of "forever" overrides a shorter default."""
        given = self.model_fields_set
        return TopicConfig(
            partitions=self.partitions,
            durability=defaults.durability if self.durability is None else Durability.parse(self.durability),
            retention_ms=self.retention_ms if "retention_ms" in given else defaults.retention_ms,
            retention_bytes=self.retention_bytes if "retention_bytes" in given else defaults.retention_bytes,
            cleanup=self.cleanup,
            compression=defaults.compression if self.compression is None else self.compression,
            segment_bytes=defaults.segment_bytes if self.segment_bytes is None else self.segment_bytes,
            segment_ms=defaults.segment_ms if self.segment_ms is None else self.segment_ms,
        )


class Pipeline(DeclaredPipeline):
    """`[[pipelines]]`: a Spark pipeline that administrators may start from the console and the admin API. It runs on the machine of the
    broker, as the user of the broker: what is not declared here cannot be started."""


class Limits(FlowLimits, BrokerLimits):
    """`[limits]`: bounds on requests of clients and on the memory they can occupy."""

    # Each is Python and Java: about 1 GiB of memory, or what spark.driver.memory says.
    pipeline_processes_max: int = Field(4, ge=1, le=64)
    """Pipelines of `[[pipelines]]` that run at the same time. Each is a Spark driver on the machine of the broker."""


class Subscriptions(DeliveryPolicy):
    """`[subscriptions]`: delivery to subscriptions (BlipMQ) and groups with acknowledgements (Fujin, Felix)."""


class Logging(Section):
    """`[logging]`: the broker's own log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level to log."""
    format: Literal["auto", "console", "json"] = "auto"
    """`console`: columns for people; `json`: one JSON object a line; `auto`: `console` on a terminal, `json` elsewhere."""


class Otel(Section):
    """`[otel]`: traces and metrics by OTLP, the protocol of OpenTelemetry; needs `pip install "penstock[otel]"`."""

    endpoint: HttpUrl = ""
    """Where the collector listens for OTLP over HTTP, as in `http://127.0.0.1:4318`. If it is empty, nothing is traced or exported."""
    service_name: str = Field("penstock", min_length=1, max_length=255)
    """`service.name` of spans and metrics."""
    sampling_ratio: float = Field(0.0, ge=0, le=1)
    """The fraction of calls with records without a trace context for which the broker begins a trace. Their records get a `traceparent`
    header. Traces that clients begin are continued if the client has sampled them, whatever is set here."""
    metrics_interval_s: Seconds = Field(60.0, ge=1, le=3600)
    """Interval of exporting metrics."""
    headers: dict[str, SecretStr] = {}
    """HTTP headers of exports, as in `headers = { authorization = "Bearer ..." }`."""


class Config(BaseSettings):
    """The configuration of one broker."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix="PENSTOCK_", env_nested_delimiter="__", env_ignore_empty=True
    )

    data_dir: ExpandedPath = Path("penstock-data")
    """The data directory. Only one broker at a time can use it."""
    engine: Literal["embedded", "kafka"] = "embedded"
    """Where the log is. `embedded`: in the data directory. `kafka`: in the Apache Kafka cluster that `[kafka]` names; needs
    `pip install "penstock[kafka]"`."""
    durability: DurabilityText = "fsync"
    """When an append is acknowledged, unless the topic has a durability of its own. `fsync`: once it is on disk. `interval:<ms>`: once
    it is written; it is flushed within that time. `none`: once the operating system has it."""
    listeners: Listeners = Listeners(
        flymq=FlyMQListener(),
        blipmq=BlipMQListener(),
        rustlog=RustLogListener(),
        fujin=FujinListener(),
        felix=FelixListener(),
    )
    admin: Admin | None = Admin()
    dev: bool = False
    """Development mode: accept the user `admin` with the password `admin`, and `dev-key` as an API key and as a token. Refused if other
    machines can reach any address."""
    access: Access = Access()
    log: Log = Log()
    kafka: KafkaSettings = KafkaSettings()
    cluster: Cluster | None = None
    limits: Limits = Limits()
    subscriptions: Subscriptions = Subscriptions()
    logging: Logging = Logging()
    otel: Otel = Otel()
    topics: list[Topic] = []
    pipelines: list[Pipeline] = Field([], max_length=PIPELINES_DECLARED_MAX)

    _given: dict[str, str] | None = PrivateAttr(None)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # A Config built in code means what its keywords say, whatever the environment of the process holds.
        return (init_settings,)

    @model_validator(mode="after")
    def _a_cluster_is_named(self) -> Config:
        if self.engine == "kafka" and not self.kafka.bootstrap:
            raise ValueError('engine = "kafka" needs a cluster: set kafka.bootstrap, as in ["127.0.0.1:9092"]')
        if self.engine == "embedded" and self.kafka.bootstrap:
            raise ValueError('kafka.bootstrap is set, but the log is in the data directory: set engine = "kafka" too')
        return self

    @model_validator(mode="after")
    def _nodes_share_a_log(self) -> Config:
        if self.cluster is None:
            return self
        if self.engine != "kafka":
            raise ValueError(
                '[cluster] is for nodes that share a log in Apache Kafka: set engine = "kafka", or leave the section out'
            )
        return self

    @model_validator(mode="after")
    def _names_are_given_once(self) -> Config:
        for key, names in (
            ("topics", [topic.name for topic in self.topics]),
            ("pipelines", [pipeline.name for pipeline in self.pipelines]),
        ):
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"{key} names {name!r} more than once: keep one of them")
        return self

    @model_validator(mode="after")
    def _development_stays_at_home(self) -> Config:
        binds = {f"listeners.{name}": listener.bind for name, listener in self.listeners.enabled()}
        if self.admin is not None:
            binds["admin"] = self.admin.bind
        for name, bind in binds.items():
            if self.dev and not is_loopback(parse_address(bind).host):
                raise ValueError(
                    f'dev accepts well-known passwords, and {name}.bind = "{bind}" can be reached from other machines: bind to 127.0.0.1, '
                    "or leave dev out and create users"
                )
        return self

    @property
    def admin_login_required(self) -> bool:
        """Whether the API requires a login."""
        if self.admin is None or self.admin.auth != "auto":
            return self.admin is not None and self.admin.auth == "required"
        return self.listeners.flymq is not None and self.listeners.flymq.auth == "required"

    def topics_beyond_limits(self) -> Iterator[tuple[str, str]]:
        """Each topic that `[limits]` would refuse at start, by the dotted key of the setting, and why."""
        limits, partitions = self.limits, 0
        for index, topic in enumerate(self.topics):
            partitions += topic.partitions
            key, count = f"topics[{index}].partitions", topic.partitions
            if count > limits.partitions_per_topic_max:
                yield (
                    key,
                    f"{count} partitions are too many: limits.partitions_per_topic_max is {limits.partitions_per_topic_max}",
                )
            elif partitions > limits.partitions_max:
                yield (
                    key,
                    f"all topics together have more partitions than limits.partitions_max, {limits.partitions_max}",
                )
            if index >= limits.topics_max:
                yield f"topics[{index}].name", f"there are more topics than limits.topics_max, {limits.topics_max}"

    @property
    def topic_defaults(self) -> TopicConfig:
        """How a topic is stored that says nothing of its own."""
        return TopicConfig(
            durability=Durability.parse(self.durability),
            retention_ms=self.log.retention_ms,
            retention_bytes=self.log.retention_bytes,
            compression=self.log.compression,
            segment_bytes=self.log.segment_bytes,
            segment_ms=self.log.segment_ms,
        )

    @property
    def origins(self) -> dict[str, str]:
        """Where each value comes from, by dotted key: default, a file, an environment variable, a flag, or code."""
        if self._given is None:
            return {key: "code" if is_set else "default" for key, _, is_set in _leaves(self)}
        given = self._given
        return {
            # A list of plain values is one setting, whose origin was noted for each of them; so is a table of plain values.
            key: given.get(key)
            or given.get(f"{key}[0]")
            or next((given[f"{key}.{name}"] for name in value if f"{key}.{name}" in given), "default")
            if isinstance(value, list | dict)
            else given.get(key, "default")
            for key, value, _ in _leaves(self)
        }

    @property
    def values(self) -> dict[str, Any]:
        """Each value by dotted key, in the order of `origins`."""
        return {key: value for key, value, _ in _leaves(self)}

    def remember_origins(self, given: Mapping[str, str]) -> None:
        """Note where each value came from that is not a default; what `load_config` does last."""
        self._given = dict(given)


def _leaves(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any, bool]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            for index, item in enumerate(value):
                yield from _leaves(item, f"{prefix}{name}[{index}].")
        else:
            yield f"{prefix}{name}", value, name in section.model_fields_set
