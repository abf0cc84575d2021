"""The machine's addresses, as the kernel and as iproute2 tell them."""

import json
import subprocess
from ipaddress import ip_address

from nodeagent.host.addresses import interface_addresses


def test_addresses_are_those_that_ip_shows() -> None:
    """Contract 7.5: the addresses of all interfaces, IPv4 and IPv6."""
    links = json.loads(subprocess.run(["ip", "-json", "address"], check=True, capture_output=True).stdout)
    shown = {ip_address(found["local"]) for link in links for found in link["addr_info"]}
    assert ip_address("127.0.0.1") in shown
    assert interface_addresses() == shown
