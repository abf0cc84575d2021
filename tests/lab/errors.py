"""What the lab raises when it cannot do what it was asked, so that the CLI can answer with one line."""


class LabError(Exception):
    """The lab cannot do this; the message is one line for a person."""


class ApiError(LabError):
    """The API server answered with an error status.

    Attributes:
        status: HTTP status code.
        reason: machine-readable reason of the Status object, or the empty string.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
