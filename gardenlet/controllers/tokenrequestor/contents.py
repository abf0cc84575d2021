"""What a Secret holds once it has a token: the token itself, or a kubeconfig with it; pure.

Source: gardener pkg/controller/tokenrequestor/reconciler.go (contract core 9.1).
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from agents.core.yamlio import YamlError, dump_json, load_yaml
from gardenlet.controllers.tokenrequestor.renewal import InvalidSecret

TOKEN, BUNDLE, KUBECONFIG = "token", "bundle.crt", "kubeconfig"
KEYS = (TOKEN, BUNDLE, KUBECONFIG)


def held(data: Mapping[str, bytes]) -> tuple[str, bytes]:
    """Return token and CA bundle that a Secret holds, empty without them.

    Raises:
        InvalidSecret: its kubeconfig cannot be read.
    """
    if content := data.get(KUBECONFIG):
        document = _document(content)
        cluster, user = _current(document)
        bundle = str(cluster.get("certificate-authority-data") or "")
        try:
            return str(user.get("token") or ""), base64.b64decode(bundle, validate=True)
        except binascii.Error as error:
            raise InvalidSecret("kubeconfig's CA is not base64") from error
    return data.get(TOKEN, b"").decode(errors="replace"), data.get(BUNDLE, b"")


def with_token(data: Mapping[str, bytes], token: str, bundle: bytes | None) -> dict[str, bytes]:
    """Return the data of a Secret with another token, and another CA if one is given.

    Raises:
        InvalidSecret: its kubeconfig cannot be read.
    """
    if content := data.get(KUBECONFIG):
        document = _document(content)
        cluster, user = _current(document)
        user["token"] = token
        if bundle is not None:
            cluster["certificate-authority-data"] = base64.b64encode(bundle).decode()
        return {**data, KUBECONFIG: dump_json(document)}
    return {**data, TOKEN: token.encode(), **({} if bundle is None else {BUNDLE: bundle})}


def without_token(data: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the data of a Secret whose token is kept elsewhere."""
    return {key: value for key, value in data.items() if key not in KEYS}


def _document(content: bytes) -> dict[str, Any]:
    try:
        document = load_yaml(content)
    except YamlError as error:
        raise InvalidSecret("kubeconfig is not valid YAML") from error
    if not isinstance(document, dict):
        raise InvalidSecret("kubeconfig is empty")
    return document


def _current(document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return cluster and user of the current context, as they stand in the document."""
    context = _entry(document, "contexts", "context", document.get("current-context"))
    return (
        _entry(document, "clusters", "cluster", context.get("cluster")),
        _entry(document, "users", "user", context.get("user")),
    )


def _entry(document: Mapping[str, Any], section: str, key: str, name: object) -> dict[str, Any]:
    for entry in document.get(section) or ():
        if isinstance(entry, dict) and entry.get("name") == name:
            value = entry.setdefault(key, {})
            if isinstance(value, dict):
                return value
    raise InvalidSecret("kubeconfig lacks an entry that it refers to", section=section)
