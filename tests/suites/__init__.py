"""Test suites of stock clients, run against our `nats-server` (`make suites`, docs/client-suites.md)."""
