"""The work of a consumer's owner: it selects messages, delivers them and takes acks.

Here: selection and redelivery, pull and push, acks, the log of an owner's operations, its timers. Not here: the
replicated state, which changes only by operations in the log (`consumer.state`), and the choice of the owner
(`replica/consumer_host.py`). Promise: a message that needs an ack is sent only after its delivery is committed, except
in a stream with one replica; operations that a lost owner did not get into the log have no effect.
"""
