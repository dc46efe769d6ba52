"""The values of all records, by subject, as compact JSON that people can read with `etcdctl`.

Unknown fields are ignored when reading, so that an older process can read what a newer one wrote. Times are
milliseconds since the epoch. Positions are `ledger:entry`. The keys are in `metastore.txn.paths`.
"""
