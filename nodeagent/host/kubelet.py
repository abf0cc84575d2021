"""The kubelet's own word on its health.

Source: gardener pkg/nodeagent/controller/healthcheck/kubelet.go (contract 7.5, 6.13; 9 W5, W34).
"""

from datetime import timedelta

import aiohttp

from agents.core.errors import RetriableError
from nodeagent.host.not_asked import NotAsked, is_ours

HEALTHZ = "http://127.0.0.1:10248/healthz"
DEADLINE = timedelta(seconds=10)
_LONGEST_ANSWER_BYTES = 256
_OK = 200


class KubeletUnhealthy(RetriableError):
    """The kubelet does not answer, or answers anything but 200; `status` has the code if there is one."""


class KubeletNotAsked(NotAsked):
    """The kubelet could not be asked: what is missing is ours or the machine's, and says nothing about the kubelet."""


class Kubelet:
    """Client of the kubelet's health endpoint.

    Args:
        url: where it answers.
        deadline: for each answer.
    """

    def __init__(self, *, url: str = HEALTHZ, deadline: timedelta = DEADLINE) -> None:
        self._url = url
        self._deadline_seconds = deadline.total_seconds()

    async def healthy(self) -> None:
        """Return if the kubelet says in time (10 s) that it is healthy.

        Raises:
            KubeletUnhealthy: with the cause.
            KubeletNotAsked: this process has no means to ask.
        """
        timeout = aiohttp.ClientTimeout(total=self._deadline_seconds)
        try:
            # A connection for each question: a kept one says nothing about a kubelet that was started anew.
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(self._url, allow_redirects=False) as response,
            ):
                if response.status != _OK:
                    answer = await response.content.read(_LONGEST_ANSWER_BYTES)
                    raise KubeletUnhealthy(
                        "kubelet says that it is unhealthy",
                        status=response.status,
                        answer=answer.decode(errors="replace").strip(),
                    )
        except TimeoutError as error:
            raise KubeletUnhealthy("kubelet does not answer", deadlineSeconds=self._deadline_seconds) from error
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, OSError) and is_ours(error):
                problem = error.strerror or type(error).__name__
                raise KubeletNotAsked("kubelet cannot be asked", problem=problem) from error
            raise KubeletUnhealthy("kubelet does not answer", problem=str(error) or type(error).__name__) from error
