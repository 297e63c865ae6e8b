"""The JetStream API: requests of clients under `$JS.API`, parsed, checked and answered.

Here: one file per family of endpoints, the dispatch over them, and pages of long answers. Not here: carrying a change
out, which is the stream's leader's (`cluster`, `replica`). Promise: every request gets one answer, an `ApiError` is the
only error that leaves an endpoint, and no request holds the loop longer than its slice of the budget.
"""
