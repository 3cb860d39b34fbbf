class LabError(Exception):
    """A request to a lab that failed."""


class NotAvailable(LabError):
    """This machine, or this user, cannot have a lab."""
