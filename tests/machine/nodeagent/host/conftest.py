"""A machine with real containerd, and two real registries; the extractor alone runs on it."""

from collections.abc import Iterator

import pytest

from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.registry import Registry
from tests.support.extraction import ExtractorOnMachine


@pytest.fixture(scope="session")
def registry(lab: Lab) -> Registry:
    """A registry with TLS by an own CA."""
    return lab.registry("tls")


@pytest.fixture(scope="session")
def plain(lab: Lab) -> Registry:
    """A registry with plain HTTP; same content."""
    return lab.registry("plain")


@pytest.fixture(scope="module")
def fresh(lab: Lab, registry: Registry, plain: Registry) -> Iterator[ExtractorOnMachine]:
    """A machine that knows both registries; removed after the module."""
    with lab.removed_after(lab.add_machine("extractor")) as machine:
        extractor = ExtractorOnMachine.install(machine, lab.agent("source"))
        extractor.know(registry)
        extractor.know(plain)
        yield extractor


@pytest.fixture
def extractor(fresh: ExtractorOnMachine) -> Iterator[ExtractorOnMachine]:
    """The module's machine; a test leaves nothing of an image on it. Half layers are collected by containerd, a little later."""
    yield fresh
    fresh.machine.run(["rm", "-rf", "/opt/bin", "/opt/test", "/opt/small"])
    assert fresh.leftovers() == []
    wait_for(lambda: fresh.ingests() == [], timeout=20, what="half layers to be collected")
