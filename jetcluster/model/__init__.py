"""The API's data types: configurations, requests, answers and advisories as JSON.

Promise: unknown fields of a request are refused in strict mode and ignored otherwise; answers have nats-server's fields
in nats-server's order.
"""
