class BenchError(Exception):
    """A measurement that failed."""


class Missing(BenchError):
    """A system not installed; the message names the packages."""


class Wedged(BenchError):
    """Workers that did not answer in time."""
