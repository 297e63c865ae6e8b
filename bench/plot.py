"""Plots of figures against a size, as SVG that is readable on dark and on light pages."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

Line = Sequence[tuple[float, float]]
"""Sizes and figures."""
GREY = "#808080"
COLOURS = ("#d9822b", "#2f81f7", "#3fa45b")
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "bench",  # the same figures give the same file
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": GREY,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GREY,
    "grid.alpha": 0.25,
}


def plots(size: str, figures: Mapping[str, tuple[str, Mapping[str, Line]]]) -> str:
    """One plot beside the other, as SVG: for each title a unit and a line for each name, over `size` (log scale)."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(2.6 * len(figures), 2.5), layout="constrained")
        FigureCanvasSVG(figure)
        for axes, (title, (unit, lines)) in zip(
            figure.subplots(1, len(figures), squeeze=False)[0], figures.items(), strict=True
        ):
            for colour, (name, line) in zip(COLOURS, lines.items(), strict=False):
                axes.plot(*zip(*line, strict=True), marker="o", markersize=3, color=colour, label=name)
            axes.set_xscale("log")
            axes.set_ylim(bottom=0)
            axes.set_title(f"{title}, {unit}", fontsize=9)
            axes.set_xlabel(size)
            axes.grid(visible=True)
        figure.axes[0].legend(frameon=False, labelcolor="linecolor")
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
