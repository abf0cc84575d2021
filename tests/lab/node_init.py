"""`gardener-node-init.service` and its script: what user data has run until the node agent is on a machine (contract 8.1).

The behaviour is Gardener's, with the part for a registry whose CA nobody knows, as the lab's is; the text is ours. That the image stays
mounted is part of it: the script becomes the agent, so nobody unmounts behind it (W21), and cleaning up is the agent's.
"""

import base64
from typing import Any

from tests.lab.worker_osc import AGENT_BINARY, AGENT_FOLDER, CLUSTER_CA_FILE

INIT_SCRIPT = f"{AGENT_FOLDER}/init.sh"
CA_UPDATE_SCRIPT = "/var/lib/ssl/update-local-ca-certificates.sh"
LOCAL_AUTHORITIES = "/var/lib/ca-certificates-local"
REGISTRY_CA_CONFIG_MAP = "registry-ca-bundle"
"""In `kube-system`; bootstrapping machines may read it."""
REGISTRY_CA_KEY = "bundle.crt"
_TOKEN_FILE = f"{AGENT_FOLDER}/credentials/bootstrap-token"


def init_unit() -> str:
    """Return the unit. It only wants containerd: the script restarts that, and would end with it."""
    return f"""\
[Unit]
Description=Brings the Gardener node agent to this machine
After=containerd.service network-online.target
Wants=containerd.service network-online.target
StartLimitIntervalSec=0

[Service]
Type=oneshot
Restart=on-failure
RestartSec=5
EnvironmentFile=/etc/environment
ExecStart={INIT_SCRIPT}
StandardOutput=journal+console
StandardError=journal+console

[Install]
WantedBy=multi-user.target
"""


def init_script(*, image: str, server: str) -> str:
    """Return the script; every step can be repeated, and systemd repeats all of them when one fails.

    Args:
        image: of the node agent, with digest.
        server: URL of the API server.
    """
    return rf"""#!/bin/bash
set -o errexit -o nounset -o pipefail

image_dir="$(mktemp -d)"
leave() {{
  ctr images unmount --rm "$image_dir" > /dev/null 2>&1 || true
  rm -rf -- "$image_dir"
}}
trap leave EXIT

echo "Asking for the registry's CA"
bundle="$(curl --silent --show-error --fail --max-time 30 --cacert {CLUSTER_CA_FILE} \
  --header @<(printf 'Authorization: Bearer %s' "$(cat {_TOKEN_FILE})") \
  {server}/api/v1/namespaces/kube-system/configmaps/{REGISTRY_CA_CONFIG_MAP} |
  sed --quiet 's/.*"{REGISTRY_CA_KEY}": *"\([^"]*\)".*/\1/p' | base64 --decode)"
if [[ -n "$bundle" ]]; then
  mkdir -p {LOCAL_AUTHORITIES} /etc/pki/trust/anchors
  tee {LOCAL_AUTHORITIES}/registry-ca.crt <<< "$bundle" > /etc/pki/trust/anchors/registry-ca.pem
  {CA_UPDATE_SCRIPT}
  systemctl restart containerd.service
fi

echo "Pulling {image}"
options=(--hosts-dir /etc/containerd/certs.d)
version="$(ctr --version)"
version="${{version##* v}}"
version="${{version##* }}"
if (( ${{version%%.*}} > 1 )); then options+=(--skip-metadata); fi
ctr images pull "${{options[@]}}" {image} > /dev/null
ctr images mount {image} "$image_dir" > /dev/null

program="$image_dir/gardener-node-agent"
[[ -e "$program" ]] || program="$image_dir/ko-app/gardener-node-agent"
mkdir -p "$(dirname {AGENT_BINARY})"
cp --force "$program" {AGENT_BINARY}
chmod 0755 {AGENT_BINARY}
echo "{AGENT_BINARY} came out of the image, bootstrapping"
exec {AGENT_BINARY} bootstrap --config-dir={AGENT_FOLDER}
"""


def ca_update_script() -> str:
    """Return the script that has the operating system trust what is in the folder of local authorities."""
    return f"""\
#!/bin/bash
set -o errexit -o nounset -o pipefail
mkdir -p /usr/local/share/ca-certificates
cp {LOCAL_AUTHORITIES}/*.crt /usr/local/share/ca-certificates/
update-ca-certificates > /dev/null
"""


def registry_ca_objects(pem: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the ConfigMap with a registry's CA and the right to read it, as (collection, object)."""
    rbac, name = "rbac.authorization.k8s.io", REGISTRY_CA_CONFIG_MAP
    metadata = {"name": name, "namespace": "kube-system"}
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get"]}
    group = {"apiGroup": rbac, "kind": "Group", "name": "system:bootstrappers"}
    role = {"apiGroup": rbac, "kind": "Role", "name": name}
    data = {REGISTRY_CA_KEY: base64.b64encode(pem.encode()).decode()}
    return [
        ("/api/v1/namespaces/kube-system/configmaps", {"metadata": metadata, "data": data}),
        (f"/apis/{rbac}/v1/namespaces/kube-system/roles", {"metadata": metadata, "rules": [rule]}),
        (
            f"/apis/{rbac}/v1/namespaces/kube-system/rolebindings",
            {"metadata": metadata, "subjects": [group], "roleRef": role},
        ),
    ]
