"""Quotas of principals in the whole cluster.

    records of quotas ──watch──▶ Quotas ──▶ a request may pass │ is refused until later
                                   │ ▲
          what this process uses ──┘ └── what the others use (records, about once a second)

A request is judged in memory. Each process has a part of every quota (`division`), and holds its principals to it with
a token bucket (`buckets`). The parts follow from what all processes have used lately, which they tell each other in the
store (`exchange`) only while a principal with a quota is active. All compute the same parts from the same records, so
the parts add up to the quota, except for about a second after a change; see DESIGN §6.
"""
