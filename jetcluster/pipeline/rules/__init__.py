"""The rules that a history of the chaos suite must keep, in Spark SQL: joins and groups for "is it there", windows for
order.

The same promises as `chaos/checkers`, which say what each kind means, without their limit of one machine's memory.
Rules take the operations (`history.py`) and the profile of the workloads (`profile.py`, small enough to be everywhere)
and return findings: history, workload, kind, msg_id, seq, replica, t (seconds since the run began, 0 where no moment
can be named), text. A folder with many runs is judged in one pass, each file by itself.

Rows are brought together once per question (by value, by sequence, by key), and all that can be asked there is asked
there: a shuffle costs more than any of these rules.
"""
