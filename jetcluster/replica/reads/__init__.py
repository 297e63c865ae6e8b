"""Direct Gets: a replica's answers, and when it may give them.

Here, bottom to top: `confirm`, reads that wait until this replica is current; `pages`, replies sent piece by piece;
`answers`, the replies; `asked_stream`, the stream that is answered for; `demands`, requests that say how fresh their
answer must be; `membership`, when the replica belongs to the queue group that answers. Not here: the contents of
requests (`stream.read.direct_get`), and when a mirror answers for its upstream (`replica.mirror_host`). Promise: a read
that asks for nothing else returns nothing older than what PubAcks told its connection of.
"""
