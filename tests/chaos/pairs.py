"""Two random OSCs one after the other while something fails; the end must be what the second one alone would have made."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import strategies as st

from tests.chaos.campaign import Case
from tests.chaos.interruption import agent_pid, converge, wait_ready
from tests.chaos.random_moments import LONGEST_APPLY_SECONDS
from tests.chaos.recipes import harmless, recipes, sample
from tests.chaos.twin import TwinCampaign, World
from tests.lab.errors import LabError
from tests.lab.machine import Machine

_FIRST_SECONDS = 25.0


class Faults:
    """What can fail, each for some seconds; the subject suffers, and with the lab's parts the reference does as well."""

    def __init__(self, world: World, machine: Machine, pid: Callable[[], int]) -> None:
        self._lab, self._machine, self._pid = world.lab, machine, pid
        self.kinds: Mapping[str, Callable[[float], None]] = {
            "nothing": lambda _: None,
            "agent killed": self._kill,
            "bus killed": lambda _: self._run("systemctl", "kill", "--signal=KILL", "dbus.service"),
            "systemd executed again": lambda _: self._run("systemctl", "daemon-reexec"),
            "containerd killed": lambda _: self._run("systemctl", "kill", "--signal=KILL", "containerd.service"),
            "containerd frozen": self._freeze_containerd,
            "registry frozen": self._freeze_registry,
            "registry refuses": self._stop_registry,
            "API server restarted": self._restart_api,
            "API server frozen": self._freeze_api,
            "authorizer down": lambda seconds: self._during(self._lab.counterparts.down(), seconds),
            "everything forbidden": lambda seconds: self._during(self._lab.counterparts.denying(), seconds),
            "connections half open": self._half_open,
            "network cut": self._cut_network,
            "power cut": self._cut_power,
        }

    def _run(self, *argv: str) -> None:
        self._machine.run(argv, check=False)

    def _kill(self, _seconds: float) -> None:
        try:
            self._machine.kill(self._pid())
        except (LabError, OSError):
            return  # it is down at the moment

    def _freeze_containerd(self, seconds: float) -> None:
        self._run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", "containerd.service")
        time.sleep(seconds)
        self._run("systemctl", "kill", "--kill-whom=main", "--signal=CONT", "containerd.service")

    def _freeze_registry(self, seconds: float) -> None:
        registry = self._lab.registry()
        registry.freeze()
        time.sleep(seconds)
        registry.thaw()

    def _stop_registry(self, seconds: float) -> None:
        self._lab.registry().stop()
        time.sleep(seconds)
        self._lab.registry()

    def _restart_api(self, seconds: float) -> None:
        self._lab.control_plane.kill_apiserver()
        time.sleep(seconds)
        self._lab.control_plane.start_apiserver()

    def _freeze_api(self, seconds: float) -> None:
        self._lab.control_plane.freeze_apiserver()
        time.sleep(seconds)
        self._lab.control_plane.thaw_apiserver()

    def _during(self, fault: AbstractContextManager[None], seconds: float) -> None:
        with fault:
            time.sleep(seconds)

    def _half_open(self, seconds: float) -> None:
        self._machine.drop_established(6443)
        time.sleep(seconds)
        self._machine.restore_network()

    def _cut_network(self, seconds: float) -> None:
        self._machine.cut_network()
        time.sleep(seconds)
        self._machine.restore_network()

    def _cut_power(self, _seconds: float) -> None:
        self._machine.kill_power()
        self._machine.boot(units_may_fail=True)


class Pairs(TwinCampaign):
    """Random pairs with random faults."""

    name = "pairs of OSCs"

    def __init__(self, world: World, *, seed: int, number: int, scratch: Path) -> None:
        super().__init__(world, seed=seed, scratch=scratch)
        self._number = number
        self._seen: dict[str, int] = {}

    @property
    def notes(self) -> str:
        """Which faults there were."""
        return ", ".join(f"{kind} {number}" for kind, number in sorted(self._seen.items()))

    def cases(self) -> Iterator[Case]:
        """Yield them; each fault comes about as often as the others."""
        rng = Random(self._seed + 2)
        drawn = sample(st.tuples(recipes(), recipes()), self._number, self._seed + 2)
        kinds = list(Faults(self._world, self._twin.subject.machine, lambda: 0).kinds)
        order = [kind for _ in range(self._number // len(kinds) + 1) for kind in rng.sample(kinds, len(kinds))]
        for (first, second), fault in zip(drawn, order, strict=False):
            values: dict[str, Any] = {
                "first": first,
                "second": harmless(second),
                "fault": fault,
                "seconds": round(rng.uniform(1, 4), 2),
                "moments": [round(rng.uniform(0, LONGEST_APPLY_SECONDS), 3) for _ in range(2)],
                "superseded": rng.random() < 0.5,
            }
            yield Case(self.name, self._seed, values)

    def run(self, case: Case) -> list[str]:
        """Apply the first and the second OSC with the fault during each; the reference gets the second alone."""
        values, twin = case.values, self._twin
        subject = twin.subject
        problems = twin.restore()
        wait_ready(subject)
        self._seen[values["fault"]] = self._seen.get(values["fault"], 0) + 1
        faults = Faults(self._world, subject.machine, lambda: agent_pid(subject))
        with _Fault(faults.kinds[values["fault"]], values["moments"][0], values["seconds"]):
            checksum = twin.publish(subject, values["first"])
            if values["superseded"]:
                time.sleep(values["moments"][1])
            elif not any(unit.get("fails") for unit in values["first"]["units"].values()):
                converge(subject, checksum)
            else:
                _settle(subject.applied, checksum)
        with _Fault(faults.kinds[values["fault"]], values["moments"][1], values["seconds"]):
            twin.publish(subject, values["second"])
            twin.publish(twin.reference, values["second"])
        return problems + twin.compare(values["second"])


def _settle(applied: Callable[[], str | None], checksum: str) -> None:
    """Give an OSC with a unit that fails some time: it cannot be applied to its end, unless that unit is to be stopped."""
    end = time.monotonic() + _FIRST_SECONDS / 5
    while time.monotonic() < end and applied() != checksum:
        time.sleep(0.2)


class _Fault:
    """A fault that begins a moment after its block did, and is over before the block is."""

    def __init__(self, act: Callable[[float], None], delay: float, seconds: float) -> None:
        self._errors: list[BaseException] = []

        def later() -> None:
            time.sleep(delay)
            try:
                act(seconds)
            except BaseException as error:  # noqa: BLE001 - told to who waits
                self._errors.append(error)

        self._thread = threading.Thread(target=later)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_exception: object) -> None:
        self._thread.join()
        if self._errors:
            raise self._errors[0]
