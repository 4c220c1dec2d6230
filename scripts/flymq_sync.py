"""Write `penstock/protocols/flymq/sync.py` from the async client: `python -m scripts.flymq_sync`.

Each public method of an async class becomes one of its sync twin, with the same arguments and docstring, that runs the coroutine in the
client's thread. A method that returns another async object returns that object's twin.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "penstock.protocols.flymq"
ROOT = Path(__file__).parent.parent / "src" / PACKAGE.replace(".", "/")
SYNC = ROOT / "sync.py"
MODULES = ("client", "consumer", "monitoring", "transactions", "records", "access", "spark")
CLIENT = "AsyncFlyMQClient"
TRANSACTION = "AsyncTransaction"
CONSUMER = "AsyncConsumer"
CALLBACK = "OnRebalance"
LEFT_OUT = {CLIENT: {"open", "close", "fetch_encoded"}, TRANSACTION: {"begin", "commit", "rollback"}}
"""What the base classes of the twins have, what has no use without a loop, and what the templates have."""

HEAD = '''"""The FlyMQ client for programs without an event loop: the async client, driven in one background thread.

Generated from `penstock.protocols.flymq.client`: change that, and run `make sync`.
"""

# ruff: noqa: A002 - arguments are named as those of the async client

from __future__ import annotations

import ssl
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from penstock.clients.loop_thread import LoopThread
from penstock.clients.options import ClientOptions
from penstock.clients.records import Record
from penstock.clients.sync_twin import SyncTransaction, SyncTwin
'''

CLIENT_HEAD = '''
class FlyMQClient(SyncTwin[AsyncFlyMQClient]):
    """The same calls as `AsyncFlyMQClient`, each waiting for its answer. Any number of threads may share one client.

    ```python
    with penstock.connect("flymq://127.0.0.1:9092") as client:
        client.send("orders", b"one", key=b"k")
        for record in client.records("orders"):
            print(record.offset, record.value)
    ```
    """

    def __init__(
        self, url: str, *, tls: ssl.SSLContext | bool | None = None, options: ClientOptions | None = None
    ) -> None:
        super().__init__(AsyncFlyMQClient(url, tls=tls, options=options))
'''

TRANSACTION_HEAD = '''
class Transaction(SyncTransaction[AsyncTransaction]):
    """The same calls as `AsyncTransaction`, each waiting for its answer.

    ```python
    with client.transaction() as txn:
        txn.send("orders", b"one", key=b"k")
        txn.send("payments", b"1.00")
    ```
    """

    def begin(self) -> Self:
        """Begin the transaction; entering the block does that by itself."""
        self._thread.run(self._transaction.begin())
        return self
'''

CONSUMER_HEAD = '''
class Consumer:
    """The same calls as `AsyncConsumer`, each waiting for its answer.

    ```python
    with client.consumer(["orders"], group="billing") as consumer:
        for record in consumer:
            print(record.partition, record.offset, record.value)
    ```
    Callbacks run in a thread of their own and may use the client and the consumer. `poll` is the faster way to read much.
    """

    def __init__(self, thread: LoopThread, consumer: AsyncConsumer) -> None:
        self._thread = thread
        self._consumer = consumer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._consumer.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[Record]:
        while not self.closed:
            yield from self.poll(1)
'''

TWIN_HEAD = '''
class {twin}:
    """The same calls as `{source}`, each waiting for its answer."""

    def __init__(self, thread: LoopThread, {attribute}: {source}) -> None:
        self._thread = thread
        self._{attribute} = {attribute}
'''

Method = ast.FunctionDef | ast.AsyncFunctionDef


def generated() -> str:
    trees = {name: ast.parse((ROOT / "client" / f"{name}.py").read_text()) for name in MODULES}
    classes = [each for tree in trees.values() for each in tree.body if isinstance(each, ast.ClassDef)]
    body = "".join(_twin(each) for each in classes if each.name.startswith("Async"))
    return _formatted(HEAD + "".join(sorted(_imports(trees, body))) + body)


def _twin(source: ast.ClassDef) -> str:
    if source.name == CLIENT:
        attribute, head = "client", CLIENT_HEAD + "".join(_groups(source))
    elif source.name == TRANSACTION:
        attribute, head = "transaction", TRANSACTION_HEAD
    elif source.name == CONSUMER:
        attribute, head = "consumer", CONSUMER_HEAD
    else:
        attribute = _snake(_twin_name(source.name))
        head = TWIN_HEAD.format(twin=_twin_name(source.name), source=source.name, attribute=attribute)
    methods = [each for each in source.body if isinstance(each, Method) and not each.name.startswith("_")]
    left_out = LEFT_OUT.get(source.name, set())
    return head + "".join(_method(each, attribute) for each in methods if each.name not in left_out)


def _groups(source: ast.ClassDef) -> Iterator[str]:
    """The attributes of the client that hold groups of its calls, and what is said of them."""
    [make] = [each for each in source.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    for node, below in zip(make.body, [*make.body[1:], ast.Pass()], strict=True):
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Async"):
            name = ast.unparse(node.targets[0]).removeprefix("self.")
            kind = _twin_name(ast.unparse(node.value).partition("(")[0])
            yield f"        self.{name} = {kind}(self._thread, self._client.{name})\n"
            if isinstance(below, ast.Expr):
                yield f'        """{ast.literal_eval(below.value)}"""\n'


def _method(method: Method, attribute: str) -> str:
    returned = ast.unparse(method.returns) if method.returns else "None"
    target = f"self._{attribute}.{method.name}"
    if method.decorator_list:  # a property
        return _definition(method, returned, f"return {target}", decorator="    @property\n")
    call = f"{target}({_call(method)})"
    if returned == "AsyncGenerator[Record, None]":  # batch by batch: a record at a time costs a change of threads
        return _definition(method, "Iterator[Record]", f"for batch in self.batches({_call(method)}): yield from batch")
    if returned.startswith("AsyncGenerator"):
        item = returned.removeprefix("AsyncGenerator[").rpartition(", None")[0]
        return _definition(method, f"Iterator[{item}]", f"return self._iterate({call})")
    if returned.startswith("Async"):
        return _definition(method, _twin_name(returned), f"return {_twin_name(returned)}(self._thread, {call})")
    result = "" if returned == "None" else "return "
    if isinstance(method, ast.FunctionDef):
        return _definition(method, returned, result + call)
    return _definition(method, returned, f"{result}self._thread.run({call})")


def _definition(method: Method, returned: str, statement: str, decorator: str = "") -> str:
    head = f"\n{decorator}    def {method.name}({ast.unparse(method.args)}) -> {returned}:\n"
    text = ast.get_docstring(method, clean=False)
    docstring = f'        """{text.replace("async with", "with")}"""\n' if text else ""
    return f"{head}{docstring}        {statement}\n"


def _call(method: Method) -> str:
    positional = [each.arg for each in method.args.args if each.arg != "self"]
    named = [f"{each.arg}={_passed(each)}" for each in method.args.kwonlyargs]
    rest = [f"**{method.args.kwarg.arg}"] if method.args.kwarg else []
    return ", ".join(positional + named + rest)


def _passed(argument: ast.arg) -> str:
    """Callbacks of an async client run in its loop, where a sync client cannot be used: they get a thread."""
    is_callback = argument.annotation is not None and CALLBACK in ast.unparse(argument.annotation)
    return f"in_thread({argument.arg})" if is_callback else argument.arg


def _imports(trees: dict[str, ast.Module], body: str) -> Iterator[str]:
    """One import for each name of the async modules that the twins use."""
    used = {each.id for each in ast.walk(ast.parse(body)) if isinstance(each, ast.Name)}
    for module, tree in trees.items():
        own = f"{PACKAGE}.client.{module}"
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module != "__future__":
                yield from (f"from {node.module} import {each.name}\n" for each in node.names if each.name in used)
            elif isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in used:
                yield f"from {own} import {node.name}\n"
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Name) and target.id in used:
                    yield f"from {own} import {target.id}\n"


def _twin_name(name: str) -> str:
    return name.removeprefix("Async")


def _snake(name: str) -> str:
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name).lstrip("_")


def _formatted(source: str) -> str:
    for command in (["check", "--select", "I,F401", "--fix", "--quiet"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(SYNC), "-"]
        source = subprocess.run(ruff, input=source, capture_output=True, text=True, check=True).stdout
    return source


if __name__ == "__main__":
    SYNC.write_text(generated())
