"""YAML as Gardener writes it."""

import json

import pytest

from agents.core.yamlio import YamlError, dump_json, load_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0644", 0o644),
        ("0o644", 0o644),
        ("-0644", -0o644),
        ("420", 420),
        ("0", 0),
        ("+5", 5),
        ("0x1F", 31),
        ("0b101", 5),
        ("1_000", 1000),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("2024-01-01", "2024-01-01"),
        ("2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z"),
        ("12:30:45", "12:30:45"),
        ("190:20", "190:20"),
        ("089", 89.0),
        ("true", True),
        ("null", None),
        ("'0644'", "0644"),
        ("1.34.4", "1.34.4"),
    ],
)
def test_scalars_resolve_as_gardener_means_them(text: str, value: object) -> None:
    """Contract 5.2: octal for `0…` and `0o…`, no timestamps, no sexagesimal numbers."""
    assert load_yaml(f"v: {text}".encode()) == {"v": value}


@pytest.mark.parametrize(
    "content",
    [b"a: [", b"\xff\xfe\xff", b"a: 1\na: 2", b"? [1, 2]\n: 3", b"a: !!python/object:os.system x", b"[" * 5000],
)
def test_bad_yaml_is_one_error_without_the_text(content: bytes) -> None:
    """Syntax, encoding, duplicate keys, odd keys, tags and deep nesting are a YamlError that quotes nothing."""
    with pytest.raises(YamlError) as caught:
        load_yaml(content)
    assert caught.value.__cause__ is None
    assert "os.system" not in str(caught.value) or "could not determine a constructor" in str(caught.value)


def test_merge_keys_and_json_are_read() -> None:
    """Anchors with merge keys work, and JSON is YAML."""
    assert load_yaml(b"a: &x {p: 1}\nb:\n  <<: *x\n  q: 2") == {"a": {"p": 1}, "b": {"p": 1, "q": 2}}
    assert load_yaml(b'{"a": [1, "0644", null, "\\u00e9"]}') == {"a": [1, "0644", None, "é"]}


def test_dump_is_stable_json_that_the_loader_reads_back() -> None:
    """State is JSON with sorted keys, and comes back as it went."""
    value = {"b": [1, 2.5, None, True], "a": {"text": "0644", "ü": "2024-01-01"}}
    assert dump_json(value) == dump_json(json.loads(dump_json(value)))
    assert dump_json(value).endswith(b"}\n")
    assert load_yaml(dump_json(value)) == value
