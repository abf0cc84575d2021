"""A real Kubernetes cluster with real systemd machines on this one host.

The lab judges the product, so it must not share code with it: nothing here imports `agents`, `osc`, `systemd` or
`nodeagent`. It needs the standard library, aiohttp, cryptography and PyYAML, a Linux host and root.

Where to look:

- `packages` and `binaries` find or bring what has to be installed; `capability` says why a host cannot run a lab.
- `state` and `processes` remember by id whatever was started, so that a killed run can be cleared by the next one.
- `controlplane`, `pki`, `api` and `counterparts` are the API server and what stands beside it in a Gardener landscape.
- `machine`, `mounts`, `image` and `network` are the worker machines.
- `userdata` and `worker_osc` are what a machine is given; `cluster.Lab` holds everything together.
- `scenario` is the story that `make demo` tells and that a test repeats; `cli` is `python -m tests.lab`.
"""
