"""Topics that the configuration file declares, compared with those that exist.

A topic that is missing is created with its declared settings and the defaults. In one that exists, the settings that the file names are
changed to what it says; others stay as they are. What cannot be done is refused before anything is changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from penstock.broker.topics.settings import changed_settings
from penstock.errors import ConfigError
from penstock.log.api import TopicConfig


class Declared(NamedTuple):
    name: str
    config: TopicConfig
    """What a new topic gets, defaults included."""
    given: Collection[str]
    """The settings that the file names."""


class Change(NamedTuple):
    name: str
    before: TopicConfig | None
    """None if the topic is to be created."""
    after: TopicConfig

    @property
    def settings(self) -> dict[str, tuple[str, str]]:
        """What changes in a topic that exists, by setting: its text before and after."""
        return {} if self.before is None else changed_settings(self.before, self.after)


def plan(existing: Mapping[str, TopicConfig], declared: Iterable[Declared]) -> list[Change]:
    """Return what has to change, in the order of the file. Raises ConfigError with every declaration that cannot be met."""
    changes: list[Change] = []
    problems: list[str] = []
    for index, topic in enumerate(declared):
        before = existing.get(topic.name)
        if before is None:
            changes.append(Change(topic.name, None, topic.config))
            continue
        after = replace(before, **{name: getattr(topic.config, name) for name in topic.given})
        if after.partitions < before.partitions:
            problems.append(
                f"topics[{index}].partitions is {after.partitions}, and topic {topic.name} has {before.partitions}: partitions cannot "
                f"be removed; declare {before.partitions} or more"
            )
        elif after != before:
            changes.append(Change(topic.name, before, after))
    if problems:
        raise ConfigError("\n".join(problems))
    return changes
