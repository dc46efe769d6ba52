"""Real processes, real faults: clients, coordinators, brokers and stores, killed, frozen, cut off and filled up.

    clients ──relay──▶ 2 coordinators ──relay──▶ etcd or ZooKeeper, one or three members
       │                                            ▲
       └─────relay──▶ 2 brokers ───────────relay────┘
                         └──▶ ledgers: objects that both share, or a directory for each, on a small tmpfs

    mixes.py      the table of mixes: which store, which storage, which faults
    schedule.py   what befalls whom, when and for how long: a function of mix, seed and minutes
    nemesis.py    makes the faults, and takes them all back
    store_space.py  fills an etcd to its quota, and makes room again
    disk.py       a disk that can be filled up, below ledgers or a member of the store
    cluster.py    the processes and the ways between them
    service.py    a process that is started again when it has ended, as by a supervisor
    client.py     a process of clients: the bank, orders and bills, keyed appends, snapshots, reading on
    run.py        one run: clients at work, the schedule, quiet, the last look, the verdict

Every way to a service, from a service to a member of the store, and between two members of it has a relay of its own,
so each can be cut or held alone. Clients write down what they ask and are told (`tests/histories/calls.py`); the
verdict is that of `tests/histories/messages`, of the check of the store's laws, and of what is left in the store.
"""
