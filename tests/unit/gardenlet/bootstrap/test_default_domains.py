"""Entries of `spec.dns.defaults`, made from the annotations of Secrets."""

import pytest

from agents.kube.models import Secret
from gardenlet.bootstrap.default_domains import IncompleteDefaultDomain, default_domains


def secret(name: str, **annotations: str) -> Secret:
    """Return the Secret of a domain."""
    prefixed = {f"dns.gardener.cloud/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return Secret.model_validate({"metadata": {"name": name, "namespace": "seed-s", "annotations": prefixed}})


def test_priority_decides_and_then_the_name() -> None:
    """Contract core 5.2: descending; missing and wrong priorities count as 0, equal ones keep their order."""
    found = default_domains(
        [
            secret("d", provider="p", domain="d.example", domain_default_priority="x"),
            secret("b", provider="p", domain="b.example", domain_default_priority="10", zone="z"),
            secret("c", provider="p", domain="c.example"),
            secret("a", provider="p", domain="a.example", domain_default_priority="-1"),
            secret("e", provider="p", domain="e.example", domain_default_priority="9"),
        ]
    )
    assert [entry["credentialsRef"]["name"] for entry in found] == ["b", "e", "c", "d", "a"]
    assert found[0] == {
        "type": "p",
        "domain": "b.example",
        "zone": "z",
        "credentialsRef": {"apiVersion": "v1", "kind": "Secret", "namespace": "garden", "name": "b"},
    }
    assert "zone" not in found[1]


@pytest.mark.parametrize("annotations", [{"provider": "p"}, {"domain": "d"}, {"provider": "", "domain": "d"}])
def test_incomplete_ones_are_named(annotations: dict[str, str]) -> None:
    """Contract core 5.2: provider and domain are required; nothing is written without them."""
    with pytest.raises(IncompleteDefaultDomain, match="s1"):
        default_domains([secret("s1", **annotations)])
