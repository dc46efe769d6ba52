"""The callers of a service and what they may do: bearer tokens, signed tokens, grants."""
