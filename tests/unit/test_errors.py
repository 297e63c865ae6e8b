from __future__ import annotations

import ast
import builtins
import functools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from jetcluster import errors
from jetcluster.consumer.owner.pull_request import BadRequestError
from jetcluster.errors import TABLE, ApiError, by_code, render
from jetcluster.raft.api import EntryTooLargeError, NotLeaderError

PLACEHOLDERS = {"err", "header", "id", "limit", "max", "msg", "prefix", "seq", "size", "subject"}


def test_error_object_has_exactly_the_three_keys_that_nats_py_takes() -> None:
    error = by_code(errors.WRONG_LAST_SEQUENCE, seq=3)
    assert error.to_dict() == {"code": 400, "err_code": 10071, "description": "wrong last sequence: 3"}
    assert list(error.to_dict()) == ["code", "err_code", "description"]


@pytest.mark.parametrize(
    ("err_code", "code", "text"),
    [
        (10059, 404, "stream not found"),
        (10058, 400, "stream name already in use with a different configuration"),
        (10065, 400, "subjects overlap with an existing stream"),
        (10008, 503, "JetStream system temporarily unavailable"),
        (10037, 404, "no message found"),
        (10074, 500, "replicas > 1 not supported in non-clustered mode"),
        (10185, 412, "JetStream minimum api level required"),
    ],
)
def test_codes_that_clients_test(err_code: int, code: int, text: str) -> None:
    assert by_code(err_code) == ApiError(code, err_code, text)


@pytest.mark.parametrize("err_code", sorted(TABLE))
def test_every_row_renders(err_code: int) -> None:
    fields = dict.fromkeys(PLACEHOLDERS, "x{y}")
    rendered = json.loads(render(err_code, **fields))
    assert rendered["err_code"] == err_code
    assert rendered["code"] in {400, 404, 409, 412, 429, 500, 503}
    assert rendered["description"].replace("x{y}", "").count("{") == 0


def test_a_missing_placeholder_is_an_error_of_ours() -> None:
    with pytest.raises(KeyError):
        by_code(errors.WRONG_LAST_SEQUENCE)


def test_round_trip_between_nodes() -> None:
    error = errors.invalid_config("maximum replicas is 5")
    assert ApiError.from_dict(json.loads(json.dumps(error.to_dict()))) == error
    assert (error.code, error.err_code) == (500, 10052)


@functools.cache
def bases_by_class() -> dict[str, set[str]]:
    """Names of the bases of every class, by the source: nothing of Spark has to be installed."""
    found: dict[str, set[str]] = {}
    for file in Path(errors.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                # The last word: `CodecError` of `codec.CodecError`, `KeyRows` of `KeyRows[int]`.
                bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
                found.setdefault(node.name, set()).update(ast.unparse(base).rsplit(".", 1)[-1] for base in bases)
    return found


def below(family: str) -> set[str]:
    """Exceptions that stand right below a family."""
    return {name for name, bases in bases_by_class().items() if family in bases}


def is_foreign_exception(name: str) -> bool:
    """It is one of Python's, or by its name one of a library's."""
    found = getattr(builtins, name, None)
    if isinstance(found, type):
        return issubclass(found, BaseException)
    return name.endswith(("Error", "Exception"))


def outside(classes: dict[str, set[str]]) -> set[str]:
    """Exceptions that do not end in JetclusterError."""

    def reaches(name: str, ends: Callable[[str], bool]) -> bool:
        return ends(name) or any(reaches(base, ends) for base in classes.get(name, ()))

    exceptions = {
        name for name in classes if reaches(name, lambda one: one not in classes and is_foreign_exception(one))
    }
    return {name for name in exceptions if not reaches(name, lambda one: one == "JetclusterError")}


FAMILIES = ("CallerError", "PeerError", "OperatorError", "DiskError", "PassingError")


def test_every_exception_stands_in_the_tree() -> None:
    classes = bases_by_class()
    assert len(below("JetclusterError")) > len(FAMILIES)
    assert outside(classes) == set()
    assert outside({**classes, "Stray": {"ValueError"}, "Deeper": {"Stray"}, "Kept": {"CallerError", "OSError"}}) == {
        "Stray",
        "Deeper",
    }


def test_the_docstring_is_the_tree_of_exceptions() -> None:
    assert errors.__doc__ is not None
    branches = {**{f"─ {family}": below(family) for family in FAMILIES}, "─ of tools and jobs": set[str]()}
    branches["─ of tools and jobs"] = below("JetclusterError") - {*FAMILIES, "ApiError"}
    texts = re.split("|".join(branches), errors.__doc__)[1:]
    for (branch, direct), text in zip(branches.items(), texts, strict=True):
        named = set(re.findall(r"\b\w+(?:Error|Request)\b|\bRefused\b", text))
        named -= {"EntryTooLargeError", "MembershipError"}  # distinguished from the other RaftErrors
        assert named == direct, branch


@pytest.mark.parametrize("err_code", sorted(TABLE))
def test_the_table_says_which_errors_pass(err_code: int) -> None:
    error = by_code(err_code, **dict.fromkeys(PLACEHOLDERS, "x"))
    assert error.retriable == (err_code in errors.PASSING)
    assert ApiError.from_dict(error.to_dict()).retriable == error.retriable
    if error.code == 429:
        assert error.retriable, "too many now"


def test_an_error_of_no_number_passes_by_its_status() -> None:
    assert TABLE.keys() >= errors.PASSING
    assert [ApiError(code, 0, "x").retriable for code in (400, 404, 408, 429, 500, 503)] == [
        False, False, False, True, False, True,
    ]  # fmt: skip
    assert not by_code(errors.NOT_ENABLED_FOR_ACCOUNT).retriable and not by_code(errors.STORE_FAILED, err="x").retriable


def test_nobody_but_the_table_says_which_errors_pass() -> None:
    """Places that compare with a number do so for what it says, not for whether it passes."""
    passing = {name for name, value in vars(errors).items() if isinstance(value, int) and value in errors.PASSING}
    passing |= {str(number) for number in errors.PASSING}
    found = set()
    for file in sorted(Path(errors.__file__).parent.rglob("*.py")):
        if file == Path(errors.__file__):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            numbers = isinstance(node, ast.Compare) and "err_code" in ast.unparse(node.left)
            statuses = isinstance(node, ast.Compare) and ast.unparse(node) == "error.code == 503"
            if numbers or statuses or isinstance(node, ast.Set | ast.Tuple | ast.List):
                words = set(re.findall(r"\w+", ast.unparse(node)))
                if statuses or (words & passing and not words & {"by_code"}):
                    found.add(f"{file.parent.name}/{file.name}")
    assert found <= {"api/streams.py"}  # which asks for the stream's newest leader


def test_families_say_whom_to_blame_and_whether_to_try_again() -> None:
    assert [getattr(errors, family).blame for family in FAMILIES] == ["caller", "peer", "operator", "disk", "nobody"]
    assert [getattr(errors, family).retriable for family in FAMILIES] == [False, False, False, False, True]
    assert (by_code(10008).blame, by_code(10008).retriable) == ("jetcluster", True)
    assert (by_code(10059).blame, by_code(10059).retriable) == ("caller", False)
    assert by_code(errors.TOO_MANY_REQUESTS).retriable
    assert NotLeaderError(None).retriable and not EntryTooLargeError().retriable
    assert isinstance(BadRequestError(), ValueError) and isinstance(BadRequestError(), errors.CallerError)
