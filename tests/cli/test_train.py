"""`sottovoce train` and `search`: accounted first, refused in a sentence, resumed to the same bytes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.wording import UNCHARGED
from sottovoce.cli import output
from sottovoce.objectives.trivial import comparison
from sottovoce.planfile.read import load_file
from sottovoce.planfile.training import load_training, run_training
from sottovoce.runners.checkpoint import Checkpoint
from sottovoce.runners.loggers import evaluation_log

from .plans import ACCEPT, ALGORITHMS, AVERAGE, BUDGETED_TRAINING, NET, NOISE, trained

PLAIN = 'name = "breast_cancer"\nunit_rows = true\n'  # data whose preparation reads no record


def changed(*replacements, text):
    """Return the text of a plan with parts of it replaced."""
    for old, new in replacements:
        assert old in text, old
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_is_planned_and_trained(call, tmp_path, algorithm):
    (tmp_path / "plan.toml").write_text(trained(algorithm))
    plan = call("plan", "plan.toml", "--json")
    assert plan.code == 0, plan
    assert plan.json["guarantees"]
    assert "messages" in plan.json["cost"]
    answer = call("train", "plan.toml", "--json", "--out", "out.json")
    assert answer.code == 0, answer
    result = answer.json
    assert result["config"]["algorithm"] == algorithm
    assert 0 <= result["metrics"]["accuracy"] <= 1
    assert "simulation" in result["provenance"]["noise"]
    assert json.loads((tmp_path / "out.json").read_text())["outputs"]["coef"] == result["outputs"]["coef"]
    for stated in (*plan.json["guarantees"], *result["guarantees"]):  # what was read and not charged
        assert stated["accepted"] == ["standardize", "held-out score"]
        assert f"not charged, accepted by name: {UNCHARGED['standardize']}" in stated["assumptions"]


def test_file_and_python_build_the_same_plan(call, tmp_path):
    (tmp_path / "plan.toml").write_text(trained("dp-dsgd", data=PLAIN, accept=""))
    result = call("train", "plan.toml", "--json").json
    data = sv.data.load("breast_cancer").unit_rows()
    shards = data.shards(sv.data.equal(data.n, 8, np.random.default_rng([0, 1])))
    plan = sv.algorithms.DPDSGD(
        sv.objectives.GLM(), sv.graphs.hypercube(3), steps=5, learning_rate=1.0, clip_norm=1.0, batch_size=20,
        noise_multiplier=4.0, sizes=shards.sizes,
    )  # fmt: skip
    rows = plan.run(shards, sv.privacy.SimulatedNoise(1)).outputs["rows"]
    np.testing.assert_array_equal(result["outputs"]["coef"], rows.mean(axis=0))
    assert result["guarantees"][0]["epsilon"] == plan.epsilon(1e-5, "local")


def test_one_multiplier_is_one_epsilon_everywhere(call, tmp_path):
    expected = pytest.approx(1.993, abs=5e-4)  # mu = 1/2 at delta 1e-5
    account = call("account", "--graph", "ring:4", "--noise", 4, "--json").json
    assert account["guarantees"][0]["epsilon"] == expected
    average = call("average", "1,2,3,4", "--graph", "ring:4", "--noise", 4, "--radius", 3, "--json").json
    assert average["guarantees"][0]["epsilon"] == expected
    (tmp_path / "average.toml").write_text(AVERAGE + "[noise]\nnoise_multiplier = 4\n")
    assert call("plan", "average.toml", "--json").json["guarantees"][0]["epsilon"] == expected
    once = ("add-remove", "user"), ("steps = 5", "steps = 1"), ("clip_norm = 1.0", "clip_norm = 0.3")
    text = changed(*once, text=trained("consensus-sgd"))
    (tmp_path / "train.toml").write_text(text)
    (tmp_path / "std.toml").write_text(text.replace("noise_multiplier = 4.0", "noise_std = 1.2"))
    for command, file in (("plan", "train.toml"), ("train", "train.toml"), ("plan", "std.toml")):
        assert call(command, file, "--json").json["guarantees"][0]["epsilon"] == expected


def test_an_interrupted_run_goes_on_to_the_same_result(call, tmp_path, monkeypatch):
    (tmp_path / "plan.toml").write_text(trained("consensus-sgd"))
    whole = call("train", "plan.toml", "--json").json["outputs"]["coef"]
    saved = Checkpoint.commit

    def die(self, step, files):
        saved(self, step, files)
        if step == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "commit", die)
    stopped = call("train", "plan.toml", "--checkpoint", "checkpoint")
    assert stopped.code == 130
    assert "saved at step 3" in stopped.err
    monkeypatch.setattr(Checkpoint, "commit", saved)
    output._stopped.clear()
    resumed = call("train", "plan.toml", "--checkpoint", "checkpoint", "--out", "out.json")
    assert resumed.code == 0
    assert "Continuing at step 3 of 5 from checkpoint." in resumed.err
    again = json.loads((tmp_path / "out.json").read_text())
    assert again["outputs"]["coef"] == whole
    assert [entry["step"] for entry in again["history"]] == [4, 5]


def test_a_budget_is_calibrated_for_its_own_view(tmp_path):
    def plan_for(view):
        budget = f"[budget]\nepsilon = 4.0\ndelta = 1e-5\n{view}"
        (tmp_path / "plan.toml").write_text(trained("consensus-sgd", "seed = 1\n", budget))
        return load_file(tmp_path / "plan.toml").plan

    plans = {view: plan_for(f'view = "{view}"\n') for view in ("local", "network", "central")}
    assert all(3.99 < plan.epsilon(1e-5, view) <= 4.0 for view, plan in plans.items())
    least = {view: np.max(plan.noise_multiplier) for view, plan in plans.items()}
    assert least["local"] >= least["network"] > least["central"]
    assert plan_for("").noise_multiplier == plans["network"].noise_multiplier


def test_a_budget_is_met_or_refused_before_anything_runs(call, refused, tmp_path):
    budget = '[budget]\nepsilon = {}\ndelta = 1e-5\nview = "network"\n'
    (tmp_path / "plan.toml").write_text(trained("consensus-sgd", "seed = 1\n", budget.format(4.0)))
    result = call("train", "plan.toml", "--json").json
    worst = next(g for g in result["guarantees"] if g["adversary"]["kind"] == "network")
    assert 3.9 < worst["epsilon"] <= 4.0
    for noise in (NOISE, "noise_multiplier = 0\n"):
        (tmp_path / "plan.toml").write_text(trained("consensus-sgd", noise, budget.format(0.1)))
        assert "more than the budget of 0.1" in refused("train", "plan.toml", "--out", "out.json")


TRAIN_TABLE = "[train]\n"
MLP = '[model]\nname = "mlp"\noptions = { inputs = 64, hidden = 8 }\n'
WRONG = [  # plan, what is replaced by what, and the sentence about it
    ("dp-sgd", '"dp-sgd"', '"sgdd"', "plan.toml, [train]: algorithm must be one of averaging, "),
    ("dp-sgd", "batch_size = 50", "cap = 3", "plan.toml, [train]: dp-sgd has no option 'cap'; it knows"),
    ("dp-dsgd", "clip_norm = 1.0", "clip_norm = -1.0", "plan.toml, [train]: clip_norm must be positive"),
    ("dp-cd", "steps = 60\n", "", "[train] steps is missing; dp-cd needs it."),
    ("dp-sgd", f"[noise]\n{NOISE}", "", "Neither [noise] nor [budget]"),
    ("dp-sgd", "noise_multiplier", "noise_ratio", "noise_ratio does not fit dp-sgd; give noise_multiplier."),
    ("dp-sgd", "clip_norm = 1.0", "sizes = [1]", "[train] sizes has its own place: [data]"),
    ("dp-sgd", 'adjacency = "add-remove"\n', "", "[train] adjacency is missing."),
    ("dp-sgd", TRAIN_TABLE, f'[network]\ngraph = "ring:4"\n{TRAIN_TABLE}', "leave [network] out"),
    ("dp-sgd", TRAIN_TABLE, f'[protocol]\nname = "tree"\n{TRAIN_TABLE}', "is for plans over a network"),
    ("dp-sgd", TRAIN_TABLE, f"[objective]\nlos = 1\n{TRAIN_TABLE}", "[objective] los is not known"),
    ("dp-sgd", TRAIN_TABLE, f'[model]\nname = "mlp"\n[objective]\n{TRAIN_TABLE}', "leave one out"),
    ("dp-dsgd", '[network]\ngraph = "hypercube:3"\n', "", "who talks to whom"),
    ("consensus-sgd", '"tree"', '"gossip"', "consensus-sgd runs over tree or"),
    ("dp-sgd", TRAIN_TABLE, f"[average]\nradius = 1.0\nadjacency = 'user'\n{TRAIN_TABLE}", "it has both"),
    ("dp-sgd", '"dp-sgd"', '"averaging"', "averaging is written as [average]"),
    (NET, "batch_size = 64", "batch_size = 5000", "batch_size"),
    (NET, "skew = 0.5", "skew = 2.0", "[data] skew"),
    (NET, "hidden = 8", "hidden = 8, width = 1", "[model]: mlp cannot be built from"),
    (NET, '"mlp"', '"unknown"', "[model]: model must be one of"),
    (NET, '"digits"', '"nothing"', "no data set 'nothing'"),
    (NET, "skew = 0.5", "unit_rows = true", "[data] unit_rows is for tables"),
    (NET, "skew = 0.5", 'features = ["a"]', "the name of fixed features"),
    (NET, f"skew = 0.5\n{MLP}", "side = 4\n", "a [model] section"),
]


@pytest.mark.parametrize(("plan", "old", "new", "sentence"), WRONG)
def test_wrong_files_are_refused_in_a_sentence(refused, tmp_path, plan, old, new, sentence):
    (tmp_path / "plan.toml").write_text(changed((old, new), text=plan if "\n" in plan else trained(plan)))
    assert sentence in refused("train", "plan.toml", "--out", "out.json")
    assert sentence in refused("plan", "plan.toml", "--out", "out.json")


# ---- read, and not charged ---------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["plan", "train"])
def test_what_is_read_and_not_charged_must_be_accepted_by_name(refused, tmp_path, command):
    (tmp_path / "plan.toml").write_text(trained("dp-sgd", accept=""))
    error = refused(command, "plan.toml", "--out", "r.json")
    assert 'accept = ["held-out score", "standardize"]' in error
    (tmp_path / "plan.toml").write_text(trained("dp-sgd", accept='accept = ["held-out score"]\n'))
    assert "bounds = [low, high] scales by public bounds instead" in refused(command, "plan.toml")
    (tmp_path / "plan.toml").write_text(trained("dp-sgd", accept='accept = ["everything"]\n'))
    assert "accept knows standardize, held-out score" in refused(command, "plan.toml")
    (tmp_path / "plan.toml").write_text(trained("dp-sgd", data=PLAIN))
    assert "nothing of the kind is read" in refused(command, "plan.toml")


def test_accepted_reads_are_shown_and_stored(call, tmp_path):
    (tmp_path / "plan.toml").write_text(trained("dp-sgd", accept=ACCEPT.replace("]", ', "tuning"]')))
    answer = call("train", "plan.toml", "--out", "r.json")
    assert answer.out.count("not charged, accepted by name: the mean and deviation") >= 1
    assert "yes, but not for the item in" in answer.out
    assert "Accepted by name (tuning): Read of private records and not charged: settings" in answer.out
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["metrics"]["accepted"] == ["standardize", "held-out score", "tuning"]


def table_of(folder, rows=60, words=("sick", "well")):
    rng = np.random.default_rng(0)
    for name in ("mine.csv", "public.csv"):
        ages, doses = rng.uniform(20, 80, rows), rng.uniform(0, 5, rows)
        lines = [f"{a:.1f},{d:.2f},{words[int(a > 50)]}" for a, d in zip(ages, doses, strict=True)]
        (folder / name).write_text("\n".join(["age,dose,state", *lines]))


OWN = """version = 1
[data]
file = "mine.csv"
label = "state"
classes = ["sick", "well"]
bounds = { age = [0, 100], dose = [0, 5] }
intercept = true
test_file = "public.csv"
[network]
graph = "complete:3"
[train]
algorithm = "consensus-sgd"
adjacency = "add-remove"
steps = 40
clip_norm = 1.0
learning_rate = 4.0
[noise]
noise_multiplier = 0.5
seed = 1
"""


def test_public_bounds_classes_and_scores_need_nothing_accepted(call, refused, tmp_path):
    table_of(tmp_path)
    (tmp_path / "plan.toml").write_text(OWN)
    result = call("train", "plan.toml", "--json").json
    assert result["metrics"]["accuracy"] > 0.8
    assert "accepted" not in result["metrics"]
    (tmp_path / "plan.toml").write_text(OWN.replace('classes = ["sick", "well"]\n', ""))
    assert 'accept "class names"' in refused("train", "plan.toml")
    (tmp_path / "plan.toml").write_text(OWN.replace('"well"]', '"fine"]'))
    assert "label 'well', which is not among the public classes sick, fine" in refused("train", "plan.toml")
    (tmp_path / "plan.toml").write_text(OWN.replace(", dose = [0, 5]", ""))
    assert "column 'dose' has no public bounds: give each" in refused("train", "plan.toml")


def test_a_model_is_compared_with_a_constant_on_terminal_in_the_record_and_on_the_page(call, tmp_path):
    table_of(tmp_path)
    (tmp_path / "plan.toml").write_text(OWN)
    public = (tmp_path / "public.csv").read_text()
    wrong = public.replace("sick", "?").replace("well", "sick").replace("?", "well")
    for text, better in ((public, True), (wrong, False)):
        (tmp_path / "public.csv").write_text(text)
        answer = call("train", "plan.toml", "--out", "result.json")
        metrics = json.loads((tmp_path / "result.json").read_text())["metrics"]
        labels = [line.split(",")[-1] for line in (tmp_path / "public.csv").read_text().split()[1:]]
        assert metrics["trivial_accuracy"] == max(labels.count("sick"), labels.count("well")) / 60
        assert metrics["better_than_trivial"] is better
        sentence = comparison(metrics)
        assert ("no better than a constant" in sentence) is not better
        assert sentence[1:] in " ".join(answer.out.split())
        assert "useful: yes" not in answer.out  # before the run nothing is known
        assert call("report", "result.json", "-o", "page.html").code == 0
        page = " ".join((tmp_path / "page.html").read_text().split())
        assert sentence[1:] in page


def test_training_that_diverges_is_one_sentence_and_leaves_no_model(call, tmp_path):
    table_of(tmp_path)
    (tmp_path / "plan.toml").write_text(OWN.replace("learning_rate = 4.0", "learning_rate = 1e9"))
    before = sorted(tmp_path.rglob("*"))
    stopped = call("train", "plan.toml", "--out", "model")
    assert stopped.code == 1
    assert stopped.err.startswith("sottovoce: training diverged; lower the learning rate: after 2 of 40 ste")
    assert stopped.err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


# ---- other commands --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "privacy", ["[budget]\nepsilon = inf\ndelta = 1e-5\n", "[noise]\nnoise_multiplier = 0\n"]
)
def test_run_without_privacy_is_labeled(call, tmp_path, privacy):
    """`epsilon = inf` or `noise_multiplier = 0`: epsilon is infinite, private: no, and it runs."""
    text = trained("dp-dsgd", data=PLAIN, accept="")
    (tmp_path / "free.toml").write_text(text.split("[noise]")[0] + privacy)
    plan = call("plan", "free.toml", "--json")
    assert plan.code == 0, plan
    assert plan.json["metrics"]["private"] is False
    assert "without privacy" in plan.json["metrics"]["verdict"]
    assert {stated["epsilon"] for stated in plan.json["guarantees"]} == {"inf"}
    answer = call("train", "free.toml")
    assert answer.code == 0, answer
    assert "Private: no" in answer.out
    assert "Noise: none: no privacy" in answer.out


@pytest.mark.slow
def test_ctrl_c_names_the_saved_step(tmp_path):
    options = {"protocol": "exchange", "adjacency": "add-remove", "steps": 200_000, "epsilon": 900.0}
    running = started(tmp_path, "--checkpoint", "checkpoint", plan=BUDGETED_TRAINING.format(**options))
    for _ in range(1200):
        if list(tmp_path.glob("checkpoint/step-*")):
            break
        time.sleep(0.1)
    time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    stderr = running.communicate(timeout=60)[1]
    assert running.returncode == 130
    pattern = r"sottovoce: stopped; saved at step [\d,]+ in checkpoint; the same command continues\.\n"
    assert re.search(pattern, stderr)
    assert "Traceback" not in stderr


# ---- networks ----------------------------------------------------------------------------------------------


def write_plan(folder, text=NET, algorithm="dp-dsgt"):
    path = folder / "plan.toml"
    path.write_text(text.replace('"dp-dsgt"', f'"{algorithm}"'))
    return path


def train_file(path, logs=None, **options):
    loaded = load_training(path)
    with evaluation_log(logs, loaded.plan, loaded.delta) as log:
        return run_training(loaded, on_evaluation=log, **options)


def test_one_holder_of_all_records_needs_no_network(tmp_path):
    text = NET.replace('[network]\ngraph = "ring:5"\n', "").replace('view = "local"\n', "")
    result = train_file(write_plan(tmp_path, text, algorithm="dp-sgd"))
    assert result.outputs["rows"].shape[0] == 1
    assert result.config["sizes"] == (1437,)


def test_logs_and_resume(tmp_path):
    path = write_plan(tmp_path)
    whole = train_file(path, checkpoint=tmp_path / "checkpoint", logs=tmp_path / "logs")
    again = train_file(path, checkpoint=tmp_path / "checkpoint")
    np.testing.assert_array_equal(whole.outputs["rows"], again.outputs["rows"])
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(tmp_path / "logs")).Reload()
    assert {"accuracy", "epsilon"} <= set(log.Tags()["scalars"])
    spent = [event.value for event in log.Scalars("epsilon")]
    assert log.Scalars("epsilon")[-1].step == 8
    assert spent == sorted(spent)
    assert spent[0] < 10 < spent[-1] <= 20.0


def test_the_commands_plan_and_train_take_such_a_file(call, tmp_path):
    write_plan(tmp_path)
    answer = call("plan", "plan.toml")
    assert answer.code == 0, answer
    assert "add-remove" in answer.out
    answer = call("train", "plan.toml", "--logs", "logs", "-o", "model", "--json")
    assert answer.json["metrics"]["accuracy"] > 0
    assert (tmp_path / "model" / "record.json").is_file()
    with np.load(tmp_path / "model" / "arrays.npz") as arrays:  # the weights are kept
        assert arrays["output.rows"].shape == (5, 64 * 8 + 8 + 8 * 10 + 10)
    assert "accuracy" in json.loads((tmp_path / "model" / "record.json").read_text())["metrics"]


def test_search_prints_what_it_spends(call, tmp_path):
    write_plan(tmp_path)
    search = call("search", "plan.toml", "--rates", "0.1,0.5", "--clip-norms", "1", "--json").json
    assert search["runs"] == 2
    assert search["epsilon_of_one_run"] <= 20.0 < search["epsilon_of_the_search"] < 40.0
    assert search["best"]["accuracy"] == max(row["accuracy"] for row in search["tried"])


# ---- ranks -------------------------------------------------------------------------------------------------

RANKS_PLAN = trained("muffliato-sgd", data=PLAIN, accept="").replace("hypercube:3", "ring:5")
RANKS_NETWORK = NET.replace("steps = 8", "steps = 40\nevaluate_every = 1")


def started(folder, *words, plan=RANKS_PLAN):
    (folder / "plan.toml").write_text(plan)
    source = str(Path(sv.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-m", "sottovoce.cli.main", "train", "plan.toml", "--json", *words],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "SOTTOVOCE_TIMEOUT": "100"},
    )  # fmt: skip


def sottovoce_train(folder, *words, plan=RANKS_PLAN):
    running = started(folder, *words, plan=plan)
    out, err = running.communicate(timeout=300)
    return subprocess.CompletedProcess(words, running.returncode, out, err)


def test_ranks_give_the_model_of_one_process(tmp_path):
    alone = sottovoce_train(tmp_path)
    split = sottovoce_train(tmp_path, "--ranks", "2", "--checkpoint", "checkpoint")
    assert split.returncode == 0, split.stderr
    one, two = json.loads(alone.stdout), json.loads(split.stdout)
    assert one["outputs"] == two["outputs"]
    assert one["metrics"] == two["metrics"]
    assert two["provenance"]["ranks"] == 2
    assert json.loads((tmp_path / "checkpoint" / "current.json").read_text())["step"] == 5


def test_too_many_ranks_is_one_sentence_and_exit_1(tmp_path):
    done = sottovoce_train(tmp_path, "--ranks", "3", plan=RANKS_PLAN.replace("ring:5", "path:2"))
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"error": "3 ranks cannot share 2 agents; start at most 2 ranks."}
    assert done.stderr == ""


def test_an_interrupted_network_goes_on_with_other_ranks(tmp_path):
    current = tmp_path / "checkpoint" / "current.json"
    running = started(tmp_path, "--ranks", "2", "--checkpoint", "checkpoint", plan=RANKS_NETWORK)
    deadline = time.monotonic() + 200
    while not current.exists() and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGTERM)  # all at once, as a scheduler does
    assert running.communicate(timeout=60)[0] == ""
    assert running.returncode == -signal.SIGTERM
    before = json.loads(current.read_text())["step"]
    assert 0 < before < 40
    done = sottovoce_train(tmp_path, "--ranks", "1", "--checkpoint", "checkpoint", plan=RANKS_NETWORK)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["history"][0]["step"] == before + 1  # nothing was done twice
    rows = train_file(tmp_path / "plan.toml").outputs["rows"]
    parts = [np.load(part) for part in sorted((tmp_path / "checkpoint").glob("step-*.npz"))]
    assert len(parts) == 1
    np.testing.assert_allclose(parts[0]["leaf0"], rows, atol=1e-6)
