"""A gardenlet as a process, and clients of a real API server that serves one kind of extension objects from a CRD."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.kube.client import Client
from agents.kube.errors import AlreadyExists, NotFound, TooManyRequests
from agents.kube.objects import Document
from agents.kube.resource import Resource
from gardenlet.apis.extensions import GROUP, INFRASTRUCTURES
from tests.integration.agents.conftest import NewClient, admin_access, client, name, new_client
from tests.lab.garden.garden import Garden
from tests.lab.garden.gardenlet import Gardenlet

__all__ = ["NewClient", "admin_access", "client", "name", "new_client"]

CRDS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
    model=Document,
)


@pytest.fixture
async def infrastructures(client: Client) -> None:
    """The CRD of Infrastructure, as far as an API server needs it."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition = {
        "metadata": {"name": f"{INFRASTRUCTURES.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": INFRASTRUCTURES.plural, "kind": INFRASTRUCTURES.kind},
            "versions": [
                {
                    "name": "v1alpha1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }
    with contextlib.suppress(AlreadyExists):
        await client.create(CRDS, definition)
    async with asyncio.timeout(30):
        while True:
            try:
                await client.list(INFRASTRUCTURES, namespace="default")
            except (NotFound, TooManyRequests):
                await asyncio.sleep(0.1)
            else:
                break


@pytest.fixture
def process(garden: Garden, tmp_path: Path) -> Iterator[Gardenlet]:
    """A gardenlet with a bootstrap token, not started; what was refused to it and credentials that were printed fail the test."""
    with Gardenlet(garden, tmp_path).looked_after() as found:
        yield found
