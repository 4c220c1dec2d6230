"""Configuration: one TOML file, `PENSTOCK_*` environment variables, flags; in rising precedence."""

from __future__ import annotations

from penstock.config.listeners import (
    BlipMQListener,
    FelixListener,
    FlyMQListener,
    FujinListener,
    Listener,
    QuicListener,
    RustLogListener,
    TcpListener,
    Tls,
)
from penstock.config.loading import load_config
from penstock.config.model import (
    Access,
    Admin,
    Config,
    Limits,
    Listeners,
    Log,
    Logging,
    Pipeline,
    Subscriptions,
    Topic,
)

__all__ = [
    "Access",
    "Admin",
    "BlipMQListener",
    "Config",
    "FelixListener",
    "FlyMQListener",
    "FujinListener",
    "Limits",
    "Listener",
    "Listeners",
    "Log",
    "Logging",
    "Pipeline",
    "QuicListener",
    "RustLogListener",
    "Subscriptions",
    "TcpListener",
    "Tls",
    "Topic",
    "load_config",
]
