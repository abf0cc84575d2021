"""The search for credentials finds each kind, says which, and does not repeat it."""

import base64

import pytest

from tests.lab.credentials import found_in, found_in_all
from tests.lab.pki import new_key, private_key_pem, public_key_pem
from tests.lab.tokens import new_token

pytest_plugins = ["pytester"]

PARTS = (b'{"alg":"RS256","kid":"1"}', b'{"iss":"https://somebody"}', b"signature")
TOKEN = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in PARTS)


@pytest.mark.parametrize("before", ["", "x", "xy", "xyz"])
def test_a_private_key(before: str) -> None:
    """PEM, PEM inside a quoted string, and Base64 of it, wherever in its groups of three bytes it begins."""
    pem = before + private_key_pem(new_key()).decode()
    assert found_in(f"key={pem}") == ["a private key"]
    assert found_in(f"key={pem!r}") == ["a private key"]
    assert found_in(base64.b64encode(pem.encode()).decode()) == ["a private key in Base64"]


def test_tokens() -> None:
    """A JWT, and what the lab handed out: as it is, and in Base64."""
    handed_out = new_token().partition(".")[2]
    assert found_in(f"Bearer {TOKEN}") == ["a token of a service account or workload"]
    assert found_in(base64.b64encode(TOKEN.encode()).decode()) == ["such a token in Base64"]
    assert found_in(f"token abcdef.{handed_out} refused") == ["a credential that the lab handed out"]
    assert found_in(base64.b64encode(handed_out.encode()).decode()) == ["a credential that the lab handed out"]


def test_what_is_no_credential() -> None:
    """A public key, a certificate's heading and the id of a bootstrap token may be printed; names of texts are said."""
    token = new_token()
    innocent = f"{public_key_pem(new_key()).decode()} -----BEGIN PRIVATE KEY----- bootstrap-token-{token[:6]}"
    assert found_in(innocent) == []
    assert found_in_all([("good", innocent), ("bad", token)]) == ["bad: a credential that the lab handed out"]


def test_a_test_that_prints_one_fails(pytester: pytest.Pytester) -> None:
    """A test that prints a credential has failed, and the report does not repeat it; one that prints another thing has not."""
    pytester.makeconftest("from tests.conftest import pytest_runtest_makereport")
    pytester.makepyfile(f"def test_bad():\n    print('{TOKEN}')\n\ndef test_good():\n    print('fine')")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio")
    result.assert_outcomes(passed=1, failed=1, errors=1)
    assert "a credential was printed" in result.stdout.str()
    assert TOKEN not in result.stdout.str()
