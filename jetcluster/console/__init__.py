"""The console: a page of the monitoring port under `/ui/`, off unless `console: true` configures it.

In here are the files of the page (`web/`, served as they are: no build step) and the door through which it connects.
The page is a NATS client over a WebSocket: it logs in as a user of the server, and what it may see and do are that
user's permissions. So there is no API of its own in here, and nothing that has to be trusted more than another client.
"""
