"""The client for threads: each class hands its calls to the asynchronous one of the same name.

All of the protocol is in the asynchronous classes. One event loop per client, in a thread of its own, runs them; here
are only the ways there and back. See `metatxn.sync.background`.
"""
