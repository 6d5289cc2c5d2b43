"""The app: which records a client holds, and what the server does with the model."""

import json
from pathlib import Path

import numpy as np

import sottovoce as sv
from sottovoce.integrations.flower import client_app, server_app


def records(context):
    """Return this client's share of scikit-learn's breast-cancer data; a real client reads its own file."""
    own = context.node_config.get("records")
    if own:
        with np.load(str(own), allow_pickle=False) as stored:
            return stored["X"], stored["y"]
    data = sv.data.load("breast_cancer").unit_rows()
    rows = np.arange(int(context.node_config["partition-id"]), data.n, int(context.run_config["users"]))
    return data.X[rows], sv.data.signed_labels(data.y[rows])


def finished(model, config):
    """Write the model where the server was told to."""
    path = Path(str(config["out"]))
    path.write_text(json.dumps({"coef": model.tolist(), "rounds": int(config["rounds"])}))
    print(f"model of {len(model)} numbers written to {path.resolve()}")


client = client_app(records)
server = server_app(finished)
