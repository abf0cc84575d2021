"""Commands for operators: `status`, `plan`, `diagnose`, `validate`, `schema` and `version` only look; `apply` works, see `nodeagent/foreground.py`.

Those that look run beside the agent, without it, without the API server and without a usable configuration, change nothing, and wait
for nothing without a deadline. The running agent never imports this room; `nodeagent/cli.py` does, when one of the
commands is asked for.

One module gathers and judges for each command and returns a document, a frozen dataclass; `text.py` writes it for people,
`output.py` as JSON. What is a secret cannot be told from an OperatingSystemConfig, so content is shown only where everybody on
the machine may read it anyway (`content.py`).
"""
