"""From a CSV file to predictions in a fresh folder, by the five commands of docs/own-networks.md."""

import csv
import re
import shlex
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-networks.md").read_text()
MYNET = """import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
"""


def test_the_five_commands_of_the_page(call, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # no home of this machine's

    section = PAGE.split("## The same by commands")[1].split("\n## ")[0]
    plan, commands = re.findall(r"```(?:toml)?\n(.*?)```", section, re.S)
    (tmp_path / "plan.toml").write_text(plan)
    (tmp_path / "mynet.py").write_text(MYNET)
    rng = np.random.default_rng(0)
    truth = {}
    for name, n in (("clinic.csv", 2500), ("new.csv", 300)):
        age, dose = rng.uniform(20, 80, n), rng.uniform(0, 10, n)
        sex, town = rng.choice(["f", "m"], n), rng.choice(["Bern", "Oslo", "Rome"], n)
        truth[name] = np.where(age / 60 + dose / 10 > 1.5, "yes", "no")
        rows = zip(age, dose, sex, town, truth[name], strict=True)
        lines = [f"{a:.1f},{d:.1f},{s},{t},{y}" for a, d, s, t, y in rows]
        (tmp_path / name).write_text("\n".join(["age,dose,sex,town,ill", *lines]))
    lines = [shlex.split(line, comments=True) for line in commands.strip().splitlines()]
    assert len(lines) == 5
    for words in lines:
        if words[0] == "sottovoce":
            answer = call(*words[1:])
            assert answer.code == 0, answer.err
        else:
            assert words[:2] == ["python", "-c"]
            exec(words[2], {})
    with open(tmp_path / "predictions.csv", newline="") as file:
        found = np.array([row["ill"] for row in csv.DictReader(file)])
    assert (found == truth["new.csv"]).mean() > 0.85
    assert (tmp_path / "page.html").stat().st_size > 1000
    assert "epsilon = 1.99" in (tmp_path / "model" / "statement.txt").read_text()
