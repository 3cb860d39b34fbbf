"""What can go wrong with a lab."""


class LabError(Exception):
    """Something that was asked of a lab cannot be done; the message is one line for people."""


class NotAvailable(LabError):
    """This machine, or this user, cannot have a lab; the message says what is missing."""
