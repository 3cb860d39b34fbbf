"""Errors of a lab."""


class LabError(Exception):
    """A request to a lab that failed; the message is one line for people."""


class NotAvailable(LabError):
    """This machine, or this user, cannot have a lab; the message names the missing part."""
