"""Are the static pods of the OSC running, in the version that it brought?

Until they are, the OSC does not count as applied. Source: gardener pkg/gardenadm/staticpod/translator.go,
pkg/utils/kubernetes/health/pod.go (contract 6.12).
"""

from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from agents.core.yamlio import YamlError, load_yaml
from agents.kube.client import Client, Selector
from agents.kube.models import PODS, Node, Pod, find_condition
from osc.codec import InvalidContent, decode_file_content
from osc.errors import InvalidOSC, Problem
from osc.merge import Effective
from osc.types import File

MANIFESTS = "/etc/kubernetes/manifests/"
"""With the slash at the end: a neighbour that begins like it is another folder (W46)."""
STATIC_POD_LABEL = "static-pod"
MIRROR_ANNOTATION = "gardener.cloud/config.mirror"
_DONE_PHASES = ("Running", "Succeeded")


def desired(effective: Effective) -> Mapping[str, str]:
    """Return what identifies the version of each static pod, by the pod's name.

    Raises:
        InvalidOSC: a manifest is no Pod.
    """
    pods: dict[str, str] = {}
    problems: list[Problem] = []
    for file in effective.files:
        if not file.path.startswith(MANIFESTS) or file.content.inline is None:
            continue
        try:
            pod = _decode(file)
        except ValueError as error:
            problems.append(Problem(f"file {file.path}", str(error)))
            continue
        pods[pod.metadata.name] = pod.metadata.annotations.get(MIRROR_ANNOTATION, "")
    if problems:
        raise InvalidOSC(problems)
    return pods


def _decode(file: File) -> Pod:
    inline = file.content.inline
    if inline is None:  # pragma: no cover - the caller looked
        raise ValueError("has no content")
    try:
        document = load_yaml(decode_file_content(inline))
    except (YamlError, InvalidContent):
        raise ValueError("is a static pod's manifest that is no YAML") from None
    if not isinstance(document, Mapping) or (document.get("apiVersion"), document.get("kind")) != ("v1", "Pod"):
        raise ValueError("is a static pod's manifest that is no Pod of v1")
    try:
        pod = Pod.model_validate(document)
    except ValidationError:
        raise ValueError("is a static pod's manifest with fields of a wrong type") from None
    if not pod.metadata.name:
        raise ValueError("is a static pod's manifest without a name")
    return pod


async def missing(client: Client, node: Node, wanted: Mapping[str, str]) -> list[str]:
    """Return why the static pods are not what the OSC wants, empty if they are; without any, nobody is asked."""
    if not wanted:
        return []
    selector = Selector(label=f"{STATIC_POD_LABEL}=true", field=f"spec.nodeName={node.metadata.name}")
    pods = {
        pod.metadata.name.removesuffix(f"-{node.metadata.name}"): pod
        for pod in (await client.list(PODS, selector=selector)).items
    }
    return list(_differences(wanted, pods))


def _differences(wanted: Mapping[str, str], pods: Mapping[str, Pod]) -> Iterator[str]:
    for name, version in wanted.items():
        pod = pods.get(name)
        if pod is None:
            yield f"static pod {name} is not there"
        elif pod.metadata.annotations.get(MIRROR_ANNOTATION, "") != version:
            yield f"static pod {name} is of another version"
        elif problem := _health(pod):
            yield f"static pod {name} {problem}"
    yield from (f"static pod {name} should not be there" for name in pods if name not in wanted)


def _health(pod: Pod) -> str:
    if pod.status.phase not in _DONE_PHASES:
        return f"is {pod.status.phase or 'in no phase'}"
    ready = find_condition(pod.status.conditions, "Ready")
    return "" if ready is not None and ready.status == "True" else "is not ready"
