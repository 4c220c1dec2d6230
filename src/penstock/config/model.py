"""Every setting of a broker, with its default; one class a section of the file.

Names end with their unit (`_bytes`, `_ms`, `_s`), which is the unit of a plain number; a text may carry another ("128 MiB", "7d").
Built from keywords (`Config(data_dir=..., listeners={"flymq": {"bind": "127.0.0.1:0"}})`) a Config reads neither files nor the
environment; `penstock.config.load_config` is what layers those. A Config does not change once built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from penstock.config.values import (
    ApiKey,
    Bind,
    Compression,
    DurabilityText,
    DurationMs,
    ExpandedPath,
    FelixName,
    GroupName,
    OptionalDurationMs,
    OptionalSize,
    Seconds,
    SegmentBytes,
    SegmentMs,
    Size,
    TopicName,
)
from penstock.log.api import PARTITIONS_MAX, Durability, TopicConfig
from penstock.units import is_loopback, parse_address

RECORD_BYTES_MAX = (
    32 << 20
) - 1024  # a frame ends at 32 MiB; the rest is for the topic name and the lengths around a record


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tls(Section):
    """`[listeners.<name>.tls]`: files in PEM form."""

    cert: ExpandedPath
    """The certificate chain the listener shows."""
    key: ExpandedPath
    """The private key of the certificate."""
    client_ca: ExpandedPath | None = None
    """Authorities whose client certificates are accepted; clients without one are then turned away."""

    @model_validator(mode="after")
    def _files_exist(self) -> Tls:
        for name, path in (("cert", self.cert), ("key", self.key), ("client_ca", self.client_ca)):
            if path is not None and not path.is_file():
                raise ValueError(f"{name} names {path}, which is not a file: create it or correct the path")
        return self


class Listener(Section):
    """What all protocols have in common."""

    bind: Bind
    """The address to listen on; port 0 picks a free one."""
    tls: Tls | None = None
    insecure: bool = False
    """Allow a bind beyond loopback without TLS and authentication."""
    max_connections: int = Field(10_000, ge=1, le=1_000_000)
    idle_s_max: Seconds = Field(300.0, ge=1)
    """A connection over which nothing moves for so long is closed."""
    header_s_max: Seconds = Field(30.0, ge=0.1)
    """A frame that has begun must be complete within this time."""
    handshake_s_max: Seconds = Field(10.0, ge=0.1)
    """A TLS handshake must be complete within this time."""

    def check_safe(self, *, authenticated: bool, settings: str) -> None:
        """Raises ValueError where strangers could get in; `settings` is what would keep them out."""
        secured = self.tls is not None and authenticated
        if not secured and not self.insecure and not is_loopback(parse_address(self.bind).host):
            raise ValueError(
                f'bind = "{self.bind}" can be reached from other machines without TLS and authentication: bind to 127.0.0.1, '
                f"or set {settings}, or accept the risk with insecure = true"
            )


class TcpListener(Listener):
    """What the TCP protocols have in common."""


class QuicListener(Listener):
    """What the QUIC protocols have in common. QUIC is never without TLS: on loopback a certificate is made where none is given."""

    max_connections: int = Field(4_000, ge=1, le=1_000_000)
    idle_s_max: Seconds = Field(30.0, ge=1)
    """A connection over which nothing moves for so long is closed; the shorter one of both sides' times holds."""
    streams_max: int = Field(1_024, ge=1, le=65_536)
    """Streams that a client may have open at once on one connection, two-way and one-way each."""
    handshakes_max: int = Field(1_000, ge=1, le=1_000_000)
    """Handshakes that are under way at once; one more is not begun."""
    retry_above: int = Field(100, ge=1)
    """With more handshakes than this under way, a client must first show that its address is its own, which costs it a round trip."""
    datagram_bytes: Annotated[int, Field(ge=1_200, le=65_000)] | Literal["auto"] = "auto"
    """The largest datagram to send; auto: 1452, and 8900 on loopback."""

    def check_certificate(self) -> None:
        """Raises ValueError where a certificate cannot be made up because other machines would have to trust it."""
        if self.tls is None and not is_loopback(parse_address(self.bind).host):
            raise ValueError(
                f'bind = "{self.bind}" can be reached from other machines, and QUIC needs a certificate that they trust: '
                "set tls.cert and tls.key, or bind to 127.0.0.1"
            )


class FlyMQListener(TcpListener):
    """`[listeners.flymq]`"""

    bind: Bind = "127.0.0.1:9092"
    dialect: Literal["auto", "spec", "native"] = "auto"
    """Whose layouts replies follow where the contract and the deployed clients differ; auto decides for each connection."""
    auth: Literal["none", "required"] = "none"
    """Whether a client must say who it is: with a user's password, or with a TLS certificate that `tls.client_ca` accepts."""

    @model_validator(mode="after")
    def _is_safe(self) -> FlyMQListener:
        self.check_safe(authenticated=self.auth == "required", settings='tls.cert, tls.key and auth = "required"')
        return self


class BlipMQListener(TcpListener):
    """`[listeners.blipmq]`: every client presents an API key."""

    bind: Bind = "127.0.0.1:5555"
    max_connections: int = Field(4_000, ge=1, le=1_000_000)
    idle_s_max: Seconds = Field(24 * 3600.0, ge=1)
    """A connection over which nothing moves for so long is closed; deployed publishers hold theirs open and say nothing."""
    api_keys: list[ApiKey] = []
    """Keys that are accepted beside those made with `penstock key create`. Each may publish, subscribe and read."""
    message_ttl_ms: OptionalDurationMs = Field(None, ge=1)
    """How long a published message may be read, by any protocol; "forever" without end."""

    @model_validator(mode="after")
    def _is_safe(self) -> BlipMQListener:
        self.check_safe(authenticated=True, settings="tls.cert and tls.key, so that keys do not travel in the clear")
        return self


class RustLogListener(TcpListener):
    """`[listeners.rustlog]`: the protocol has no login, so only a TLS certificate says who a client is."""

    bind: Bind = "127.0.0.1:9292"
    max_connections: int = Field(4_000, ge=1, le=1_000_000)
    auth: Literal["auto", "none", "required"] = "auto"
    """Whether clients without a certificate that `tls.client_ca` accepts are strangers; auto: where `listeners.flymq.auth` is required."""

    @model_validator(mode="after")
    def _is_safe(self) -> RustLogListener:
        authenticated = self.auth == "required" and self.tls is not None and self.tls.client_ca is not None
        self.check_safe(authenticated=authenticated, settings='tls.cert, tls.key, tls.client_ca and auth = "required"')
        return self


class FujinAlias(Section):
    """`[listeners.fujin.aliases.<name>]`: what a name that Fujin clients use stands for."""

    topic: TopicName
    group: GroupName | None = None
    """Whose readers share the records; that of the listener where none is given."""
    start: Literal["earliest", "latest"] | None = None
    """Where a group that reads for the first time begins; as the listener says where it is not given."""


class FujinListener(QuicListener):
    """`[listeners.fujin]`: the protocol has no login, so only a TLS certificate says who a client is."""

    bind: Bind = "127.0.0.1:4848"
    auth: Literal["auto", "none", "required"] = "auto"
    """Whether clients without a certificate that `tls.client_ca` accepts are strangers; auto: where `listeners.flymq.auth` is required."""
    aliases: dict[str, FujinAlias] = {}
    """Names that stand for topics; any other name is the topic itself."""
    group: GroupName = "fujin"
    """The group of readers where no alias names another."""
    start: Literal["earliest", "latest"] = "earliest"
    """Where a group that reads for the first time begins."""
    auto_create: bool = True
    """Create a topic that is written or read and does not exist, instead of refusing."""
    dialect: Literal["auto", "spec", "native"] = "auto"
    """Whether readers get all that the contract allows (spec), or what deployed clients survive (native). Auto: native, until a connection
    has sent what only the contract knows."""
    write_form: Literal["auto", "table", "code"] = "auto"
    """Whether WRITEs have the field for headers: as in the contract's table (table), as deployed clients send them (code), or found out."""
    body_bytes_max: Size = Field(1 << 20, ge=1)
    """The largest message, in either direction. Deployed subscribers are pushed at most 64 KiB, see `dialect`."""
    ping_interval_s: Seconds = Field(2.0, ge=0.05)
    """How often a client is asked whether it is there."""
    ping_timeout_s: Seconds = Field(5.0, ge=0.05)
    """A client that does not answer for so long is disconnected."""
    fetch_wait_s: Seconds = Field(5.0, ge=0, lt=10)
    """How long a FETCH waits for a record. Deployed clients give up after 10 s, and an answer after that crashes them."""
    empty_fetch: Literal["auto", "batch", "error"] = "auto"
    """What answers a FETCH for which nothing came: an empty batch, as the contract has it, an error, which deployed clients survive, or
    whichever the dialect asks for."""
    empty_values: Literal["skip", "deliver"] = "skip"
    """What becomes of records with nothing in them, which end deployed readers."""
    unacknowledged_max: int = Field(256, ge=1, le=4096)
    """Messages pushed to one reader that it has not acknowledged. Deployed clients stop taking answers at 1000."""
    ack_ms_max: DurationMs = Field(30_000, ge=1)
    """How long a reader may take over a record before it is delivered again."""

    @model_validator(mode="after")
    def _is_safe(self) -> FujinListener:
        self.check_certificate()
        certified = self.tls is not None and self.tls.client_ca is not None
        self.check_safe(authenticated=certified, settings="tls.client_ca")
        return self


class FelixListener(QuicListener):
    """`[listeners.felix]`"""

    bind: Bind = "127.0.0.1:5000"
    dialect: Literal["auto", "spec", "native"] = "auto"
    """Whose messages answer where the contract and the deployed clients differ; auto decides for each request by what it looks like."""
    auth: Literal["auto", "none", "required"] = "auto"
    """Whether a client must present a token; auto: where there are `tokens`, or where `listeners.flymq.auth` is required."""
    tokens: dict[str, ApiKey] = {}
    """By tenant: what its clients present. API keys (`penstock key create`) are accepted too, for every tenant."""
    default_tenant: FelixName = "default"
    """The tenant whose name is left out of topic names: its streams are the broker's topics."""
    default_namespace: FelixName = "default"
    """The namespace that is left out of topic names."""
    auto_create: bool = False
    """Create a stream that is published or subscribed to and does not exist, instead of refusing."""
    slow_subscriber: Literal["drop", "pause", "close"] = "drop"
    """What happens to a subscriber that falls too far behind: it skips to the end, stays where it is, or is ended."""
    subscriber_lag_records_max: int = Field(100_000, ge=1)
    """How far behind is too far."""

    @model_validator(mode="after")
    def _is_safe(self) -> FelixListener:
        self.check_certificate()
        if self.tokens and self.auth == "none":
            raise ValueError('tokens are of no use with auth = "none": remove them, or set auth = "required"')
        for tenant in self.tokens:
            if not tenant or "/" in tenant:
                raise ValueError(f'tokens names a tenant {tenant!r}: a name is not empty and has no "/"')
        certified = self.tls is not None and self.tls.client_ca is not None
        authenticated = certified or self.auth == "required" or bool(self.tokens)
        self.check_safe(authenticated=authenticated, settings='auth = "required" or tls.client_ca')
        return self


class Listeners(Section):
    """`[listeners]`: a protocol that is not named is off."""

    flymq: FlyMQListener | None = None
    blipmq: BlipMQListener | None = None
    rustlog: RustLogListener | None = None
    fujin: FujinListener | None = None
    felix: FelixListener | None = None

    def enabled(self) -> Iterator[tuple[str, Listener]]:
        """Each listener that is on, by protocol name."""
        for name in type(self).model_fields:
            settings = getattr(self, name)
            if settings is not None:
                yield name, settings


class Admin(Section):
    """`[admin]`: health, metrics and the HTTP API."""

    bind: Bind = "127.0.0.1:9600"
    insecure: bool = False
    """Allow a bind beyond loopback. The admin address has no TLS and no authentication in this version."""

    @model_validator(mode="after")
    def _is_safe(self) -> Admin:
        if not self.insecure and not is_loopback(parse_address(self.bind).host):
            raise ValueError(
                f'bind = "{self.bind}" can be reached from other machines without TLS and authentication: bind to 127.0.0.1, '
                "or accept the risk with insecure = true"
            )
        return self


class Access(Section):
    """`[access]`: what holds on listeners with `auth = "required"`."""

    allow_anonymous: bool = False
    """Public topics may be read and written without a login, and ACLs may make topics public."""
    default_public: bool = False
    """A topic that no ACL speaks of is public."""


class Log(Section):
    """`[log]`: how records are stored where a topic does not say otherwise, and what the engine may use. Retention holds per partition."""

    retention_ms: OptionalDurationMs = None
    """Records older than this may be deleted; "forever" keeps them."""
    retention_bytes: OptionalSize = None
    """A partition larger than this loses its oldest segments; "forever" keeps them."""
    compression: Compression = "none"
    segment_bytes: SegmentBytes = 128 << 20
    """A segment of this size is sealed and the next one begun."""
    segment_ms: SegmentMs = 7 * 24 * 3600 * 1000
    """A segment of this age is sealed too, so that retention by time can take it."""
    journal_bytes: Size = Field(64 << 20, ge=1 << 20, le=1 << 32)
    """A journal of this size is retired by a checkpoint; two of them are the most a restart has to redo."""
    checkpoint_bytes: Size = Field(32 << 20, ge=1 << 20)
    """A segment's index is saved each time it has grown by this much."""
    tail_bytes_per_partition: Size = Field(4 << 20, ge=0)
    """How much of each partition's end is kept in memory for readers."""
    tail_bytes_max: Size = Field(256 << 20, ge=0)
    """The same for all partitions together."""
    reader_threads: int = Field(4, ge=1, le=64)
    """Reads that need the disk are done by these."""
    maintenance_interval_s: Seconds = Field(30.0, ge=0.1)
    """How often retention, merging and compaction look for work."""
    tombstone_ms: DurationMs = 24 * 3600 * 1000
    """How long compaction keeps the record that deletes a key."""
    compact_dirty_ratio: float = Field(0.5, gt=0, le=1)
    """A compacted partition is rewritten when this part of its sealed bytes is new."""
    reserve_bytes: Size = 8 << 20
    """Disk space held back so that group offsets can still be written when the disk is full."""
    accept_gaps: bool = False
    """Start although segment files are missing or cut, or internal topics are damaged: what they held is gone."""


class Topic(Section):
    """`[[topics]]`: a topic that is created at start if it is missing, and altered if it has other settings than those given here.

    For a new topic, what is left out comes from `[log]`; an existing one keeps it.
    """

    name: TopicName
    partitions: int = Field(1, ge=1, le=PARTITIONS_MAX)
    durability: DurabilityText | None = None
    retention_ms: OptionalDurationMs = None
    retention_bytes: OptionalSize = None
    cleanup: Literal["delete", "compact"] = "delete"
    compression: Compression | None = None
    segment_bytes: SegmentBytes | None = None
    segment_ms: SegmentMs | None = None

    @property
    def given(self) -> frozenset[str]:
        """The settings that are not left out."""
        return frozenset(self.model_fields_set - {"name"})

    def config(self, defaults: TopicConfig) -> TopicConfig:
        """How the log stores this topic. A retention given here as "forever" overrides a default that is shorter."""
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


class Limits(Section):
    """`[limits]`: bounds on what clients may ask for and on the memory they may hold."""

    record_bytes_max: Size = Field(RECORD_BYTES_MAX, ge=1, le=RECORD_BYTES_MAX)
    """Key, value and headers of one record."""
    key_bytes_max: Size = Field(64 << 10, ge=1)
    topics_max: int = Field(10_000, ge=1)
    partitions_max: int = Field(50_000, ge=1)
    """Partitions of all topics together."""
    partitions_per_topic_max: int = Field(1_000, ge=1, le=PARTITIONS_MAX)
    groups_max: int = Field(100_000, ge=1)
    """Groups, counted once for each topic they read."""
    group_offsets_max: int = Field(200_000, ge=1)
    """Committed offsets of all groups together."""
    group_members_max: int = Field(100_000, ge=1)
    """Subscriptions of open connections, over all groups."""
    subscriptions_max: int = Field(10_000, ge=1)
    """Subscriptions (BlipMQ) and groups that share records (Fujin, Felix), whether anybody is connected or not."""
    subscriptions_per_principal_max: int = Field(2_000, ge=1)
    """The same, created by one principal; clients of listeners without authentication have no bound of their own."""
    schemas_max: int = Field(10_000, ge=1)
    """Schema names, also those whose versions are all deleted."""
    schema_versions_max: int = Field(1_000, ge=1)
    """Versions of one schema."""
    schema_bytes_max: Size = Field(256 << 10, ge=1, le=4 << 20)
    """One definition."""
    schemas_bytes_max: Size = Field(64 << 20, ge=1)
    """All definitions together; they are kept in memory."""
    delayed_max: int = Field(2_000_000, ge=1)
    """Delayed records that wait for their time."""
    delay_ms_max: DurationMs = Field(24 * 3600 * 1000, ge=1)
    """The longest delay a record may be given."""
    transactions_max: int = Field(10_000, ge=1)
    """Transactions open at once."""
    transactions_per_principal_max: int = Field(1_000, ge=1)
    """The same of one principal; clients that do not say who they are count as one."""
    transaction_records_max: int = Field(100_000, ge=1)
    """Records in one transaction."""
    transaction_bytes_max: Size = Field(64 << 20, ge=1)
    """Memory that the records of one transaction take until it is committed."""
    transactions_bytes_max: Size = Field(256 << 20, ge=1)
    """The same over all open transactions."""
    transaction_ms_max: DurationMs = Field(60_000, ge=1)
    """A transaction that is open for longer is rolled back."""
    transactions_remembered_max: int = Field(100_000, ge=1)
    """Committed transactions whose ids are kept, so that a second commit is known for what it is."""
    transactions_remembered_ms: DurationMs = Field(24 * 3600 * 1000, ge=1)
    """How long such an id is kept at most."""
    staged_applications_max: int = Field(1_000, ge=1)
    """Applications with records staged."""
    staged_tickets_max: int = Field(100_000, ge=1)
    """Attempts of their tasks with records staged."""
    staged_application_bytes_max: Size = Field(256 << 30, ge=1)
    """Records staged by one application, on disk."""
    staged_bytes_max: Size = Field(512 << 30, ge=1)
    """The same over all applications."""
    staged_chunk_bytes: Size = Field(16 << 20, ge=1)
    """Staged records that are published at once."""
    staged_ms_max: DurationMs = Field(24 * 3600 * 1000, ge=1)
    """How long staged records wait for their commit; then they are dropped."""
    cache_bytes_max: Size = Field(64 << 20, ge=1 << 10)
    """What cached values take in memory, all together; above it those unused for longest make way."""
    cache_entries_max: int = Field(100_000, ge=1)
    """Cached values."""
    in_flight_bytes_max: Size = Field(16 << 20, ge=1 << 16)
    """Requests of one connection that wait for their answer; above it that connection is not read."""
    in_flight_total_bytes_max: Size = Field(256 << 20, ge=1 << 20)
    """The same over all connections."""
    send_buffer_bytes_max: Size = Field(1 << 20, ge=1 << 14)
    """Answers a client has not taken yet; above it no more of its requests are worked on."""


class Subscriptions(Section):
    """`[subscriptions]`: how records are delivered to subscriptions (BlipMQ) until they are acknowledged."""

    deliveries_max: int = Field(3, ge=1, le=1_000_000)
    """How often a record is delivered without an acknowledgement; then it becomes a dead letter."""
    backoff_ms: DurationMs = Field(100, ge=1)
    """How long a delivery may stay unacknowledged the first time; doubled each time after."""
    in_flight_max: int = Field(4096, ge=1, le=50_000)
    """Deliveries of one subscription that wait for their acknowledgement; above it nothing more is delivered."""
    idle_ms_max: DurationMs = Field(7 * 24 * 3600 * 1000, ge=1000)
    """A subscription that nobody reads from for so long is deleted."""


class Logging(Section):
    """`[logging]`: what the broker says about itself."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json"] = "auto"
    """auto: columns for people on a terminal, JSON lines elsewhere."""


class Config(BaseSettings):
    """The whole configuration of one broker."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix="PENSTOCK_", env_nested_delimiter="__", env_ignore_empty=True
    )

    data_dir: ExpandedPath = Path("penstock-data")
    """Where the log is. One broker at a time uses a data directory."""
    durability: DurabilityText = "fsync"
    """What an acknowledgement means where a topic does not say otherwise: fsync, interval:<ms> or none."""
    listeners: Listeners = Listeners(
        flymq=FlyMQListener(),
        blipmq=BlipMQListener(),
        rustlog=RustLogListener(),
        fujin=FujinListener(),
        felix=FelixListener(),
    )
    admin: Admin | None = Admin()
    dev: bool = False
    """Accept the user admin with the password admin, and the API key dev-key. Refused where other machines can reach an address."""
    access: Access = Access()
    log: Log = Log()
    limits: Limits = Limits()
    subscriptions: Subscriptions = Subscriptions()
    logging: Logging = Logging()
    topics: list[Topic] = []

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
    def _topics_are_named_once(self) -> Config:
        names = [topic.name for topic in self.topics]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"topics names {name!r} more than once: keep one of them")
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
