"""The generated parts of docs/benchmarks/scaling.md and docs/benchmarks/reads.md."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from bench.plot import Line, plots
from bench.report import number
from bench.scaling.costs import DEFAULT, FORMS, IN_FLIGHT, LAST, SEQ, STRENGTHS, WEAK, WRITE_RATES
from bench.scaling.figures import Figures, Load, Trial, read_cost
from bench.scaling.model import DOOR, FOLLOWER, LEADER, MIRROR, PLACES, Plan, Served, predict

GOAL, NODES = 2.7, 3
"""Three servers against one."""
JUDGED = ((SEQ, 0.0), (LAST, WRITE_RATES[0]))
"""Forms of reads, and the writes a second beside them, for which the goal holds."""
MOST_COST = 0.1
"""The part of the rate that the default may cost against `weak`."""
REPLICAS, MIRRORS = (1, 2, 3, 5), (0, 1, 2)
WORDS = {
    LEADER: "the stream's leader",
    FOLLOWER: "a follower",
    MIRROR: "a server with a mirror",
    DOOR: "a server without a replica",
}
WRITES = {
    "alone": "leader of one replica",
    "leader": "leader of three",
    "follower": "each follower",
    "feeding": "leader, for each mirror more",
    "mirror": "a mirror",
    "at follower: asked": "a follower, when it is published there",
    "at follower: leader": "the leader, when it is published at a follower",
}


def _middle(loads: Iterable[Load], figure: Callable[[Load], float]) -> float:
    return statistics.median(figure(one) for one in loads)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def conditions(figures: Figures, command: str) -> list[str]:
    known = figures.conditions
    return [
        f"Measured by `{command}` on {figures.date}, commit {known.get('commit')}, Python {known.get('python')},",
        f"{known.get('loops')}, {known.get('machine')}, load average {known.get('load')} at the beginning. Medians of",
        f"{known.get('rounds')} rounds.",
    ]


# -- docs/benchmarks/scaling.md


def ratio(figures: Figures, form: str = SEQ, writes: float = 0.0) -> float:
    """Three servers of a core each against one, on the model."""
    costs = figures.costs(form, writes)
    many, one = (predict(Plan(replicas, writes=writes), costs).total for replicas in (NODES, 1))
    return many / one


def ratios(figures: Figures) -> dict[tuple[str, float], float]:
    """The ratio of each form of reads, with the writes beside them, that has to reach GOAL."""
    return {(form, writes): ratio(figures, form, writes) for form, writes in JUDGED}


def scaling(figures: Figures, command: str, plot: str = "") -> str:
    """The figures of the page; `plot` is the file of the plots, "" for none."""
    lines = [*conditions(figures, command), "", "## Costs", "", *_costs(figures), "", *_writes(figures)]
    lines += ["", "## On the model", ""]
    lines += [f"![Reads per second over the number of replicas]({plot})", ""] if plot else []
    lines += _predicted(figures)
    return "\n".join([*lines, "", "## Model and measurement", "", *trials(figures)]) + "\n"


def _costs(figures: Figures) -> list[str]:
    rows = []
    for form in FORMS:
        for place in PLACES:
            cost = read_cost(one for one in figures.forms if (one.what, one.place) == (form, place))
            each = (cost.asked, cost.leader, cost.others, cost.total)
            rows.append([form if place == LEADER else "", WORDS[place], *(f"{one:.2f}" for one in each)])
    heads = (
        "a message read by",
        "asked at",
        "the asked server, µs",
        "the leader, µs",
        "all others, µs",
        "together, µs",
    )
    return _table(heads, rows)


def _writes(figures: Figures) -> list[str]:
    rates = [rate for rate in WRITE_RATES if f"{rate:g}" in figures.writes]
    rows = [[text, *(f"{figures.write_cost(name, rate):.1f}" for rate in rates)] for name, text in WRITES.items()]
    rest = f"At rest a server takes {100 * figures.rest:.2f} % of a core."
    return [*_table(["a message written", *(f"{rate:,.0f} a second, µs" for rate in rates)], rows), "", rest]


def _predicted(figures: Figures) -> list[str]:
    rows = []
    for form in (SEQ, LAST):
        for writes in (0.0, *WRITE_RATES):
            costs = figures.costs(form, writes)
            one = predict(Plan(1, writes=writes), costs).total
            for replicas in REPLICAS:
                served = [predict(Plan(replicas, mirrors, writes=writes), costs).total for mirrors in MIRRORS]
                rows.append([
                    form if (replicas, writes) == (1, 0.0) else "",
                    f"{writes:,.0f}" if replicas == 1 else "",
                    f"{replicas}",
                    *(f"{total:,.0f} ({total / one:.2f}x)" if one else "-" for total in served),
                ])  # fmt: skip
    heads = ("a read by", "writes/s", "replicas", "no mirror: reads/s (against one)", "one mirror", "two mirrors")
    goals = []
    for (form, writes), found in ratios(figures).items():
        beside = f"{writes:,.0f} writes/s" if writes else "no writes"
        goals.append(f"Three servers serve {found:.2f} times what one does ({form}, {beside}; the goal is {GOAL}).")
    return [*_table(heads, rows), "", *goals, _mirror(figures)]


def _mirror(figures: Figures) -> str:
    served: Served = predict(Plan(NODES, 1), figures.costs(SEQ, 0.0))
    share = served.mirror / served.follower if served.follower else 0.0
    return f"A mirror serves {served.mirror:,.0f} reads/s by `seq`, {share:.2f} of what a follower does."


def trials(figures: Figures) -> list[str]:
    """Prediction and measurement, or why there is none."""
    if not figures.trials:
        return [f"Not measured: {figures.untried or 'no trials'}."]
    cases = dict.fromkeys((one.case, one.form) for one in figures.trials)
    firsts = {form: _tried(figures, "1 server", form) for form in (SEQ, LAST)}
    rows = []
    for case, form in cases:
        found = [one for one in figures.trials if (one.case, one.form) == (case, form)]
        rows.append(_trial(figures, found, firsts[form]))
    share = f"{100 * min(one.plan.share for one in figures.trials):.0f} %"
    heads = ("case", "a read by", "predicted, reads/s", "measured, reads/s", "prediction is off by",
             "predicted against one server", "measured against one server", "a server took, of a core",
             "the client took")  # fmt: skip
    text = f"All servers on one core, each with {share} of it unless said; the client on the other one."
    return [text, "", *_table(heads, rows)]


def _tried(figures: Figures, case: str, form: str) -> list[Trial]:
    return [one for one in figures.trials if (one.case, one.form) == (case, form)]


def _trial(figures: Figures, found: Sequence[Trial], first: Sequence[Trial]) -> list[str]:
    one = found[0]
    rate, alone = (statistics.median(trial.rate for trial in some) for some in (found, first))
    predicted, predicted_alone = (_prediction(figures, some[0]) for some in (found, first))
    used = statistics.median(statistics.mean(trial.used) for trial in found)
    client = statistics.median(trial.client for trial in found)
    return [
        one.case, one.form, f"{predicted:,.0f}", f"{rate:,.0f}", f"{100 * (predicted / rate - 1):+.0f} %",
        f"{predicted / predicted_alone:.2f}", f"{rate / alone:.2f}", f"{100 * used:.1f} %", f"{100 * client:.0f} %",
    ]  # fmt: skip


def _prediction(figures: Figures, one: Trial) -> float:
    return predict(one.plan, figures.costs(one.form, one.plan.writes)).total


def svg(figures: Figures) -> str:
    """Reads per second on the model over the number of replicas: a line for each number of mirrors."""
    found: dict[str, tuple[str, dict[str, Line]]] = {}
    for form in (SEQ, LAST):
        costs = figures.costs(form, 0.0)
        found[form.strip("`")] = (
            "reads/s",
            {
                _mirrors(count): [(n, predict(Plan(n, count), costs).total) for n in range(1, max(REPLICAS) + 1)]
                for count in MIRRORS
            },
        )
    return plots("replicas", found, log=False)


def _mirrors(count: int) -> str:
    return "no mirror" if not count else f"{count} mirror{'s' * (count > 1)}"


# -- docs/benchmarks/reads.md


def strengths(figures: Figures, command: str) -> str:
    """The figures of the page: a table for each server that can be asked."""
    lines = conditions(figures, command)
    for place in PLACES:
        lines += ["", f"## At {WORDS[place]}", "", *_strengths(figures, place)]
    return "\n".join([*lines, "", "## The default against `weak`", "", *_default(figures)]) + "\n"


def _of(figures: Figures, what: str, place: str, window: int) -> list[Load]:
    return [one for one in figures.strengths if (one.what, one.place, one.window) == (what, place, window)]


def _strengths(figures: Figures, place: str) -> list[str]:
    lone = _of(figures, WEAK, place, 1)
    rows = []
    for strength in STRENGTHS:
        alone, many = (_of(figures, strength.name, place, window) for window in (1, IN_FLIGHT))
        cost = read_cost(many)
        added = [_added(alone, lone, figure) for figure in (lambda one: one.p50, lambda one: one.p99)]
        rows.append([
            strength.name,
            number(_middle(alone, lambda one: one.p50)), number(_middle(alone, lambda one: one.p99)),
            *(f"{one:+.3f}" for one in added),
            f"{_middle(many, lambda one: one.rate):,.0f}",
            f"{cost.asked:.1f}", f"{cost.leader:.1f}", f"{cost.others:.1f}",
        ])  # fmt: skip
    heads = ("asked for", "p50, ms", "p99, ms", "p50 more than `weak`", "p99 more than `weak`",
             f"reads/s, {IN_FLIGHT} in flight", "the asked server, µs", "the leader, µs", "all others, µs")  # fmt: skip
    return _table(heads, rows)


def _added(loads: Sequence[Load], base: Sequence[Load], figure: Callable[[Load], float]) -> float:
    """The median of the differences, each within a round."""
    differences = [figure(one) - figure(other) for one, other in zip(loads, base, strict=True)]
    return statistics.median(differences)


def lost(figures: Figures, place: str) -> float:
    """The part of the rate that the default costs against `weak`, many in flight: the median of the rounds' ratios."""
    default, weak = (_of(figures, what, place, IN_FLIGHT) for what in (DEFAULT, WEAK))
    ratios = [one.rate / other.rate for one, other in zip(default, weak, strict=True)]
    return 1 - statistics.median(ratios)


def _default(figures: Figures) -> list[str]:
    rows = []
    for place in PLACES:
        default, weak = (read_cost(_of(figures, what, place, IN_FLIGHT)).total for what in (DEFAULT, WEAK))
        rows.append([WORDS[place], f"{100 * lost(figures, place):+.0f} %", f"{default:.1f}", f"{weak:.1f}"])
    heads = ("asked at", "of the rate that the default costs", "processor of the default, µs", "of `weak`, µs")
    return [*_table(heads, rows), "", *_within(figures)]


def _within(figures: Figures) -> list[str]:
    """Where the default costs more than that against `weak`, by the figures as they are shown."""
    over = {place: lost(figures, place) for place in PLACES if round(lost(figures, place), 2) > MOST_COST}
    kept = [WORDS[place] for place in PLACES if place not in over]
    lines = [f"At most {100 * MOST_COST:.0f} %: {', '.join(kept) or 'none'}."]
    if over:
        text = ", ".join(f"{WORDS[place]} ({100 * cost:+.0f} %)" for place, cost in over.items())
        lines.append(f"More: {text}.")
    return lines
