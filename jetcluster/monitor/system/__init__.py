"""The system account: its requests and their answers, its events, and the JWTs of accounts that arrive through it."""
