"""Pure functions from a history to a verdict, O(n log n): acked messages carry a sequence, so the order that has to be
explained is known, and checking it is a sort and not a search."""

from chaos.checkers.verdict import Finding, Verdict, judge

__all__ = ["Finding", "Verdict", "judge"]
