"""The values of all records, by subject: compact JSON, read by people with `etcdctl`.

Unknown fields are ignored when reading, so that an older process can read what a newer one wrote. Times are epoch
milliseconds. Positions are `ledger:entry`. The keys are in `metastore.txn.paths`.
"""
