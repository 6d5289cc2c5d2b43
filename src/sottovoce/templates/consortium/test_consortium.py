"""Three peers end with one good model at the agreed privacy cost."""

from run import main


def test_three_members_learn_one_model(tmp_path):
    accuracy, equal, epsilon = main(tmp_path / "run")
    assert equal
    assert accuracy > 0.8  # without privacy: about 0.88
    assert epsilon <= 3.0
