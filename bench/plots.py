"""Draws what the case growth measured: `python -m bench.plots figures.json docs/assets/growth`, an SVG for each axis.

Beside each other are the panels of one axis: the broker's processor time for a record or request, its memory, and what else was taken. The
background is transparent and lines and letters are of a middle brightness, so that a page may be light or dark.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import msgspec
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bench.rounds import Row

GREY: Final = "#7c7c7c"
COLOURS: Final = ("#4c8fd0", "#d9822b", "#3fa56b")
MARKERS: Final = ("o", "s", "^")
"""Colours are not all that tells lines apart."""
PANEL_INCHES: Final = (4.6, 3.2)
COLUMNS: Final = 2
LOG_SPAN: Final = 20.0
"""From this ratio of the largest to the smallest value on, a panel counts in powers of ten."""
MARGIN: Final = 1.15
SPAN_MIN: Final = {"idle, ms of CPU a second": 20.0}
"""By panel, what its scale goes up to at least: what is measured there in steps of the system's clock looks like a change otherwise."""
STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",  # letters stay letters: smaller, and a search finds them
    "svg.hashsalt": "growth",  # the same figures make the same file
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

Line = list[tuple[float, float]]


class Figures(msgspec.Struct):
    """What `python -m bench --json` writes, as far as it is drawn."""

    results: list[Row]


def lines_of(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, Line]]]:
    """By axis, panel and series: points in order."""
    found: dict[str, dict[str, dict[str, Line]]] = {}
    for row in rows:
        point = row.point
        if point is not None:
            value = statistics.median(row.cpu_us) if row.cpu_us else row.value
            lines = found.setdefault(point.axis, {}).setdefault(point.panel, {})
            lines.setdefault(point.series, []).append((point.at, value))
    for panels in found.values():
        for lines in panels.values():
            for line in lines.values():
                line.sort()
    return found


def draw(axis: str, panels: Mapping[str, Mapping[str, Line]], path: Path) -> None:
    mpl.use("Agg")  # no window, and no display needed
    with mpl.rc_context(STYLE):
        rows = math.ceil(len(panels) / COLUMNS)
        width, height = PANEL_INCHES
        size = (width * COLUMNS, height * rows)
        figure, axes = plt.subplots(rows, COLUMNS, figsize=size, layout="constrained", squeeze=False)
        for plot in axes.flat[len(panels) :]:
            plot.set_visible(False)
        for plot, (title, lines) in zip(axes.flat, panels.items(), strict=False):
            _draw_panel(plot, axis, title, lines)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)


def _draw_panel(plot: Axes, axis: str, title: str, lines: Mapping[str, Line]) -> None:
    for number, (series, line) in enumerate(lines.items()):
        plot.plot(
            [at for at, _ in line],
            [value for _, value in line],
            color=COLOURS[number],
            marker=MARKERS[number],
            label=series,
        )
    plot.set_title(title, loc="left", fontsize="medium")
    plot.set_xlabel(axis)
    plot.set_xscale("log")
    ticks = sorted({at for line in lines.values() for at, _ in line})
    plot.set_xticks(ticks, [f"{at:,.0f}" for at in ticks])
    values = [value for line in lines.values() for _, value in line]
    if min(values) > 0 and max(values) > LOG_SPAN * min(values):
        plot.set_yscale("log")
        plot.set_ylim(
            10 ** math.floor(math.log10(min(values) / MARGIN)), 10 ** math.ceil(math.log10(MARGIN * max(values)))
        )
    else:
        plot.set_ylim(0, MARGIN * max(*values, SPAN_MIN.get(title, 0.0)) or 1)
    plot.minorticks_off()
    plot.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    plot.grid(axis="y", color=GREY, alpha=0.3)
    if any(series not in title for series in lines):
        plot.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.2))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.plots", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("figures", type=Path, help="what a run with --json wrote")
    parser.add_argument("directory", type=Path, help="where to write a plot for each axis")
    arguments = parser.parse_args()
    found = lines_of(msgspec.json.decode(arguments.figures.read_bytes(), type=Figures).results)
    if not found:
        parser.error(f"{arguments.figures} has nothing to draw: run the case growth")
    for axis, panels in found.items():
        draw(axis, panels, arguments.directory / f"{axis.split()[0]}.svg")


if __name__ == "__main__":
    main()
