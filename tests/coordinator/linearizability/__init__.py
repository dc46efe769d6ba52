"""Whole histories of clients of several coordinators, over HTTP, with kills, lost connections and timeouts.

model.py      what one coordinator that is alone would answer
clients.py    what a client asks, of any of the coordinators, and how it writes down what it was told
run.py        coordinators and their store, and what befalls them
verdict.py    whether the history is what one coordinator would have told
"""
