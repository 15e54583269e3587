"""PyTorch's own operator database (OpInfo) run on a device and compared with the CPU.

`items` names what can be run, `samples` draws inputs, `rules` holds every exception to "equal to
the CPU" as a table, `check` runs one item, `pool` runs many in worker processes that may crash,
`report` keeps and prints results, and `expected` the list of known failures. `python -m
tests.conformance --help` is the way in.
"""
