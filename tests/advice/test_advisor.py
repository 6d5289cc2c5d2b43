"""Advice: recommendations keep their promises; candidates, comparisons, files and requirements."""

import dataclasses
import importlib.util
import itertools
import math
import tomllib
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.advice.candidates import averaging_candidates, guarantee_against, plan_for
from sottovoce.advice.comparison import compare
from sottovoce.advice.suggestions import suggestions
from sottovoce.advice.usefulness import answer_error
from sottovoce.algorithms.tree_noise import least_tree_noise, tree_noise_program
from sottovoce.errors import BudgetInfeasible, InvalidInput
from sottovoce.protocols import Tree

SCRIPT = Path(__file__).parents[2] / "examples" / "twelve-hospitals" / "run.py"


def consortium(seed):
    """A random consortium: members, links, records, colluders."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 13))
    graph = nx.random_labeled_tree(n, seed=seed)
    if rng.random() < 0.6:
        graph.add_edges_from(nx.gnp_random_graph(n, 0.4, seed=seed).edges)
    c = int(rng.integers(1, min(3, n - 2) + 1))
    sizes = rng.integers(5, 400, size=n).tolist()
    return graph, sizes, c, ("record", "member")[int(rng.integers(2))]


def budget_met(plan, c, epsilon, delta):
    view = {"view": "network"} if c == 1 else {"view": "colluders", "colluders": c}
    return plan.privacy(**view).epsilon(delta) <= epsilon


@pytest.mark.parametrize("seed", range(4))
def test_nothing_in_a_small_grid_beats_the_recommendation(seed):
    graph, sizes, c, hide = consortium(seed)
    epsilon, delta = 8.0, 1e-5
    advice = sv.advise(graph, epsilon=epsilon, delta=delta, records=sizes, hide=hide, colluders=c)
    best = advice.rows[0]
    assert budget_met(best.plan, c, epsilon, delta)
    assert best.private
    assert best.dominated_by is None
    network = sv.graphs.from_networkx(graph)
    least_of_grid = math.inf
    for k in range(8):
        rng = np.random.default_rng([seed, k])
        tree = Tree(
            network, root=int(rng.integers(network.n)), kind=["bfs", "uniform", "capped"][k % 3], rng=rng
        )
        for protocol in (tree, sv.protocols.Masked(tree, tolerate=c)):
            if hide == "member":
                plan = sv.PrivateAveraging(protocol, noise_std=1.0, radius=0.5)
            else:
                plan = sv.algorithms.ConsensusSGD(
                    sv.objectives.GLM("squared", dim=1), protocol, steps=1, learning_rate=1.0, clip_norm=0.5,
                    sizes=sizes, noise_multiplier=1.0,
                )  # fmt: skip
            who = {} if c == 1 else {"colluders": c}
            plan = plan.calibrated_to(epsilon, delta, view="network" if c == 1 else "colluders", **who)
            error, seconds = sv.advice.usefulness(plan).error, plan.cost()["rounds"] * 0.05
            least_of_grid = min(least_of_grid, error)
            assert not (error < 0.995 * best.loss and seconds <= best.seconds * 1.001)
    assert best.loss <= 1.005 * least_of_grid  # masked sums are the least of all here


@pytest.mark.parametrize(
    ("members", "options", "recommended"),
    [
        (10, {}, "masked"),
        (10, {"masks": False}, "tree:kind=few-leaves"),
        (2, {}, "exchange"),  # of two, masks hide nothing
        (10, {"colluders": 2}, "masked:tolerate=2"),
    ],
)
def test_recommended_protocol(members, options, recommended):
    row = sv.advise(members, epsilon=1.0, delta=1e-5, records=200, **options).recommended
    assert (row.plan.name, row.candidate.protocol) == ("consensus-sgd", recommended)
    if options.get("colluders"):
        assert row.plan.privacy("colluders", colluders=[3, 7]).epsilon(1e-5) <= 1.0


def test_views_that_need_more_noise():
    """A budget is never accepted against less than one member; the local view counts own noise only."""
    options = {"epsilon": 1.0, "delta": 1e-5, "records": 100}
    one, two = (sv.advise(6, view="outsider", **options) for _ in range(2))
    assert one.to_dict() == two.to_dict()  # advice is deterministic
    for row in one.rows:
        assert row.private
        assert max(row.epsilon_outsider, row.epsilon_network) <= 1.0
    assert sv.advise(5, view="local", **options).recommended.epsilon_local <= 1.0
    assert sv.advice.Requirements.from_arguments(5, colluders=4, **options).view == "local"


def test_silent_members_and_time_limit_decide():
    requirements = {"epsilon": 1.0, "delta": 1e-5, "records": 200}
    goes_on = sv.advise(8, silent="go on", **requirements)
    assert "gossip" in goes_on.recommended.name
    assert any("silent" in problem for row in goes_on.rows[1:] for problem in row.problems)
    slow = sv.advise("path:9", seconds=0.2, **requirements)  # a tree of depth 4 takes 0.4 s
    assert slow.recommended is None or slow.recommended.seconds <= 0.2
    assert any("more than 0.2" in problem for row in slow.rows for problem in row.problems)


def test_suggested_epsilon_and_members_are_the_smallest_that_fit():
    requirements = {"delta": 1e-5, "hide": "member", "records": 50}
    advice = sv.advise(10, epsilon=1.0, **requirements)
    assert advice.recommended is None
    with pytest.raises(BudgetInfeasible, match="Nothing fits"):
        _ = advice.plan
    suggested = {suggestion.what: suggestion.value for suggestion in advice.suggestions}
    members, epsilon = suggested["members"], suggested["epsilon"]
    cases = (10, epsilon, True), (10, epsilon * 0.98, False), (members, 1.0, True), (members - 1, 1.0, False)
    for n, allowed, fits in cases:
        assert (sv.advise(n, epsilon=allowed, **requirements).recommended is not None) == fits
    # closed form: sd = sqrt(n / (n - 1)) tau / n <= 1/4 with tau = 3.73 at epsilon 1
    assert suggested["members"] == 16
    assert suggested["hide"] == "record"


def test_an_impossible_budget_gets_suggestions():
    """No noise makes two records at five members useful at epsilon 1e-6; records do."""
    advice = sv.advise(5, epsilon=1e-6, delta=1e-9, records=2)
    assert advice.recommended is None
    assert "wider than the range" in advice.reasons
    assert {suggestion.what for suggestion in advice.suggestions} >= {"epsilon", "records"}


def test_suggested_records_are_the_fewest_that_fit():
    requirements = {"epsilon": 0.5, "delta": 1e-6, "target": 0.01}
    advice = sv.advise(4, records=10, **requirements)
    (records,) = [suggestion.value for suggestion in advice.suggestions if suggestion.what == "records"]
    assert sv.advise(4, records=records, **requirements).recommended is not None
    assert sv.advise(4, records=round(records * 0.97), **requirements).recommended is None


def test_twelve_hospitals(tmp_path):
    """Twelve hospitals, epsilon 2, a logistic model: a plan whose run ends inside the predicted interval."""
    advice = sv.advise(12, epsilon=2.0, delta=1e-5, records=100, compute="logistic", features=4)
    row = advice.recommended
    assert "masked" in row.name
    assert {row.batch_size for row in advice.rows} == {None, 10.0}
    assert row.plan.epsilon(1e-5, "network") <= 2.0
    assert row.use.score.useful
    assert "synthetic" in advice.simulated_on
    assert len(advice.rows) >= 8
    sample = sv.advice.Sample("logistic", 4)
    data, judge = sample.draw([100] * 12, np.random.default_rng(99))
    accuracy = judge(row.plan.run(data, np.random.default_rng(7)).outputs["rows"])
    assert abs(accuracy - row.use.score.mean) <= max(2 * row.use.score.half, 0.04)
    named = {path.name for path in advice.save(tmp_path)}
    assert named == {"advice.json", "front.svg", "plan.toml", "agreement-draft.toml"}
    assert advice.reasons.startswith("It meets epsilon 2 at delta 1e-05 against any one member.")


def test_hiding_a_member_among_twelve_suggests_to_hide_a_record():
    advice = sv.advise(12, epsilon=2.0, delta=1e-5, records=60, compute="logistic", features=8, hide="member")
    assert advice.recommended is None
    assert advice.suggestions[0].what == "hide"


@pytest.mark.parametrize("protocol", ["masked", "gossip:4"])
def test_a_suggestion_to_hide_a_record_is_what_its_plan_gives(protocol):
    """By hand: 2 x 100 times less noise than for a whole member, and the same bias."""
    budget = sv.Budget(1.0, 1e-5, view="network")
    options = {"network": "hypercube:3", "radius": 0.5, "epsilon": 1.0, "delta": 1e-5}
    plan = sv.PrivateAveraging.for_budget(protocol, **options)
    sd, bias, _ = answer_error(plan)
    (hide,) = [each for each in suggestions(plan, budget) if each.what == "hide"]
    assert f"with 100 records each: ± {math.hypot(sd / 200, bias):.3g} (" in hide.sentence


def test_gossip_is_said_to_end_with_noise_and_bias():
    options = {"epsilon": 8.0, "delta": 1e-5, "records": 100, "silent": "go on"}
    gossip, masked = sv.advise("ring:6", **options), sv.advise(6, epsilon=8.0, delta=1e-5, records=100)
    row = gossip.recommended
    assert row.use.bias > 0
    assert f"± {row.use.off:.3g} (noise and largest bias)" in gossip.reasons
    assert "(one standard deviation)" in masked.reasons


def test_a_linear_model_is_judged_in_the_unit_of_its_target():
    options = {"compute": "linear", "features": 3, "values": (0, 100), "seed": 1}
    advice = sv.advise(5, epsilon=4.0, delta=1e-5, records=200, **options)
    score = advice.recommended.use.score
    assert score.lower_is_better
    assert 5 < score.best <= score.mean < score.chance < 25


def test_a_network_is_accounted_without_data(tmp_path):
    pytest.importorskip("torch")
    options = {"epsilon": 4.0, "delta": 1e-5, "records": 300, "compute": "net"}
    advice = sv.advise(4, model="mlp:inputs=8:hidden=4:classes=3", **options)
    row = advice.recommended
    assert "masked" in row.name
    assert row.use.score is None
    assert row.use.signal_to_noise > 10
    assert "nothing was simulated" in advice.simulated_on
    assert "give public records as a sample for a score" in advice.reasons
    assert "standard deviation" not in advice.reasons
    drawn = advice.plot(tmp_path / "front.svg").read_text()
    assert "noise over the largest possible signal" in drawn
    assert "share of wrong answers" not in drawn
    model = {"name": "mlp", "options": {"inputs": 8, "hidden": 4, "classes": 3}}
    assert tomllib.loads(sv.advice.files.plan_file(advice.requirements, row))["model"] == model
    draft = tomllib.loads(sv.advice.files.agreement_draft(advice.requirements, row))["model"]
    assert draft == {"kind": "net", "parameters": 51, "net": "mlp", "options": model["options"]}
    with pytest.raises(sv.errors.ConfigError, match="name:key=number"):
        sv.advise(4, model="mlp:inputs", **options)
    with pytest.raises(InvalidInput, match="no synthetic records"):
        sv.advise(4, model="mlp:inputs=8", sample="synthetic", **options)


def test_a_network_of_ones_own_is_simulated_on_public_records(tmp_path):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2, 2))
    y = np.where(X[:, 0, 0] + X[:, 1, 1] > 0, "up", "down")
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    options = {"epsilon": 20.0, "delta": 1e-5, "records": 80}
    advice = sv.advise(2, compute="net", model=module, sample=(X, y), **options)
    score = advice.rows[0].use.score
    assert score.metric == "accuracy"
    assert score.best > 0.9 > score.chance
    assert "600 public records" in advice.simulated_on
    advice.save(tmp_path)
    for name in ("plan.toml", "agreement-draft.toml"):
        text = (tmp_path / name).read_text()
        assert tomllib.loads(text)["model"]["module"] == "mynet:build"
        assert "the function that builds your network" in text
    (row,) = compare([advice.plan], delta=1e-5, sample=(X, y))
    assert row.use.score.mean > score.chance


def test_too_few_steps_are_held_against_what_more_would_learn():
    """A short run that learned all it could is not useful if a longer one learns much more."""
    score = sv.advice.Score("accuracy", 0.55, 0.01, runs=4, chance=0.5, best=0.56, source="synthetic records")
    assert score.useful
    assert not dataclasses.replace(score, best=0.9).useful
    advice = sv.advise(4, epsilon=8.0, delta=1e-5, records=100, compute="logistic", features=3)
    assert len({row.use.score.best for row in advice.rows}) == 1


@pytest.mark.slow
def test_twelve_hospitals_end_where_the_advice_said(tmp_path):
    spec = importlib.util.spec_from_file_location("twelve_hospitals", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    run = module.main(tmp_path / "twelve")
    assert run["equal"]
    assert run["epsilon"] <= 2.0
    assert abs(run["accuracy"] - run["predicted"]) <= run["half"]
    assert run["half"] <= max(0.03, 2 * run["deviation"]) + 1e-12
    assert run["accuracy"] > 0.85


# ---- Candidates: noise on trees is the least that the linear program certifies -----------------------------


@pytest.mark.parametrize("seed", range(8))
def test_few_leaves_reach_the_optimum_that_the_program_certifies(seed):
    """The noise of the advised tree is the closed form, which the linear program cannot beat."""
    graph, sizes, c, _ = consortium(seed)
    required = {"epsilon": 1.0, "delta": 1e-5, "hide": "member", "colluders": c, "records": sizes}
    requirements = sv.advice.Requirements.from_arguments(graph, **required)
    candidates = list(averaging_candidates(requirements))
    uneven = [candidate for candidate in candidates if candidate.noise_allocation == "optimal"]
    for candidate in uneven:
        plan = plan_for(requirements, candidate)
        program = tree_noise_program(plan.schedule(0), c, floor=0.1)
        variances = np.square(plan._noise_stds) / max(plan._noise_stds) ** 2
        assert variances.sum() == pytest.approx(program.sum(), rel=1e-6)
        assert guarantee_against(plan, *requirements.views[0]).epsilon(1e-5) <= 1.0
        local = plan_for(requirements, next(s for s in candidates if s.protocol == "tree"))
        share = sv.advice.usefulness(plan).error ** 2 / sv.advice.usefulness(local).error ** 2
        assert share == pytest.approx(variances.sum() / requirements.n, rel=1e-4)
    if c == 1 and requirements.n >= 4 and nx.diameter(graph) < requirements.n - 1:
        assert uneven


def test_a_path_of_ten_needs_the_noise_of_its_ends():
    """path:10 has 2 tau against single observers, here with a floor of a tenth: 2.8 tau."""
    tree = Tree(sv.graphs.path(10))
    assert least_tree_noise(tree, 1, floor=0.1).sum() == pytest.approx(2.8)
    advice = sv.advise("path:10", epsilon=1.0, delta=1e-5, hide="member", masks=False, target=10.0)
    few = next(row for row in advice.rows if "few leaves" in row.name)
    assert few.use.error == pytest.approx(1.180 * math.sqrt(2.8 / 10), rel=2e-3)


# ---- Plans side by side: the dominated ones are marked, and the front is drawn -----------------------------


def test_compare_marks_what_is_dominated():
    settings = {"star": ("star:7", 2.0), "path": ("path:7", 2.0), "loud": ("star:7", 3.0)}
    plans = {
        name: sv.PrivateAveraging("tree", network=network, noise_std=std, radius=0.5)
        for name, (network, std) in settings.items()
    }
    rows = compare(plans, delta=1e-5)
    by = {row.name: row.dominated_by for row in rows}
    assert by == {"star": None, "path": "star", "loud": None}  # the loud one reveals less
    assert rows[1].seconds > rows[0].seconds
    with pytest.raises(InvalidInput, match="at least one plan"):
        compare([], delta=1e-5)


def test_a_typical_pair_reveals_no_more_than_the_worst_one():
    networks = {"tree": "star:7", "masked": "complete:5", "gossip:3": "ring:12"}
    plans = [
        sv.PrivateAveraging(protocol, network=network, noise_std=2.0, radius=0.5)
        for protocol, network in networks.items()
    ]
    for row in compare(plans, delta=1e-5):
        pairs = [
            row.plan.privacy("pairwise", observer=v, user=u).epsilon(1e-5)
            for v, u in itertools.permutations(range(row.plan.n), 2)
        ]
        assert min(pairs) <= row.epsilon_pairwise <= row.epsilon_network
        assert row.epsilon_network == pytest.approx(max(pairs))
        assert row.to_dict()["epsilon_pairwise"] == row.epsilon_pairwise
        assert row.cells()["pairwise"] != "-"


# ---- Plan files and drafts of agreements describe the recommended plan -------------------------------------


def test_files_describe_the_recommended_plan(tmp_path):
    advice = sv.advise([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)], epsilon=6.0, delta=1e-5, hide="member")
    advice.save(tmp_path)
    texts = ((tmp_path / name).read_text() for name in ("plan.toml", "agreement-draft.toml"))
    plan, draft = map(tomllib.loads, texts)
    assert plan["version"] == 1
    assert plan["budget"] == {"epsilon": 6.0, "delta": 1e-5, "view": "network"}
    assert draft["algorithm"]["noise_multiplier"] == advice.plan.noise_multiplier
    assert plan["network"]["graph"] == draft["graph"] == "edges:0-1,0-4,1-2,2-3,3-4"
    assert b"<svg" in (tmp_path / "front.svg").read_bytes()
    assert advice.plot(tmp_path / "front.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(InvalidInput, match="drawn as"):
        advice.plot(tmp_path / "front.pdf")


@pytest.mark.parametrize("masks", [True, False])
def test_drafts_become_agreements_with_the_same_privacy_cost(tmp_path, masks):
    """Masked sums are charged the budget, trees the own noise; both fit the members' account."""
    from sottovoce.peers.agreed_run import AgreedRun
    from sottovoce.peers.agreement import member_entry, write_agreement
    from sottovoce.peers.identity import make_identity

    advice = sv.advise(5, epsilon=2.0, delta=1e-5, records=300, masks=masks)
    members = [make_identity(tmp_path / name, name) for name in ("ada", "bo", "cy", "dee", "eve")]
    entries = [member_entry(m.certificate, f"{m.name}.example:4433") for m in members]
    seen = set()
    for k, row in enumerate(advice.rows):
        draft = tomllib.loads(sv.advice.files.agreement_draft(advice.requirements, row))
        agreed = write_agreement(tmp_path / f"{k}.toml", draft, entries)
        plan, run = agreed.plan, AgreedRun(agreed)
        if draft["algorithm"]["name"] == "consensus-sgd":
            assert plan.epsilon(1e-5, "network") == pytest.approx(row.epsilon_network, rel=1e-9)
        for node in range(5):
            run.spending(node)  # raises where the budget is too small
        # another name of the run draws another tree, whose ends are other members
        noises = [sorted(one.releases(u)[0].noise_std for u in range(5)) for one in (plan, row.plan)]
        assert noises[0] == pytest.approx(noises[1])
        if agreed.masked:
            assert draft["budget"]["epsilon"] == 2.0
            assert run.charged_guarantee(0).epsilon(1e-5) <= 2.0 < plan.epsilon(1e-5, "local")
        seen.add(draft["algorithm"]["protocol"])
    assert {"tree", "tree:kind=few-leaves"} <= seen
    assert ("masked" in seen) == masks


# ---- Requirements that cannot be met are refused in one sentence -------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((1,), "two members or more"),
        (([(0, 1), (2, 3)],), "connected"),
        ((nx.disjoint_union(nx.path_graph(3), nx.path_graph(2)),), "connected"),
        (("path:1",), "two"),
        (("anyone",), "a number of members alone means"),
        ((object(),), "members must be a number, pairs"),
        ((5, {"records": [3, 1, 4, 0, 5]}), "leave members without records out"),
        ((5, {"delta": 0.0}), "delta"),
        ((5, {"epsilon": 0.0}), "1 is usual"),
        ((5, {"records": -3}), "records"),
        ((5, {"records": [1, 2]}), "one number alone is for all"),
        ((5, {"colluders": 5}), "take at most 4"),
        ((5, {"view": "mallory"}), "view must be"),
        ((5, {"hide": "patient"}), "hide must be"),
        ((5, {"compute": "median"}), "compute must be"),
        ((5, {"compute": "logistic"}), "or a public sample"),
        ((5, {"values": (1, 0)}), "first end is the smaller"),
        ((5, {"compute": "net"}), "model="),
        ((5, {"features": 3}), "features are for linear models"),
        ((5, {"sample": "synthetic"}), "needs no sample"),
        ((5, {"silent": "shout"}), "silent must be"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence):
    members, changed = arguments[0], (arguments[1] if len(arguments) > 1 else {})
    with pytest.raises(InvalidInput, match=sentence) as refused:
        sv.advise(members, **({"epsilon": 1.0, "delta": 1e-5} | changed))
    assert "\n" not in str(refused.value)
