from __future__ import annotations

import pytest

from penstock.clients.results import require_success
from penstock.errors import BatchFailed, ConnectionLost, InvalidRequest


def test_results_without_an_error_are_returned() -> None:
    assert require_success([1, 2]) == [1, 2]
    assert require_success([None]) == [None]
    assert require_success([]) == []


def test_one_reason_for_all_records_is_raised_itself() -> None:
    with pytest.raises(InvalidRequest, match="first"):
        require_success([InvalidRequest("first"), InvalidRequest("second")])


@pytest.mark.parametrize("other", [1, ConnectionLost("lost")])
def test_otherwise_the_result_of_each_record_is_told(other: object) -> None:
    results = [InvalidRequest("why"), other]
    with pytest.raises(BatchFailed, match="of 2 records were not acknowledged; the first error: why") as caught:
        require_success(results)
    assert caught.value.results is results
