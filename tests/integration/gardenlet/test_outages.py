"""What a gardenlet says about itself while one of its API servers, or a part of one, is away."""

from tests.lab.api import wait_for
from tests.lab.garden.gardenlet import Gardenlet

SILENT = "[i]garden-informer-sync: not listed yet: none; without an answer: seeds"


def beats_on(process: Gardenlet, times: int) -> list[int]:
    """Wait until the Lease was renewed so many times more; returns all that `/healthz` answered meanwhile."""
    answers: list[int] = []
    seen = [process.renewed()]

    def beaten() -> bool:
        answers.append(process.ask("/healthz")[0])
        if (renewed := process.renewed()) != seen[-1]:
            seen.append(renewed)
        return len(seen) > times

    wait_for(beaten, timeout=30, what=f"{times} heartbeats")
    return answers


def test_health_says_which_side_fails(process: Gardenlet) -> None:
    """Contract core 1.5, 13.1.4, 13 W17: a seed or garden that is killed: 500 with the side; 200 again after it is back."""
    process.start()
    wait_for(process.renewed, timeout=30, what="a heartbeat")
    wait_for(lambda: "[i]garden-informer-sync: synced" in process.ask("/healthz?verbose")[1], timeout=20, what="sync")
    for side, plane in (("garden", process.garden.plane), ("seed", process.garden.seed)):
        plane.kill_apiserver()
        try:
            process.until(500, timeout=10)
            assert f"{side}: " in process.ask("/healthz?verbose")[1]
            assert process.ask("/healthz/ping")[0] == 200
            assert "[i]event-loop-lag: 0.0" in process.ask("/healthz?verbose")[1]
            if side == "garden":
                wait_for(lambda: SILENT in process.ask("/healthz?verbose")[1], timeout=20, what="the silent cache")
        finally:
            plane.start_apiserver()
        if side == "garden":
            process.until(200, timeout=15)
    # The leader's lease could not be renewed meanwhile, or could: it ends with an error, or goes on.
    assert process.process.poll() in (None, 1)


def test_gardeners_own_groups_are_away(process: Gardenlet) -> None:
    """Contract core 1.5, 6: only Gardener's groups answer 503: it beats on and is healthy all the time."""
    process.start()
    wait_for(process.renewed, timeout=30, what="a heartbeat")
    process.until(200)
    with process.garden.without_gardener():
        assert set(beats_on(process, 6)) == {200}
        assert process.process.poll() is None
    assert set(beats_on(process, 2)) == {200}


def test_started_while_gardeners_own_groups_are_away(process: Gardenlet) -> None:
    """Contract core 1.2, 1.5: started with Gardener's groups away: alive but not ready, says what it waits for, and gets on after it."""
    process.start()
    wait_for(process.renewed, timeout=30, what="a heartbeat")
    assert process.end() == 0
    before = process.renewed()
    with process.garden.without_gardener():
        process.start()
        process.until(500, "/readyz")
        wait_for(lambda: "503" in process.ask("/readyz?verbose")[1], timeout=20, what="what it waits for")
        assert process.ask("/healthz")[0] == 200
    wait_for(lambda: process.renewed() != before, timeout=40, what="a heartbeat")
    process.until(200, "/readyz")
    assert process.ask("/healthz")[0] == 200


def test_restarted_while_the_garden_is_away(process: Gardenlet) -> None:
    """Contract core 1.5: the garden's API server is killed, and then gardenlet: it is alive until its bootstrap is done, and then beats."""
    process.start()
    wait_for(process.renewed, timeout=30, what="a heartbeat")
    before, plane = process.renewed(), process.garden.plane
    plane.kill_apiserver()
    try:
        process.until(500, timeout=10)
        process.kill()
        process.start()
        process.until(200, timeout=15)
        answers: list[int] = []

        def waits() -> bool:
            answers.append(process.ask("/healthz")[0])
            return "[-]startup" in process.ask("/readyz?verbose")[1] and len(answers) > 100

        wait_for(waits, timeout=30, what="a start that waits for the garden")
        assert set(answers) == {200}
        assert process.process.poll() is None
    finally:
        plane.start_apiserver()
    wait_for(lambda: process.renewed() != before, timeout=40, what="a heartbeat")
    assert process.ask("/healthz")[0] == 200
