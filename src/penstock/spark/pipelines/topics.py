"""Which topics a pipeline reads: those that its file names, and those that a pattern in it fits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from penstock.broker.deliveries.deadletters import SUFFIX
from penstock.errors import ConfigError, TopicNotFound
from penstock.spark.pipelines.model import TOPICS_MAX, Pipeline, is_pattern


def chosen_topics(pipeline: Pipeline, existing: Sequence[str]) -> list[str]:
    """The topics there are to begin with. Raises TopicNotFound if there is none for a name or a pattern."""
    chosen: list[str] = []
    for name in pipeline.topics:
        found = _found(pipeline, name, existing)
        if not found and is_pattern(name):
            raise TopicNotFound(
                f"no topic fits {name}: create one with penstock topic create NAME, or change the pattern"
            )
        if not found:
            raise TopicNotFound(f"topic not found: {name}; create it with: penstock topic create {name}")
        chosen += [each for each in found if each not in chosen]
    if len(chosen) > TOPICS_MAX:
        raise ConfigError(
            f"the topics of the file stand for {len(chosen)} topics, and a pipeline reads at most {TOPICS_MAX}: name fewer, or make "
            "more pipelines of them"
        )
    return chosen


def new_topics(pipeline: Pipeline, existing: Sequence[str], known: Collection[str]) -> list[str]:
    """Topics that a pattern fits and that are not known yet."""
    patterns = [name for name in pipeline.topics if is_pattern(name)]
    found = [each for pattern in patterns for each in _found(pipeline, pattern, existing)]
    return [each for each in dict.fromkeys(found) if each not in known]


def fitting_topics(name: str, existing: Sequence[str]) -> list[str]:
    """The topic of a name, or the topics that a pattern fits, among which are no dead letters."""
    if name in existing:
        return [name]
    return [each for each in existing if fnmatchcase(each, name) and not each.endswith(SUFFIX)]


def _found(pipeline: Pipeline, name: str, existing: Sequence[str]) -> list[str]:
    """Those that only a pattern names are no results of the pipeline itself."""
    results = {gold.topic for gold in pipeline.gold}
    return [each for each in fitting_topics(name, existing) if each == name or each not in results]
