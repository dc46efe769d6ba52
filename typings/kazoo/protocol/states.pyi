class KazooState:
    SUSPENDED: str
    CONNECTED: str
    LOST: str

class KeeperState:
    CONNECTING: str
