"""Plan files and drafts of agreements describe the recommended plan."""

import tomllib

import pytest

import sottovoce as sv


def test_plan_file_and_draft_describe_the_recommended_plan(tmp_path):
    advice = sv.advise([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)], epsilon=6.0, delta=1e-5, hide="member")
    advice.save(tmp_path)
    plan, draft = (
        tomllib.loads((tmp_path / name).read_text()) for name in ("plan.toml", "agreement-draft.toml")
    )
    assert plan["version"] == 1
    assert plan["budget"] == {"epsilon": 6.0, "delta": 1e-5, "view": "network"}
    assert draft["algorithm"]["noise_multiplier"] == advice.plan.noise_multiplier
    assert draft["graph"] == "edges:0-1,0-4,1-2,2-3,3-4"
    assert (tmp_path / "edges.txt").exists()


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
