"""The whole process against a real garden and a real seed: from a bootstrap token to heartbeats, and back."""

import base64
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from tests.lab.api import wait_for
from tests.lab.garden.gardenlet import ROOT, SEED_SECRETS, SEEDS, Gardenlet
from tests.support.served_seed import controllers_serve

SECURITY, IDENTITY_TOKENS = "security.gardener.cloud/v1alpha1", "workloadidentity.security.gardener.cloud/"


def test_from_a_token_to_heartbeats(process: Gardenlet) -> None:
    """Contract core 13.1.1, 13.1.3: CSR, kubeconfig, Seed, namespace, Lease; nothing of the bootstrap left; renewed on request."""
    process.start()
    process.until(200, timeout=15)
    process.until(200, "/readyz")
    wait_for(process.renewed, timeout=20, what="a heartbeat")
    wait_for(lambda: process.status()[0] == 0, timeout=20, what="a status that says so")
    found = process.status()[1]
    assert (found["state"], found["problem"]) == ("beating", "")
    assert 0 <= found["heartbeatAgeSeconds"] < 20
    assert found["certificateExpires"]
    seed = process.seed()
    assert seed is not None
    assert seed["metadata"]["labels"]["gardener.cloud/role"] == "seed"
    assert process.garden.api.find(f"/api/v1/namespaces/seed-{process.name}") is not None
    wait_for(
        lambda: process.garden.seed.admin.find(f"{SEED_SECRETS}/{process.name}-bootstrap") is None,
        timeout=20,
        what="the bootstrap Secret to go",
    )
    first = process.stored()
    assert first is not None
    process.ask_for_certificate()
    assert process.process.wait(timeout=20) == 0
    assert process.status()[0] == 1
    second = process.stored()
    assert second is not None
    assert second["data"] != first["data"]
    before = process.renewed()
    process.start()
    wait_for(lambda: process.renewed() != before, timeout=20, what="a heartbeat with the new certificate")
    assert process.end() == 0


def test_controllers_serve_the_seed(process: Gardenlet) -> None:
    """Contract core 7, 8, 9.1, 4.3: pods left behind, network policies, a token for a Secret, and what is asked for on the Seed."""
    controllers_serve(process)


def test_tokens_of_workload_identities(process: Gardenlet) -> None:
    """Contract core 9.2, 4.3, 12.1: out of the real aggregation layer; a changed wish at once, one that is wrong not at all."""
    garden, seed = process.garden.api, process.garden.seed.admin
    identity = {"apiVersion": SECURITY, "kind": "WorkloadIdentity", "metadata": {"name": "dns"}}
    garden.ensure(f"/apis/{SECURITY}/namespaces/garden/workloadidentities", identity)
    labels = {f"{IDENTITY_TOKENS}provider": "local"}
    labels["security.gardener.cloud/purpose"] = "workload-identity-token-requestor"
    annotations = {f"{IDENTITY_TOKENS}name": "dns", f"{IDENTITY_TOKENS}namespace": "garden"}
    metadata = {"name": f"{process.name}-cloud", "labels": labels, "annotations": annotations}
    config = base64.b64encode(b"issuer: here").decode()
    seed.create(SEED_SECRETS, {"metadata": metadata, "data": {"config": config}})
    seen: list[str] = []

    def token() -> str:
        found = str(seed.get(f"{SEED_SECRETS}/{process.name}-cloud")["data"].get("token", ""))
        return "" if found in seen else found

    def next_claims() -> dict[str, Any]:
        seen.append(wait_for(token, timeout=40, what="another token"))
        payload = base64.b64decode(seen[-1]).decode().split(".")[1]
        claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return claims

    def point_at(context: str) -> None:
        annotation = {f"{IDENTITY_TOKENS}context-object": context}
        seed.patch(f"{SEED_SECRETS}/{process.name}-cloud", {"metadata": {"annotations": annotation}})

    process.start()
    claims = next_claims()
    assert claims["sub"].startswith("security.gardener.cloud:workloadidentity:garden:dns:")
    assert (claims["exp"] - claims["iat"], claims["gardener.cloud"]) == (6 * 3600, {"context": None})
    point_at("{")
    wait_for(lambda: "annotation is not JSON" in process.log, timeout=20, what="the wrong annotation to be named")
    assert not token()
    bucket = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "BackupBucket", "name": "b", "uid": "u"}
    point_at(json.dumps(bucket))
    assert next_claims()["gardener.cloud"] == {"context": bucket}
    operation = {"gardener.cloud/operation": "renew-workload-identity-tokens"}
    garden.patch(f"{SEEDS}/{process.name}", {"metadata": {"annotations": operation}})
    assert next_claims()["gardener.cloud"] == {"context": bucket}
    secret = seed.get(f"{SEED_SECRETS}/{process.name}-cloud")
    assert (secret["data"]["config"], secret["metadata"]["labels"]) == (config, labels)
    assert f"{IDENTITY_TOKENS}token-renew-timestamp" in secret["metadata"]["annotations"]
    asked = [one for one in process.garden.requests() if process.name in one.user and "workloadid" in one.resource]
    assert [(one.verb, one.subresource, one.code) for one in asked] == [("create", "token", 201)] * 3
    wrong = [line for line in process.log.splitlines() if "annotation is not JSON" in line]
    assert len(wrong) == 1
    assert "workloadidentity.security.gardener.cloud/context-object" in wrong[0]
    assert not [one for one in seen if base64.b64decode(one).decode() in process.log]


def test_a_restart_writes_no_network_policy_again(process: Gardenlet) -> None:
    """Contract core 8, 13.1.6: what the API server made of the policies is what is wanted: nothing is written where nothing differs."""
    seed = process.garden.seed.admin
    subset = {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 443, "protocol": "TCP"}]}
    seed.ensure("/api/v1/namespaces/default/endpoints", {"metadata": {"name": "kubernetes"}, "subsets": [subset]})
    seed.ensure("/api/v1/namespaces", {"metadata": {"name": "shoot--a--b", "labels": {"gardener.cloud/role": "shoot"}}})
    policies = "/apis/networking.k8s.io/v1/networkpolicies"
    reconciled = 'controller_runtime_reconcile_total{controller="networkpolicy",result="success"}'
    process.start()
    wait_for(lambda: len(seed.list(policies, fieldSelector="metadata.name=deny-all")) >= 2, timeout=30, what="policies")
    assert process.end() == 0
    before = {one["metadata"]["uid"]: one["metadata"]["resourceVersion"] for one in seed.list(policies)}
    assert len(before) >= 12
    process.start()
    wait_for(lambda: process.metrics().get(reconciled, 0) >= 2, timeout=30, what="a look at the namespaces")
    wait_for(lambda: process.metrics()['workqueue_depth{name="networkpolicy"}'] == 0, timeout=20, what="an empty queue")
    assert process.end() == 0
    assert {one["metadata"]["uid"]: one["metadata"]["resourceVersion"] for one in seed.list(policies)} == before


def test_killed_and_stopped(process: Gardenlet) -> None:
    """Contract core 1.3, 1.7: SIGTERM gives the lease back; after SIGKILL the same Pod leads again at once."""
    process.start()
    wait_for(process.renewed, timeout=30, what="a heartbeat")
    assert process.end(signal.SIGKILL) == -signal.SIGKILL
    before, started = process.renewed(), time.monotonic()
    process.start()
    wait_for(lambda: process.renewed() != before, timeout=30, what="a heartbeat after the kill")
    assert time.monotonic() - started < 12
    assert process.end() == 0
    assert process.leader() == ""


def test_a_frozen_process_is_not_healthy(process: Gardenlet) -> None:
    """Contract core 13.1.4: frozen for 26 s: from second 20 no probe gets a 200, and none after the thaw before a fresh beat."""
    # A leader that was frozen for so long ends; one without an election has nothing but its heartbeat to tell.
    process.elect = False
    process.start()
    wait_for(process.renewed, timeout=30, what="a heartbeat")
    process.until(200)
    process.process.send_signal(signal.SIGSTOP)
    frozen, last = time.monotonic(), process.renewed()
    thaw = threading.Timer(26, process.process.send_signal, [signal.SIGCONT])
    thaw.start()
    answers: list[tuple[int, dt.datetime]] = []
    try:
        wait_for(lambda: time.monotonic() - frozen > 20, timeout=25, what="20 s to go by")
        while not answers or (answers[-1][0] != 200 and time.monotonic() - frozen < 35):
            answers.append((process.ask("/healthz")[0], dt.datetime.now(dt.UTC)))
    finally:
        thaw.join()
    assert {status for status, _ in answers[:-1]} == {0, 500}
    status, healthy_at = answers[-1]
    assert status == 200
    renewed = wait_for(process.renewed, timeout=5, what="the Lease")
    assert last is not None
    assert dt.datetime.fromisoformat(last) < dt.datetime.fromisoformat(renewed) < healthy_at
    assert time.monotonic() - frozen > 26


def test_two_gardenlets_of_one_seed_do_not_fight(process: Gardenlet) -> None:
    """Contract core 6: a second one with another lock: each says the conflict once, both beat on, and neither writes more for it."""
    process.start()
    wait_for(process.renewed, timeout=30, what="a heartbeat")
    second = process.replica(process.folder / "second", lock=f"{process.name}-2")
    both = (process, second)
    try:
        second.start()
        for one in both:
            wait_for(lambda one=one: "somebody else" in one.log, timeout=30, what="the conflict to be said")  # type: ignore[misc]
        begun = dt.datetime.now(dt.UTC)
        beats = [one.metrics()['gardenlet_heartbeat_total{result="success"}'] for one in both]
        wait_for(lambda: dt.datetime.now(dt.UTC) - begun > dt.timedelta(seconds=8), timeout=20, what="8 s to go by")
        more = [one.metrics()['gardenlet_heartbeat_total{result="success"}'] for one in both]
        assert all(3 <= after - before <= 5 for before, after in zip(beats, more, strict=True))
        assert [one.ask("/healthz")[0] for one in both] == [200, 200]
        assert [one.log.count("somebody else") for one in both] == [1, 1]
        assert all(one.metrics()["gardenlet_heartbeat_foreign_renewals_total"] >= 5 for one in both)
        events = process.garden.api.list("/apis/events.k8s.io/v1/namespaces/default/events")
        told = [one for one in events if one["regarding"]["name"] == process.name and one["reason"] == "LeaseConflict"]
        assert len({one["metadata"]["name"] for one in told}) == 2
        asked = [one for one in process.garden.requests() if one.received > begun and process.name in one.user]
        writes = [one.resource for one in asked if one.verb in ("create", "update", "patch", "delete")]
        assert writes.count("leases") <= 11
        # The news of the conflict, and a condition of each.
        assert len(writes) - writes.count("leases") <= 4
    finally:
        second.kill()


def test_a_wrong_configuration_is_one_line_for_each_problem(process: Gardenlet) -> None:
    """Contract core 1.7, 2: exit code 2, each problem with its path, no traceback."""
    path = process.folder / "wrong.yaml"
    path.write_text(
        json.dumps({"apiVersion": "gardenlet.config.gardener.cloud/v1alpha1", "kind": "GardenletConfiguration"})
    )
    done = subprocess.run(
        [sys.executable, "-m", "gardenlet", "--config", str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        timeout=30,
    )
    assert done.returncode == 2
    assert "seedConfig" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_gate_that_comes_too_early(process: Gardenlet) -> None:
    """Contract core 1.2: a shoot needs what the gate removes: it is named, the process ends, and its Lease is free for another replica."""
    garden, shoots = process.garden.api, "/apis/core.gardener.cloud/v1beta1/namespaces/garden-p/shoots"
    process.gates = {"RemoveHTTPProxyLegacyPort": True}
    garden.ensure("/api/v1/namespaces", {"metadata": {"name": "garden-p"}})
    spec = {"seedName": process.name, "provider": {"workers": [{"name": "w"}]}}
    kind = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Shoot"}
    garden.create(shoots, {**kind, "metadata": {"name": process.name}, "spec": spec})
    operation = {"type": "Reconcile", "state": "Succeeded", "progress": 100, "description": "done"}
    garden.patch(f"{shoots}/{process.name}/status", {"status": {"lastOperation": operation}})
    try:
        process.start()
        assert process.process.wait(timeout=30) == 1
        assert f"garden-p/{process.name}" in process.log
        assert "Traceback" not in process.log
        assert process.leader() == ""
        constraint = {"type": "UsesUnifiedHTTPProxyPort", "status": "True"}
        garden.patch(f"{shoots}/{process.name}/status", {"status": {"constraints": [constraint]}})
        process.start()
        wait_for(process.renewed, timeout=20, what="a heartbeat")
    finally:
        garden.delete(f"{shoots}/{process.name}")
