"""What an API server warns about in its answers, for example that a kind is deprecated: each text once in the log.

Source: gardener cmd/utils/warnings.go; the header is that of RFC 7234, 5.5, with code 299 as Kubernetes sends it.
"""

import re
from collections.abc import Iterator, Sequence

from agents.core.logging import get_logger
from agents.kube.errors import MAX_TEXT

log = get_logger(__name__)

MOST_TEXTS = 256
"""So many distinct texts are said: a text may name an object, and there is no end to those."""

_CODE = "299"
_VALUE = re.compile(r'(\d{3}) (\S+) "((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class Warnings:
    """Says each warning once in the life of a process.

    Args:
        cluster: whose answers these are, for the log.
    """

    def __init__(self, *, cluster: str) -> None:
        self._cluster = cluster
        self._said: set[str] = set()

    def note(self, headers: Sequence[str], *, method: str, path: str) -> None:
        """Take the `Warning` headers of one answer."""
        for text in _texts(headers):
            if text in self._said or len(self._said) >= MOST_TEXTS:
                continue
            self._said.add(text)
            log.info("Warning of the API server", cluster=self._cluster, warning=text, method=method, path=path)


def _texts(headers: Sequence[str]) -> Iterator[str]:
    for header in headers:
        for code, _agent, quoted in _VALUE.findall(header):
            if code == _CODE and quoted:
                yield _ESCAPED.sub(r"\1", quoted)[:MAX_TEXT]
