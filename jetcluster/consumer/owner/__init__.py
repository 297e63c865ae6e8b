"""The work of a consumer's owner: it selects messages, gives them to clients and takes their acks.

Here: selection and redelivery, pull and push, acks, the log of an owner's operations, its timers. Not here: the
replicated state, which it changes only by operations in the log (`consumer.state`), and which node is the owner
(`replica/consumer_host.py`). Promise: a message that waits for an ack is sent only when its delivery is committed, or
before it where the stream has one replica; what a lost owner did not get into the log never happened.
"""
