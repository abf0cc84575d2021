"""From the Secret's data to an OSC, and back into state files."""

import hashlib

import brotli
import pytest

from agents.core.yamlio import load_yaml
from osc.codec import (
    MAX_OSC_BYTES,
    InvalidContent,
    checksum,
    decode,
    decode_document,
    decode_file_content,
    dump_state,
    effective_data,
    load_state,
    payload,
)
from osc.errors import InvalidOSC, MissingPayload
from osc.types import Inline


def problems(content: bytes) -> list[str]:
    """Decode and return what is wrong, as text."""
    with pytest.raises(InvalidOSC) as caught:
        decode(content)
    return [str(problem) for problem in caught.value.problems]


def test_payload_prefers_the_plain_key() -> None:
    """Contract 5.1: `osc.yaml` wins; only without it is `osc.yaml.br` decompressed; missing both is an error."""
    compressed = brotli.compress(b"compressed")
    assert payload({"osc.yaml": b"plain", "osc.yaml.br": compressed}) == b"plain"
    assert payload({"osc.yaml.br": compressed, "other": b""}) == b"compressed"
    with pytest.raises(MissingPayload, match=r"data: neither osc\.yaml nor osc\.yaml\.br is present"):
        payload({"other": b""})


def test_effective_data_is_the_key_that_counts() -> None:
    """Contract 5.1: change detection compares whichever key is effective."""
    assert effective_data({"osc.yaml": b"1", "osc.yaml.br": b"2"}) == b"1"
    assert effective_data({"osc.yaml.br": b"2"}) == b"2"
    assert effective_data({}) is None


@pytest.mark.parametrize("size", [0, 1, 65_536, 1_000_000, 16 * 1024 * 1024])
def test_brotli_of_any_allowed_size_is_decompressed(size: int) -> None:
    """Contract 5.1: up to 16 MiB come out as they went in."""
    content = b"x" * size
    assert payload({"osc.yaml.br": brotli.compress(content, quality=1)}) == content


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (brotli.compress(b"x" * (16 * 1024 * 1024 + 1), quality=1), "more than 16777216 bytes"),
        (brotli.compress(b"x" * 100_000)[:-3], "cut off"),
        (b"", "cut off"),
        (b"not brotli", "not a brotli stream"),
    ],
)
def test_broken_or_too_large_brotli_is_refused(data: bytes, message: str) -> None:
    """Contract 5.1: the output is capped at 16 MiB; a stream that is cut off or none is an error."""
    with pytest.raises(InvalidOSC, match=message):
        payload({"osc.yaml.br": data})


def test_checksum_of_the_annotation_or_of_the_data() -> None:
    """Contract 9 W11: a missing or empty annotation is computed; one that differs is reported all the same."""
    digest = hashlib.sha256(b"data").hexdigest()
    for annotations in ({}, {"checksum/data-script": ""}, {"checksum/data-script": digest}):
        assert (checksum(annotations, b"data").value, checksum(annotations, b"data").matches) == (digest, True)
    other = checksum({"checksum/data-script": "opaque"}, b"data")
    assert (other.value, other.matches) == ("opaque", False)


def test_decode_keeps_the_document_and_fills_in_the_type() -> None:
    """Contract 5.2: unknown fields are ignored and survive; apiVersion and kind are filled in where they are missing."""
    decoded = decode(b"spec:\n  newer: [1, 2.5, null, true]\n  files: null\n  units: [{name: a, later: {}}]\n")
    assert decoded.document == {
        "apiVersion": "extensions.gardener.cloud/v1alpha1",
        "kind": "OperatingSystemConfig",
        "spec": {"newer": [1, 2.5, None, True], "files": None, "units": [{"name": "a", "later": {}}]},
    }
    assert [unit.name for unit in decoded.config.spec.units] == ["a"]
    assert decoded.config.spec.files == ()
    assert decode(b"kind: ''\napiVersion: ''\n").document["kind"] == "OperatingSystemConfig"


def test_decode_reads_yaml_as_gardener_writes_it() -> None:
    """Contract 5.2: `0644` and `0o644` are octal, and strings that look like times or dates stay strings."""
    files = decode(
        b"""spec: {files: [
          {path: /a, permissions: 0644}, {path: /b, permissions: 0o755}, {path: 2024-01-01, permissions: 420}, {path: '12:30'}]}"""
    ).config.spec.files
    assert [file.permissions for file in files] == [0o644, 0o755, 420, None]
    assert [file.path for file in files] == ["/a", "/b", "2024-01-01", "12:30"]


def test_decode_refuses_another_type() -> None:
    """Contract 5.2: another kind or apiVersion is an error, each with its path."""
    assert problems(b"kind: Worker\napiVersion: v2\n") == [
        "apiVersion: must be extensions.gardener.cloud/v1alpha1",
        "kind: must be OperatingSystemConfig",
    ]


def test_decode_reports_all_wrong_types_with_their_paths() -> None:
    """Contract 5.4: a field of a wrong type is reported with its JSON path and without its value."""
    found = problems(
        b"spec: {files: [{path: 1}, {path: /a, permissions: '0644'}, {permissions: -1}, {permissions: 4294967296}],"
        b" units: [{name: secret, enable: 'yes-secret', dropIns: [{name: []}]}, null]}"
    )
    assert [line.split(": ")[0] for line in found] == [
        "spec.units[0].enable",
        "spec.units[0].dropIns[0].name",
        "spec.units[1]",
        "spec.files[0].path",
        "spec.files[1].permissions",
        "spec.files[2].permissions",
        "spec.files[3].permissions",
    ]
    assert "secret" not in " ".join(found)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"spec: [", "not valid YAML"),
        (b"\xff\xfe", "not valid YAML"),
        (b"- a", "not a mapping"),
        (b"", "not a mapping"),
        (b"a: 1\na: 2", "not valid YAML"),
        (b"1: a", "a key is not a string"),
        (b"spec: {x: !!binary aGk=}", "spec.x: has no form in JSON"),
        (b"spec: {x: .nan}", "spec.x: not a finite number"),
        (b"spec: {x: [.inf]}", "spec.x[0]: not a finite number"),
        (b"x: &a [*a]", "recursive"),
        (b"x: " + b"[" * 120 + b"]" * 120, "nested too deeply"),
        (b"x" * (16 * 1024 * 1024 + 1), "larger than 16777216 bytes"),
    ],
)
def test_decode_refuses_what_is_no_document(content: bytes, message: str) -> None:
    """Issue section 5: an OSC that does not parse, or is above 16 MiB, is refused with the reason."""
    assert message in problems(content)[0]


def test_decode_refuses_aliases_that_expand_beyond_the_limit() -> None:
    """Issue section 5: a few lines of aliases cannot stand for more than the size limit."""
    lines = [b"a0: &a0 xxxxxxxxxx"]
    lines += [b"a%d: &a%d [%s]" % (n, n, b",".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 10)]
    assert "aliases expand" in problems(b"\n".join(lines))[0]


def test_decode_accepts_aliases_of_a_sane_size() -> None:
    """Contract 5.2: aliases as such are fine."""
    decoded = decode(
        b"x: &x {data: abc}\nspec: {files: [{path: /a, content: {inline: *x}}, {path: /b, content: {inline: *x}}]}"
    )
    assert [decode_file_content(file.content.inline or Inline()) for file in decoded.config.spec.files] == [b"abc"] * 2


def test_decode_document_refuses_what_is_no_mapping() -> None:
    """Contract 5.2: a state file that holds something else than a mapping is no OSC."""
    with pytest.raises(InvalidOSC, match="not a mapping"):
        decode_document([])


def test_file_content_plain_and_base64() -> None:
    """Contract 6.5: encoding empty is plain, `b64` is standard base64, in which Go skips line breaks."""
    assert decode_file_content(Inline(data="ü\n")) == b"\xc3\xbc\n"
    assert decode_file_content(Inline(encoding="b64", data="aGVs\r\nbG8=\n")) == b"hello"
    assert decode_file_content(Inline(encoding="b64", data="")) == b""


@pytest.mark.parametrize(
    "inline",
    [
        Inline(encoding="b64", data="aGVsbG8"),
        Inline(encoding="b64", data="aGVs bG8="),
        Inline(encoding="b64", data="aGVs!bG8="),
        Inline(encoding="b64", data="a-_="),
        Inline(encoding="b64", data="ü"),
        Inline(encoding="base64", data="aGVsbG8="),
        Inline(encoding="gzip", data=""),
        Inline(data="\ud800"),
    ],
)
def test_file_content_of_other_form_is_refused(inline: Inline) -> None:
    """Contract 6.5: any other encoding and anything that is not strict base64 is an error."""
    with pytest.raises(InvalidContent):
        decode_file_content(inline)


def test_state_reads_the_same_as_json_and_as_yaml() -> None:
    """Contract 6.4: what we write is JSON that a YAML reader takes for the same value, whatever the strings hold."""
    text = "".join(map(chr, [*range(0x100), 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF, 0x1F600]))
    value = {"a": f" {text} \n x", "b": [0, -1, 0.5, None, True], "c": {}}
    content = dump_state(value)
    assert load_state(content) == value
    assert load_yaml(content) == value


def test_state_of_another_agent_is_read_as_yaml() -> None:
    """Contract 6.4: state written as YAML by the Go agent is readable."""
    assert load_state(b"a: 0644\nb:\n- c\n") == {"a": 0o644, "b": ["c"]}


def test_size_limit_is_that_of_the_contract() -> None:
    """Contract 5.1: the cap is 16 MiB."""
    assert MAX_OSC_BYTES == 16_777_216
