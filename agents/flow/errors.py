"""What can go wrong in a flow, tagged with the task that it happened in.

::

    FlowError(RetriableError)       name of the flow, `errors` by task
    ├── FlowFailed                  tasks failed; everything that did not depend on them is done
    └── FlowCancelled               ended before all tasks were done
    TaskError(RetriableError)       id of the task, its error as cause
    Several(RetriableError)         errors of things that were done side by side

The texts are constant apart from names, and those are what an operator sees in a Shoot's status: these errors have no fields.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from agents.core.errors import FatalError, RetriableError

Check = Callable[[], Awaitable[None]]
Cleaner = Callable[[str], Awaitable[None]]
"""Is told the id of a task that failed in the run before and succeeded in this one."""


class TaskError(RetriableError):
    """A task, or a check before the flow, failed."""

    def __init__(self, task: str, text: str) -> None:
        super().__init__(text)
        self.task = task


class Several(RetriableError):
    """More than one error; `errors` are single ones."""

    def __init__(self, errors: Iterable[Exception]) -> None:
        self.errors = tuple(single for error in errors for single in flatten(error))
        super().__init__(f"{len(self.errors)} errors: {'; '.join(str(error) for error in self.errors)}")


class FlowError(RetriableError):
    """A flow did not do all of its tasks; `errors` in the order in which they happened."""

    def __init__(self, text: str, errors: Sequence[TaskError]) -> None:
        super().__init__(text)
        self.errors = tuple(errors)


class FlowFailed(FlowError):
    """Tasks failed."""

    def __init__(self, flow: str, errors: Sequence[TaskError]) -> None:
        super().__init__(f'flow "{flow}" encountered task errors: {_listed(errors)}', errors)


class FlowCancelled(FlowError):
    """The flow was ended before its time."""

    def __init__(self, flow: str, cause: str, errors: Sequence[TaskError]) -> None:
        text = f'flow "{flow}" was canceled: {cause}'
        super().__init__(f"{text}. Encountered task errors: {_listed(errors)}" if errors else text, errors)


def flatten(error: BaseException) -> Iterator[Exception]:
    """Yield the single errors of an error that has several, else itself; a task's error is a single one."""
    if isinstance(error, Several | FlowError):
        for inner in error.errors:
            yield from flatten(inner)
    elif isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from flatten(member)
    elif isinstance(error, Exception):
        yield error


def raise_all(errors: Sequence[Exception]) -> None:
    """Raise one error as it is, several as one; a fatal one wins."""
    fatal = next((error for error in errors if isinstance(error, FatalError)), None)
    if fatal is not None:
        raise fatal
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise Several(errors)


class ErrorContext:
    """Which tasks failed in the run before, and which there are in this one.

    Args:
        name: for the error about an id that is used twice.
        last_errors: ids of the tasks that the previous run's `lastErrors` name.
        clean: takes the entry of a task out of `lastErrors`.
    """

    def __init__(self, name: str, *, last_errors: Iterable[str] = (), clean: Cleaner | None = None) -> None:
        self._name = name
        self._last = frozenset(last_errors)
        self._clean = clean
        self._known: set[str] = set()

    def register(self, task: str) -> None:
        """Take note of a task that begins.

        Raises:
            FatalError: the id is used twice, so its errors could not be told apart.
        """
        if task in self._known:
            raise FatalError("task is registered twice", context=self._name, task=task)
        self._known.add(task)

    async def succeeded(self, task: str) -> None:
        """Clean up after a task that failed in the run before."""
        if self._clean is not None and task in self._last:
            await self._clean(task)


async def run_checks(context: ErrorContext, checks: Iterable[tuple[str, Check]]) -> None:
    """Run what comes before a flow, one after another, under the same rules for errors.

    Raises:
        TaskError: of the first one that fails; the others are not run.
    """
    for name, check in checks:
        context.register(name)
        try:
            await check()
        except FatalError:
            raise
        except Exception as error:
            raise TaskError(name, f"{name} failed ({error})") from error
        await context.succeeded(name)


def _listed(errors: Sequence[TaskError]) -> str:
    return f"[{' '.join(str(error) for error in errors)}]"
