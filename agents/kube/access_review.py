"""Asks the API server whether we may do something, so that nothing is tried that would be refused and recorded.

Source: authorization.k8s.io/v1 SelfSubjectAccessReview, which every authenticated user may create (ClusterRole system:basic-user).
"""

from collections.abc import Sequence

from agents.kube.client import Client
from agents.kube.objects import KubeObject, Projection
from agents.kube.resource import Resource


class ReviewStatus(Projection):
    """The answer."""

    allowed: bool = False


class SelfSubjectAccessReview(KubeObject):
    """A question about ourselves, and its answer; never stored."""

    status: ReviewStatus = ReviewStatus()


REVIEWS = Resource(
    "authorization.k8s.io",
    "v1",
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
    namespaced=False,
    model=SelfSubjectAccessReview,
)


async def may(client: Client, verbs: Sequence[str], group: str, plural: str, *, namespace: str = "") -> bool:
    """Return whether we may do all of these with the objects of a kind; an empty namespace means in all of them.

    Raises:
        Forbidden: we may not even ask.
        ApiError: the API server does not answer.
    """
    for verb in verbs:
        attributes = {"verb": verb, "group": group, "resource": plural, "namespace": namespace}
        review = await client.create(REVIEWS, {"spec": {"resourceAttributes": attributes}})
        if not review.status.allowed:
            return False
    return True
