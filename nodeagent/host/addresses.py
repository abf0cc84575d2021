"""The IP addresses of this machine's interfaces, from the kernel (rtnetlink), because the standard library cannot list them.

Whether an address can be bound would be simpler to ask, and wrong where `ip_nonlocal_bind` is set.
"""

import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address

Address = IPv4Address | IPv6Address

_RTM_NEWADDR = 20
_RTM_GETADDR = 22
_DUMP_REQUEST = 0x001 | 0x300  # NLM_F_REQUEST | NLM_F_DUMP
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_HEADER = struct.Struct("=IHHII")
_IFADDRMSG = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_DEADLINE_SECONDS = 5.0
_LONGEST_MESSAGE = 1 << 20


def interface_addresses() -> frozenset[Address]:
    """Return all addresses of all interfaces; blocks for a moment.

    Raises:
        OSError: the kernel did not answer.
    """
    # Linux only; elsewhere the constant is missing and nobody calls this.
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_DEADLINE_SECONDS)
        request = _IFADDRMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        kernel.send(_HEADER.pack(_HEADER.size + len(request), _RTM_GETADDR, _DUMP_REQUEST, 1, 0) + request)
        found: set[Address] = set()
        while True:
            for kind, body in _messages(kernel.recv(_LONGEST_MESSAGE)):
                if kind == _NLMSG_DONE:
                    return frozenset(found)
                if kind == _NLMSG_ERROR:
                    (code,) = struct.unpack_from("=i", body)
                    raise OSError(-code, "addresses cannot be listed")
                if kind == _RTM_NEWADDR:
                    found |= _addresses(body)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _HEADER.size:
        length, kind, _, _, _ = _HEADER.unpack_from(data)
        yield kind, data[_HEADER.size : length]
        data = data[_aligned(max(length, _HEADER.size)) :]


def _addresses(body: bytes) -> set[Address]:
    """Return the interface's own address; of a point-to-point link `IFA_ADDRESS` is the peer's."""
    attributes: dict[int, bytes] = {}
    rest = body[_IFADDRMSG.size :]
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        attributes[kind] = rest[_ATTRIBUTE.size : length]
        rest = rest[_aligned(max(length, _ATTRIBUTE.size)) :]
    own = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS)
    return {ip_address(own)} if own else set()


def _aligned(length: int) -> int:
    return (length + 3) & ~3
