"""The story that `make demo-seed` tells: a seed is registered, beats, renews its certificate, and says the truth on `/healthz`.

Everything is seen from outside: objects in both API servers, and answers of the process. The only secret that is handed over is a
bootstrap token.
"""

import datetime as dt
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.lab import state
from tests.lab.api import wait_for
from tests.lab.errors import LabError
from tests.lab.garden.garden import Garden
from tests.lab.garden.gardenlet import SEED_SECRETS, Gardenlet
from tests.lab.garden.identity import bootstrap_token_id
from tests.lab.progress import Say, Stopwatch
from tests.lab.scenario import Row, table
from tests.lab.state import Ledger

BEAT_SECONDS = 2.2
"""Between two beats, at most."""
SLACK_SECONDS = 1.0
"""What looking takes."""
_POLL_SECONDS = 0.05


@dataclass(slots=True)
class Story:
    """One gardenlet's story; the chapters in order.

    Attributes:
        gardenlet: with a bootstrap token, not started.
        say: gets every line.
        garden_away: how long the garden is stopped, in seconds.
        rows: the closing table, as far as the story has come.
    """

    gardenlet: Gardenlet
    say: Say
    garden_away: float = 60.0
    rows: list[Row] = field(default_factory=list)

    def run(self) -> None:
        """Tell all of it."""
        self.join()
        self.go_on()

    def go_on(self) -> None:
        """Tell what comes after it has joined."""
        self.renew()
        self.stop_seed()
        self.stop_garden()
        self.kill()
        self.conclude()

    def join(self) -> None:
        """From a bootstrap token to heartbeats."""
        one, garden = self.gardenlet, self.gardenlet.garden
        one.start()
        self.say("gardenlet started; all it has is a bootstrap token")
        since = time.monotonic()
        left = {
            "/healthz is 200, before anything else": lambda: one.ask("/healthz")[0] == 200,
            "certificate requested": lambda: bool(self._requests()),
            "kubeconfig stored in the seed": lambda: one.stored() is not None,
            "Seed registered": lambda: one.seed() is not None,
            "namespace of the Seed": lambda: garden.api.find(f"/api/v1/namespaces/seed-{one.name}") is not None,
            "first heartbeat": lambda: one.renewed() is not None,
            "Seed is GardenletReady": lambda: self._condition() == "True",
            "bootstrap Secret and token are gone": lambda: not self._leftovers(),
        }
        self._watch(left, seconds=60)
        self._row("started until the first heartbeat", "yes", "yes" if one.renewed() else "no")
        self.say(f"joined in {time.monotonic() - since:.1f} s")
        self._row("certificates requested", "1", str(len(self._requests())))
        self._row("left of the bootstrap", "none", ", ".join(self._leftovers()) or "none")
        self._row("/healthz", "200", str(one.ask("/healthz")[0]))
        wait_for(
            lambda: self._condition("SeedSystemComponentsHealthy"), timeout=20, what="the condition of the components"
        )
        self._row(
            "components that nobody manages are said to be healthy",
            "False",
            self._condition("SeedSystemComponentsHealthy"),
        )
        operation = ((one.seed() or {}).get("status") or {}).get("lastOperation") or {}
        self._row("the Seed's operation", "Processing", str(operation.get("state")))

    def renew(self) -> None:
        """Ask for a new certificate, as an operator does."""
        one = self.gardenlet
        before, since = one.stored(), time.monotonic()
        beats = _Beats(one)
        with beats:
            one.ask_for_certificate()
            self.say("annotation gardener.cloud/operation=renew set on the Secret")
            wait_for(
                lambda: (one.stored() or {}).get("data") != (before or {}).get("data"),
                timeout=30,
                what="a new certificate",
            )
            took = time.monotonic() - since
            self.say(f"new certificate stored after {took:.1f} s")
            code = one.process.wait(timeout=20)
            last = one.renewed()
            one.start()
            self.say("gardenlet ended in order and was started again, as the kubelet does")
            self._beat_after(last)
        self._row("new certificate within 12 s", "yes", _within(took, 12))
        self._row("exit code of the renewal", "0", str(code))
        self._row("gap between beats below 10 s", "yes", _within(beats.longest(), 10))

    def stop_seed(self) -> None:
        """Stop the seed's API server, and start it again."""
        one, plane = self.gardenlet, self.gardenlet.garden.seed
        with self._restarting():
            plane.kill_apiserver()
            took = self._until(500)
            self.say(f"seed's API server stopped: /healthz is 500 after {took:.1f} s: {_reason(one)}")
            self._row("seed stopped: 500 within one beat", "yes", _within(took, BEAT_SECONDS + SLACK_SECONDS))
            plane.start_apiserver()
            took = self._until(200)
            self.say(f"seed's API server started: /healthz is 200 after {took:.1f} s")
            self._row("seed started: 200 within one beat", "yes", _within(took, BEAT_SECONDS + SLACK_SECONDS))

    def stop_garden(self) -> None:
        """Stop the garden's API server for a minute."""
        one, plane = self.gardenlet, self.gardenlet.garden.plane
        plane.kill_apiserver()
        took = self._until(500)
        self.say(f"garden stopped: /healthz is 500 after {took:.1f} s: {_reason(one)}")
        self._row("garden stopped: 500 within 3 s", "yes", _within(took, 3 + SLACK_SECONDS))
        pid = one.process.pid
        time.sleep(self.garden_away)
        plane.start_apiserver()
        took = self._until(200)
        self.say(f"garden started: /healthz is 200 after {took:.1f} s")
        self._row("garden started: 200 within 3 s", "yes", _within(took, 3 + SLACK_SECONDS))
        self._row(
            "process survived the outage",
            "yes",
            "yes" if one.process.poll() is None and one.process.pid == pid else "no",
        )

    def kill(self) -> None:
        """SIGKILL, and start it again as the same Pod."""
        one = self.gardenlet
        beats = _Beats(one)
        with beats:
            last = one.renewed()
            one.end(signal.SIGKILL)
            since = time.monotonic()
            one.start()
            self._beat_after(last)
            took = time.monotonic() - since
            self.say(f"killed and started again as the same Pod: next heartbeat after {took:.1f} s")
        self._row("gap between beats after a kill below 10 s", "yes", _within(beats.longest(), 10))

    def conclude(self) -> None:
        """Stop it in order, and look at what was refused and printed."""
        one = self.gardenlet
        self._row("exit code after SIGTERM", "0", str(one.end()))
        self._row("leader's lease after SIGTERM", "given back", "given back" if not one.leader() else one.leader())
        self._row("requests that garden or seed refused", "none", "; ".join(one.refused()[:3]) or "none")
        self._row("certificates requested in all", "2", str(len(self._requests()) + self._own_requests()))
        self._row("credentials in log and events", "none", ", ".join(one.credentials_printed()) or "none")

    # What is looked at.

    def _requests(self) -> list[str]:
        return self._csrs(f"system:bootstrap:{bootstrap_token_id(self.gardenlet.name)}")

    def _own_requests(self) -> int:
        return len(self._csrs(f"gardener.cloud:system:seed:{self.gardenlet.name}"))

    def _csrs(self, user: str) -> list[str]:
        found = self.gardenlet.garden.api.list("/apis/certificates.k8s.io/v1/certificatesigningrequests")
        return [one["metadata"]["name"] for one in found if one["spec"]["username"].startswith(user)]

    def _condition(self, kind: str = "GardenletReady") -> str:
        conditions = ((self.gardenlet.seed() or {}).get("status") or {}).get("conditions") or []
        return next((one["status"] for one in conditions if one["type"] == kind), "")

    def _leftovers(self) -> list[str]:
        one = self.gardenlet
        left = [
            suffix
            for suffix in ("bootstrap", "kubeconfig-pending")
            if one.garden.seed.admin.find(f"{SEED_SECRETS}/{one.name}-{suffix}")
        ]
        token = f"bootstrap-token-{bootstrap_token_id(one.name)}"
        return left + ([token] if one.garden.api.find(f"/api/v1/namespaces/kube-system/secrets/{token}") else [])

    def _until(self, status: int) -> float:
        """Wait until `/healthz` says so; returns the seconds that took."""
        since = time.monotonic()
        self.gardenlet.until(status, timeout=30)
        return time.monotonic() - since

    def _beat_after(self, before: str | None) -> None:
        wait_for(
            lambda: self.gardenlet.renewed() != before, timeout=60, what="the next heartbeat", interval=_POLL_SECONDS
        )

    @contextmanager
    def _restarting(self) -> Iterator[None]:
        """Start gardenlet again whenever it ends, as the kubelet does: without the seed it loses the leader's lease."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.2):
                if self.gardenlet.process.poll() is not None:
                    self.say(f"gardenlet ended with {self.gardenlet.process.returncode} and is started again")
                    self.gardenlet.start()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _watch(self, left: dict[str, Callable[[], bool]], *, seconds: float) -> None:
        until = time.monotonic() + seconds
        while left:
            for what in [what for what, holds in left.items() if holds()]:
                self.say(what)
                del left[what]
            if left and time.monotonic() > until:
                raise LabError(f"waited {seconds:g} s for: {', '.join(left)}\n{self.gardenlet.log[-4000:]}")
            time.sleep(_POLL_SECONDS)

    def _row(self, what: str, expected: str, seen: str) -> None:
        self.rows.append(Row(what, expected, seen))


class _Beats:
    """Watches the Lease from another thread."""

    def __init__(self, gardenlet: Gardenlet) -> None:
        self._gardenlet = gardenlet
        self._seen: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> None:
        self._look()
        self._thread.start()

    def __exit__(self, *_exception: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            self._look()

    def _look(self) -> None:
        renewed = self._gardenlet.renewed()
        if renewed and self._seen[-1:] != [renewed]:
            self._seen.append(renewed)

    def longest(self) -> float:
        """Return the longest time between two beats, in seconds."""
        times = [dt.datetime.fromisoformat(one) for one in self._seen]
        return max((after - before).total_seconds() for before, after in pairwise(times))


def _within(seconds: float, limit: float) -> str:
    return "yes" if seconds <= limit else f"no: {seconds:.1f} s"


def _reason(gardenlet: Gardenlet) -> str:
    lines = gardenlet.ask("/healthz?verbose")[1].splitlines()
    return next((line for line in lines if line.startswith("[-]")), "")


def run_demo(ledger: Ledger, *, say: Say) -> int:
    """Start garden and seed, tell the story, take both down; returns the exit code."""
    timed = Stopwatch(say)
    timed("Starting a garden and a seed (etcd and kube-apiserver each, authorizer, admission, controllers) ...")
    garden = Garden(ledger, say=say)
    ledger.create()
    state.claim(ledger)
    garden.up()
    try:
        with tempfile.TemporaryDirectory(prefix="gardenlet-") as folder:
            gardenlet = Gardenlet(garden, Path(folder), name="demo-seed")
            gardenlet.hand_token()
            story = Story(gardenlet, timed)
            try:
                story.run()
            except LabError as error:
                say(f"\nThe story ended early: {error}")
                return 1
            finally:
                gardenlet.close()
            say("\n" + table(story.rows) + "\n")
            good = all(row.holds for row in story.rows)
            say("Every row holds." if good else "Not every row holds.\n" + gardenlet.log[-4000:])
            return 0 if good else 1
    finally:
        garden.down()
