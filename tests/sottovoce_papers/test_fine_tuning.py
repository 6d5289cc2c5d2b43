"""Fine-tuning end to end in its quick form."""

import pytest

from sottovoce_papers.extensions.fine_tuning import TASKS, characters, fine_tuning, pretrained, source_lines
from sottovoce_papers.registry import find


def test_the_quick_form_prices_what_it_runs():
    torch = pytest.importorskip("torch")
    record = fine_tuning(quick=True, task="text").to_dict()
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
