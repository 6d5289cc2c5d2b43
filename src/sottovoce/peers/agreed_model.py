"""After the run of an agreement: a member's parameters as a fitted model, which can be saved and used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sottovoce.accounting.guarantee import Guarantee
from sottovoce.algorithms.plan import Plan
from sottovoce.data.ingest import Target
from sottovoce.data.tables import Classes
from sottovoce.errors import InvalidInput
from sottovoce.models.adapters import LinearAdapter, ModelAdapter, NetworkAdapter
from sottovoce.models.fitted import Fitted
from sottovoce.objectives import GLM, Softmax
from sottovoce.peers.agreement import Agreement
from sottovoce.peers.agreement_plan import AgreedNet
from sottovoce.runners import Result


def agreed_model(
    agreement: Agreement, plan: Plan, row: np.ndarray, privacy: Guarantee, **about: object
) -> Fitted:
    """Return what a member has learned in a peers' run, as a fitted model that can be saved and used.

    ``plan`` is the one that ran, ``row`` the parameters this member ended with, ``privacy`` what it has
    revealed, ``about`` the provenance of the result.
    """
    model, data, delta = agreement.model, agreement.data, agreement.budget.delta
    if model.kind == "mean":
        raise InvalidInput("the agreement is about a mean, which predicts nothing; model.npz holds it.")
    columns, target, builder = data.columns, _agreed_target(agreement), None
    adapter: ModelAdapter
    if model.kind == "net":
        agreed_net: AgreedNet = vars(plan)["objective"]
        adapter, builder = NetworkAdapter(agreed_net.objective, None, target), agreed_net.builder
        columns = replace(columns, ones=data.intercept) if columns is not None else None
    else:
        objective = Softmax(model.classes) if model.classes else GLM(model.kind)
        names = () if columns is None else columns.names
        adapter = LinearAdapter(objective, None, target, names=names, intercept=data.intercept)
    config = agreement.model_dump(mode="json", exclude={"members", "signatures", "mask_keys"})
    config |= {"members": agreement.names, "run_id": agreement.run_id.hex()}
    guarantees, outputs = [privacy.to_dict(delta)], {"rows": row[None]}
    result = Result(
        name=agreement.algorithm.name, config=config, outputs=outputs, guarantees=guarantees, provenance=about
    )
    adapter.columns, adapter.label, adapter.builder = columns, data.target or None, builder
    return Fitted.of_run(adapter, plan, result, privacy, delta)


def _agreed_target(agreement: Agreement) -> Target:
    model, data = agreement.model, agreement.data
    classes = Classes(data.classes) if data.classes else None
    if model.regression:
        return Target("regression", None, data.scale(data.label))
    if model.kind == "logistic" and model.classes is None:
        return Target("labels", classes or Classes((0, 1)))
    return Target("labels" if model.loss == "binary_cross_entropy" else "classification", classes)
