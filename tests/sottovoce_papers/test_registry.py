"""Every table and figure of the sources is named, drawn and stored; printed tables are those stored."""

import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.published.formulas import published_utility
from sottovoce.errors import InvalidInput
from sottovoce.report.sections import section_of
from sottovoce_papers import drawing, trials
from sottovoce_papers.bayrooti2023.cells import Cell, trial_key
from sottovoce_papers.bayrooti2023.settings import printed, settings_of
from sottovoce_papers.bayrooti2023.tables import cells_of, from_trials, tuned_apart
from sottovoce_papers.common import unpack
from sottovoce_papers.paper_index import ITEMS, stored_results
from sottovoce_papers.registry import Option, find, meaning, options_of, registry, texts

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
STORED = stored_results(RESULTS)


def record_of(name):
    return json.loads(json.dumps(STORED[name]))


# ---- the list ------------------------------------------------------------------------------------------


def test_every_source_and_every_experiment_is_in_the_list():
    assert {item.source for item in ITEMS} == {
        "Bayrooti et al. 2023", "Cyffers et al. 2022", "Bellet 2023", "Bellet 2024, decentralized learning",
        "Bellet 2024, optimization", "beyond",
    }  # fmt: skip
    assert {item.experiment for item in ITEMS} - {None} == set(registry())
    for number in ("Table 1", "Table 2", "Table 3", "Table 4", "Table 5", "Figure 1", "Figure 2", "Figure 3"):
        assert any((item.source, item.number) == ("Bayrooti et al. 2023", number) for item in ITEMS)


@pytest.mark.parametrize("name", registry())
def test_no_experiment_is_without_table_figure_and_claim(name):
    experiment = find(name)
    assert experiment.table
    assert experiment.plot
    assert experiment.claim.endswith(".")
    assert options_of(experiment)
    for option in options_of(experiment).values():
        assert meaning(name, option.name)
        defaults = option.default if isinstance(option.default, tuple) else (option.default,)
        assert all(value is None or option.fits(value) for value in defaults)


@pytest.mark.parametrize("name", STORED)
def test_a_stored_record_shows_a_table_and_a_figure(name):
    blocks = section_of(record_of(name)).blocks
    figures = [block for block in blocks if block.kind == "figure"]
    tables = [block for block in blocks if block.kind == "table"]
    assert figures[0].svg.startswith("<svg")
    assert "<text" in figures[0].svg  # words and units are text, not paths
    assert tables[0].rows
    # legends and panels cover nothing
    figure = find(name).plot(record_of(name))
    figure.draw_without_rendering()
    names = {text.get_text() for legend in figure.legends for text in legend.get_texts()}
    for axes in figure.axes:
        if (legend := axes.get_legend()) is not None:
            names |= {text.get_text() for text in legend.get_texts()}
            assert not drawing._covers(legend, axes)
    drawn = {label for axes in figure.axes for label in axes.get_legend_handles_labels()[1]}
    assert drawn <= names  # whatever has a color has a name
    boxes = [axes.get_window_extent().padded(-2) for axes in figure.axes]
    words = [axes.xaxis.label.get_window_extent() for axes in figure.axes if axes.get_xlabel()]
    for places in (boxes, words):
        assert not any(one.overlaps(other) for one, other in itertools.combinations(places, 2))


# ---- figures ---------------------------------------------------------------------------------------------


def test_a_line_across_a_panel_marks_no_place_on_its_axis():
    """A level is drawn from 0 to 1 of the panel; 1 is no number of users."""
    with drawing.figure_of() as (_, (panel,)):
        drawing.error_bars(panel, [64, 1024], [0.5, 0.1], None, 0, "a")
        drawing.level(panel, 1.0, "local")
        drawing.names(panel, "users", "loss", xscale="log")
    assert [label.get_text() for label in panel.get_xticklabels()] == ["64", "1024"]


def test_a_point_far_above_all_others_ends_the_axis():
    with drawing.figure_of() as (_, (panel,)):
        drawing.error_bars(panel, range(1, 11), [300.0, *range(50, 59)], None, 0, "a")
        drawing.names(panel, "hops", "PSNR (dB)")
    assert panel.get_ylim()[1] < 80
    assert any("300" in text.get_text() for text in panel.texts)


def test_shared_axes_are_named_once_and_hops_are_whole():
    with drawing.figure_of(2, sharey=True) as (_, panels):
        for panel in panels:
            drawing.error_bars(panel, [1, 2], [0.5, 0.1], [0.1, 0.1], 0, "a")
            drawing.names(panel, "hops", "loss")
    assert [panel.get_ylabel() for panel in panels] == ["loss", ""]
    assert all(tick == round(tick) for panel in panels for tick in panel.get_xticks())


def test_many_points_have_a_band_and_few_have_bars():
    def bars(count):
        with drawing.figure_of() as (_, (panel,)):
            drawing.error_bars(panel, range(count), np.ones(count), np.full(count, 0.1), 0, "a")
        return len(panel.containers[0].lines[2])

    assert (bars(5), bars(40)) == (1, 0)


# ---- options ---------------------------------------------------------------------------------------------


def test_options_are_read_as_they_are_written():
    options = options_of(find("muffliato-houses"))
    assert options["users"].read("100,200") == (100, 200)
    assert options["mean_mu"].read("0.5") == 0.5
    assert options_of(find("table1"))["epsilon"].read("inf,1") == (math.inf, 1.0)
    for option, word in (("users", "x"), ("runs", "1.5"), ("runs", "1,2"), ("mean_mu", "nan")):
        with pytest.raises(InvalidInput, match="expects"):
            options[option].read(word)
    with pytest.raises(InvalidInput, match="true or false"):
        Option("flag", False, "bool").read("1")
    options = options_of(find("topologies"))
    for option, word in (("observers", "0"), ("seed", "-1"), ("density", "0"), ("radius", "inf")):
        with pytest.raises(InvalidInput, match=r"at least|above"):
            options[option].read(word)
    assert options["seed"].read("0") == 0
    assert options["egos"].read("0,107") == (0, 107)
    assert options_of(find("table2"))["skew"].read("0") == (0.0,)


def test_no_option_is_described_that_is_not_there():
    there = {(name, option) for name in registry() for option in options_of(find(name))}
    own = {(name, option) for name, meanings in texts()["own"].items() for option in meanings}
    assert own <= there
    assert set(texts()["options"]) == {option for _, option in there}
    assert set(texts()["experiments"]) == set(registry())


# ---- Bayrooti et al. 2023 ------------------------------------------------------------------------------


def test_every_printed_cell_is_known():
    assert {name: len(cells_of(name)) for name in ("table1", "table2", "table4")} == {
        "table1": 65, "table2": 25, "table4": 40,
    }  # fmt: skip
    for name, number in (("table1", 1), ("table2", 2), ("table4", 4)):
        assert all(cell.printed(number) for cell in cells_of(name))
    # the two tables of the paper do not agree about the cell they share
    assert (printed(1, "dsgt", 10.0, 0.06), printed(2, "dsgt", 10.0, 0.06)) == ((96.26, 0.17), (96.06, 0.24))
    assert printed(4, "dinno", math.inf, 0.39, 1.0) == (48.73, 2.3)
    assert Cell("central", 0.5).printed() == (90.82, 1.14)
    assert Cell("dsgd", 3.0, 0.06).printed() is None


def test_printed_settings_are_the_papers():
    rates = ("dsgd", 0.5, 0.02, 0.005), ("dsgt", 100.0, 0.4, 0.05), ("dinno", 1.0, 0.01, 0.0005)
    for method, epsilon, first, last in rates:
        chosen = settings_of(method, epsilon, which="printed")
        assert (chosen.clip_norm, chosen.steps) == (10.0, None)
        assert (chosen.first_rate, chosen.last_rate) == (first, last)
    assert settings_of("central", 1.0, which="printed").clip_norm == 1.0
    assert tuned_apart("dsgd", 1.0, 0.06)
    assert not tuned_apart("dinno", 100.0, 1.0)
    with pytest.raises(InvalidInput, match="printed or tuned"):
        settings_of("dsgd", 1.0, which="best")


def test_both_settings_stand_side_by_side():
    options = {"method": ("dsgd",), "epsilon": (10.0,), "fiedler": (0.39,), "settings": "both"}
    result = find("table1").run(quick=True, **options)
    assert [row["settings"] for row in result.history] == ["printed", "tuned"]
    assert [row["accept"] for row in result.history] == [[], ["tuning"]]
    shown = find("table1").table(result.to_dict())
    assert len(shown.rows) == 1
    printed_, tuned = (shown.rows[0][shown.columns.index(c)] for c in ("ours as printed", "ours tuned"))
    assert float(printed_) != float(tuned)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"method": "foo"}, "it has central, dsgd, dsgt, dinno"),
        ({"epsilon": (3.0,), "fiedler": (0.39,)}, "it has inf, 100, 10, 1, 0.5"),
        ({"fiedler": (0.5,)}, "it has 1, 0.7, 0.39, 0.06"),
        ({"settings": "best"}, "printed, tuned or both"),
    ],
)
def test_unknown_rows_of_a_table_are_refused(wrong, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        find("table1").run(quick=True, **wrong)


@pytest.mark.parametrize("name", ["table1", "table2", "figure1"])
def test_no_cell_is_the_better_of_two_settings(name):
    """Whatever the printed settings score on the test set, figures, claims and "reached" do not change."""
    record = record_of(name)
    experiment, shown = find(name), find(name).table(record)
    held, reached = experiment.held(record), [row[-1] for row in shown.rows]
    for row in record["history"]:
        apart = tuned_apart(row["method"], float(row["epsilon"]), row["fiedler"] or 1.0)
        if row["settings"] == "printed" and apart:
            row["accuracy"] = 99.9 if row["accuracy"] is not None else None
    assert experiment.held(record) == held
    assert [row[-1] for row in experiment.table(record).rows] == reached
    for line in experiment.plot(record).axes[0].get_lines():
        assert 99.9 not in line.get_ydata()


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Stored trials, one file each."""
    folder = tmp_path_factory.mktemp("trials")
    unpack(RESULTS, folder)
    return folder


@pytest.mark.parametrize("name", ["table1", "table2", "figure1"])
def test_the_stored_table_is_that_of_its_trials(name, unpacked):
    stored = record_of(name)
    assert from_trials(name, unpacked).to_dict()["history"] == stored["history"]
    accuracies = {}
    for row in record_of("table1")["trials"] + record_of("table2")["trials"]:
        if row["which"] == "tuned":
            accuracies.setdefault(row["key"].rpartition("_trial")[0], []).append(row["accuracy"])
    for row in stored["history"]:
        if row["settings"] == "tuned" and row["trials"]:
            values = accuracies[row.get("trials_of", row["cell"])]
            assert row["accuracy"] == round(float(np.mean(values)), 2)
            assert row["trials"] == len(values)


def test_assembling_the_stored_trials_gives_the_stored_files(unpacked, tmp_path):
    trials.assemble(unpacked, tmp_path)
    for name in ("table1", "table2"):
        result = json.loads((tmp_path / f"{name}.json").read_text())
        stored = record_of(name)
        assert result.get("trials") == stored.get("trials")
        assert result["metrics"] == stored["metrics"]


def test_an_exact_sum_stands_beside_every_graph_and_is_no_cell_of_the_paper(tmp_path):
    for name in ("masked_eps1_fiedler0.39_t1", "dsgd_eps1_fiedler0.39_t1"):
        method = name.partition("_")[0]
        cell = {"method": method, "epsilon": 1.0, "fiedler": 0.39}
        record = {
            "name": "bayrooti2023-trial", "cell": cell, "trial": 0, "which": "tuned", "accuracy": 91.0,
            "epsilon_spent": 1.0, "provenance": {"seconds": 1.0},
        }  # fmt: skip
        (tmp_path / f"{name}_trial0.json").write_text(json.dumps(record))
    result = from_trials("table1", tmp_path).to_dict()
    assert result["metrics"]["cells"] == 1
    rows = [row for row in result["history"] if row["method"] == "masked"]
    assert [row["fiedler"] for row in rows] == [1.0, 0.7, 0.39, 0.06]
    assert {row["accuracy"] for row in rows} == {91.0}
    assert ["trials_of" in row for row in rows] == [True, True, False, True]
    assert "trials on one stand for all" in find("table1").table(result).note


def test_a_claim_is_not_said_to_hold_before_its_cells_are_run():
    """Without the central row, a graph, the other skews."""
    for name, lacking in (("table1", ("method", "central")), ("figure1", ("fiedler", 0.7)), ("table2", None)):
        record = json.loads(json.dumps(record_of("table1")))
        for row in record["history"]:
            if lacking is not None and row[lacking[0]] == lacking[1]:
                row["accuracy"], row["trials"] = None, 0
        assert find(name).held(record) is None
    record = record_of("table1")
    for row in record["history"]:  # the paper's own numbers bear its sentence out, worse ones do not
        row["accuracy"] = row["paper"]
    assert find("table1").held(record) is True
    assert find("figure1").held(record) is True
    for row in record["history"]:
        if row["method"] == "dsgt":
            row["accuracy"] -= 3 if row["fiedler"] == 0.7 else 0
    assert find("table1").held(record) is False
    assert find("figure1").held(record) is False


def test_the_runner_asks_for_what_is_missing_and_no_more(tmp_path):
    everything = trials.pending(tmp_path, ["table1"], ["printed", "tuned"], 2)
    tuned = [cell for cell in cells_of("table1") if tuned_apart(cell.method, cell.epsilon, cell.fiedler)]
    assert len(everything) == 2 * (65 + len(tuned))
    assert [trial for *_, trial in everything] == sorted(trial for *_, trial in everything)
    cell, which, trial = everything[0]
    (tmp_path / f"{trial_key(cell, which, trial)}.json").write_text("{}")
    assert trials.pending(tmp_path, ["table1"], ["printed", "tuned"], 2) == everything[1:]


def test_the_runner_writes_where_it_looks(tmp_path):
    cell = Cell("dsgd", 10.0, 0.39, data="digits", steps=2, batch_size=16, agents=5)
    assert list(trials._finished([(cell, "printed", 0)], tmp_path, 1)) == [(cell, "printed", 0)]
    assert [path.name for path in tmp_path.iterdir()] == [f"{trial_key(cell, 'printed', 0)}.json"]


# ---- new tables and figures --------------------------------------------------------------------------

# table 4, table 5 and fine-tuning take longer and have tests of their own
QUICK = [name for name in registry() if not re.match("table4|audit-table5|fine-tuning", name)]


@pytest.mark.parametrize("name", QUICK)
def test_quick_forms_run_show_and_draw(quick, name):
    record = quick(name)
    assert record["name"] == name
    assert record["metrics"] or record["history"]
    shown = find(name).table(record)
    assert shown.rows
    assert all(len(row) == len(shown.columns) for row in shown.rows)
    figure = find(name).plot(record)
    assert figure.axes
    named = [axes for axes in figure.axes if axes.axison and axes.get_label() != "<colorbar>"]
    assert all(axes.get_xlabel() for axes in named)
    for axes in named if name != "convex-audits" else ():  # its bars have names
        # named itself, or by the panel whose axis it shares
        assert any(other.get_ylabel() for other in axes.get_shared_y_axes().get_siblings(axes))


def test_figure_3_has_its_half_without_privacy(quick):
    record = quick("loss-histograms")
    assert list(record["metrics"]["histograms"]) == ["no privacy", "epsilon = 1"]
    guessed = {row["budget"]: row["guessed"] for row in record["history"]}
    assert guessed["no privacy"] > guessed["epsilon = 1"]


def test_theorems_2_and_3_bound_the_measured_error(quick):
    for row in quick("muffliato-utility")["history"]:
        assert row["error"] / 2 <= row["half_error_bound"]
        # and the noise was set by the definition of the loss: alpha h / (2 sigma^2) = epsilon
        assert 2.0 * row["mean_share"] / (2 * row["noise_std"] ** 2) == pytest.approx(1.0)


def test_printed_rates_by_hand_and_measured(quick):
    from sottovoce_papers.bellet2024_optimization.rates import descent_order, excess_risk_order

    log = math.log(1e5)
    assert excess_risk_order(100, 9, 2.0, 1e-5, lipschitz=3.0, distance=5.0) == pytest.approx(
        math.sqrt(9 * log) / 200 * 15
    )
    assert excess_risk_order(100, 9, 2.0, 1e-5, lipschitz=3.0, strong_convexity=0.5) == pytest.approx(
        9 * log / 200**2 * 9 / 0.5
    )
    assert descent_order(8, 3, 2.0, 10, 0.5, gradient_variance=4.0) == pytest.approx((12 + 4) / (0.5 * 80))
    for bad in ({"epsilon": 0.0}, {"delta": 0.0}, {"n": 0}):
        with pytest.raises(InvalidInput):
            excess_risk_order(**{"n": 10, "dim": 2, "epsilon": 1.0, "delta": 1e-5} | bad)
    for name in ("muffliato-rate", "dpsgd-rates"):
        for row in quick(name)["history"]:
            assert 0 < row["excess"] < 10 * row["order"]
    with pytest.raises(InvalidInput, match="powers of two"):
        find("muffliato-rate").run(quick=True, sizes=(12,))


def test_accelerated_randomized_gossip_has_the_order_of_the_remark():
    """sqrt(degree / gap) in place of 1 / gap, by hand on a ring, and refused where it says nothing."""
    ring = sv.graphs.ring(12)
    plain = published_utility(ring, 1.0, randomized=True)
    fast = published_utility(ring, 1.0, randomized=True, accelerated=True)
    assert fast / plain == pytest.approx(math.sqrt(2 * ring.spectral_gap))
    with pytest.raises(InvalidInput, match="randomized"):
        published_utility(ring, 1.0, accelerated=True)


def test_the_fixed_point_bound_is_the_printed_one(quick):
    from sottovoce_papers.bellet2024_optimization.fixed_points import admm_order, fixed_point_bound

    # (2) by hand: k = 2, D = 3, p = 4, sigma = 1/2, zeta = 1, q = 1/4, tau = 1/2
    noise = (2 * 0.5 + 1) / (0.5 * 0.5) + (4 * 0.25 + 1) / ((1 / 64) * 0.125)
    by_hand = (1 - (1 / 16) * 0.5 / 8) ** 2 * 3 + 8 * noise
    assert fixed_point_bound(2, 3.0, 4, 0.5, 0.5, q=0.25, inexact=1.0) == pytest.approx(by_hand)
    first, second = math.sqrt(20) / (100 * 0.5), 20 / (100**2 * 0.125)
    assert admm_order(100, 10, 1.0, 0.5) == pytest.approx(first + second)
    with pytest.raises(InvalidInput):
        fixed_point_bound(2, 1.0, 4, 0.5, 1.0)
    assert all(row["error"] <= row["bound"] for row in quick("fixed-point-utility")["history"])


def test_a_walk_of_equal_noise_is_compared_in_gossips_unit(quick):
    """On the complete graph one round of gossip shows everything; a long public walk shows a sum."""
    metrics = quick("walk-vs-gossip-averaging")["metrics"]["complete"]
    assert metrics["gossip"]["loss"][0] == pytest.approx(1.0)
    assert 0 < metrics["walk"]["mean"]


def test_the_talks_own_accounting_of_walk_and_gossip_crosses_with_distance():
    """The printed walk formula is below formula (6) for neighbors, above it for the furthest nodes."""
    record = record_of("walk-vs-gossip-averaging")
    walk, gossip = (
        record["metrics"]["hypercube"][m]["loss"] for m in ("walk, printed formula", "gossip, formula (6)")
    )
    assert walk[0] < gossip[0]
    assert walk[-1] > gossip[-1]
    # the hypercube of 64 by hand: formula (6) for a neighbor, its first round shows the row itself
    network = sv.graphs.hypercube(6)
    rounds = record["metrics"]["hypercube"]["rounds"]
    assert gossip[0] == pytest.approx(sv.privacy.published_loss(network, rounds)[0, 1])


def test_a_new_record_names_processor_and_threads_and_an_assembled_one_does_not(quick, unpacked):
    came = quick("attack-geometric")["provenance"]
    assert came["processor"]
    assert came["threads"] >= 1
    assert "processor" not in from_trials("table1", unpacked).to_dict()["provenance"]


def test_erdos_renyi_is_taken_over_draws():
    record = find("topologies").run(quick=True, draws=3).to_dict()
    assert record["metrics"]["erdos-renyi"]["graphs"] == 3
    result = record_of("topologies")
    assert result["metrics"]["erdos-renyi"]["graphs"] == result["config"]["draws"] == 5
    for losses in result["metrics"].values():
        assert len(losses["best"]) == len(losses["worst"]) == len(losses["distances"])
        curves = zip(losses["best"], losses["exact"], losses["worst"], strict=True)
        assert all(best <= mean <= worst for best, mean, worst in curves)


def test_a_claim_about_the_loss_is_judged_by_the_exact_loss():
    """Formula (6) falls with Euclidean distance; where the exact loss does not, the claim does not hold."""
    record = record_of("geometric-distance")
    assert find("geometric-distance").held(record) is False
    falling = json.loads(json.dumps(record))
    falling["metrics"]["loss"] = [1 / (1 + d) for d in falling["metrics"]["distance"]]
    assert find("geometric-distance").held(falling) is True


def test_what_a_line_says_is_said_by_its_source():
    assert find("table1").own is False
    assert {name for name in registry() if find(name).own} == {
        item.experiment for item in ITEMS if item.source == "beyond"
    }
