"""The subject that a transform makes of another one, by ADR-30: pure, and written without a look at the product's."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Final

CALL: Final = re.compile(r"\{\{(\w+)\(([^)]*)\)\}\}")
WORDS: Final = ("a", "bc", "d-e", "f-g-h", "ijklm", "n-op")
"""Tokens of subjects."""


def fnv(text: str) -> int:
    """FNV-1a of 32 bits."""
    found = 2166136261
    for byte in text.encode():
        found = (found ^ byte) * 16777619 % (1 << 32)
    return found


def cut_left(word: str, size: int) -> list[str]:
    return [word[at : at + size] for at in range(0, len(word), size)]


def cut_right(word: str, size: int) -> list[str]:
    """The shorter piece is the first."""
    return [piece[::-1] for piece in cut_left(word[::-1], size)][::-1]


PIECES: Final[dict[str, Callable[[str, int], list[str]]]] = {
    "splitfromleft": lambda word, size: [word[:size], word[size:]],
    "splitfromright": lambda word, size: [word[: len(word) - size], word[len(word) - size :]],
    "slicefromleft": cut_left,
    "slicefromright": cut_right,
    "left": lambda word, size: [word[:size]],
    "right": lambda word, size: [word[len(word) - size :]],
}
"""Functions of a word and a number, for words that are longer than that."""


def captured(source: str, subject: str) -> tuple[list[str], list[str]] | None:
    """The words in the places of `*`, and those in the place of `>`; None where it does not match."""
    wanted, words = source.split("."), subject.split(".")
    rest: list[str] = []
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        words, rest = words[: len(wanted)], words[len(wanted) :]
        if not rest:
            return None
    if len(wanted) != len(words) or any(want not in ("*", word) for want, word in zip(wanted, words, strict=True)):
        return None
    return [word for want, word in zip(wanted, words, strict=True) if want == "*"], rest


def mapped(source: str, target: str, subject: str) -> str | None:
    """None where the source does not match."""
    found = captured(source, subject)
    if found is None:
        return None
    words, rest = found
    made: list[str] = []
    for token in target.split("."):
        call = CALL.fullmatch(token)
        if token == ">":
            made += rest
        elif call is not None:
            made += _called(call[1], call[2].split(","), words)
        else:
            made.append(words[int(token[1:]) - 1] if token[:1] == "$" else token)
    return ".".join(made)


def _called(name: str, arguments: list[str], words: list[str]) -> list[str]:
    if name == "partition":
        key = "".join(words[int(at) - 1] for at in arguments[1:])
        return [str(fnv(key) % int(arguments[0]))]
    word = words[int(arguments[0]) - 1]
    if name == "wildcard":
        return [word]
    if name == "split":
        return [piece for piece in word.split(arguments[1]) if piece]
    size = int(arguments[1])
    return PIECES[name](word, size) if 0 < size < len(word) else [word]


def drawn(rng: Random, root: str) -> tuple[str, str]:
    """A source of subjects below `root`, and a target below `mapped`."""
    source = rng.choice([f"{root}.*", f"{root}.*.*", f"{root}.*.>", f"{root}.>", f"{root}.a.*", f"{root}.*.bc.>"])
    stars = source.count("*")
    made = ["mapped", rng.choice(["x", "yz"])]
    for _ in range(rng.randint(1, 3) if stars else 0):
        at, size = rng.randint(1, stars), rng.randint(1, 4)
        names = sorted(PIECES)
        made.append(
            rng.choice([
                f"${at}", f"{{{{wildcard({at})}}}}", f"{{{{partition({size + 1},{at})}}}}", f"{{{{split({at},-)}}}}",
                f"{{{{partition(7,{at},1)}}}}", f"{{{{{rng.choice(names)}({at},{size})}}}}",
                f"{{{{{rng.choice(names)}({at},{size})}}}}",
            ])
        )  # fmt: skip
    return source, ".".join([*made, ">"] if source.endswith(">") else made)


def subjects(rng: Random, root: str, count: int) -> list[str]:
    """Subjects of one to three words below `root`, and `root` itself."""
    return [root, *(".".join([root, *rng.choices(WORDS, k=rng.randint(1, 3))]) for _ in range(count))]
