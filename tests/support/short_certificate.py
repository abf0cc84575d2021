"""Gives a worker's agent a client certificate that does not last long, signed by the lab's CA."""

import base64
from datetime import datetime, timedelta

import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.lab.worker_osc import AGENT_FOLDER, AGENT_UNIT
from tests.support.worker import Worker

_KUBECONFIG = f"{AGENT_FOLDER}/credentials/kubeconfig"


def give_certificate(worker: Worker, *, left: timedelta, lifetime: timedelta) -> None:
    """Have the agent start again with a certificate of the same name.

    Args:
        worker: a worker that has joined.
        left: for how long it is valid from now on.
        lifetime: how long it is valid in all; renewal is due after 80 to 88 % of that.
    """
    machine = worker.machine
    document = yaml.safe_load(machine.read(_KUBECONFIG))
    user = document["users"][0]["user"]
    machine.systemctl("stop", AGENT_UNIT)
    subject = x509.load_pem_x509_certificate(base64.b64decode(user["client-certificate-data"])).subject
    (name,) = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    groups = [str(one.value) for one in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    pair = worker.lab.control_plane.issue_client_certificate(
        str(name.value), groups, validity=left, age=lifetime - left
    )
    certificate, key = (base64.b64encode(pem).decode() for pem in pair)
    user.update({"client-certificate-data": certificate, "client-key-data": key})
    machine.write(_KUBECONFIG, yaml.safe_dump(document).encode(), 0o600)
    worker.start_agent()


def expiry(worker: Worker) -> datetime:
    """Return until when the certificate is valid that the agent has stored."""
    kubeconfig = yaml.safe_load(worker.machine.read(_KUBECONFIG))
    pem = base64.b64decode(kubeconfig["users"][0]["user"]["client-certificate-data"])
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc
