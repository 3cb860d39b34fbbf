"""Errors of a measurement."""


class BenchError(Exception):
    """A measurement that failed; the message is one line for people."""


class Missing(BenchError):
    """A system that is missing on this machine; the message tells what to install."""


class Wedged(BenchError):
    """Workers that did not answer in time; the message names them."""
