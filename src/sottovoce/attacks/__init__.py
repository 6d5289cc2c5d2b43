"""What an observer can really learn: reconstruction, inversion, membership, audits of our own claims."""

from __future__ import annotations

from sottovoce._lazy import lazy_names

_MODULES = {
    "Audit": "audit",
    "Combination": "gossip",
    "GradientAttack": "descent",
    "InputAttack": "inputs",
    "LinearInversion": "inversion",
    "LowerBound": "bounds",
    "MembershipProblem": "membership",
    "OneRun": "bounds",
    "Reconstruction": "gossip",
    "SmallNet": "small_net",
    "Trained": "membership",
    "Transcript": "descent",
    "attack_network": "inputs",
    "attack_softmax": "inputs",
    "audit_averaging": "audit",
    "audit_consensus": "audit",
    "audit_membership": "membership",
    "audit_one_run": "bounds",
    "audit_outputs": "audit",
    "audit_view": "audit",
    "clopper_pearson": "bounds",
    "digits_problem": "membership",
    "epsilon_lower": "bounds",
    "gossip_attack": "gossip",
    "gradient_attack": "descent",
    "invert_gradients": "inversion",
    "invert_linear": "inversion",
    "lower_bound": "bounds",
    "mu_lower": "bounds",
    "one_run_epsilon": "bounds",
    "psnr": "inversion",
    "reconstruct_gossip": "gossip",
    "reconstructed_by_each": "gossip",
    "run_descent": "descent",
    "views_of": "audit",
    "train_models": "membership",
}

__all__ = sorted(_MODULES)
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
