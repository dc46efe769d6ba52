"""The client for threads: each class passes its calls to the asynchronous class of the same name.

The protocol is only in the asynchronous classes. Each client runs one event loop in a thread of its own; this package
only passes calls to it and results back. See `metatxn.sync.background`.
"""
