"""`python -m tests.lab.garden`: started by a `Garden`."""

import argparse
import asyncio
import contextlib
import logging
import signal
from pathlib import Path

from tests.lab.garden.server import Behaviour, serve


async def _main(arguments: argparse.Namespace) -> None:
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        behaviour = Behaviour(approves=not arguments.no_approver)
        where = {"listen": arguments.listen, "port": arguments.port}
        await serve(server=arguments.server, pki=arguments.pki, behaviour=behaviour, **where)


def main() -> None:
    """Read the command line and serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True, help="URL of the API server")
    parser.add_argument("--pki", required=True, type=Path, help="folder with certificates and keys")
    parser.add_argument("--listen", required=True, help="address to listen on")
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--no-approver", action="store_true", help="leave CSRs undecided")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
