"""Who calls a service, and what that principal may do: bearer tokens, signed tokens, grants."""
