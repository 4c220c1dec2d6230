"""Structured logs: one event with its fields per line, coloured columns on a terminal and JSON anywhere else.

Everything goes through the standard library's root logger, so what asyncio and uvicorn report comes out in the same form and in
the same place: standard error, because standard output belongs to the command that runs. A module that logs has
`log = structlog.get_logger(__name__)`; programs call `configure` once. Fields name things (topic, file, peer, offset), never what
records hold.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal, TextIO, get_args

import msgspec
import structlog

from penstock.errors import ConfigError

Level = Literal["debug", "info", "warning", "error"]
Form = Literal["auto", "console", "json"]

# Libraries that also report their own progress, or what any peer may make them report as often as it likes.
LIBRARY_LEVELS = {"asyncio": logging.WARNING, "uvicorn.error": logging.ERROR}


def configure(level: str = "info", *, form: Form = "auto", stream: TextIO | None = None) -> None:
    """Send logs to `stream` (standard error unless given), in the form that suits it unless `form` names one. Callable again."""
    if level not in get_args(Level):
        raise ConfigError(f"log level {level!r} is not known: use one of {', '.join(get_args(Level))}")
    stream = sys.stderr if stream is None else stream
    number = logging.getLevelNamesMapping()[level.upper()]
    console = form == "console" or (form == "auto" and stream.isatty())

    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=not console),
    ]
    # Neither form shows local variables in tracebacks, as both would by default: records are in them.
    last: list[structlog.typing.Processor]
    if console:
        last = [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    else:
        traces = structlog.processors.ExceptionRenderer(
            structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        )
        last = [traces, _what_every_line_has_first, structlog.processors.JSONRenderer(serializer=_to_json)]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    logging.basicConfig(level=number, handlers=[handler], force=True)
    for name, least in LIBRARY_LEVELS.items():
        logging.getLogger(name).setLevel(max(number, least))
    structlog.configure(
        processors=[
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _what_every_line_has_first(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {name: event[name] for name in ("timestamp", "level", "logger", "event")} | dict(event)


def _to_json(event: object, **_: object) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()
