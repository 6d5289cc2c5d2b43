"""Fine-tuning end to end: the quick form runs, and the page shows what the records hold."""

import json
import re
from pathlib import Path

import pytest

from sottovoce.experiments.fine_tuning import TASKS, characters, fine_tuning, pretrained, source_lines
from sottovoce.experiments.registry import find

ROOT = Path(__file__).parents[2]


def test_the_quick_form_prices_what_it_runs():
    torch = pytest.importorskip("torch")
    record = fine_tuning(quick=True, task="text").record()
    for way in ("own noise", "masked", "central"):
        assert 7.9 < record["metrics"][way]["8"]["epsilon"] <= 8.0
        assert 0 <= record["metrics"][way]["8"]["accuracy"] <= 100
    shown = find("fine-tuning-text").table(record)
    assert len(shown.rows) == 1
    assert "3 agents" in shown.note
    net, _ = pretrained("images", (torch.zeros(0, 1, 14, 14).numpy(), torch.zeros(0).long().numpy()), 0, 0)
    trained = {name.split(".")[0] for name, p in net.named_parameters() if p.requires_grad}
    assert trained <= set(TASKS["images"][4])
    assert not net[-1].weight.any()  # the new head says nothing yet


def test_lines_are_drawn_by_a_public_seed():
    lines = source_lines("networkx", "documentation", 20)
    assert lines == source_lines("networkx", "documentation", 20)
    assert lines != source_lines("networkx", "documentation", 20, seed=1)
    assert len(set(lines)) == 20
    assert characters(["~é"])[0, :3].tolist() == [95, 95, 0]


RECORDED = [task for task in TASKS if (ROOT / "docs" / "results" / f"fine-tuning-{task}.json").is_file()]


@pytest.mark.parametrize("task", RECORDED)
def test_the_table_of_the_page_is_that_of_the_record(task):
    record = json.loads((ROOT / "docs" / "results" / f"fine-tuning-{task}.json").read_text())
    page = (ROOT / "docs" / "own-networks.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if re.match(rf"\| {task} \|", line)
    ]
    expected = find(f"fine-tuning-{task}").table(record).rows
    assert [[row[0], float(row[1]), *map(float, row[2:])] for row in rows] == [
        [row[0], float(row[1]), *map(float, row[2:])] for row in expected
    ]
    assert f"{record['metrics']['trained parameters']:,}" in page
    best = record["metrics"]["no noise"]["accuracy"]
    assert all(
        record["metrics"][way][e]["accuracy"] <= best + 3
        for way in ("masked", "central")
        for e in ("1", "3", "8")
    )
