"""What clients and services say to each other: models of requests and answers, problems, frames, names, keys.

The lowest floor: it imports nothing of ours, and everything else may import it.
"""
