"""The strings below the fields of a class: what settings and fields of the wire mean, for generated pages and files."""

from __future__ import annotations

import ast
import inspect
import textwrap


def field_docs(kind: type) -> dict[str, str]:
    """Return the strings that stand below the fields of a class and of its bases, by field."""
    docs: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if each.__module__.partition(".")[0] == "penstock":
            docs |= _own_field_docs(each)
    return docs


def _own_field_docs(kind: type) -> dict[str, str]:
    [declared] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    if not isinstance(declared, ast.ClassDef):
        return {}
    docs: dict[str, str] = {}
    for field, below in zip(declared.body, declared.body[1:], strict=False):
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            targets = [field.target] if isinstance(field, ast.AnnAssign) else getattr(field, "targets", [])
            text = " ".join(str(below.value.value).split())
            docs |= {target.id: text for target in targets if isinstance(target, ast.Name)}
    return docs
