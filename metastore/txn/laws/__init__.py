"""What must hold between records, by subject; `metastore.txn.invariants` applies it."""
