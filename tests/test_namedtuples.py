from __future__ import annotations

import sys

from penstock.log.api import Appended
from penstock.namedtuples import made


def test_what_is_made_is_what_the_class_makes() -> None:
    assert made(Appended, (7, 1000)) == Appended(7, 1000)
    assert type(made(Appended, (7, 1000))) is Appended


def test_nothing_in_python_is_called_for_it() -> None:
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        made(Appended, (7, 1000))
    finally:
        sys.setprofile(None)
    assert not called
