class KazooState:
    SUSPENDED: str
    CONNECTED: str
    LOST: str
