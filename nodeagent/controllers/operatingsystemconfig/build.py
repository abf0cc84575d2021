"""Build the OSC controller: the only module here that knows all the others."""

from agents.kube.models import Node, Secret
from agents.runtime.cache import Informer
from agents.runtime.controller import Controller
from agents.runtime.predicate import all_of, created, label_is
from agents.runtime.reconcile import Persistent
from agents.runtime.source import KindSource, Source
from nodeagent.controllers.operatingsystemconfig.controller import CONTROLLER, OperatingSystemConfigReconciler
from nodeagent.controllers.operatingsystemconfig.trigger import JitterDelay, content_changed, to_secret
from nodeagent.host.node_identity import HOSTNAME_LABEL, NodeIdentity
from osc.errors import InvalidOSC

NAMESPACE = "kube-system"


def new_controller(
    *,
    reconciler: OperatingSystemConfigReconciler,
    secrets: Informer[Secret],
    nodes: Informer[Node],
    identity: NodeIdentity,
    secret_name: str,
) -> Controller:
    """Build the controller with its sources: the Secret, and our Node when it appears (what was applied is reported then)."""
    delay = JitterDelay(node_name=lambda: identity.name, node=lambda: identity.node)
    sources: list[Source] = [
        KindSource(secrets, predicate=content_changed, delay=delay),
        KindSource(
            nodes,
            predicate=all_of(created, label_is(HOSTNAME_LABEL, identity.hostname)),
            mapper=to_secret(NAMESPACE, secret_name),
        ),
    ]
    return Controller(name=CONTROLLER, reconciler=Persistent(reconciler, final=(InvalidOSC,)), sources=sources)
