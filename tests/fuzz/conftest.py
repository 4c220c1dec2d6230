from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.loop_cost import Bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("bench"))
    yield bench
    bench.close()
