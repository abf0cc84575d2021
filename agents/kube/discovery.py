"""Where a kind lives that we know only by name, from a reference that somebody wrote down; everything else is known at build time."""

import json

from agents.kube.client import Client
from agents.kube.errors import InvalidResponse, NotFound
from agents.kube.objects import Document
from agents.kube.resource import Resource


async def find_resource(client: Client, api_version: str, kind: str) -> Resource[Document]:
    """Return the resource of a kind.

    Args:
        client: API server that is asked.
        api_version: `v1` or `<group>/<version>`.
        kind: as in an object.

    Raises:
        NotFound: the API server has no such group, version or kind.
    """
    group, _, version = api_version.rpartition("/")
    path = f"/apis/{group}/{version}" if group else f"/api/{version}"
    try:
        listed = json.loads(await client.get_raw(path))
        for entry in listed["resources"]:
            if entry["kind"] == kind and "/" not in entry["name"]:
                return Resource(group, version, entry["name"], kind, namespaced=entry["namespaced"], model=Document)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidResponse("answer is not a list of kinds", path=path) from error
    raise NotFound("api server does not know this kind", status=404, apiVersion=api_version, kind=kind)
