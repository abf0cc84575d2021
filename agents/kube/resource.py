"""A kind of object: where it lives in the API and what it is parsed into."""

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from agents.kube.errors import BadRequest
from agents.kube.objects import Document, KubeObject

T = TypeVar("T", bound=KubeObject)


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A kind of object of one API version."""

    group: str
    """API group; empty for the core group."""
    version: str
    plural: str
    kind: str
    namespaced: bool
    model: type[T]
    """Projection that objects of this kind are parsed into."""

    @property
    def api_version(self) -> str:
        """Return the value of the field `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def collection(self, namespace: str | None = None) -> str:
        """Return the path of all objects, or of those in a namespace.

        Raises:
            BadRequest: a namespace for a kind that has none, or one that cannot be part of a path.
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if namespace is None:
            return f"{root}/{self.plural}"
        if not self.namespaced:
            raise BadRequest("this kind has no namespace", resource=self.plural, namespace=namespace)
        return f"{root}/namespaces/{_segment(namespace)}/{self.plural}"

    def path(self, name: str, *, namespace: str | None = None, subresource: str | None = None) -> str:
        """Return the path of one object.

        Raises:
            BadRequest: a namespace is missing or too many, or a name cannot be part of a path (an empty one would mean
                all objects).
        """
        if self.namespaced and namespace is None:
            raise BadRequest("this kind needs a namespace", resource=self.plural, name=name)
        path = f"{self.collection(namespace)}/{_segment(name)}"
        return path if subresource is None else f"{path}/{_segment(subresource)}"


def whole(resource: Resource[Any]) -> Resource[Document]:
    """Return the same kind, read whole, for writes that must not lose what a projection does not know."""
    if issubclass(resource.model, Document) and resource.model.whole:
        return resource
    return replace(resource, model=Document)


def _segment(name: str) -> str:
    if not name or name in {".", ".."} or "/" in name or "%" in name:
        raise BadRequest("not a valid object name", name=name)
    return quote(name, safe="")
