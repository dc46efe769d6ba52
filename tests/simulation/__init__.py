"""Deterministic simulation: production code, replaced edges, virtual time. docs/simulation.md says what and why.

loop.py processes.py world.py entropy.py   time, order, who runs, randomness
store.py disk.py bucket.py network.py transport.py services.py   the edges
faults.py nemesis.py                       what goes wrong, and how often
cluster.py client.py history.py workloads/ what runs, and what it writes down
checkers/                                  one promise, one file
run.py __main__.py record.py               a seed, many seeds, and what they have found
"""
