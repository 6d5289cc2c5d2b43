"""Accounting: from the releases of a plan to a guarantee, and from a budget to the least noise.

- `accountant`: ``account(plan, view)``, the privacy cost of a plan; `question` validates what it is asked.
- `release`: noisy publications, their composition, and spending against a `budget`.
- `calibration`: the least noise that meets a budget.
- `guarantee`: a loss with its adversary, adjacency, label and assumptions; `wording` puts it in words.
- `curve`: privacy curves, of `loss_parts`; evaluated by `gaussian`, `pld` and `renyi`.
- `exact`: the exact loss of every pair of nodes under a protocol.
- `observation`: what an adversary observes, one file per model. `published`: printed formulas.

The charge of a run to a lifetime ledger is `sottovoce.ledger.charge`.
"""
