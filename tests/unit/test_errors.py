from __future__ import annotations

import json

import pytest

from jetcluster import errors
from jetcluster.errors import TABLE, ApiError, by_code, render

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
