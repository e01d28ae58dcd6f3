"""A simulated Kubernetes API with KubeVirt's virtual machines, to try governed operations on.

Part of the checkout, not of the installed package. Its HTTP server and its faults are those of
`batchline.simulate`. Start reading in `simulator`, then `kubernetes` (requests) and `cluster` (objects).
"""
