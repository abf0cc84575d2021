"""Commands for operators that only look: `status`, `validate`, `schema` and `version`.

They run beside gardenlet, for example by `kubectl exec`, without any API server, and change nothing. The running gardenlet never
imports this room; `gardenlet/cli.py` does, when one of the commands is asked for.
"""
