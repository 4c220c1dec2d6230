"""Write the `sync.py` of each protocol from its async client: `python -m scripts.sync_clients`.

Each class whose name begins with `Async` becomes a sync class without that prefix, derived from the base class in
`penstock.clients.sync` that fits it: a client, a consumer, something polled, a context manager, or a plain group of calls. Each public
method becomes one with the same arguments and docstring that runs the coroutine in the client's thread. Where the async method returns
another `Async` object, the sync one returns its counterpart. Annotated public attributes (`self.topic: str = topic`) become properties.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.clients.sync import SyncClient, SyncConsumer, SyncContext, SyncObject, SyncPolled

PACKAGE = "penstock.protocols"
ROOT = Path(__file__).parent.parent / "src" / PACKAGE.replace(".", "/")
PROTOCOLS = {"blipmq": "BlipMQ", "felix": "Felix", "flymq": "FlyMQ", "fujin": "Fujin", "rustlog": "RustLog"}

LEFT_OUT = {"open", "fetch_encoded"}
"""A sync client is open once it is made; decoding apart from fetching is of use to concurrent tasks only."""
INJECTED = {"clock", "random", "sleep"}
"""Arguments of constructors that exist for tests of the async client."""
WORDING = (
    (r"\ban (`?)async (?=with|for)", r"a \1"),
    (r"\basync (with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(?=[A-Z])", ""),
    ("the async client", "the sync client"),
    ("for asyncio programs", "for programs without an event loop"),
    (r"concurrent\s+tasks\s+of\s+one\s+event\s+loop", "threads"),
)
"""What docstrings say of the async client, and what they say of the sync one instead."""

HEAD = '''"""The {name} client for programs without an event loop: the async client, run in a background thread.

Generated from `{package}`: change the async client, and run `make sync`.
"""
{ruff}
from __future__ import annotations

from collections.abc import Iterator

from penstock.clients.loop_thread import LoopThread
from penstock.clients.sync import SyncClient, SyncConsumer, SyncContext, SyncObject, SyncPolled
'''
SHADOWING = "\n# ruff: noqa: A002 - arguments are named as those of the async client\n"

Method = ast.FunctionDef | ast.AsyncFunctionDef


class Source(NamedTuple):
    """An async class and the module that defines it."""

    module: str
    tree: ast.Module
    definition: ast.ClassDef

    @property
    def methods(self) -> dict[str, Method]:
        """The public and special methods, by name; of overloads, the implementation."""
        return {each.name: each for each in self.definition.body if isinstance(each, Method)}

    @property
    def base(self) -> type[SyncObject[object]]:
        parents = {ast.unparse(each) for each in self.definition.bases}
        if self.definition.name.endswith("Client"):
            return SyncClient
        if "__aiter__" in self.methods:
            return SyncConsumer if "next_batch" in self.methods else SyncPolled
        if "__aenter__" in self.methods or "AsyncOpened" in parents:
            return SyncContext
        return SyncObject


def sync_file(protocol: str) -> Path:
    return ROOT / protocol / "sync.py"


def generate(protocol: str) -> str:
    """Return the text of a protocol's `sync.py`."""
    sources = sorted(_sources(protocol), key=lambda source: source.base is not SyncClient)
    body = "\n".join(_class(source) for source in sources)
    imports = "".join(sorted(set(_imports(sources, body))))
    shadowing = SHADOWING if re.search(r"\b(filter|type|format): ", body) else ""
    head = HEAD.format(name=PROTOCOLS[protocol], package=f"{PACKAGE}.{protocol}", ruff=shadowing)
    return _formatted(head + imports + body, sync_file(protocol))


def _sources(protocol: str) -> Iterator[Source]:
    for path in sorted(set((ROOT / protocol).rglob("*.py")) - {sync_file(protocol)}):
        module = ".".join((PACKAGE, *path.relative_to(ROOT).with_suffix("").parts))
        tree = ast.parse(path.read_text())
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name.startswith("Async"):
                yield Source(module, tree, node)


# -- classes -----------------------------------------------------------------------------------------------------------


def _class(source: Source) -> str:
    name, base = source.definition.name, source.base
    arguments = name
    if base in (SyncConsumer, SyncPolled):
        batch = source.methods["next_batch" if base is SyncConsumer else "poll"].returns
        assert isinstance(batch, ast.Subscript)
        arguments += f", {ast.unparse(batch.slice)}"
    text = ast.get_docstring(source.definition, clean=False) or ""
    parts = [f"class {_sync_name(name)}({base.__name__}[{arguments}]):\n", _docstring(text, "    ")]
    parts += _constructor(source) if base is SyncClient else ()
    parts += _attributes(source)
    methods = [each for each in source.methods.values() if not each.name.startswith("_")]
    parts += [_method(each, source) for each in methods if each.name not in LEFT_OUT and not hasattr(base, each.name)]
    return "\n" + "".join(parts)


def _constructor(source: Source) -> Iterator[str]:
    made = source.methods["__init__"]
    given = [
        (each, default)
        for each, default in zip(made.args.kwonlyargs, made.args.kw_defaults, strict=True)
        if each.arg not in INJECTED
    ]
    made.args.kwonlyargs = [each for each, _ in given]
    made.args.kw_defaults = [default for _, default in given]
    call = f"super().__init__({source.definition.name}({_call(made)}))"
    yield _definition(made, "None", call)
    for node, after in _with_next(made.body):
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Async"):
            name = ast.unparse(node.targets[0]).removeprefix("self.")
            kind = _sync_name(ast.unparse(node.value).partition("(")[0])
            yield f"        self.{name} = {kind}(self._thread, self._async.{name})\n"
            yield _docstring(_text(after), "        ")


def _attributes(source: Source) -> Iterator[str]:
    for node, after in _with_next(source.methods["__init__"].body):
        if isinstance(node, ast.AnnAssign):
            name = ast.unparse(node.target).removeprefix("self.")
            if not name.startswith("_") and "." not in name:
                yield f"\n    @property\n    def {name}(self) -> {ast.unparse(node.annotation)}:\n"
                yield _docstring(_text(after), "        ")
                yield f"        return self._async.{name}\n"


# -- methods -----------------------------------------------------------------------------------------------------------


def _method(method: Method, source: Source) -> str:
    returned = ast.unparse(method.returns) if method.returns else "None"
    if method.decorator_list:  # a property
        return _definition(method, returned, f"return self._async.{method.name}", decorator="    @property\n")
    call = f"self._async.{method.name}({_call(method)})"
    if returned.startswith("AsyncGenerator"):
        item = returned.removeprefix("AsyncGenerator[").rpartition(", None")[0]
        if method.name == "records" and "batches" in source.methods:  # a record at a time costs a change of threads
            statement = f"for batch in self.batches({_call(method)}): yield from batch"
        else:
            statement = f"return self._iterate({call})"
        return _definition(method, f"Iterator[{item}]", statement)
    if isinstance(method, ast.AsyncFunctionDef):
        call = f"self._thread.run({call})"
    if returned.startswith("Async"):
        return _definition(method, _sync_name(returned), f"return {_sync_name(returned)}(self._thread, {call})")
    if returned == "Self":
        return _definition(method, returned, f"{call}\n        return self")
    return _definition(method, returned, call if returned == "None" else f"return {call}")


def _definition(method: Method, returned: str, statement: str, decorator: str = "") -> str:
    head = f"\n{decorator}    def {method.name}({ast.unparse(method.args)}) -> {returned}:\n"
    return f"{head}{_docstring(ast.get_docstring(method, clean=False), '        ')}        {statement}\n"


def _call(method: Method) -> str:
    positional = [each.arg for each in method.args.args if each.arg != "self"]
    more = [f"*{method.args.vararg.arg}"] if method.args.vararg else []
    named = [f"{each.arg}={_passed(each)}" for each in method.args.kwonlyargs]
    rest = [f"**{method.args.kwarg.arg}"] if method.args.kwarg else []
    return ", ".join(positional + more + named + rest)


def _passed(argument: ast.arg) -> str:
    """Callbacks of an async client run in its event loop, where a sync client cannot be used: they get a thread."""
    is_callback = argument.annotation is not None and ast.unparse(argument.annotation).startswith("On")
    return f"in_thread({argument.arg})" if is_callback else argument.arg


def _docstring(text: str | None, indent: str) -> str:
    if not text:
        return ""
    for pattern, replacement in WORDING:
        text = re.sub(pattern, replacement, text)
    return f'{indent}"""{text}"""\n'


# -- names -------------------------------------------------------------------------------------------------------------


def _imports(sources: Iterable[Source], body: str) -> Iterator[str]:
    """Yield one import for each name of the async modules that the sync classes use."""
    used = {each.id for each in ast.walk(ast.parse(body)) if isinstance(each, ast.Name)}
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.Import):
                yield from (f"import {each.name}\n" for each in node.names if each.name in used)
            elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
                yield from (f"from {node.module} import {each.name}\n" for each in node.names if each.name in used)
            else:
                yield from (f"from {source.module} import {name}\n" for name in _defined(node) if name in used)


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (each.id for each in targets if isinstance(each, ast.Name))


def _sync_name(name: str) -> str:
    return name.removeprefix("Async")


def _with_next(body: list[ast.stmt]) -> Iterable[tuple[ast.stmt, ast.stmt]]:
    return zip(body, [*body[1:], ast.Pass()], strict=True)


def _text(node: ast.stmt) -> str | None:
    """Return the docstring of an attribute, given the statement after it."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return None


def _formatted(source: str, path: Path) -> str:
    for command in (["check", "--select", "I,F401", "--fix", "--quiet"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
        source = subprocess.run(ruff, input=source, capture_output=True, text=True, check=True).stdout
    return source


if __name__ == "__main__":
    for each in PROTOCOLS:
        sync_file(each).write_text(generate(each))
