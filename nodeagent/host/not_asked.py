"""What keeps this process from asking others about their health says nothing about them."""

import errno

from agents.core.errors import RetriableError

_OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL)


class NotAsked(RetriableError):
    """Somebody could not be asked: what is missing is ours or the machine's."""


def is_ours(error: OSError) -> bool:
    """Tell whether an error came from a lack of means of this process or machine, and not from who was asked."""
    return error.errno in _OURS
