"""What an operator should do about a record that is wrong."""

RESTORE = "Stop writing to this store and restore a backup; keep a dump for analysis."
RECOVER = "Stop every process of this cluster and run `metatxn store recover`."
DELETE = "Delete this key with the store's own tools; nothing reads it."
RESTORE_AGAIN = "Run `metatxn restore` again with the same backup, which begins anew, or delete the store."
