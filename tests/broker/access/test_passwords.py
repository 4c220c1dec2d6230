from __future__ import annotations

import asyncio
import os
import threading

import pytest

from penstock.broker.access.passwords import PASSWORD_BYTES_MAX, STEP_BACK, Passwords
from penstock.errors import InvalidRequest, LimitExceeded
from tests.broker.accounts import CHEAP

LAST = 19
"""No thread steps back further than that."""


async def test_a_hash_is_of_argon2id_with_its_own_salt_and_fits_only_its_password() -> None:
    passwords = Passwords()
    first, second = await passwords.hash("correct horse"), await passwords.hash("correct horse")
    assert first.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert first != second
    assert await passwords.verify(first, "correct horse")
    assert not await passwords.verify(first, "correct house")
    passwords.close()


async def test_a_hash_made_with_other_costs_still_fits() -> None:
    older, passwords = Passwords(cost=CHEAP), Passwords()
    assert await passwords.verify(await older.hash("secret"), "secret")
    older.close()
    passwords.close()


@pytest.mark.parametrize("guess", ["", "a", "nobody", "x" * PASSWORD_BYTES_MAX, "x" * (PASSWORD_BYTES_MAX + 1)])
async def test_no_password_is_that_of_a_user_who_does_not_exist(guess: str) -> None:
    passwords = Passwords(cost=CHEAP)
    assert not await passwords.verify(None, guess)
    passwords.close()


async def test_who_does_not_exist_costs_the_same_work_as_who_does(monkeypatch: pytest.MonkeyPatch) -> None:
    passwords = Passwords(cost=CHEAP)
    stored = await passwords.hash("secret")
    verified: list[str] = []
    monkeypatch.setattr(passwords, "_verified", lambda hashed, _: verified.append(hashed))
    await passwords.verify(stored, "guess")
    await passwords.verify(None, "guess")
    costs = [hashed.split("$")[1:4] for hashed in verified]
    assert costs[0] == costs[1]
    assert [len(part) for part in verified[0].split("$")] == [len(part) for part in verified[1].split("$")]
    passwords.close()


async def test_what_is_stored_broken_fits_nothing() -> None:
    passwords = Passwords(cost=CHEAP)
    assert not await passwords.verify("no hash at all", "secret")
    passwords.close()


@pytest.mark.parametrize("password", ["", "ö" * (PASSWORD_BYTES_MAX // 2 + 1)])
async def test_an_empty_or_oversized_password_is_refused(password: str) -> None:
    with pytest.raises(InvalidRequest, match="a password has 1 to 1024 bytes"):
        await Passwords(cost=CHEAP).hash(password)


async def test_more_than_fit_are_refused_at_once_and_room_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    passwords = Passwords(cost=CHEAP, threads=1, waiting_max=2)
    go_on = threading.Event()
    monkeypatch.setattr(passwords, "_verified", lambda *_: go_on.wait(30))
    waiting = [asyncio.ensure_future(passwords.verify(None, "guess")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(LimitExceeded, match="2 passwords are being checked"):
        await passwords.verify(None, "guess")
    go_on.set()
    assert await asyncio.gather(*waiting) == [True, True]
    assert await passwords.verify(None, "guess")
    passwords.close()


async def test_the_threads_step_back_behind_those_that_move_records(monkeypatch: pytest.MonkeyPatch) -> None:
    passwords = Passwords(cost=CHEAP)
    monkeypatch.setattr(passwords, "_verified", lambda *_: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
    stepped_back = min(os.getpriority(os.PRIO_PROCESS, 0) + STEP_BACK, LAST)
    assert await passwords.verify(None, "guess") == stepped_back
    passwords.close()
