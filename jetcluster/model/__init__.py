"""The API's data types: configurations, requests, answers and advisories as JSON.

Promise: a field that a client sends and this server does not know is refused in strict mode and ignored otherwise;
answers hold what nats-server's hold, in its order.
"""
