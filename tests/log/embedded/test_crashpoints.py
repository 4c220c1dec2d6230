from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.log.embedded.crashpoints import CrashPoints, Site


def test_nothing_is_due_unless_it_is_asked_for() -> None:
    points = CrashPoints({})
    assert not any(points.due(site) for site in Site)


@pytest.mark.parametrize(
    ("setting", "passes"), [("append.written", 1), ("append.written:1", 1), ("append.written:3", 3)]
)
def test_the_nth_pass_of_the_named_site_is_due_and_no_other(setting: str, passes: int) -> None:
    points = CrashPoints({"PENSTOCK_CRASH_AT": setting})
    for number in range(1, 6):
        assert not points.due(Site.APPEND_SYNCED)
        assert points.due(Site.APPEND_WRITTEN) == (number == passes)


@pytest.mark.parametrize("setting", ["nowhere:1", "append.written:x", ":1"])
def test_a_setting_that_names_no_site_is_refused_with_the_sites_there_are(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"append\.written"):
        CrashPoints({"PENSTOCK_CRASH_AT": setting})
