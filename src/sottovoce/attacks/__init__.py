"""What an observer can really learn: reconstruction, inversion, membership, audits of our own claims."""

from __future__ import annotations

from sottovoce._lazy import lazy_names

_MODULES = {
    "audit": "Audit audit_averaging audit_consensus audit_outputs audit_view views_of",
    "bounds": "LowerBound audit_one_run clopper_pearson epsilon_lower lower_bound mu_lower one_run_epsilon",
    "descent": "GradientAttack Transcript gradient_attack run_descent",
    "gossip": "Combination Reconstruction gossip_attack reconstruct_gossip reconstructed_by_each",
    "inputs": "InputAttack attack_network attack_softmax",
    "inversion": "LinearInversion invert_gradients invert_linear psnr",
    "membership": "MembershipProblem Trained audit_membership digits_problem train_models",
}
_NAMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(_NAMES)
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
