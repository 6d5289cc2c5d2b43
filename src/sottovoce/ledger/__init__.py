"""What was released: the ledger of one run and the lifetime ledger of a population.

`run_ledger` makes every row of a run durable before it is sent, `lifetime` adds up everything ever released
about a population, `charge` charges a training on this machine, `store` has what both ledgers share.
"""
