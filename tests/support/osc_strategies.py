"""Hypothesis strategies for valid OperatingSystemConfigs whose names and paths meet often.

Pools are small on purpose: files that are another OSC's folder, OSC files in the place of another OSC's unit file or
drop-in, files of other hosts, units split over spec and status.
"""

import base64
from collections.abc import Mapping

from hypothesis import strategies as st

from osc.codec import Decoded, decode_document
from osc.types import OWN_UNIT, UNIT_DIRECTORY
from osc.validation import validate

HOSTNAME = "host-1"
OWN_UNITS = ("u1.service", "u2.service")
"""Units that the OSC brings."""
VENDOR_UNITS = ("os-1.service", "os-2.service")
"""Units of the operating system: the OSC never has content for them."""
DROP_INS = ("10.conf", "20.conf")
PATHS = (
    "/a",
    "/a/b",
    "/a/b/c",
    "/etc/x",
    "/etc/y",
    "/var/lib/gardener-node-agent/config.yaml",
    f"{UNIT_DIRECTORY}/u1.service",
    f"{UNIT_DIRECTORY}/u2.service.d/20.conf",
    f"{UNIT_DIRECTORY}/os-1.service.d/file.conf",
)

_contents = st.sampled_from(["", "one", "two", "ü\u0085\n"])


@st.composite
def _inlines(draw: st.DrawFn) -> dict[str, object]:
    text = draw(_contents)
    if draw(st.booleans()):
        return {"encoding": "b64", "data": base64.b64encode(text.encode()).decode()}
    return {"encoding": "", "data": text}


@st.composite
def _files(draw: st.DrawFn) -> dict[str, object]:
    file: dict[str, object] = {"path": draw(st.sampled_from(PATHS)), "content": {"inline": draw(_inlines())}}
    if (permissions := draw(st.sampled_from([None, 0o644, 0o755]))) is not None:
        file["permissions"] = permissions
    if (host := draw(st.sampled_from([None, None, None, HOSTNAME, "host-2"]))) is not None:
        file["hostName"] = host
    return file


def _optional(draw: st.DrawFn, unit: dict[str, object], key: str, values: list[object]) -> None:
    if (value := draw(st.sampled_from([None, *values]))) is not None:
        unit[key] = value


@st.composite
def _units(draw: st.DrawFn, paths: tuple[str, ...], *, extension: bool) -> dict[str, object]:
    name = draw(st.sampled_from((*OWN_UNITS, *VENDOR_UNITS, OWN_UNIT)))
    unit: dict[str, object] = {"name": name}
    if name not in VENDOR_UNITS and not (extension and draw(st.booleans())):
        unit["content"] = draw(_contents)
    _optional(draw, unit, "enable", [True, False])
    _optional(draw, unit, "command", ["start", "restart", "stop"])
    names = draw(st.lists(st.sampled_from(DROP_INS), max_size=3))
    unit["dropIns"] = [{"name": drop_in, "content": draw(_contents)} for drop_in in names]
    if paths:
        unit["filePaths"] = draw(st.lists(st.sampled_from(paths), max_size=2))
    return unit


def _is_valid(document: Mapping[str, object]) -> bool:
    return not validate(decode_document(document).config)


@st.composite
def operating_system_configs(draw: st.DrawFn) -> Decoded:
    """A valid OSC: entries that would make it invalid are left out one by one."""
    spec: dict[str, list[object]] = {"files": [], "units": []}
    status: dict[str, list[object]] = {"extensionFiles": [], "extensionUnits": []}
    document: dict[str, object] = {"metadata": {"creationTimestamp": None}, "spec": spec, "status": status}

    def add(place: list[object], item: object) -> None:
        place.append(item)
        if not _is_valid(document):
            place.pop()

    for file in draw(st.lists(_files(), max_size=5)):
        add(draw(st.sampled_from([spec["files"], status["extensionFiles"]])), file)
    config = decode_document(document).config
    mine = [file.path for file in (*config.spec.files, *config.status.extension_files) if file.host_name != "host-2"]
    for unit in draw(st.lists(_units(tuple(mine), extension=False), max_size=4)):
        add(spec["units"], unit)
    known = {unit["name"] for unit in spec["units"] if isinstance(unit, dict)}
    for unit in draw(st.lists(_units(tuple(mine), extension=True), max_size=2)):
        if "content" in unit or unit["name"] in known or unit["name"] in VENDOR_UNITS:
            add(status["extensionUnits"], unit)
    return decode_document(document)
