"""Which replicas a Prometheus object has, and what their samples mean."""

import pytest

from agents.kube.objects import Document
from gardenlet.care.managed_resources import Failure
from gardenlet.care.prometheus import DOWN, judge, replicas


def prometheus(**spec: object) -> Document:
    """Return a Prometheus object."""
    return Document.model_validate({"metadata": {"name": "seed", "namespace": "garden"}, "spec": spec})


def test_replicas() -> None:
    """Contract core 7: one address each, with the operator's own service by default; none configured is one."""
    assert replicas(prometheus(replicas=2)) == [
        "prometheus-seed-0.prometheus-operated.garden.svc.cluster.local:9090",
        "prometheus-seed-1.prometheus-operated.garden.svc.cluster.local:9090",
    ]
    assert replicas(prometheus(serviceName="own")) == ["prometheus-seed-0.own.garden.svc.cluster.local:9090"]
    assert replicas(prometheus(replicas=0)) == []


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (["1"], None),
        (["1", "1"], None),
        ([], "h: there is no sample of healthcheck:up"),
        (["0"], "h: healthcheck:up is 0"),
        (["1", "0"], "h: healthcheck:up is 0"),
        (["1", "NaN", "2"], "h: healthcheck:up is neither 0 nor 1: 2, NaN"),
    ],
)
def test_samples(samples: list[str], message: str | None) -> None:
    """Contract core 7: all samples must be 1; an empty answer, a 0 and anything else are down, always in the same words."""
    assert judge("h", samples) == (None if message is None else Failure(DOWN, message))
