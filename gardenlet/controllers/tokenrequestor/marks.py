"""What a requestor notes in a Secret that asks: when its token is due, and for which wish it was issued; pure.

The second mark is ours: by it a changed wish is seen at once, and our own write is told from somebody else's (contract core 9; W38).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from agents.kube.models import Secret
from gardenlet.controllers.tokenrequestor.renewal import format_time, parse_time

ASKED = "agents.gardener.cloud/token-asked-for"


def fingerprint(asked: Mapping[str, str]) -> str:
    """Return a digest of what is asked for."""
    return hashlib.sha256(json.dumps(dict(asked), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Marks:
    """The annotations that a requestor writes.

    Attributes:
        renewal: when the token is to be renewed; whoever wants that now takes it away.
        asked: digest of the wish.
    """

    renewal: str
    asked: str = ASKED

    def of(self, due: datetime, digest: str) -> Mapping[str, str]:
        """Return the annotations for a token."""
        return {self.renewal: format_time(due), self.asked: digest}

    def without(self, annotations: Mapping[str, str]) -> dict[str, str]:
        """Return annotations without those that we write."""
        return {key: value for key, value in annotations.items() if key not in (self.renewal, self.asked)}

    def due(self, annotations: Mapping[str, str], digest: str) -> datetime | None:
        """Return when the token is to be renewed; None if there is none, or if it is for another wish.

        Raises:
            InvalidSecret: what is there is no time.
        """
        text = annotations.get(self.renewal)
        if not text or annotations.get(self.asked) != digest:
            return None
        return parse_time(text, self.renewal)

    def changed(self, old: Secret | None, new: Secret | None, /) -> bool:
        """Accept a Secret that appears, or whose wish or content changed; what we wrote ourselves changes neither."""
        if old is None or new is None:
            return True
        before, after = old.metadata.annotations, new.metadata.annotations
        if self.without(before) != self.without(after):
            return True
        # Somebody took the token or its time away; a new time comes from us.
        return (bool(before.get(self.renewal)) and not after.get(self.renewal)) or (
            old.data != new.data and before.get(self.renewal) == after.get(self.renewal)
        )
