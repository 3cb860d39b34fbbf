class BenchError(Exception):
    """A measurement that failed."""


class Missing(BenchError):
    """A missing system; the message tells what to install."""


class Wedged(BenchError):
    """Workers that did not answer in time."""
