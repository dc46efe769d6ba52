"""What clients and services exchange: models of requests and answers, errors, frames, text rules, names and ids.

This is the lowest floor: it imports nothing else of the project, and every other package may import it.
"""
