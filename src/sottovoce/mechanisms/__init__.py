"""Mechanisms: sample, clip, add noise, check against the plan, record the release.

`base` has what all share; the others are named after the query they answer: `value` (averaging), `gradient`,
`coordinate`, `noisy_max`, `admm` (proximal steps), `fixed_point` and `random_walk`.
"""
