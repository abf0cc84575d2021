"""Rotation against a real garden with a seed beside it, killed at each of its writes."""

import base64
from random import Random
from typing import Any
from uuid import uuid4

from agents.core.clock import SystemClock
from agents.core.shutdown import Shutdown
from agents.kube import kubeconfig
from agents.kube.client import Client
from agents.kube.events import EventRecorder
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.pki.certificate import parse_leaf
from agents.pki.csr import CertificateRequester
from agents.runtime.metrics import Metrics
from agents.runtime.reconcile import Request
from gardenlet.bootstrap.clients import GardenClients
from gardenlet.bootstrap.garden_kubeconfig import GROUP, REQUEST_PREFIX, USER_PREFIX
from gardenlet.bootstrap.rotation import Parts, RotationMetrics, RotationReconciler
from gardenlet.bootstrap.secrets import KubeconfigSecret, PendingSecret
from gardenlet.config import KubeconfigValidity, SecretReference
from tests.integration.gardenlet.test_bootstrap import CSRS, SECRETS, Bootstrapping, Dying, dies
from tests.lab.garden.garden import Garden

RENEW = {"gardener.cloud/operation": "renew"}
NUMBER = 5
"""One more than there are writes."""


class Rotating(Bootstrapping):
    """One seed's gardenlet that has a certificate and is asked for another one."""

    def store(self) -> None:
        """Store a kubeconfig, and ask."""
        plane, (certificate, key) = self.garden.plane, self.garden.gardenlet_certificate(self.name)
        credentials = Credentials(client_certificate=certificate, client_key=key)
        access = ClusterAccess(server=plane.server, ca_data=plane.ca_pem, credentials=credentials)
        metadata = {"name": f"{self.name}-kubeconfig", "annotations": RENEW}
        data = {"kubeconfig": base64.b64encode(kubeconfig.render(access)).decode()}
        self.garden.seed.admin.create(SECRETS, {"metadata": metadata, "data": data})

    def access(self) -> ClusterAccess:
        """Return what is stored."""
        return kubeconfig.parse(base64.b64decode(self.secret()["data"]["kubeconfig"]))

    def secret(self) -> dict[str, Any]:
        """Return the Secret."""
        found = self.found("kubeconfig")
        assert found is not None
        return found

    async def rotate(self) -> None:
        """Do what a process does: one look at the Secret."""
        reference = SecretReference(namespace="garden", name=f"{self.name}-kubeconfig")
        seed, access, clock = self.seed(), self.access(), SystemClock()
        client = self.client(access)
        pending = PendingSecret(seed, reference)
        requester = CertificateRequester(
            client=client,
            common_name=USER_PREFIX + self.name,
            organizations=[GROUP],
            name_prefix=REQUEST_PREFIX,
            expiration=None,
            clock=clock,
            asked_by=USER_PREFIX + self.name,
            store=pending,
        )
        parts = Parts(
            seed_name=self.name,
            secret=KubeconfigSecret(seed, reference),
            requester=requester,
            pending=pending,
            clients=GardenClients(access, client),
            recorder=EventRecorder(client=client, instance="test", clock=clock),
            validity=KubeconfigValidity(),
            shutdown=Shutdown(),
            has_material=self._has_no_material,
            expires=lambda _moment: None,
            clock=clock,
            rng=Random(1),
            metrics=RotationMetrics(Metrics()),
        )
        await RotationReconciler(parts).reconcile(Request("garden", reference.name))

    async def _has_no_material(self) -> bool:
        return False

    def asked(self) -> int:
        """Return how many certificates were asked for."""
        user = USER_PREFIX + self.name
        return sum(one["spec"]["username"] == user for one in self.garden.api.list(CSRS))


async def test_killed_at_every_write(garden: Garden) -> None:
    """Contract core 13.1.2: before and after each write of a rotation: a new certificate that works, one CSR, no key left."""
    for after in (False, True):
        for number in range(1, 20):
            one = Rotating(garden, f"seed-{uuid4().hex[:8]}")
            one.store()
            before = one.access().credentials.client_certificate
            Dying.changes, Dying.kill_at, Dying.after = 0, number, after
            killed = await dies(one.rotate)
            Dying.kill_at = -1
            await one.close()
            await one.rotate()
            await one.close()
            point = f"killed {'after' if after else 'before'} {number}"
            renewed = one.access()
            assert renewed.credentials.client_certificate != before, point
            assert parse_leaf(renewed.credentials.client_certificate).common_name == USER_PREFIX + one.name
            assert RENEW.items() - (one.secret()["metadata"].get("annotations") or {}).items() == RENEW.items(), point
            assert one.found("kubeconfig-pending") is None, point
            assert one.asked() == 1, point
            client: Client = one.client(renewed)
            await client.get_raw("/version")
            await one.close()
            if not killed:
                break
        assert number == NUMBER, number
