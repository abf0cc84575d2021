"""What Kubernetes accepts as a name, a label, an annotation and a selector; each check returns its problems, none if all is well.

Source: k8s.io/apimachinery/pkg/util/validation.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_NAME_PART = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LONGEST_LABEL, _LONGEST_SUBDOMAIN, _LONGEST_ANNOTATIONS = 63, 253, 256 * 1024
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def is_dns_label(text: str) -> bool:
    """Return whether a text is an RFC 1123 label."""
    return len(text) <= _LONGEST_LABEL and _LABEL.fullmatch(text) is not None


def is_dns_subdomain(text: str) -> bool:
    """Return whether a text is an RFC 1123 subdomain."""
    return len(text) <= _LONGEST_SUBDOMAIN and all(_LABEL.fullmatch(part) for part in text.split("."))


def is_qualified_name(text: str) -> bool:
    """Return whether a text is a label's or annotation's key: a name, with a DNS subdomain and a slash in front or without."""
    prefix, slash, name = text.rpartition("/")
    if slash and not is_dns_subdomain(prefix):
        return False
    return len(name) <= _LONGEST_LABEL and _NAME_PART.fullmatch(name) is not None


def is_label_value(text: str) -> bool:
    """Return whether a text is a label's value; the empty one is."""
    return not text or (len(text) <= _LONGEST_LABEL and _NAME_PART.fullmatch(text) is not None)


def label_problems(labels: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the problems of labels as `path: reason`."""
    for key, value in labels.items():
        if not is_qualified_name(key):
            yield f"{path}.{key}: not a qualified name"
        if not isinstance(value, str) or not is_label_value(value):
            yield f"{path}.{key}: not a valid label value"


def annotation_problems(annotations: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the problems of annotations as `path: reason`."""
    for key, value in annotations.items():
        if not is_qualified_name(key.lower()):
            yield f"{path}.{key}: not a qualified name"
        if not isinstance(value, str):
            yield f"{path}.{key}: must be a string"
    if sum(len(key) + len(str(value)) for key, value in annotations.items()) > _LONGEST_ANNOTATIONS:
        yield f"{path}: must have at most {_LONGEST_ANNOTATIONS} bytes"


def selector_problems(selector: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the problems of a LabelSelector as `path: reason`."""
    yield from label_problems(selector.get("matchLabels") or {}, f"{path}.matchLabels")
    for index, expression in enumerate(selector.get("matchExpressions") or ()):
        where = f"{path}.matchExpressions[{index}]"
        operator, values = expression.get("operator"), expression.get("values") or []
        if not is_qualified_name(str(expression.get("key") or "")):
            yield f"{where}.key: not a qualified name"
        if operator not in _OPERATORS:
            yield f"{where}.operator: must be one of {', '.join(_OPERATORS)}"
        elif operator in ("In", "NotIn") and not values:
            yield f"{where}.values: required for {operator}"
        elif operator in ("Exists", "DoesNotExist") and values:
            yield f"{where}.values: must be empty for {operator}"
        for number, value in enumerate(values):
            if not isinstance(value, str) or not is_label_value(value):
                yield f"{where}.values[{number}]: not a valid label value"
