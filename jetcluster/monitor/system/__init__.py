"""The system account: its requests and their answers, its events, the JWTs of accounts that come through it."""
