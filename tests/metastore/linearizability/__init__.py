"""Whole histories of concurrent clients, on servers that are killed and frozen meanwhile.

clients.py          what a client does, and how it writes down what it was told
client_process.py   clients in a process of their own, which may be killed
deployments.py      the table of backends, and what befalls each
verdict.py          whether the history is what one atomic store would have told
"""
