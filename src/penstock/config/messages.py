"""What is wrong with a configuration, in words: one line a problem, naming where it stands, what it is and what to do."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from penstock.settings import Reason

Path = tuple[str | int, ...]

SUGGESTIONS_MAX = 3


def dotted(path: Path) -> str:
    """("topics", 0, "name") is topics[0].name"""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section class that an annotation such as `Tls | None`, `list[Topic]` or `dict[str, Rules]` stands for, if any."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, list, dict):
        return next(filter(None, map(section_of, typing.get_args(annotation))), None)
    return None


def settings_under(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every dotted key below a section, sections themselves included; list items stand without their index."""
    for name, field in model.model_fields.items():
        yield prefix + name
        if (section := section_of(field.annotation)) is not None:
            yield from settings_under(section, f"{prefix}{name}.")


def _parent(root: type[BaseModel], path: Path) -> type[BaseModel]:
    """The section that a key stands in."""
    parent = root
    for part in path[:-1]:
        # What is no field is the index of a list or a name that somebody gave to a section.
        field = parent.model_fields.get(str(part))
        if field is not None and (section := section_of(field.annotation)) is not None:
            parent = section
    return parent


def unknown_setting(root: type[BaseModel], path: Path) -> str:
    """Why a key is refused and which known ones are meant."""
    key, name = dotted(path), str(path[-1])
    parent = _parent(root, path)
    if path[:-1] == ("listeners",):
        speaks = ", ".join(parent.model_fields)
        return f"{key}: Penstock does not speak {name}; it speaks {speaks}" + _did_you_mean(
            name, list(parent.model_fields), "listeners."
        )
    siblings = [field.alias or known for known, field in parent.model_fields.items()]
    above = key[: -len(name)]
    close = difflib.get_close_matches(name, siblings, n=SUGGESTIONS_MAX)
    close = close or [known for known in siblings if known.startswith(f"{name}_") or name.startswith(known)]
    if close:
        return f"{key} is not a setting; did you mean {_either([above + c for c in close[:SUGGESTIONS_MAX]])}?"
    elsewhere = [k for k in settings_under(root) if k.split(".")[-1] == name or k.split(".")[-1].startswith(name + "_")]
    if elsewhere:
        return f"{key} is not a setting; did you mean {_either(elsewhere[:SUGGESTIONS_MAX])}?"
    return f"{key} is not a setting; {above.rstrip('.') or 'the top level'} knows {', '.join(siblings) or 'none'}"


def _did_you_mean(name: str, known: list[str], prefix: str) -> str:
    close = difflib.get_close_matches(name, known, n=SUGGESTIONS_MAX)
    return f". Did you mean {_either([prefix + c for c in close])}?" if close else ""


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def describe(error: ValidationError, root: type[BaseModel], origin_of: Callable[[Path], str]) -> list[str]:
    """One line for each problem, led by the file, variable or flag it came from."""
    lines = []
    for problem in error.errors(include_url=False):
        path: Path = problem["loc"]
        origin = origin_of(path)
        text = unknown_setting(root, path) if problem["type"] == "extra_forbidden" else _problem(root, path, problem)
        lines.append(f"{origin}: {text}" if origin else text)
    return lines


def _problem(root: type[BaseModel], path: Path, problem: Mapping[str, Any]) -> str:
    key, kind, context, given = dotted(path), problem["type"], problem.get("ctx", {}), problem["input"]
    shown = f"{key} = {_shown(given)}"
    match kind:
        case "missing":
            return f"{key} is missing: add it"
        case "value_error" if isinstance(given, dict) or not key:
            return f"{key}: {context['error']}" if key else str(context["error"])
        case "value_error":
            return f"{key}: {context['error']}"
        case "literal_error":
            return f"{shown} is not known: use {context['expected']}"
        case "greater_than":
            return f"{shown} is too small: more than {context['gt']}"
        case "greater_than_equal":
            return f"{shown} is too small: at least {context['ge']}"
        case "less_than_equal":
            return f"{shown} is too large: at most {context['le']}{_reason(root, path)}"
        case "int_parsing" | "int_type" | "int_from_float":
            return f"{shown} is not a whole number"
        case "float_parsing" | "float_type":
            return f"{shown} is not a number"
        case "bool_parsing" | "bool_type":
            return f"{shown} is neither true nor false"
        case "string_type" | "path_type":
            return f'{shown} is not a text: write it between quotes, as in {key} = "..."'
        case "string_too_short" | "too_short":
            return f"{key} is empty: give it a value"
        case "too_long" if isinstance(given, list):
            return f"{key} has too many entries: at most {context['max_length']}"
        case "string_too_long" | "too_long":
            return f"{key} is too long: at most {context['max_length']} characters"
        case "list_type":
            return f"{shown} is not a list: write [[{key}]] sections in the file, or a JSON list in the environment"
        case "model_type" | "model_attributes_type":
            return f"{shown} is not a section: write [{key}] in the file, with its settings below"
        case _:
            return f"{shown}: {problem['msg']}"


def _reason(root: type[BaseModel], path: Path) -> str:
    """Why a setting has a ceiling, if it says so."""
    field = _parent(root, path).model_fields.get(str(path[-1])) if path else None
    reasons = [f", because {each.text}" for each in field.metadata if isinstance(each, Reason)] if field else []
    return "".join(reasons)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
