"""Tokens of a retry: whose they are, and for how long they are good."""

from __future__ import annotations

import random

from penstock.net.retry_tokens import LIFETIME_S, Admitted, RetryTokens

HERE, THERE = ("127.0.0.1", 1), ("127.0.0.1", 2)


def test_a_token_is_good_for_its_client_and_for_a_while() -> None:
    tokens = RetryTokens(random.Random(1).randbytes)
    token = tokens.issue(HERE, b"original", b"retry-id", 100.0)
    assert tokens.admit(HERE, token, 100.0 + LIFETIME_S) == Admitted(b"original", b"retry-id")
    assert tokens.admit(THERE, token, 100.0) is None
    assert tokens.admit(HERE, token, 101.0 + LIFETIME_S) is None


def test_a_token_of_another_broker_is_none() -> None:
    tokens, others = RetryTokens(random.Random(1).randbytes), RetryTokens(random.Random(2).randbytes)
    assert others.admit(HERE, tokens.issue(HERE, b"original", b"retry-id", 100.0), 100.0) is None


def test_a_token_that_was_changed_is_none() -> None:
    tokens = RetryTokens(random.Random(1).randbytes)
    token = tokens.issue(HERE, b"original", b"retry-id", 100.0)
    for size in range(len(token)):
        assert tokens.admit(HERE, token[:size], 100.0) is None
    for place in range(len(token)):
        changed = bytearray(token)
        changed[place] ^= 1
        assert tokens.admit(HERE, bytes(changed), 100.0) is None
