"""Events are accepted by a real API server."""

import asyncio
import json

from agents.core.clock import SystemClock
from agents.kube.client import Client
from agents.kube.events import EventRecorder, ObjectReference
from agents.kube.models import NODES
from tests.support.tasks import running


async def stored(client: Client, path: str, name: str, count: int) -> list[dict[str, object]]:
    """Wait for events about an object, and return them."""
    async with asyncio.timeout(10):
        while True:
            items = json.loads(await client.get_raw(path))["items"]
            found = [item for item in items if (item.get("regarding") or item.get("involvedObject"))["name"] == name]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.05)


async def test_events_of_both_apis(client: Client, name: str) -> None:
    """Contract 6.8: events about the Node must be accepted in namespace `default`, in both APIs; repeats are counted."""
    node = await client.create(NODES, {"metadata": {"name": name}})
    reference = ObjectReference(kind="Node", name=name, uid=node.metadata.uid)
    recorder = EventRecorder(client=client, instance=name, clock=SystemClock())
    async with running(recorder.run):
        for _ in range(3):
            recorder.event(
                reference,
                event_type="Normal",
                reason="OSCApplied",
                action="Reconcile",
                note="100% applied",
                controller="operatingsystemconfig",
            )
        recorder.core_event(
            reference, event_type="Warning", reason="FileMissing", message="/a is missing", component="osc-checker"
        )
        await stored(client, "/api/v1/namespaces/default/events", name, 2)
    assert recorder.dropped == 0
    events = await stored(client, "/apis/events.k8s.io/v1/namespaces/default/events", name, 2)
    [new] = [event for event in events if event["reason"] == "OSCApplied"]
    assert (new["note"], new["reportingController"], new["series"]["count"]) == (  # type: ignore[index]
        "100% applied", "operatingsystemconfig", 3,
    )  # fmt: skip
    [core] = [
        event
        for event in await stored(client, "/api/v1/namespaces/default/events", name, 2)
        if event["reason"] == "FileMissing"
    ]
    assert (core["message"], core["source"], core["count"]) == (
        "/a is missing", {"component": "osc-checker", "host": name}, 1,
    )  # fmt: skip
