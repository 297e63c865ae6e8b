"""Loops over what clients can make many of, all in one step of the event loop (a rule of `scripts.check_house`).

Such a loop is short in every test, and takes seconds once somebody has made a hundred thousand of them. It is told by
the name of what it goes through (`MANY`); one that is bounded says so in its form: it takes a slice or `islice`, or it
stands in a generator, whose steps others share the loop with (`jetcluster.budget`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

ROOMS: Final = frozenset(("api", "cluster", "consumer", "mirror", "monitor", "objects", "replica", "server", "stream"))
"""Rooms that work for clients on the event loop."""
MANY: Final = frozenset(
    (
        *("assignments", "clients", "connections", "consumers", "literals", "members", "owners", "pending", "queue"),
        *("replies", "spent", "streams", "subscriptions", "takers", "touched", "waiting"),
    )
)
"""Attributes, also with an underscore in front, that hold what clients make: connections, subscriptions, requests,
streams, consumers and their messages."""
_PASSED_ON: Final = frozenset(("list", "tuple", "sorted", "reversed", "enumerate", "set", "OrderedSet", "zip", "iter"))
_VIEWS: Final = frozenset(("values", "items", "keys", "copy"))

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def long_loops(tree: ast.Module) -> list[int]:
    """Lines of the loops and comprehensions."""
    return sorted(_loops(tree, bounded=False))


def _loops(node: ast.AST, *, bounded: bool) -> Iterator[int]:
    if isinstance(node, Function):
        bounded = _is_generator(node)
    if not bounded:
        if isinstance(node, ast.For) and _is_many(node.iter):
            yield node.lineno
        elif isinstance(node, ast.comprehension) and _is_many(node.iter):
            yield node.iter.lineno
    for child in ast.iter_child_nodes(node):
        yield from _loops(child, bounded=bounded)


def _is_many(iterable: ast.expr) -> bool:
    if isinstance(iterable, ast.Attribute):
        return iterable.attr.lstrip("_") in MANY
    if not isinstance(iterable, ast.Call):
        return False
    function = iterable.func
    if isinstance(function, ast.Attribute) and function.attr in _VIEWS:
        return _is_many(function.value)
    return isinstance(function, ast.Name) and function.id in _PASSED_ON and any(map(_is_many, iterable.args))


def _is_generator(function: Function) -> bool:
    """True for a `yield` of its own: a function within it may be a generator or not."""
    waiting: list[ast.AST] = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, Function):
            waiting += ast.iter_child_nodes(node)
    return False
