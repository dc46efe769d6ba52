"""What clients were told, and whether any order of what they did explains it.

    calls.py          a history: who called what when, and what came of it; written down as it happens
    journal.py        where the calls of all are written, and where one waits for them
    linearizable.py   the search of Wing and Gong, as improved by Lowe, for any model of one object
    registers.py      the model of a register: reads, writes, compare-and-set
    appends.py        transactions that append to lists: strict serializability by cycles, as in Elle
    messages/         clients that send, read, transact and acknowledge: one promise, one file

Nothing here knows a store, a server or a clock: clients of any interface, and a simulator, can be judged by it.
"""
