"""Put the trial records into the result files of their tables, under the names of today. Run once."""

import json
import subprocess
from pathlib import Path

from sottovoce_papers.bayrooti2023.cells import Cell
from sottovoce_papers.bayrooti2023.tables import beyond, cells_of
from sottovoce_papers.common import write_result

RESULTS = Path("docs/results")
CELL = {"lot": "batch_size"}
SETTINGS = {
    "clip": "clip_norm", "first": "first_rate", "last": "last_rate", "optimiser": "optimizer",
    "rate": "learning_rate",
}  # fmt: skip
NAMES = {"b23-trial": "bayrooti2023-trial", "b23-tuning-trial": "bayrooti2023-tuning-trial"}


def commits():
    """Return the last commit of every file."""
    log = subprocess.run(
        ["git", "log", "--format=commit %H", "--name-only", "--", str(RESULTS)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    last, commit = {}, None
    for line in log.splitlines():
        if line.startswith("commit "):
            commit = line.split()[1]
        elif line:
            last.setdefault(line, commit)
    last["docs/results/bayrooti2023-tuning.json"] = last["docs/results/b23-tuning.json"]
    return last


def renamed(values, names):
    return {names.get(key, key): value for key, value in values.items()}


def converted(trial, key, commit):
    """Return a trial under the names of today."""
    row = {"key": key, **trial}
    if "name" in row:
        row["name"] = NAMES.get(row["name"], row["name"])
    if "cell" in row:
        row["cell"] = renamed(row["cell"], CELL)
    for part in ("settings", "setting", "recipe"):
        if part in row:
            row[part] = renamed(row[part], SETTINGS)
    row["provenance"] = {k: v for k, v in row["provenance"].items() if k != "code"} | {"commit": commit}
    return row


def table_of(row, first):
    """Return the result that a trial belongs to."""
    if row.get("name") == "bayrooti2023-tuning-trial":
        return "bayrooti2023-tuning"
    if row.get("name") == "consensus-trial":
        return "consensus-mnist"
    if row.get("name") == "bayrooti2023-trial":
        cell = Cell(**{**row["cell"], "epsilon": float(row["cell"]["epsilon"])})
        return "table1" if cell.key in first else "table2"
    if row["data"] != "mnist":
        return "secure-sum-images"
    return "secure-sum-mnist" if row["agents"] == 10 else "secure-sum-agents"


def history(name, rows):
    """Return the rows of a result under the names of today."""
    for row in rows:
        for part in ("settings", "setting", "recipe"):
            if isinstance(row.get(part), dict):
                row[part] = renamed(row[part], SETTINGS)
        if name == "secure-sum-tuning":
            row.update({SETTINGS[key]: row.pop(key) for key in list(row) if key in SETTINGS})
        if "b23" in row:
            row["printed"] = row.pop("b23")
        if "B23 central" in row.get("anchors", {}):
            row["anchors"]["Bayrooti et al., central"] = row["anchors"].pop("B23 central")
    return rows


def main():
    last = commits()
    first = {cell.key for cell in [*cells_of("table1"), *beyond(cells_of("table1"))]}
    trials = {}
    for folder in ("b23", "b23-tuning", "secure-sum"):
        for path in sorted((RESULTS / folder).glob("*.json")):
            row = converted(json.loads(path.read_text()), path.stem, last[str(path)])
            trials.setdefault(table_of(row, first), []).append(row)
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        if not isinstance(result, dict) or not isinstance(result.get("provenance"), dict):
            continue
        came = result["provenance"]
        for key in ("code", "trials_of_earlier_code"):
            came.pop(key, None)
        came["commit"] = last[str(path)]
        if came.get("assembled_from") in ("b23", "b23-tuning", "secure-sum"):
            came["assembled_from"] = "trials"
        if "docs/results/b23" in came.get("command", ""):
            came["command"] = "python -m sottovoce_papers.trials --assemble"
        for folder in ("b23-tuning", "secure-sum"):
            came["command"] = came.get("command", "").replace(f"docs/results/{folder}", "build/trials")
        if not came["command"]:
            del came["command"]
        result["history"] = history(path.stem, result.get("history", []))
        if isinstance(result.get("config"), dict) and "grid" in result["config"]:
            result["config"]["grid"] = result["config"]["grid"].replace("B23", "the paper")
        write_result(path, result, trials.pop(path.stem, ()))
    assert not trials, list(trials)


if __name__ == "__main__":
    main()
