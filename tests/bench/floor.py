"""What an OSC change costs where no agent takes any time: the same calls to systemd and the API server, one after another."""

import asyncio
import statistics
import time

from agents.core import logging
from systemd.manager import SystemdUnitManager
from tests.support.worker import Worker, service

_BUS = "/run/dbus/system_bus_socket"
_UNIT_DIRECTORY = "/etc/systemd/system"


def floor_seconds(worker: Worker, data: bytes, *, units: int, repetitions: int) -> float:
    """Return the median time of what no agent can leave out.

    That is: a patch of a Secret, enable, daemon-reload, the restart of the units at the same time, and a patch of the
    Node. Units and Secret are others than the agent's, which is idle; the lab's credentials need no authorizer.

    Args:
        worker: whose systemd and Node.
        data: what the Secret holds; the last bytes change.
        units: how many.
        repetitions: of all that.
    """
    logging.configure("error", "json")
    return asyncio.run(_floor(worker, data, [f"floor-{index}.service" for index in range(units)], repetitions))


async def _floor(worker: Worker, data: bytes, names: list[str], repetitions: int) -> float:
    machine, api, times = worker.machine, worker.lab.api, []
    manager = SystemdUnitManager(address=f"unix:path={machine.path(_BUS)}")
    try:
        with api.one_connection():
            for version in range(repetitions + 1):  # the first one connects, and makes what the others change
                for name in names:
                    machine.write(f"{_UNIT_DIRECTORY}/{name}", service(f"version {version}").encode())
                started = time.monotonic()
                worker.lab.publish_osc_bytes(data + b"\n" * version, pool="floor", secret_name="floor")
                await manager.enable(names)
                await manager.reload()
                async with asyncio.TaskGroup() as group:
                    for name in names:
                        group.create_task(manager.restart(name))
                annotations = {"bench/floor": str(version)}
                api.patch(f"/api/v1/nodes/{machine.name}", {"metadata": {"annotations": annotations}})
                times.append(time.monotonic() - started)
    finally:
        await manager.close()
        for name in names:
            machine.systemctl("disable", "--now", name)
            machine.run(["rm", f"{_UNIT_DIRECTORY}/{name}"])
        machine.systemctl("daemon-reload")
    return statistics.median(times[1:])
