"""Direct Gets: a replica's answers, and when it may give them.

Here, bottom to top: `waits`, reads that wait, and their room; `confirm`, those that a leader confirms; `pages`, replies
sent piece by piece; `answers`, the replies; `asked_stream`, the stream that is answered for; `runs`, requests that came
together; `demands`, requests that say how fresh their answer must be; `membership`, when the replica belongs to the
queue group that answers; `reads`, all its memberships. Not here: the contents of requests (`stream.read.direct_get`),
and when a mirror answers for its upstream (`replica.mirror_host`). Promise: a read that asks for nothing else returns
nothing older than what PubAcks told its connection of.
"""
