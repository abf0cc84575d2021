"""All problems of an OSC, each with its path, before anything is touched."""

import pytest

from osc.codec import decode_document
from osc.validation import validate


def problems(document: dict[str, object], **arguments: object) -> list[str]:
    """Validate a document and return the problems as text."""
    return [str(problem) for problem in validate(decode_document(document).config, **arguments)]  # type: ignore[arg-type]


def with_files(*files: dict[str, object], **arguments: object) -> list[str]:
    """Validate an OSC that has just these files."""
    filled = [{"content": {"inline": {"data": "x"}}, **file} for file in files]
    return problems({"spec": {"files": filled}}, **arguments)


def with_units(*units: dict[str, object]) -> list[str]:
    """Validate an OSC that has just these units."""
    return problems({"spec": {"units": list(units)}})


def test_valid_osc_has_no_problems() -> None:
    """Contract 5.4: what gardenlet renders is accepted, also the agent's own unit, config file and cluster CA."""
    base = "/var/lib/gardener-node-agent"
    assert not problems(
        {
            "spec": {
                "criConfig": {"name": "containerd"},
                "files": [
                    {"path": f"{base}/config-v1.yaml", "content": {"inline": {"data": "x"}}},
                    {"path": f"{base}/cluster-ca.crt", "content": {"secretRef": {"name": "s", "dataKey": "k"}}},
                    {"path": "/etc/x", "hostName": "a", "content": {"inline": {"encoding": "b64", "data": "eA=="}}},
                    {"path": "/etc/x", "hostName": "b", "content": {"inline": {}}},
                ],
                "units": [
                    {"name": "gardener-node-agent.service", "content": "x", "filePaths": [f"{base}/cluster-ca.crt"]},
                    {"name": "x" * 253, "dropIns": [{"name": "y" * 255, "content": "z"}]},
                    {"name": "x" * 255, "content": "z"},
                ],
            },
            "status": {
                "extensionUnits": [{"name": "gardener-node-agent.service", "dropIns": [{"name": "no-suffix"}]}],
                "extensionFiles": [{"path": "/etc/y", "content": {"inline": {"data": "x"}}}],
            },
        }
    )


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "must be an absolute path"),
        ("etc/x", "must be an absolute path"),
        ("/", "must be a clean path"),
        ("/etc//x", "must be a clean path"),
        ("/etc/./x", "must be a clean path"),
        ("/etc/../x", "must be a clean path"),
        ("/etc/x/", "must be a clean path"),
        ("/etc/a\0b", "contains a NUL byte"),
        ("/etc/" + "ü" * 128, "has a part of more than 255 bytes"),
        ("/x" * 2048, "is longer than 4095 bytes"),
    ],
)
def test_file_paths_are_absolute_and_clean(path: str, message: str) -> None:
    """Contract 5.4, W7: absolute, clean file paths of a length that a file system takes."""
    found = with_files({"path": "/ok"}, {"path": path})
    assert [line for line in found if line.startswith("spec.files[1].path: ") and message in line]


@pytest.mark.parametrize(
    "path",
    [
        "/state/credentials",
        "/state/credentials/kubeconfig",
        "/state/last-applied-osc.yaml",
        "/state/.last-applied-osc.yaml.tmp",
        "/state/last-computed-osc-changes.yaml",
        "/state/tmp/x",
        "/state/own",
        "/run/own/x",
    ],
)
def test_state_of_the_agent_is_not_the_oscs_to_write(path: str) -> None:
    """Issue section 5: a path of the agent's own state is refused, its temporary name too."""
    arguments = {"state_directory": "/state", "own_state": ["/state/own", "/run/own/"]}
    assert with_files({"path": path}, **arguments) == ["spec.files[0].path: belongs to the agent's own state"]


def test_folder_of_the_agents_state_is_not_the_oscs_to_replace() -> None:
    """Issue section 5: neither is a path that is a folder of the agent's state; its config file and CA are."""
    arguments = {"state_directory": "/var/state"}
    found = with_files({"path": "/var"}, **arguments)
    assert set(found) == {"spec.files[0].path: is a folder of the agent's own state"}
    assert not with_files({"path": "/var/state/config.yaml"}, {"path": "/var/state/cluster-ca.crt"}, **arguments)
    assert not with_files({"path": "/var/state/credentials-of-others"}, **arguments)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "content: must have exactly one of"),
        ({"inline": {"data": "x"}, "secretRef": {"name": "a", "dataKey": "b"}}, "content: must have exactly one of"),
        ({"inline": {"encoding": "gzip", "data": "x"}}, "content.inline.encoding: must be empty or b64"),
        ({"inline": {"encoding": "b64", "data": "?"}}, "content.inline.data: not valid base64"),
        ({"inline": {"data": "x" * (8 * 1024 * 1024 + 1)}}, "content.inline.data: decodes to more than 8388608 bytes"),
        ({"secretRef": {"name": "", "dataKey": "b"}}, "content.secretRef.name: must not be empty"),
        ({"secretRef": {"name": "a"}}, "content.secretRef.dataKey: must not be empty"),
    ],
)
def test_exactly_one_readable_content(content: dict[str, object], message: str) -> None:
    """Contract 5.4: encoding and mutually exclusive content; issue section 5: a file above 8 MiB is refused."""
    found = with_files({"path": "/a", "content": content})
    assert any(f"spec.files[0].{message}" in line for line in found)


def test_host_name_without_nul() -> None:
    """Issue section 5: NUL bytes are refused wherever a name is."""
    assert with_files({"path": "/a", "hostName": "a\0"}) == ["spec.files[0].hostName: contains a NUL byte"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "must not be empty"),
        (".", "must not be '.' or '..'"),
        ("..", "must not be '.' or '..'"),
        ("a/b", "must not contain a slash"),
        ("a\0", "contains a NUL byte"),
        ("x" * 256, "is longer than 255 bytes"),
    ],
)
def test_unit_and_drop_in_names_are_one_part_of_a_path(name: str, message: str) -> None:
    """Contract 5.4, W7: unit and drop-in names are non-empty, without `/`, not `.` or `..`, at most 255 bytes."""
    assert f"spec.units[0].name: {message}" in with_units({"name": name})
    found = with_units({"name": "a"}, {"name": "u", "dropIns": [{"name": "ok"}, {"name": name}]})
    assert found == [f"spec.units[1].dropIns[1].name: {message}"]


def test_unit_name_is_short_enough_for_its_drop_in_directory() -> None:
    """Contract 5.4: with drop-ins the name and its `.d` have to fit."""
    found = with_units({"name": "x" * 254, "dropIns": [{"name": "d"}]})
    assert found == ["spec.units[0].name: is longer than 255 bytes with the '.d' of its drop-ins"]


def test_units_have_a_size_limit_too() -> None:
    """Issue section 5: the limit for a file holds for unit files and drop-ins."""
    big = "x" * (8 * 1024 * 1024 + 1)
    assert with_units({"name": "a", "content": big, "dropIns": [{"name": "d", "content": big}]}) == [
        "spec.units[0].content: is longer than 8388608 bytes",
        "spec.units[0].dropIns[0].content: is longer than 8388608 bytes",
    ]


def test_file_paths_may_name_files_of_the_operating_system() -> None:
    """Contract 5.4: filePaths are compared with the OSC's files and never become paths to write, so any is accepted."""
    assert not with_units({"name": "u", "filePaths": ["/etc/ssl/certs/ca-certificates.crt", ""]})


def test_one_path_needs_distinct_host_names() -> None:
    """Contract 5.4: a path may occur more than once only if every occurrence has a host name of its own."""
    assert not with_files({"path": "/a", "hostName": "x"}, {"path": "/a", "hostName": "y"})
    assert with_files({"path": "/a"}, {"path": "/a"}) == [
        "spec.files[0].path: is also the path of spec.files[1], and not every one has a hostName of its own",
        "spec.files[1].path: is also the path of spec.files[0], and not every one has a hostName of its own",
    ]
    third = with_files(
        {"path": "/a", "hostName": "x"}, {"path": "/a", "hostName": "y"}, {"path": "/a", "hostName": "y"}
    )
    assert third == ["spec.files[2].path: is also the path of spec.files[1] for the same host"]


def test_no_path_is_another_ones_folder() -> None:
    """Issue section 5: a path that is another one's folder is refused, unless the two never meet on one host."""
    assert with_files({"path": "/a"}, {"path": "/a/b/c"}) == ["spec.files[0].path: is the folder of /a/b/c"]
    assert with_files({"path": "/a", "hostName": "x"}, {"path": "/a/b"}) == [
        "spec.files[0].path: is the folder of /a/b"
    ]
    assert with_files({"path": "/a", "hostName": "x"}, {"path": "/a/b", "hostName": "x"})
    assert not with_files({"path": "/a", "hostName": "x"}, {"path": "/a/b", "hostName": "y"})
    assert not with_files({"path": "/a"}, {"path": "/ab"})


def test_files_and_units_do_not_write_the_same_path() -> None:
    """Issue section 5: two entries for one path, also where one is a file and the other a unit or drop-in."""
    content = {"inline": {"data": "x"}}
    folder = "/etc/systemd/system"
    document: dict[str, object] = {
        "spec": {
            "files": [
                {"path": f"{folder}/a.service", "content": content},
                {"path": f"{folder}/b.service.d/x", "content": content},
                {"path": f"{folder}/c.service.d", "content": content},
                {"path": f"{folder}/d.service/x", "content": content},
                {"path": f"{folder}/os.service", "content": content},
            ],
            "units": [
                {"name": "a.service", "content": ""},
                {"name": "b.service", "dropIns": [{"name": "x"}]},
                {"name": "c.service", "dropIns": [{"name": "x"}]},
                {"name": "d.service", "content": ""},
                {"name": "os.service"},
                {"name": "b.service.d", "content": ""},
            ],
        },
    }
    assert sorted(problems(document)) == [
        "spec.files[0].path: is written by spec.units[0] too",
        "spec.files[1].path: is written by spec.units[1] too",
        f"spec.files[2].path: is the folder of {folder}/c.service.d/x",
        f"spec.units[3]: writes {folder}/d.service, which is the folder of {folder}/d.service/x",
        f"spec.units[5]: writes {folder}/b.service.d, which is the folder of {folder}/b.service.d/x",
    ]


def test_two_units_do_not_write_the_same_path() -> None:
    """Issue section 5: a unit whose name is another one's drop-in path is a second entry for that path."""
    found = problems({"spec": {"units": [{"name": "a", "dropIns": [{"name": "x"}]}, {"name": "a.d/x", "content": ""}]}})
    assert "spec.units[1]: writes /etc/systemd/system/a.d/x, as spec.units[0] does" in found


def test_no_path_is_another_ones_temporary_file() -> None:
    """Issue section 5: the temporary file beside a target is the agent's."""
    assert with_files({"path": "/etc/x"}, {"path": "/etc/.x.tmp"}) == [
        "spec.files[1].path: is the temporary file of /etc/x"
    ]


def registry(**fields: object) -> dict[str, object]:
    """Return an OSC with one registry."""
    section = {"sandboxImage": "p", "registries": [fields]}
    return {"spec": {"criConfig": {"name": "containerd", "containerd": section}}}


@pytest.mark.parametrize("upstream", ["", ".", "..", "a/b", "/etc", "a" * 300])
def test_w07_an_upstream_that_is_no_plain_name_is_refused(upstream: str) -> None:
    """Contract 9 W7, 5.4: an upstream becomes the name of a directory that is removed one day."""
    assert any("registries[0].upstream" in line for line in problems(registry(upstream=upstream)))


@pytest.mark.parametrize("url", ["", "docker.io", "ftp://a", "https://", "https://a b", "http://[::1", "https://a:x"])
def test_w34_a_malformed_url_of_a_registry_is_refused_at_once(url: str) -> None:
    """Contract 9 W34: not retried until a deadline."""
    found = problems(registry(upstream="a", server=url or "x", hosts=[{"url": url}]))
    assert any("registries[0].hosts[0].url" in line for line in found)


@pytest.mark.parametrize("upstream", ["_default", "docker.io", "registry.local:5000"])
def test_a_good_registry_is_accepted(upstream: str) -> None:
    """Contract 5.4: a host with or without port, or the default for all."""
    host = {"url": "https://mirror:5000/v2", "capabilities": ["pull"], "caCerts": ["ca.crt"], "overridePath": True}
    assert problems(registry(upstream=upstream, server="https://docker.io", hosts=[host])) == []


def test_a_registry_twice_is_refused() -> None:
    """Contract 5.4: upstreams are unique; both would write one file."""
    document = registry(upstream="a")
    document["spec"]["criConfig"]["containerd"]["registries"] *= 2  # type: ignore[index]
    assert any("also the upstream" in line for line in problems(document))


@pytest.mark.parametrize(
    ("plugin", "field"),
    [
        ({"op": "replace", "path": ["a"]}, "op"),
        ({"path": []}, "path"),
        ({"path": ["a", ""]}, "path"),
        ({"op": "remove", "path": ["a"], "values": {}}, "values"),
        ({"path": ["a"], "values": "text"}, "values"),
    ],
)
def test_a_bad_plugin_is_refused(plugin: dict[str, object], field: str) -> None:
    """Contract 5.4: operation, path and values of a plugin."""
    section = {"sandboxImage": "p", "plugins": [plugin]}
    found = problems({"spec": {"criConfig": {"name": "containerd", "containerd": section}}})
    assert [line.split(":")[0] for line in found] == [f"spec.criConfig.containerd.plugins[0].{field}"]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"n": 2**63}, "n"),
        ({"n": -(2**63) - 1}, "n"),
        ({"a": {"l": [1, {"n": 2**70}]}}, "a.l[1].n"),
        ({"l": [[0], [2**70]]}, "l[1][0]"),
        ({"n": 2**63 - 1, "m": -(2**63), "yes": True, "f": 1e300, "none": None}, None),
    ],
)
def test_integers_of_a_plugin_fit_into_toml(values: dict[str, object], field: str | None) -> None:
    """Contract 6.14: TOML has integers of 64 bits; a longer one, also deep inside, is refused with its path before containerd's file is touched."""
    section = {"sandboxImage": "p", "plugins": [{"path": ["a"], "values": values}]}
    found = problems({"spec": {"criConfig": {"name": "containerd", "containerd": section}}})
    where = f"spec.criConfig.containerd.plugins[0].values.{field}: must be an integer of 64 bits with a sign"
    assert found == ([] if field is None else [where])


@pytest.mark.parametrize(
    ("image", "path"),
    [("", "/f"), ("--help", "/f"), ("a b", "/f"), ("i", ""), ("i", "/"), ("i", "/../etc/shadow"), ("i", "a/../../b")],
)
def test_w08_a_path_out_of_the_image_is_refused(image: str, path: str) -> None:
    """Contract 9 W8: no way up in the path, and no image name that `ctr` would take for an option."""
    content = {"imageRef": {"image": image, "filePathInImage": path}}
    assert problems({"spec": {"files": [{"path": "/a", "content": content}]}})


def test_versions_of_an_update_in_place_must_be_versions() -> None:
    """Contract 6.13: what cannot be compared is said before anything is changed."""
    document: dict[str, object] = {"spec": {"inPlaceUpdates": {"operatingSystemVersion": "new", "kubelet": "1.34.4"}}}
    assert problems(document) == ["spec.inPlaceUpdates.operatingSystemVersion: must be a version"]
    document = {"spec": {"inPlaceUpdates": {"operatingSystemVersion": "9" * 5000, "kubelet": "1.34.4"}}}
    assert problems(document) == ["spec.inPlaceUpdates.operatingSystemVersion: must be a version"]


def test_no_nul_is_given_to_the_command_of_an_update() -> None:
    """Contract 6.13: no program can be started with it: said with its path before the machine is drained for nothing."""
    where = "status.inPlaceUpdates.osUpdate"
    update = {"command": "a\0b", "args": ["fine", "c\0d"]}
    document: dict[str, object] = {"status": {"inPlaceUpdates": {"osUpdate": update}}}
    assert problems(document) == [f"{where}.command: contains a NUL byte", f"{where}.args[1]: contains a NUL byte"]


def test_all_problems_are_reported_at_once() -> None:
    """Contract 5.4: validation does not stop at the first problem."""
    document: dict[str, object] = {
        "spec": {"files": [{"path": "a"}, {"path": "/b/"}], "units": [{"name": ""}]},
        "status": {"extensionFiles": [{"path": "/../c"}], "extensionUnits": [{"name": "/", "dropIns": [{}]}]},
    }
    places = {line.split(":")[0] for line in problems(document)}
    assert places == {
        "spec.files[0].path",
        "spec.files[0].content",
        "spec.files[1].path",
        "spec.files[1].content",
        "status.extensionFiles[0].path",
        "status.extensionFiles[0].content",
        "spec.units[0].name",
        "status.extensionUnits[0].name",
        "status.extensionUnits[0].dropIns[0].name",
    }
