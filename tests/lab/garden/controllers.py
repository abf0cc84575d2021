"""The loops beside a garden's API server: CSR approval, namespaces of Seeds with copied Secrets, stale Leases."""

import asyncio
import datetime as dt
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from tests.lab.counterparts.access import Access
from tests.lab.garden.approval import APPROVED, access_review, is_decided, requested_seed
from tests.lab.garden.crds import SEEDS
from tests.lab.garden.identity import LEASE_NAMESPACE
from tests.lab.garden.lifecycle import is_fresh, offline_conditions

_RETRY_SECONDS = 0.2
_LIFECYCLE_SECONDS = 10.0
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_NAMESPACES = "/api/v1/namespaces"
_ROLE = "gardener.cloud/role"
_NOT_COPIED = {"kubeconfig", "ssh-keypair", "monitoring", "helm-pull-secret", "oci-ca-bundle", "resource-reference"}

log = logging.getLogger("garden")


class Controllers:
    """The three loops."""

    def __init__(self, access: Access, *, approves: bool) -> None:
        self._access = access
        self._approves = approves

    async def run(self) -> None:
        """Run all of them until the task is cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._approves:
                group.create_task(self._each(self._access.watch_requests, self._approve))
            group.create_task(self._each(lambda: self._access.watch(SEEDS.collection), self._provide))
            group.create_task(self._monitor())

    async def _each(self, watch: Callable[[], Any], act: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        """Act on each object that is there, new or changed, beginning again whenever something goes wrong."""
        while True:
            try:
                async for document in watch():
                    await act(document)
            except (OSError, TimeoutError, aiohttp.ClientError) as error:
                log.info("watch ended: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _approve(self, request: dict[str, Any]) -> None:
        name = request["metadata"]["name"]
        try:
            seed = None if is_decided(request) else requested_seed(request)
        except ValueError as error:
            log.info("CSR %s cannot be decoded: %s", name, error)
            return
        if seed is None:
            return
        review = await self._access.create(_REVIEWS, access_review(request))
        if not review["status"].get("allowed"):
            log.info("CSR %s of seed %s: its user may not be a seed's client", name, seed)
            return
        await self._access.decide(request, APPROVED)
        log.info("CSR %s of seed %s: approved", name, seed)

    async def _provide(self, seed: dict[str, Any]) -> None:
        """Create a Seed's namespace, and copy the Secrets that all seeds get."""
        name, metadata = f"seed-{seed['metadata']['name']}", seed["metadata"]
        if metadata.get("deletionTimestamp"):
            return
        if await self._access.find(f"{_NAMESPACES}/{name}") is None:
            owner = {"apiVersion": seed["apiVersion"], "kind": "Seed", "name": metadata["name"], "uid": metadata["uid"]}
            owner |= {"controller": True, "blockOwnerDeletion": True}
            body = {"metadata": {"name": name, "labels": {_ROLE: "seed"}, "ownerReferences": [owner]}}
            await self._access.create(_NAMESPACES, body)
            log.info("namespace %s created", name)
        present = {one["metadata"]["name"] for one in await self._access.items(f"{_NAMESPACES}/{name}/secrets")}
        for secret in await self._access.items(f"{_NAMESPACES}/garden/secrets?labelSelector={_ROLE}"):
            labels = secret["metadata"]["labels"]
            if labels[_ROLE] in _NOT_COPIED or secret["metadata"]["name"] in present:
                continue
            kept = {key: secret["metadata"].get(key) or {} for key in ("labels", "annotations")}
            copy = {"metadata": {"name": secret["metadata"]["name"], **kept}, "type": secret["type"]}
            await self._access.create(f"{_NAMESPACES}/{name}/secrets", {**copy, "data": secret.get("data") or {}})

    async def _monitor(self) -> None:
        """Say of each Seed whose Lease is stale that its gardenlet is silent."""
        while True:
            try:
                for seed in await self._access.items(SEEDS.collection):
                    await self._judge(seed)
            except (OSError, TimeoutError, aiohttp.ClientError) as error:
                log.info("Seeds not looked at: %s", error)
            await asyncio.sleep(_LIFECYCLE_SECONDS)

    async def _judge(self, seed: dict[str, Any]) -> None:
        name, now = seed["metadata"]["name"], dt.datetime.now(dt.UTC)
        path = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases/{name}"
        if is_fresh(await self._access.find(path), now):
            return
        conditions = offline_conditions(seed, now)
        if conditions is not None:
            version = seed["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}}
            await self._access.merge(f"{SEEDS.collection}/{name}/status", body)
            log.info("seed %s: gardenlet is silent", name)
