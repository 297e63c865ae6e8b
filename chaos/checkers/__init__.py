"""Verdicts over a history: the promises about what is stored (`jetcluster/pipeline/checkers`), and those of which only
a run of the chaos suite can say something: availability, failover, times, damage."""

from chaos.checkers.verdict import Verdict, judge

__all__ = ["Verdict", "judge"]
