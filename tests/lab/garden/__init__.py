"""A garden on a plain Kubernetes API server: Gardener's kinds as CRDs, and what answers gardenlet there.

`crds` and `bundle` are objects that are created once. `authorization` (SeedAuthorizer without the graph), `admission`
(SeedRestriction and the labels that Gardener's API server adds), `approval` and `lifecycle` decide, and are pure;
`server` and `controllers` are the process around them; `garden` starts and stops all of it.
"""
