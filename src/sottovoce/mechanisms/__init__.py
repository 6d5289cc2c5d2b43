"""Mechanisms: sample, clip, check against the plan, add noise, record the release.

`base` has what all share; the others are named after the query they answer: `value` (averaging), `gradient`,
`coordinate`, `noisy_max`, `admm` (proximal steps), `fixed_point` and `random_walk`.
"""
