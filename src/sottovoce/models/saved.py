"""The folder that a fitted model is saved in.

It holds ``model.safetensors`` (weights of a neural net) or ``model.json`` (coefficients with the names of
their features), ``record.json`` and ``arrays.npz`` (the run and its plan), ``guarantee.txt`` (the guarantee
in words), ``saved_model.json`` (how inputs and labels are read, the guarantee, how a net is built, the digest
of the model's file) and ``README.md`` (three lines that load it); a run by a plan file or an agreement adds
that file. No file holds code: a net that is made neither of torch's own layers nor of the zoo's is passed
again to `load_model`.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce._format import number, percent
from sottovoce._io import atomic_write, to_jsonable
from sottovoce.accounting.wording import uncharged
from sottovoce.data.tables import Columns
from sottovoce.errors import DataError
from sottovoce.models.architecture import described_module, rebuilt_module
from sottovoce.models.linear_model import LinearModel

if TYPE_CHECKING:
    from torch import nn

    from sottovoce.models.fitted import Fitted

FORMAT = 1
DESCRIPTION, WEIGHTS, COEFFICIENTS = "saved_model.json", "model.safetensors", "model.json"


def require_unused(place: Path) -> None:
    """Raise if a folder holds a file that a saved model would overwrite."""
    if place.exists() and not place.is_dir():
        raise DataError(f"{place} is a file; a model is saved as a folder, name another place.")
    names = (DESCRIPTION, WEIGHTS, COEFFICIENTS, "record.json", "arrays.npz", "guarantee.txt", "README.md")
    there = next((name for name in names if (place / name).exists()), None)
    if there == DESCRIPTION:
        raise DataError(f"{place} holds a saved model, which cannot be fitted again; name another folder.")
    if there is not None:
        raise DataError(f"{place} holds {there} already; name another folder.")


def write_model(fitted: Fitted, place: Path, also: Mapping[str, str | bytes]) -> None:
    """Write all files of a fitted model, and those of ``also``."""
    model, linear = fitted.model, isinstance(fitted.model, LinearModel)
    stored: dict[str, Any] = {
        "format": FORMAT,
        "kind": "linear" if linear else "network",
        "privacy": fitted.privacy.to_dict(fitted.delta),
        "delta": fitted.delta,
        "label": fitted.label,
        "target": fitted.target.to_dict(),
        "columns": None if fitted.columns is None else fitted.columns.to_dict(),
        "builder": None if fitted.builder is None else dict(fitted.builder),
    }
    if linear:
        # classes and scaling stand in saved_model.json as well; here they are for people
        shown = {"classes": stored["target"]["classes"], "scaling": stored["columns"]}
        content = json.dumps(to_jsonable({**vars(model), **shown}), indent=1).encode()
    else:
        content, stored["aliases"] = _weights(model)
        stored["layout"] = None if fitted.layout is None else fitted.layout.to_dict()
        stored["class"] = type(model).__name__
        stored["architecture"] = described_module(model)
    name = COEFFICIENTS if linear else WEIGHTS
    stored["model"] = {"file": name, "sha256": hashlib.sha256(content).hexdigest()}
    fitted.result.save(place)
    files = {
        name: content,
        "guarantee.txt": fitted.privacy.statement(fitted.delta) + "\n",
        **also,
        "README.md": _card(fitted, stored),
        DESCRIPTION: json.dumps(to_jsonable(stored), indent=1) + "\n",
    }
    for file, text in files.items():
        atomic_write(place / file, text)


def read_model(place: Path, module: nn.Module | str | None) -> tuple[dict[str, Any], Any]:
    """Return the description of a saved model, and the model, after a check of its digest."""
    stored: dict[str, Any] = json.loads((place / DESCRIPTION).read_text(encoding="utf-8"))
    if stored["format"] != FORMAT:
        raise DataError(
            f"{place} is a saved model of format {stored['format']}, this version reads {FORMAT}."
        )
    name, expected = stored["model"]["file"], stored["model"]["sha256"]
    if name not in (WEIGHTS, COEFFICIENTS):
        raise DataError(f"{place / DESCRIPTION} names the model {name!r}, expected {WEIGHTS}.")
    content = (place / name).read_bytes()
    if hashlib.sha256(content).hexdigest() != expected:
        raise DataError(f"{place / name} is not the file this model was saved with (its SHA-256 differs).")
    if stored["kind"] == "linear":
        return stored, LinearModel.from_dict(json.loads(content))
    return stored, _network(place, stored, content, module)


def _card(fitted: Fitted, stored: Mapping[str, Any]) -> str:
    """Return what a reader should know of the model, in Markdown."""
    rebuilds = stored["kind"] == "linear" or stored["architecture"] or "zoo" in (stored["builder"] or {})
    module = "" if rebuilds else f", module={_module_argument(stored)}"
    label = "" if fitted.label is None else f" `{fitted.label}`"
    classes, columns = fitted.target.classes, fitted.columns
    names = "" if classes is None else f" ({', '.join(map(str, classes.values))})"
    read = f", from {', '.join(columns.features)}" if isinstance(columns, Columns) else ""
    scores = [
        f"- {name.replace('_', ' ')}: {percent(value) if 'accuracy' in name else number(value)}"
        for name, value in fitted.metrics.items()
        if isinstance(value, float) and name != "disagreement"  # of the nodes, on no records
    ]
    held_out = uncharged("held-out score") in fitted.privacy.assumptions
    whose = "private records that were held out, which no guarantee covers" if held_out else "public records"
    measured = ["## Scores", f"On {whose}:", "\n".join(scores)] if scores else []
    use = ["import sottovoce as sv", f'fitted = sv.load_model("."{module})', 'fitted.predict("new.csv")']
    parts = [
        f"# {fitted.kind[:1].upper()}{fitted.kind[1:]} fitted by Sottovoce",
        f"It predicts{label}{names}{read}. How it was made is in record.json.",
        "## Privacy",
        fitted.privacy.statement(fitted.delta),
        *measured,
        "## Use",
        "\n".join(f"    {line}" for line in use),
    ]
    return "\n\n".join(parts) + "\n"


def _weights(module: nn.Module) -> tuple[bytes, dict[str, str]]:
    """Return the weights as a safetensors file, and which names share a tensor (the format holds it once)."""
    from sottovoce.objectives.nets.module_files import needs_safetensors

    needs_safetensors()
    from safetensors.torch import save

    tensors: dict[str, Any] = {}
    places: dict[tuple[int, tuple[int, ...]], str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in module.state_dict().items():
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.numel() and key in places:
            aliases[name] = places[key]
            continue
        places[key] = name
        tensors[name] = tensor.detach().cpu().contiguous().clone()
    return save(tensors), aliases


def _network(
    place: Path, stored: Mapping[str, Any], content: bytes, module: nn.Module | str | None
) -> nn.Module:
    from sottovoce.objectives.nets.module_files import build_module, build_named, parse_weights, put_weights

    weights = parse_weights(content, str(place / WEIGHTS))
    weights |= {name: weights[shared] for name, shared in stored["aliases"].items()}
    builder = stored.get("builder") or {}
    if isinstance(module, str):
        model = build_module(module, options=builder.get("options"))
    elif module is not None:
        model = copy.deepcopy(module)
    elif stored["architecture"] is not None:
        model = rebuilt_module(stored["architecture"])
    elif "zoo" in builder:
        model = build_named(builder)
    else:
        raise DataError(
            f"the model saved in {place} holds the weights of a {stored['class']} and no code; pass the "
            f"network: sv.load_model({str(place)!r}, module={_module_argument(stored)})."
        )
    return put_weights(model, weights, str(place)).eval()


def _module_argument(stored: Mapping[str, Any]) -> str:
    """Return how the network is passed to `load_model`: by the function that built it, or its class."""
    name = (stored.get("builder") or {}).get("module")
    return repr(name) if name else f"{stored['class']}(...)"
