"""What the Tab key finds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.testing import RunningBroker


def complete(words: str, server: str) -> list[str]:
    """What bash is offered for a line that ends in its last word."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock"],
        env={
            "_PENSTOCK_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
            "PENSTOCK_SERVER": server,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_topics_and_groups_complete_from_the_broker(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    for name in ("orders", "ordinals", "clicks"):
        client.create_topic(name)
    client.commit("orders", "billing", 0, 0)
    assert complete("penstock topic describe ord", penstock_broker.url) == ["orders", "ordinals"]
    assert complete("penstock consume cl", penstock_broker.url) == ["clicks"]
    assert complete("penstock group describe b", penstock_broker.url) == ["billing"]


@pytest.mark.parametrize("words", ["penstock topic describe ord", "penstock group describe b"])
def test_without_a_broker_nothing_is_offered_and_nothing_is_said(words: str) -> None:
    assert complete(words, "flymq://127.0.0.1:1") == []


def test_commands_complete_without_a_broker() -> None:
    assert complete("penstock top", "flymq://127.0.0.1:1") == ["top", "topic"]
