"""What both REST services share: errors on the wire, routing on the raw path, health, limits."""
