"""Recorded exceptions for tests: what they say, where they hold, which ids they take. No torch, no test run."""
