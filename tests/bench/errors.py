"""What can go wrong with a measurement."""


class BenchError(Exception):
    """A measurement that failed; the message is one line for people."""


class Missing(BenchError):
    """A system that this machine does not have; the message says what to install."""


class Wedged(BenchError):
    """Workers that did not answer in time; the message names them."""
