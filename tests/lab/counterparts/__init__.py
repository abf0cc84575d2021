"""What stands beside the API server of a Gardener shoot and decides about node agents: authorizer and CSR approver.

Both run in one small process of their own (`python -m tests.lab.counterparts`), as they do in gardener-resource-manager.
What they decide is in `authorization` and `approval`, pure and tested row by row; `server` is HTTP, `reader` asks the API
server. This is the mode without Machine objects: the machine's name is the Node's name.
"""
