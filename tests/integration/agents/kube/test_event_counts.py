"""Counts of events, as a real kube-apiserver takes them."""

import asyncio

from agents.core.clock import SystemClock
from agents.kube.client import Client
from agents.kube.events import EventRecorder, ObjectReference
from tests.lab.api import wait_for
from tests.lab.controlplane import ControlPlane
from tests.support.tasks import running


async def test_a_count_is_taken_at_the_creation_and_later(
    client: Client, integration_control_plane: ControlPlane, name: str
) -> None:
    """Contract 4.8, 6.8: repeats that were waiting when an event is created are in it; later ones are patched in, for both kinds."""
    recorder = EventRecorder(client=client, instance="host", clock=SystemClock())
    node = ObjectReference(kind="Node", name=name, uid="u")

    def tell(times: int) -> None:
        for _ in range(times):
            recorder.event(node, event_type="Normal", reason="New", action="A", note="n", controller="c")
            recorder.core_event(node, event_type="Normal", reason="Core", message="m", component="c")

    def counts() -> dict[str, int]:
        found = integration_control_plane.admin.list(
            "/api/v1/namespaces/default/events", fieldSelector=f"involvedObject.name={name}"
        )
        return {event["reason"]: event.get("count") or event["series"]["count"] for event in found}

    async with running(recorder.run):
        for times, total in ((3, 3), (2, 5)):
            tell(times)
            await recorder.flush(deadline=10)  # does not wait until the series may be patched again
            wanted = {"New": total, "Core": total}
            await asyncio.to_thread(
                wait_for, lambda wanted=wanted: counts() == wanted, timeout=10, what=f"counts {wanted}"
            )
    assert recorder.dropped == 0
