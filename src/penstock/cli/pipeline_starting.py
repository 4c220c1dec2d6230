"""Having a broker start a pipeline on its machine, over the admin API."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import quote

import typer

from penstock.cli import terminal
from penstock.cli.admin_access import AdminAccess
from penstock.cli.options import admin_access, admin_url
from penstock.cli.sample import answer
from penstock.errors import EntryNotFound, InvalidRequest, RequestTimeout

API = "/api/v1"
WAIT_S_MAX = 180.0
LOOK_EVERY_S = 0.5


def start_pipeline(context: typer.Context, name: str, admin: str | None, *, wait: bool) -> None:
    """Start it, and wait until it runs. Raises InvalidRequest with the reason if it fails."""
    url = admin_url(context, admin)
    access = admin_access(context, url)
    path = f"{url}{API}/pipelines/{quote(name, safe='')}/start"
    pipeline = json.loads(answer(path, access, "POST"))
    give_up_s = time.monotonic() + WAIT_S_MAX
    while wait and pipeline["alive"] and pipeline["state"] != "running":
        if time.monotonic() > give_up_s:
            raise RequestTimeout(
                f"pipeline {name} was started and does not run after {WAIT_S_MAX:g} s: see its log in the console"
            )
        time.sleep(LOOK_EVERY_S)
        pipeline = _found(url, access, name)
    state, pid = pipeline["state"], (pipeline["process"] or {}).get("pid")
    if state == "failed":
        raise InvalidRequest(f"pipeline {name} failed: {pipeline['message']}")
    words = {"running": "is running", "starting": "is starting"}.get(state, f"has {state}")
    terminal.print_outcome(context, f"pipeline {name} {words}", {"name": name, "state": state, "pid": pid})


def _found(url: str, access: AdminAccess, name: str) -> dict[str, Any]:
    pipelines: list[dict[str, Any]] = json.loads(answer(f"{url}{API}/pipelines", access))
    found = next((each for each in pipelines if each["name"] == name), None)
    if found is None:
        raise EntryNotFound(f"pipeline {name} is not declared any more: was the broker restarted?")
    return found
