"""File descriptors: the limit is raised, and the reserve never takes more than a quarter."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest

from penstock.net.descriptors import descriptor_mark, next_descriptor, raise_descriptor_limit


@pytest.fixture(autouse=True)
def limit_restored() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    assert raise_descriptor_limit() == hard
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


@pytest.mark.parametrize(("limit", "mark"), [(1000, 936), (256, 192), (128, 96)])
def test_the_reserve_is_a_quarter_at_most(limit: int, mark: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    assert descriptor_mark(64) == mark


def test_the_next_descriptor_is_the_one_that_opens_next() -> None:
    expected = next_descriptor(0)
    opened = os.dup(0)
    os.close(opened)
    assert opened == expected


def test_there_is_no_next_descriptor_when_all_are_used() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = next_descriptor(0)
    assert free is not None
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    assert next_descriptor(0) is None
