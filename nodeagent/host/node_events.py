"""Events about our Node on behalf of one controller; nothing is said while the Node is unknown (contract 6.8)."""

from collections.abc import Callable

from agents.kube.events import EventRecorder, EventType, ObjectReference
from agents.kube.models import Node

FLUSH_SECONDS = 5.0


def reference(node: Node) -> ObjectReference:
    """Return how an event refers to a Node."""
    return ObjectReference(kind="Node", name=node.metadata.name, uid=node.metadata.uid)


class NodeEvents:
    """Says what happened to our Node.

    Args:
        recorder: where events go.
        node: returns our Node, None while it is unknown.
        controller: who says it.
    """

    def __init__(self, *, recorder: EventRecorder, node: Callable[[], Node | None], controller: str) -> None:
        self._recorder = recorder
        self._node = node
        self._controller = controller

    @property
    def node_known(self) -> bool:
        """Whether what is said now is heard."""
        return self._node() is not None

    def event(self, event_type: EventType, *, reason: str, action: str, note: str) -> None:
        """Record an event; the note is plain text, whatever is in it."""
        if (node := self._node()) is not None:
            self._recorder.event(
                reference(node),
                event_type=event_type,
                reason=reason,
                action=action,
                note=note,
                controller=self._controller,
            )

    def unit_processed(self, operation: str, unit: str, error: str | None) -> None:
        """Record the end of a unit's job: `start`, `stop` or `restart`; without an error it was a success."""
        self.event(
            "Warning" if error else "Normal",
            reason=f"SystemDUnit{operation.capitalize()}",
            action=operation,
            note=f"processed {operation} of unit {unit}" + (f" failed with error {error}" if error else ""),
        )

    async def flush(self) -> None:
        """Wait a moment for what was said to be delivered: for a controller that is about to end the process."""
        await self._recorder.flush(deadline=FLUSH_SECONDS)
