"""Controllers on asyncio: local state fed by watches, queues of keys, workers, and the order in which they start and stop.

The nouns are controller-runtime's and each means the same here. A reconcile gets a key and not an event, reads the state as
it is now, and is safe to repeat; `agents.runtime.controller` alone decides what happens after it.
"""
