"""What can go wrong between us and systemd, one class for each thing an operator would do about it.

::

    RetriableError
    └── SystemdError
        ├── BusUnavailable    no connection, lost connection, or no answer in time; nothing is known about the call
        ├── UnitNotFound      no such unit or unit file
        ├── UnitMasked        the unit is masked; somebody has to unmask it
        ├── InvalidUnit       systemd refuses the unit's name or its file
        └── CallFailed        any other answer that is an error
"""

from collections.abc import Mapping

from agents.core.errors import RetriableError

_LONGEST_TEXT = 256


class SystemdError(RetriableError):
    """systemd or the bus refused something.

    Args:
        message: constant text.
        about: fields for the log: unit, call, what systemd answered.
    """

    def __init__(self, message: str, about: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.fields.update(about or {})


class BusUnavailable(SystemdError):
    """The system bus cannot be reached, the connection broke, or no answer came in time."""


class UnitNotFound(SystemdError):
    """systemd knows no such unit or unit file."""


class UnitMasked(SystemdError):
    """The unit is masked: linked to /dev/null."""


class InvalidUnit(SystemdError):
    """The name or the file of the unit is not valid."""


class CallFailed(SystemdError):
    """The call was answered with an error."""


_CLASSES: dict[str, tuple[type[SystemdError], str]] = {
    "org.freedesktop.systemd1.NoSuchUnit": (UnitNotFound, "no such unit"),
    "org.freedesktop.DBus.Error.FileNotFound": (UnitNotFound, "no such unit file"),
    "org.freedesktop.systemd1.UnitMasked": (UnitMasked, "unit is masked"),
    "org.freedesktop.systemd1.BadUnitSetting": (InvalidUnit, "unit file is not valid"),
    "org.freedesktop.systemd1.LoadFailed": (InvalidUnit, "unit file is not valid"),
    "org.freedesktop.DBus.Error.InconsistentMessage": (InvalidUnit, "unit file is not valid"),
    "org.freedesktop.DBus.Error.InvalidArgs": (InvalidUnit, "systemd refuses the unit's name or file"),
    "org.freedesktop.DBus.Error.NoReply": (BusUnavailable, "systemd did not answer"),
    "org.freedesktop.DBus.Error.Disconnected": (BusUnavailable, "systemd did not answer"),
    "org.freedesktop.DBus.Error.ServiceUnknown": (BusUnavailable, "systemd is not on the bus"),
    "org.freedesktop.DBus.Error.NameHasNoOwner": (BusUnavailable, "systemd is not on the bus"),
}


def error_from_reply(name: str, text: str, about: Mapping[str, object]) -> SystemdError:
    """Turn the name and text of an error reply into one of our errors.

    Args:
        name: D-Bus error name.
        text: its first argument; cut to 256 characters.
        about: what the call was about, for the log.
    """
    kind, message = _CLASSES.get(name, (CallFailed, "call failed"))
    return kind(message, {**about, "answer": text[:_LONGEST_TEXT], "errorName": name})
