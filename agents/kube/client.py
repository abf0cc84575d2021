"""Typed reads and writes over a transport.

Reads give projections. Writes take plain mappings and are patches; `replace` (PUT) is for Leases that we own whole, because
the node-agent authorizer forbids PATCH there (contract 4.8). Each call has a deadline in seconds and raises an `ApiError`.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, Field, ValidationError

from agents.core.yamlio import dump_json
from agents.kube.errors import InvalidResponse
from agents.kube.kubeconfig import ClusterAccess
from agents.kube.objects import Items, KubeObject, Projection, Text
from agents.kube.patch import Patch
from agents.kube.resource import Resource
from agents.kube.transport import CONNECT_DEADLINE_SECONDS, DEADLINE_SECONDS, Call, Transport
from agents.kube.watch import READ_DEADLINE_SECONDS, Watch, open_watch

T = TypeVar("T", bound=KubeObject)
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Selector:
    """Which objects of a kind; empty means all."""

    label: str = ""
    field: str = ""

    def query(self) -> tuple[tuple[str, str], ...]:
        """Return the query parameters."""
        pairs = (("labelSelector", self.label), ("fieldSelector", self.field))
        return tuple((key, value) for key, value in pairs if value)


EVERYTHING = Selector()


@dataclass(frozen=True, slots=True)
class ObjectList(Generic[T]):
    """Objects, and the version from which a watch continues.

    Attributes:
        items: the objects.
        resource_version: of the list.
        more: where the next page begins, for `list(after=...)`; empty on the last one.
    """

    items: tuple[T, ...]
    resource_version: str
    more: str = ""


PAGE = 500
"""Objects of one page: as many as client-go's pager asks for."""


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """What is said with a deletion.

    Attributes:
        uid: delete only the object with this uid (else: Conflict).
        resource_version: delete it only as it was read (else: Conflict).
        grace_seconds: that it gets to end; 0 is at once, without waiting for anybody. None: what the object says.
        propagation: what becomes of its dependents (`Background`, `Foreground`, `Orphan`); empty for the kind's own.
    """

    uid: str | None = None
    resource_version: str | None = None
    grace_seconds: int | None = None
    propagation: str = ""

    def document(self) -> dict[str, object]:
        """Return the request's body."""
        preconditions = {"uid": self.uid, "resourceVersion": self.resource_version}
        said = {
            "preconditions": {key: value for key, value in preconditions.items() if value is not None} or None,
            "gracePeriodSeconds": self.grace_seconds,
            "propagationPolicy": self.propagation or None,
        }
        named = {key: value for key, value in said.items() if value is not None}
        return {"apiVersion": "v1", "kind": "DeleteOptions", **named}


class _ListMeta(Projection):
    resource_version: Text = ""
    more: Text = Field(default="", alias="continue")


class _List(Projection, Generic[T]):
    metadata: _ListMeta = Field(default_factory=_ListMeta)
    items: Items[T] = ()


class Client:
    """Reads and writes objects of one API server.

    Args:
        transport: the wire; closed with the client.
        rng: for the length of watches.
    """

    def __init__(self, *, transport: Transport, rng: Random) -> None:
        self._transport = transport
        self._rng = rng
        self._switched: list[Callable[[], None]] = []

    async def get(
        self,
        resource: Resource[T],
        name: str,
        *,
        namespace: str | None = None,
        deadline: float = DEADLINE_SECONDS,
        connect_deadline: float = CONNECT_DEADLINE_SECONDS,
    ) -> T:
        """Read one object, past any cache."""
        call = Call("GET", resource.path(name, namespace=namespace))
        body = await self._transport.request(call, deadline=deadline, connect_deadline=connect_deadline)
        return _parse(resource.model, body, call)

    async def list(
        self,
        resource: Resource[T],
        *,
        namespace: str | None = None,
        selector: Selector = EVERYTHING,
        limit: int | None = None,
        after: str = "",
        deadline: float = DEADLINE_SECONDS,
    ) -> ObjectList[T]:
        """Read all objects that a selector names, as of now; with a limit only so many, whichever the server gives first.

        Raises:
            Gone: `after`, which is the `more` of the page before, is too old.
        """
        paging = (("limit", "" if limit is None else str(limit)), ("continue", after))
        query = (*selector.query(), *((key, value) for key, value in paging if value))
        call = Call("GET", resource.collection(namespace), query=query)
        body = await self._transport.request(call, deadline=deadline)
        parsed = _parse(_List[resource.model], body, call)  # type: ignore[name-defined]
        if not parsed.metadata.resource_version:
            raise InvalidResponse("list has no resource version", path=call.path)
        return ObjectList(parsed.items, parsed.metadata.resource_version, parsed.metadata.more)

    async def pages(
        self,
        resource: Resource[T],
        *,
        namespace: str | None = None,
        selector: Selector = EVERYTHING,
        size: int = PAGE,
        deadline: float = DEADLINE_SECONDS,
    ) -> AsyncIterator[ObjectList[T]]:
        """Read all objects page by page, so that never all of them are held, here or in one answer.

        All pages are of the moment of the first one.

        Raises:
            Gone: that moment is forgotten by the server (after about five minutes): begin again.
        """
        after = ""
        while True:
            page = await self.list(
                resource, namespace=namespace, selector=selector, limit=size, after=after, deadline=deadline
            )
            yield page
            if not (after := page.more):
                return

    async def create(
        self,
        resource: Resource[T],
        document: Mapping[str, object],
        *,
        namespace: str | None = None,
        deadline: float = DEADLINE_SECONDS,
        connect_deadline: float = CONNECT_DEADLINE_SECONDS,
    ) -> T:
        """Create an object; `apiVersion` and `kind` are added.

        Raises:
            AlreadyExists: the name is taken.
        """
        call = Call("POST", resource.collection(namespace), body=_complete(resource, document))
        body = await self._transport.request(call, deadline=deadline, connect_deadline=connect_deadline)
        return _parse(resource.model, body, call)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Patch,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        deadline: float = DEADLINE_SECONDS,
    ) -> T:
        """Change the named fields of an object."""
        path = resource.path(name, namespace=namespace, subresource=subresource)
        call = Call("PATCH", path, query=patch.query, body=patch.body, content_type=patch.content_type)
        return _parse(resource.model, await self._transport.request(call, deadline=deadline), call)

    async def replace(
        self,
        resource: Resource[T],
        name: str,
        document: Mapping[str, object],
        *,
        namespace: str | None = None,
        deadline: float = DEADLINE_SECONDS,
        connect_deadline: float = CONNECT_DEADLINE_SECONDS,
    ) -> T:
        """Write a whole object (PUT): only for Leases that we own whole.

        Everything that the document does not name is erased; it must carry `metadata.resourceVersion`.

        Raises:
            Conflict: the object has another resource version by now.
        """
        call = Call("PUT", resource.path(name, namespace=namespace), body=_complete(resource, document))
        body = await self._transport.request(call, deadline=deadline, connect_deadline=connect_deadline)
        return _parse(resource.model, body, call)

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        options: DeleteOptions | None = None,
        deadline: float = DEADLINE_SECONDS,
    ) -> None:
        """Delete an object.

        Args:
            resource: its kind.
            name: its name.
            namespace: its namespace, if it has one.
            uid: delete only the object with this uid (else: Conflict).
            options: all that can be said, instead of `uid`.
            deadline: seconds.
        """
        document = (options or DeleteOptions(uid=uid)).document()
        call = Call("DELETE", resource.path(name, namespace=namespace), body=dump_json(document))
        await self._transport.request(call, deadline=deadline)

    async def get_raw(self, path: str, *, deadline: float = DEADLINE_SECONDS) -> bytes:
        """Read a path that holds no object, `/version` for example."""
        return await self._transport.request(Call("GET", path, accept="*/*"), deadline=deadline)

    async def ask(
        self, path: str, document: Mapping[str, object], *, deadline: float = DEADLINE_SECONDS
    ) -> Mapping[str, Any]:
        """Post what is answered and stored nowhere: a review, or a request for a token.

        Args:
            path: where; for a subresource, `resource.path(name, subresource=...)`.
            document: with `apiVersion` and `kind`.
            deadline: seconds.
        """
        call = Call("POST", path, body=dump_json(document))
        return _load(await self._transport.request(call, deadline=deadline), call)

    def watch(
        self,
        resource: Resource[T],
        *,
        resource_version: str,
        namespace: str | None = None,
        selector: Selector = EVERYTHING,
        read_deadline: float = READ_DEADLINE_SECONDS,
    ) -> AbstractAsyncContextManager[Watch[T]]:
        """Watch objects from a version on, over one connection; see `agents.kube.watch`."""
        call = Call("GET", resource.collection(namespace), query=selector.query())
        return open_watch(
            self._transport,
            call,
            resource.model,
            resource_version=resource_version,
            rng=self._rng,
            read_deadline=read_deadline,
        )

    async def reset_connections(self) -> None:
        """Have new requests use a fresh connection and resolve the server's name anew."""
        await self._transport.reset_connections()

    async def switch(
        self, access: ClusterAccess, *, keep: Callable[[], Awaitable[None]], proof: str = "/version"
    ) -> None:
        """Go on with other credentials, for example a renewed certificate, without losing what is under way.

        The API server is asked first whether it accepts them. Watches over this client are opened anew afterwards.

        Args:
            access: where, and as whom, from now on.
            keep: has the access written down; called once it was accepted.
            proof: path that is asked for first; that it is forbidden, or not there, proves as much.

        Raises:
            ApiError: not accepted or not reachable; the old credentials stay in use, and nothing is kept.
        """
        await self._transport.switch(access, proof=Call("GET", proof, accept="*/*"), keep=keep)
        for callback in tuple(self._switched):
            callback()

    def on_switch(self, callback: Callable[[], None]) -> None:
        """Call a function each time after other credentials came into use."""
        self._switched.append(callback)

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()


def _load(body: bytes, call: Call) -> Mapping[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise InvalidResponse("answer is not JSON", path=call.path) from error
    if not isinstance(answer, dict):
        raise InvalidResponse("answer is not an object", path=call.path)
    return answer


def _complete(resource: Resource[T], document: Mapping[str, object]) -> bytes:
    return dump_json({**document, "apiVersion": resource.api_version, "kind": resource.kind})


def _parse(model: type[M], body: bytes, call: Call) -> M:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        places = [".".join(str(part) for part in problem["loc"]) for problem in error.errors(include_input=False)]
        raise InvalidResponse(
            "answer is not the object that was asked for", method=call.method, path=call.path, fields=places[:5]
        ) from error
