"""The Kubernetes API: typed reads, patches and watches, with a deadline on every wait and an error class for every failure.

The only room that imports kubernetes_asyncio.
"""

from agents.kube.lean import import_aiohttp

import_aiohttp()
