"""One log behind every protocol: a record of each is read over all of them, and one record is handed on from protocol to protocol."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from scripts.demo.narration import DemoFailed, Narrator
from scripts.demo.speakers import Speaker

SHARED = "greetings"
RELAYS = tuple(f"relay-{number}" for number in range(1, 6))
TOPICS = (SHARED, *RELAYS)
"""Some of the protocols want them to be there beforehand."""


def show_matrix(narrator: Narrator, speakers: Sequence[Speaker]) -> None:
    """Every protocol writes one record to a topic, and every protocol reads them all."""
    for speaker in speakers:
        speaker.listen(SHARED)
    written = [f"written over {speaker.name}".encode() for speaker in speakers]
    for speaker, value in zip(speakers, written, strict=True):
        speaker.send(SHARED, [(b"key", value)])
    for reader in speakers:
        seen = reader.take(SHARED, len(written))
        if seen != written:
            raise DemoFailed(f"over {reader.name} the records read {seen}, and {written} were written")
    narrator.table(
        f"read back: {len(speakers) ** 2} of {len(speakers) ** 2} ways through the broker",
        ["written over", *(f"{reader.name}" for reader in speakers)],
        [[writer.name, *("yes" for _ in speakers)] for writer in speakers],
    )


def show_relay(narrator: Narrator, speakers: Sequence[Speaker]) -> None:
    """One record goes in over the first protocol; each next one reads it, puts its name to it and writes it for the one after."""
    topics = RELAYS[: len(speakers)]
    for reader, topic in zip(speakers[1:], topics, strict=False):
        reader.listen(topic)
    value = f"in over {speakers[0].name}".encode()
    speakers[0].send(topics[0], [(b"key", value)])
    for (earlier, topic), speaker in zip(pairwise(topics), speakers[1:], strict=True):
        [value] = speaker.take(earlier, 1)
        value += f", on over {speaker.name}".encode()
        speaker.send(topic, [(b"key", value)])
    [last] = speakers[0].take(topics[-1], 1)
    if last != value:
        raise DemoFailed(f"{value!r} was handed on, {last!r} arrived")
    narrator.say(
        f"one record on its way through all of them: [green]{last.decode()}, out over {speakers[0].name}[/green]"
    )
