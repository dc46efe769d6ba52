"""What clients do in a simulation, one file per workload.

A workload sets up its topics while nothing fails, then runs its clients, each in a process of its own that may be
killed or frozen, and writes down what they ask and are told in the `History`.
"""
