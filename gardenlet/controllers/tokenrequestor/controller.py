"""The controller of either requestor: which Secrets bring a key, and how long a reconcile may take."""

from datetime import timedelta

from agents.kube.models import Secret
from agents.runtime.cache import Informer
from agents.runtime.controller import Controller
from agents.runtime.reconcile import Reconciler
from agents.runtime.source import KindSource
from gardenlet.controllers.tokenrequestor.marks import Marks

DEADLINE = timedelta(minutes=3)


def token_controller(
    name: str, reconciler: Reconciler, secrets: Informer[Secret], marks: Marks, *, workers: int
) -> Controller:
    """Build a controller that looks at Secrets that ask for a token, and not at what was written to them by itself."""
    return Controller(
        name=name,
        reconciler=reconciler,
        sources=[KindSource(secrets, predicate=marks.changed)],
        concurrency=max(1, workers),
        deadline=DEADLINE,
    )
