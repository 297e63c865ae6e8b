"""The one line and the exit code that an error becomes, also out of the texts that Spark wraps around it."""

from __future__ import annotations

import json

from jetcluster.errors import by_code
from jetcluster.pipeline.result import DataLoss, Result, UsageError, explain
from jetcluster.spark.options import OptionError

SPARK_TEXT = """Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times, most recent failure:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/pyspark/worker.py", line 1, in main
    process()
ValueError: seen on the way

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/jetcluster/spark/source.py", line 9, in read
jetcluster.spark.errors.DataLossError: ORDERS begins at 100, 1 was asked for

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""


def test_an_error_of_a_worker_decides_the_code_by_its_class() -> None:
    assert explain(RuntimeError(SPARK_TEXT)) == ("ORDERS begins at 100, 1 was asked for", 4)
    other = SPARK_TEXT.replace("DataLossError", "SomethingError")
    assert explain(RuntimeError(other)) == ("ORDERS begins at 100, 1 was asked for", 1)


def test_what_the_sink_refuses_is_usage() -> None:
    text = "Traceback (most recent call last):\n  File\njetcluster.spark.sink_options.SinkError: S is a mirror\n"
    assert explain(RuntimeError(text)) == ("S is a mirror", 2)
    assert explain(OptionError("stream is missing")) == ("stream is missing", 2)


def test_own_errors() -> None:
    assert explain(UsageError("s3://a: no\n \x1b[31m\N{DOWNWARDS ARROW WITH TIP RIGHTWARDS}\x1b[0m such")) == (
        "s3://a: no such",
        2,
    )
    assert explain(UsageError("no such stream")) == ("no such stream", 2)
    assert explain(DataLoss("gone\nfor good")) == ("gone for good", 4)
    assert explain(by_code(10059)) == ("stream not found (10059)", 2)
    assert explain(KeyboardInterrupt()) == ("interrupted", 130)


def test_errors_of_java_lose_their_class_and_stack() -> None:
    text, code = explain(RuntimeError("org.apache.spark.SparkException: no room\n\tat org.apache.X.y(Z.scala:1)"))
    assert (text, code) == ("RuntimeError: no room", 1)
    assert len(explain(RuntimeError("x" * 9999))[0]) == 400


def test_result_is_json_on_one_line_or_many() -> None:
    found = Result("archive", {"rows": 3}, 1)
    assert found.render(one_line=True) == '{"job": "archive", "ok": false, "rows": 3}'
    assert json.loads(found.render(one_line=False)) == {"job": "archive", "ok": False, "rows": 3}
