"""Rules of the Seed that a configuration describes, as far as they can be known before the garden is asked.

The spec goes into the garden as it stands; what is parsed here is a copy with the fields that have rules. In a template the provider's type
and region and the ingress may be missing, as a ManagedSeed fills them in. Of the settings, what concerns the vertical pod autoscaler
and referenced resources is left to the garden.

Source: gardener pkg/api/core/validation/seed.go (contract core 2.1).
"""

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from pydantic import Field, ValidationError

from agents.core.config import json_path
from agents.kube.names import annotation_problems, is_dns_subdomain, is_qualified_name, label_problems
from agents.kube.quantity import InvalidQuantity, parse_quantity
from gardenlet.config_model import GardenletModel

Network = IPv4Network | IPv6Network

FAMILIES = {"IPv4": 4, "IPv6": 6}
RESERVED = tuple(ip_network(f"{first}.0.0.0/8") for first in range(240, 245))
"""Ranges that addresses of several shoots are mapped to where their networks overlap."""
LARGEST_SERVICE_PREFIX = 8
POLICIES = ("Cluster", "Local")
SELECTION_MODES = ("Enforce", "Prefer")
INGRESS_KINDS = ("nginx",)
CREDENTIALS = (("v1", "Secret"), ("security.gardener.cloud/v1alpha1", "WorkloadIdentity"))


class _Provider(GardenletModel):
    type: str = ""
    region: str = ""
    zones: tuple[str, ...] = Field(default=(), strict=False)


class _ShootNetworks(GardenletModel):
    pods: str | None = None
    services: str | None = None


class _Networks(GardenletModel):
    ip_families: tuple[str, ...] = Field(default=(), strict=False)
    pods: str = ""
    services: str = ""
    nodes: str | None = None
    shoot_defaults: _ShootNetworks = _ShootNetworks()


class _CredentialsRef(GardenletModel):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""


class _Backup(GardenletModel):
    provider: str = ""
    region: str = ""
    credentials_ref: _CredentialsRef | None = None


class _Taint(GardenletModel):
    key: str = ""
    value: str | None = None


class _VolumeProvider(GardenletModel):
    purpose: str = ""
    name: str = ""


class _Volume(GardenletModel):
    minimum_size: str | int | float | None = None
    providers: tuple[_VolumeProvider, ...] = Field(default=(), strict=False)


class _ZoneSettings(GardenletModel):
    name: str = ""
    annotations: dict[str, str] = Field(default_factory=dict)
    external_traffic_policy: str | None = None


class _LoadBalancers(_ZoneSettings):
    class_: str | None = Field(default=None, alias="class")
    zones: tuple[_ZoneSettings, ...] = Field(default=(), strict=False)


class _ZoneSelection(GardenletModel):
    mode: str = ""


class _TopologyAwareRouting(GardenletModel):
    enabled: bool = False


class _Settings(GardenletModel):
    load_balancer_services: _LoadBalancers | None = None
    zone_selection: _ZoneSelection | None = None
    topology_aware_routing: _TopologyAwareRouting = _TopologyAwareRouting()


class _IngressController(GardenletModel):
    kind: str = ""


class _Ingress(GardenletModel):
    domain: str = ""
    controller: _IngressController = _IngressController()


class _DnsProvider(GardenletModel):
    type: str = ""
    domain: str = ""
    credentials_ref: _CredentialsRef | None = None


class _Dns(GardenletModel):
    provider: _DnsProvider | None = None
    internal: _DnsProvider | None = None
    defaults: tuple[_DnsProvider, ...] = Field(default=(), strict=False)


class _Spec(GardenletModel):
    provider: _Provider = _Provider()
    networks: _Networks = _Networks()
    backup: _Backup | None = None
    taints: tuple[_Taint, ...] = Field(default=(), strict=False)
    volume: _Volume = _Volume()
    settings: _Settings = _Settings()
    ingress: _Ingress | None = None
    dns: _Dns = _Dns()


def ip_families(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the IP families of a seed's networks: as configured, else of its networks, in that order (ours: W32).

    For our own use: what is derived is not written to the Seed.
    """
    networks = spec.get("networks") or {}
    if configured := networks.get("ipFamilies"):
        return tuple(configured)
    found: dict[str, None] = {}
    for key in ("nodes", "pods", "services"):
        network = _parsed(networks.get(key) or "")
        if network is not None:
            found[f"IPv{network.version}"] = None
    return tuple(found) or ("IPv4",)


def validate_seed_template(template: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield every problem of a template as `json.path: reason`."""
    metadata = template.get("metadata") or {}
    yield from label_problems(metadata.get("labels") or {}, f"{path}.metadata.labels")
    yield from annotation_problems(metadata.get("annotations") or {}, f"{path}.metadata.annotations")
    path = f"{path}.spec"
    try:
        spec = _Spec.model_validate(template.get("spec") or {})
    except ValidationError as error:
        for problem in error.errors(include_input=False):
            yield f"{path}.{json_path(problem['loc'])}: {problem['msg']}"
        return
    yield from _duplicates(f"{path}.provider.zones", spec.provider.zones)
    yield from _networks(spec.networks, f"{path}.networks")
    yield from _backup(spec.backup, spec.provider.type, f"{path}.backup")
    yield from _taints(spec.taints, f"{path}.taints")
    yield from _volume(spec.volume, f"{path}.volume")
    yield from _settings(spec.settings, spec.provider.zones, f"{path}.settings")
    yield from _ingress(spec, path)
    yield from _dns(spec.dns, f"{path}.dns")


def validate_seed_template_update(new: Mapping[str, Any], old: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield every change of a template that a Seed could not follow."""
    path = f"{path}.spec"
    spec, before = _Spec.model_validate(new.get("spec") or {}), _Spec.model_validate(old.get("spec") or {})
    pairs: list[tuple[str, object, object]] = [
        ("networks.ipFamilies", spec.networks.ip_families, before.networks.ip_families),
        ("networks.pods", spec.networks.pods, before.networks.pods),
        ("networks.services", spec.networks.services, before.networks.services),
    ]
    if before.networks.nodes is not None:
        pairs.append(("networks.nodes", spec.networks.nodes, before.networks.nodes))
    if before.ingress is not None and spec.ingress is not None:
        pairs.append(("ingress.domain", spec.ingress.domain, before.ingress.domain))
    if before.backup is not None:
        if spec.backup is None:
            pairs.append(("backup", None, before.backup))
        else:
            pairs.append(("backup.provider", spec.backup.provider, before.backup.provider))
            pairs.append(("backup.region", spec.backup.region, before.backup.region))
    for name, now, then in pairs:
        if now != then:
            yield f"{path}.{name}: must not be changed"
    if before.dns.defaults and not spec.dns.defaults:
        yield f"{path}.dns.defaults: must not be removed"


def _networks(networks: _Networks, path: str) -> Iterator[str]:
    if problems := list(_families(networks.ip_families, f"{path}.ipFamilies")):
        yield from problems
        return
    texts = {
        "pods": networks.pods or None,
        "services": networks.services or None,
        "nodes": networks.nodes,
        "shootDefaults.pods": networks.shoot_defaults.pods,
        "shootDefaults.services": networks.shoot_defaults.services,
    }
    family = FAMILIES[networks.ip_families[0]] if networks.ip_families else 4
    both = len(networks.ip_families) == 2
    found: dict[str, Network] = {}
    problems = []
    for name, text in texts.items():
        if text is None:
            continue
        network = _parsed(text)
        if network is None:
            problems.append(f"{path}.{name}: not a network such as 10.0.0.0/16")
        elif network.version != family and not both:
            problems.append(f"{path}.{name}: must be of the IP family IPv{family}")
        else:
            found[name] = network
    service = found.get("services")
    if service is not None and service.version == 4 and service.prefixlen < LARGEST_SERVICE_PREFIX:
        problems.append(f"{path}.services: must not be larger than /{LARGEST_SERVICE_PREFIX}")
    yield from problems
    if not problems:
        yield from _overlaps(found, path)


def _families(families: Sequence[str], path: str) -> Iterator[str]:
    yield from _duplicates(path, families)
    for index, family in enumerate(families):
        if family not in FAMILIES:
            yield f"{path}[{index}]: must be one of {', '.join(FAMILIES)}"


def _overlaps(networks: Mapping[str, Network], path: str) -> Iterator[str]:
    """A seed's networks are apart from each other, and from a shoot's where addresses cannot be mapped (IPv6)."""
    names = list(networks)
    for index, name in enumerate(names):
        for other in names[index + 1 :]:
            shoots = [name.startswith("shootDefaults"), other.startswith("shootDefaults")]
            mapped = shoots[0] != shoots[1] and networks[other].version == 4
            if not mapped and networks[name].overlaps(networks[other]):
                yield f"{path}.{other}: must not overlap with {name}"
    for name, network in networks.items():
        for reserved in RESERVED:
            if network.overlaps(reserved):
                yield f"{path}.{name}: must not overlap with the reserved range {reserved}"


def _backup(backup: _Backup | None, provider: str, path: str) -> Iterator[str]:
    if backup is None:
        return
    yield from _required(f"{path}.provider", backup.provider)
    if backup.provider != provider and not backup.region:
        yield f"{path}.region: required when the provider is not the seed's"
    yield from _credentials(backup.credentials_ref, f"{path}.credentialsRef")


def _taints(taints: Sequence[_Taint], path: str) -> Iterator[str]:
    for index, taint in enumerate(taints):
        yield from _required(f"{path}[{index}].key", taint.key)
    yield from _duplicates(
        path, [taint.key if taint.value is None else f"{taint.key}={taint.value}" for taint in taints]
    )


def _volume(volume: _Volume, path: str) -> Iterator[str]:
    if volume.minimum_size is not None:
        try:
            if parse_quantity(volume.minimum_size) < 0:
                yield f"{path}.minimumSize: must not be negative"
        except InvalidQuantity as error:
            yield f"{path}.minimumSize: {error.message}"
    for index, provider in enumerate(volume.providers):
        yield from _required(f"{path}.providers[{index}].purpose", provider.purpose)
        yield from _required(f"{path}.providers[{index}].name", provider.name)
    yield from _duplicates(f"{path}.providers", [provider.purpose for provider in volume.providers], ".purpose")


def _settings(settings: _Settings, zones: Sequence[str], path: str) -> Iterator[str]:
    if settings.load_balancer_services is not None:
        yield from _load_balancers(settings.load_balancer_services, zones, f"{path}.loadBalancerServices")
    if settings.zone_selection is not None:
        if not zones:
            yield f"{path}.zoneSelection: only with provider.zones"
        if settings.zone_selection.mode not in SELECTION_MODES:
            yield f"{path}.zoneSelection.mode: must be one of {', '.join(SELECTION_MODES)}"
    if settings.topology_aware_routing.enabled and len(zones) < 2:
        yield f"{path}.topologyAwareRouting.enabled: only with at least two zones in provider.zones"


def _load_balancers(services: _LoadBalancers, zones: Sequence[str], path: str) -> Iterator[str]:
    yield from _zone_settings(services, path)
    if services.class_ is not None and not is_qualified_name(services.class_):
        yield f"{path}.class: not a qualified name"
    if services.zones and len(zones) < 2:
        yield f"{path}.zones: only with at least two zones in provider.zones"
    for index, zone in enumerate(services.zones):
        if zone.name not in zones:
            yield f"{path}.zones[{index}].name: not one of provider.zones"
        yield from _zone_settings(zone, f"{path}.zones[{index}]")
    yield from _duplicates(f"{path}.zones", [zone.name for zone in services.zones], ".name")


def _zone_settings(settings: _ZoneSettings, path: str) -> Iterator[str]:
    yield from annotation_problems(settings.annotations, f"{path}.annotations")
    policy = settings.external_traffic_policy
    if policy is not None and policy not in POLICIES:
        yield f"{path}.externalTrafficPolicy: must be one of {', '.join(POLICIES)}"


def _ingress(spec: _Spec, path: str) -> Iterator[str]:
    if spec.ingress is None:
        return
    yield from _domain(f"{path}.ingress.domain", spec.ingress.domain)
    if spec.ingress.controller.kind not in INGRESS_KINDS:
        yield f"{path}.ingress.controller.kind: must be one of {', '.join(INGRESS_KINDS)}"
    if spec.dns.provider is None:
        yield f"{path}.dns.provider: required when there is an ingress"


def _dns(dns: _Dns, path: str) -> Iterator[str]:
    if dns.provider is not None:
        yield from _required(f"{path}.provider.type", dns.provider.type)
        yield from _credentials(dns.provider.credentials_ref, f"{path}.provider.credentialsRef")
    if dns.internal is None:
        yield f"{path}.internal: required"
    else:
        yield from _dns_provider(dns.internal, f"{path}.internal")
    for index, default in enumerate(dns.defaults):
        yield from _dns_provider(default, f"{path}.defaults[{index}]")
    yield from _duplicates(f"{path}.defaults", [default.domain for default in dns.defaults], ".domain")


def _dns_provider(provider: _DnsProvider, path: str) -> Iterator[str]:
    yield from _domain(f"{path}.domain", provider.domain)
    yield from _required(f"{path}.type", provider.type)
    yield from _credentials(provider.credentials_ref, f"{path}.credentialsRef")


def _credentials(reference: _CredentialsRef | None, path: str) -> Iterator[str]:
    if reference is None:
        yield f"{path}: required"
        return
    yield from _required(f"{path}.name", reference.name)
    yield from _required(f"{path}.namespace", reference.namespace)
    if (reference.api_version, reference.kind) not in CREDENTIALS:
        yield f"{path}: must be a v1 Secret or a security.gardener.cloud/v1alpha1 WorkloadIdentity"


def _required(path: str, value: str) -> Iterator[str]:
    if not value:
        yield f"{path}: required"


def _domain(path: str, value: str) -> Iterator[str]:
    if not value:
        yield f"{path}: required"
    elif not is_dns_subdomain(value):
        yield f"{path}: not a DNS-1123 subdomain"


def _duplicates(path: str, values: Sequence[str], field: str = "") -> Iterator[str]:
    for index, value in enumerate(values):
        if value in values[:index]:
            yield f"{path}[{index}]{field}: used twice"


def _parsed(text: str) -> Network | None:
    """Return a network, None if the text is none; like in Go, bits behind the prefix do no harm."""
    if "/" not in text:
        return None
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None
