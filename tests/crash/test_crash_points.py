"""The process ends at each numbered site of the log, at the first pass and at a later one; then everything must be there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import penstock.log.embedded
from penstock.log.embedded.crashpoints import VARIABLE, Site
from tests.crash.workload import Workload

CRASHED = 9
UNDER_LOAD = [site for site in Site if not site.startswith(("recovery.", "close."))]
AT_CLOSE = [site for site in Site if site.startswith("close.")]
IN_RECOVERY = [site for site in Site if site.startswith("recovery.")]
# Passes that load reaches often, so that a later one finds the log in the middle of things.
LATER_PASS = 7
RARE = ("topic.", "retention.", "rewrite.", "checkpoint.", "roll.")


def crash_under_load(workload: Workload, site: Site, nth: int) -> None:
    # The site may be passed while the broker starts (topics are created), so it may never say that it is ready.
    workload.broker.start({VARIABLE: f"{site}:{nth}"}, wait=False)
    try:
        workload.broker.wait_ready()
        with workload.running() as load:
            load.wait_until_over(timeout_s=40)
    except Exception:
        if workload.broker.running:
            raise
    assert workload.broker.wait_exit() == CRASHED, workload.broker.output


@pytest.mark.timeout(120)
@pytest.mark.parametrize("site", UNDER_LOAD)
def test_a_crash_under_load_loses_nothing(workload: Workload, site: Site) -> None:
    crash_under_load(workload, site, 1)
    workload.broker.start()
    with workload.running() as load:
        load.wait_until_acked(200)
        workload.broker.kill9()
    crash_under_load(workload, site, 2 if site.startswith(RARE) else LATER_PASS)
    workload.broker.start()
    workload.check()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("site", AT_CLOSE)
def test_a_crash_while_closing_loses_nothing(workload: Workload, site: Site) -> None:
    workload.broker.start({VARIABLE: f"{site}:1"})
    with workload.running() as load:
        load.wait_until_acked(500)
    assert workload.broker.terminate() == CRASHED
    workload.broker.start()
    workload.check()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("site", IN_RECOVERY)
def test_a_crash_while_recovering_from_a_crash_loses_nothing(workload: Workload, site: Site) -> None:
    crash_under_load(workload, Site.APPEND_HALF_WRITTEN, LATER_PASS)
    workload.broker.start({VARIABLE: f"{site}:1"}, wait=False)
    assert workload.broker.wait_exit() == CRASHED, workload.broker.output
    workload.broker.start()
    workload.check()


def test_every_site_is_one_that_the_log_passes() -> None:
    package = Path(next(iter(penstock.log.embedded.__path__)))
    code = "".join(path.read_text() for path in package.glob("*.py") if path.name != "crashpoints.py")
    assert set(re.findall(r"Site\.([A-Z_]+)", code)) == {site.name for site in Site}
