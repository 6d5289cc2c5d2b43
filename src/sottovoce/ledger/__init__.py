"""What was released: the ledger of one run and the lifetime ledger of a population.

`chain` is the format of both: lines chained by hashes. `run_ledger` makes every row of a run durable before
it is sent; `store` has what a peer writes to it and reads back. `lifetime` holds everything ever released
about a population as acts that add up to a `balance`, each run or training as one `Charge`; `cost` asks
the accountant what a charge costs, and `charge` charges a run on this machine.

To follow a charge, begin with `charge`.

The *head* is the number of rows and the hash of the newest. A chain
cannot show that its newest rows are missing, so the head is also kept elsewhere, and a ledger that does not
contain it was restored from a backup. It is kept in a *head file* in the state folder, in a second head file
outside the member directory, and by the other members, the *witnesses*, who sign what they hold. The lifetime
ledger has a whole *second copy* outside the member directory.
"""
