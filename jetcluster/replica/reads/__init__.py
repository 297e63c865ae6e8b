"""Direct Get and the reads that wait for it: what a replica answers, and when.

Here, bottom to top: `confirm`, reads that wait until this replica has what was there when they came; `pages`, replies
that are sent piece by piece; `answers`, what is replied; `membership`, when the replica is a member of the queue group
that answers. Not here: what a request asks for (`stream.direct_get`), and when a mirror answers for its upstream
(`replica.mirror_host`). Promise: reads tell nothing older than what the connection has seen.
"""
