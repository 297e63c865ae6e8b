"""Plots of figures against a size, as SVG that is readable on dark and on light pages."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

Line = Sequence[tuple[float, float]]
"""Sizes and figures."""
GREY = "#808080"
_SHORTER = (
    (re.compile(r"font-family: [^;\"]*"), "font-family: sans-serif"),
    (re.compile(r' transform="rotate\(-0 [^"]*\)"'), ""),
    (re.compile(r"(\d\.\d\d)\d+"), r"\1"),
)
COLOURS = ("#d9822b", "#2f81f7", "#3fa45b")
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "bench",  # the same figures give the same file
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": GREY,
    "axes.facecolor": "none",
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GREY,
    "grid.alpha": 0.25,
}


def _short(value: float, _position: int) -> str:
    """A size as a tick of the axis: 1, 10, 1k, 10M."""
    for unit, text in ((1_000_000, "M"), (1000, "k")):
        if value >= unit:
            return f"{value / unit:g}{text}"
    return f"{value:g}"


def plots(size: str, figures: Mapping[str, tuple[str, Mapping[str, Line]]], *, log: bool = True) -> str:
    """One plot beside the other, as SVG: for each title a unit and a line for each name, over `size` (a log scale, or
    a few whole numbers)."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MultipleLocator, NullLocator

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(2.6 * len(figures), 2.5), layout="constrained")
        FigureCanvasSVG(figure)
        for axes, (title, (unit, lines)) in zip(
            figure.subplots(1, len(figures), squeeze=False)[0], figures.items(), strict=True
        ):
            for colour, (name, line) in zip(COLOURS, lines.items(), strict=False):
                axes.plot(*zip(*line, strict=True), marker="o", markersize=3, color=colour, label=name)
            if log:
                axes.set_xscale("log")
                axes.xaxis.set_minor_locator(NullLocator())
                axes.xaxis.set_major_formatter(FuncFormatter(_short))
            else:
                axes.xaxis.set_major_locator(MultipleLocator(1))
            axes.set_ylim(bottom=0)
            axes.set_title(f"{title}, {unit}", fontsize=9)
            axes.set_xlabel(size)
            axes.grid(visible=True)
        figure.axes[0].legend(frameon=False, labelcolor="linecolor")
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return _small(out.getvalue())


def _small(svg: str) -> str:
    """Without what repeats or no eye can see; the fonts are those of the page."""
    for pattern, text in _SHORTER:
        svg = pattern.sub(text, svg)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
