"""docs/reference/python/: clients, `penstock.testing` and `penstock.spark`, from signatures and docstrings.

Sync clients are shown, because async ones have the same calls; where an async method has the longer docstring, it is used for both.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import penstock
import penstock.spark
import penstock.testing
from penstock.clients.options import ClientOptions
from penstock.clients.retry import RetryPolicy
from penstock.docstrings import field_docs
from scripts.reference.markdown import COLUMNS, DOCS, GENERATED, code, document, paragraphs, prose, table

FOLDER = DOCS / "reference" / "python"
CONNECT = f"""\
# Connecting

{GENERATED}

[The Python client](../../python.md) is the guide. The scheme of the address names the protocol:
[FlyMQ](flymq.md), [BlipMQ](blipmq.md), [RustLog](rustlog.md), [Fujin](fujin.md) or [Felix](felix.md).
All errors are in the [error reference](../errors.md).
"""
CLIENT = """\
# {title} client

{generated}

`penstock.connect("{package}://...")` returns this client. `penstock.connect_async` returns
its async twin, `Async{title}Client`: the same methods, awaited, and iterations with `async for`.
{guide}
"""
GUIDES = {
    "FlyMQ": "[The Python client](../../python.md) is the guide.",
    "BlipMQ": "[BlipMQ](../../blipmq.md) is the guide.",
    "RustLog": "[RustLog](../../rustlog.md) is the guide.",
    "Fujin": "[Fujin](../../fujin.md) is the guide.",
    "Felix": "[Felix](../../felix.md) is the guide.",
}
TESTING = f"""\
# penstock.testing

{GENERATED}

[Testing your code](../../testing.md) is the guide. The fixtures `penstock_broker` and
`penstock_broker_factory` are available in every pytest run once Penstock is installed.
"""
SPARK = f"""\
# penstock.spark

{GENERATED}

[Topics as tables](../../spark.md) has the options of the data source and the sink, and
[pipelines](../../pipelines.md) the file format of pipelines. Install `penstock[spark]`.
"""


def pages() -> dict[Path, Callable[[], str]]:
    clients = {FOLDER / f"{title.lower()}.md": partial(client_page, title) for title in GUIDES}
    return {
        FOLDER / "connect.md": connect_page,
        **clients,
        FOLDER / "testing.md": testing_page,
        FOLDER / "spark.md": spark_page,
    }


def connect_page() -> str:
    functions = [_function(each, "penstock.") for each in (penstock.connect, penstock.connect_async)]
    return document(CONNECT, *functions, _fields(ClientOptions), _fields(RetryPolicy))


def client_page(title: str) -> str:
    package = title.lower()
    module = importlib.import_module(f"penstock.protocols.{package}.sync")
    places = _places(module)
    results: dict[str, type] = {}
    for kind in _classes(module):
        results |= _results(kind)
    return document(
        CLIENT.format(title=title, package=package, generated=GENERATED, guide=GUIDES[title]),
        *(_class(kind, places.get(kind.__name__, "")) for kind in _classes(module)),
        "## Results" if results else "",
        *map(_fields, results.values()),
    )


def testing_page() -> str:
    return document(TESTING, *(_any(getattr(penstock.testing, name)) for name in penstock.testing.__all__))


def spark_page() -> str:
    named = [getattr(penstock.spark, name) for name in penstock.spark.__all__]
    return document(SPARK, *(_function(each, "penstock.spark.") for each in named))


def _any(each: Any) -> str:
    if not isinstance(each, type):
        return _function(each)
    return _fields(each) if _field_types(each) and not list(_members(each)) else _class(each)


def _classes(module: ModuleType) -> Iterator[type]:
    """Yield the public classes that a module defines, in their order."""
    for name, each in vars(module).items():
        if isinstance(each, type) and each.__module__ == module.__name__ and not name.startswith("_"):
            yield each


def _places(module: ModuleType) -> dict[str, str]:
    """Return where a client has objects of the other classes, as in `client.schemas`, by class."""
    found = re.findall(r"self\.([a-z]\w*)(?:: \w+)? = (\w+)\(", inspect.getsource(module))
    return {kind: f"client.{attribute}" for attribute, kind in found}


def _class(kind: type, place: str = "") -> str:
    blocks = [f"## {place or kind.__name__}", f"Class {code(kind.__name__)}." if place else "", _text(kind.__doc__)]
    if not place and "__init__" in vars(kind):
        blocks.append(_signature(kind.__name__, vars(kind)["__init__"]))
    blocks.append(_attributes(kind))
    for name, member in _members(kind):
        prefix = f"{place or kind.__name__}."
        if isinstance(member, property):
            annotation = (member.fget.__annotations__ if member.fget else {}).get("return", "")
            blocks += [f"### {prefix}{name}", f"```python\n{name}: {annotation}\n```", _text(member.__doc__)]
        else:
            blocks += [f"### {prefix}{name}", _signature(name, member), _text(_longer_doc(kind, name, member))]
    return document(*blocks)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class and of its bases here, those of the class first."""
    seen = set()
    for each in kind.__mro__:
        if each.__module__.partition(".")[0] == "penstock":
            for name, member in vars(each).items():
                bare = member.__func__ if isinstance(member, classmethod | staticmethod) else member
                if not name.startswith("_") and (inspect.isfunction(bare) or isinstance(bare, property)):
                    if name not in seen:
                        yield name, bare
                    seen.add(name)


def _longer_doc(kind: type, name: str, method: Callable[..., Any]) -> str:
    """Return the docstring of a sync method, or the one of its async twin if that says more."""
    own = method.__doc__ or ""
    package = kind.__module__.rpartition(".")[0]
    twins = (getattr(sys.modules.get(f"{package}.client"), f"Async{kind.__name__}", None),)
    others = [doc for twin in twins if twin and (doc := getattr(getattr(twin, name, None), "__doc__", ""))]
    return next((doc for doc in others if len(doc) > len(own) and not re.search("async|await", doc)), own)


class _Source(str):
    """An annotation as it is written, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _signature(name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    parameters = [
        each.replace(annotation=_Source(each.annotation) if isinstance(each.annotation, str) else each.annotation)
        for each in signature.parameters.values()
        if each.name not in ("self", "cls")
    ]
    returned = signature.return_annotation
    arrow = "" if returned in (inspect.Signature.empty, "None") else f" -> {returned}"
    line = f"{name}({_parameters(parameters, ', ')}){arrow}"
    if len(line) > COLUMNS:
        line = f"{name}(\n    {_parameters(parameters, ',{newline}    ').replace('{newline}', chr(10))},\n){arrow}"
    return f"```python\n{line}\n```"


def _parameters(parameters: list[inspect.Parameter], separator: str) -> str:
    words: list[str] = []
    has_star = False
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not has_star:
            words.append("*")
        has_star = has_star or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        words.append(re.sub(r"<.* at 0x[0-9a-f]+>", "...", str(each)))
    return separator.join(words)


def _function(function: Callable[..., Any], prefix: str = "") -> str:
    name = f"{prefix}{function.__name__}"
    return document(f"## {name}", _signature(function.__name__, function), _text(function.__doc__))


def _fields(kind: type) -> str:
    """Return a class that is all fields: a result, or options."""
    return document(f"### {kind.__name__}", _text(kind.__doc__), _attributes(kind))


def _attributes(kind: type) -> str:
    types = _field_types(kind)
    docs = field_docs(kind) if types else {}
    if not docs:
        return table(["attribute", "type"], ((code(name), code(text)) for name, text in types.items()))
    rows = ((code(name), code(text), prose(docs.get(name, ""))) for name, text in types.items())
    return table(["attribute", "type", "meaning"], rows)


def _field_types(kind: type) -> dict[str, str]:
    """Return the fields of a struct, named tuple or dataclass and their types as written."""
    is_record = hasattr(kind, "__struct_fields__") or hasattr(kind, "_fields") or dataclasses.is_dataclass(kind)
    if not is_record:
        return {}
    written: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if each.__module__.partition(".")[0] == "penstock":
            written |= {name: str(text) for name, text in inspect.get_annotations(each).items()}
    return {
        name: text.removeprefix("ForwardRef('").removesuffix("')")
        for name, text in written.items()
        if not name.startswith("_") and not text.startswith("ClassVar")
    }


def _results(kind: type) -> dict[str, type]:
    """Return the result types that the methods of a class name, and those that these name, by name."""
    found: dict[str, type] = {}
    named = [
        (sys.modules[kind.__module__], str(member.__annotations__.get("return", "")))
        for _, member in _members(kind)
        if inspect.isfunction(member)
    ]
    while named:
        module, annotation = named.pop(0)
        for word in re.findall(r"[A-Z]\w+", annotation):
            each = getattr(module, word, None)
            if isinstance(each, type) and word not in found and _field_types(each):
                found[word] = each
                named += [(sys.modules[each.__module__], text) for text in _field_types(each).values()]
    return found


def _text(docstring: str | None) -> str:
    return paragraphs(docstring) if docstring else ""
