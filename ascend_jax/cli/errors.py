"""Mistakes of the person at the keyboard: one line, exit status 2."""


class UsageError(Exception):
    """What was given, what was expected, how to fix it; printed as one line."""
