"""The turnover of each window, drawn twice: as bars of characters in the terminal, and as a PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

Turnover = Mapping[datetime, Mapping[str, float]]
"""By window, then by channel."""

BAR_CHARACTERS: Final = 60
COLOURS: Final = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677")
"""Told apart by people who do not tell red from green."""
SHADES: Final = ("█", "▒", "▓", "░", "▚")
"""Instead of colours, where there are none."""


def in_terminal(console: Console, turnover: Turnover, channels: Sequence[str]) -> None:
    """One bar a window, its parts distinguished by channel."""
    largest = max(sum(parts.values()) for parts in turnover.values())
    colours = dict(zip(channels, COLOURS, strict=False))
    plain = console.color_system is None
    blocks = dict(zip(channels, SHADES if plain else SHADES[:1] * len(SHADES), strict=False))
    for window, parts in sorted(turnover.items()):
        line = Text(f"  {window:%H:%M} ")
        drawn = total = 0.0
        for channel in channels:
            total += parts.get(channel, 0.0)
            # What is drawn so far is rounded, not each part by itself: the bar's length is that of the whole.
            until = round(total / largest * BAR_CHARACTERS)
            line.append(blocks[channel] * int(until - drawn), style=colours[channel])
            drawn = until
        line.append(f" {total:,.0f}")
        console.print(line)
    legend = Text("        ")
    for channel in channels:
        legend.append(f"{blocks[channel]} ", style=colours[channel]).append(f"{channel}   ")
    console.print(legend)


def as_png(path: Path, turnover: Turnover, channels: Sequence[str], title: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")  # no window, and no display needed
    from matplotlib import pyplot as plt

    windows = sorted(turnover)
    figure, axes = plt.subplots(figsize=(10, 5.2), layout="constrained")
    bottom = [0.0] * len(windows)
    for channel, colour in zip(channels, COLOURS, strict=False):
        heights = [turnover[window].get(channel, 0.0) for window in windows]
        axes.bar(range(len(windows)), heights, bottom=bottom, color=colour, label=channel, width=0.82)
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(range(len(windows)), [f"{window:%H:%M}" for window in windows])
    axes.set_xlabel("window, by the time an order was placed (UTC)")
    axes.set_ylabel("turnover")
    axes.yaxis.set_major_formatter(lambda amount, _: f"{amount:,.0f}")
    axes.set_title(title, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    handles, names = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], names[::-1], frameon=False, loc="upper left")
    figure.savefig(path, dpi=120)
    plt.close(figure)
