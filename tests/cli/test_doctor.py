import importlib.metadata

from sottovoce.cli import doctor


def test_doctor_finds_what_is_installed(call):
    report = call("doctor", "--json").json
    assert report["ready"] is True
    assert report["packages"]["numpy"]["installed"] == importlib.metadata.version("numpy")


def test_doctor_says_what_to_do_about_a_missing_extra(monkeypatch):
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "torch" else version(name))
    report = doctor.diagnosis()
    assert report["ready"] is True
    assert any("torch is not installed" in line and "sottovoce[deep]" in line for line in report["advice"])


def test_doctor_is_not_ready_without_a_needed_package(monkeypatch):
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "scipy" else version(name))
    assert doctor.diagnosis()["ready"] is False


def test_doctor_lists_the_data_folder(call, monkeypatch, tmp_path):
    (tmp_path / "data" / "houses").mkdir(parents=True)
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "data"))
    answer = call("doctor")
    assert "holds houses" in " ".join(answer.out.split())


def test_the_doctor_names_the_extra_with_its_brackets(call, monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "torch" else "1.0")
    assert "'sottovoce[deep]'" in call("doctor").out
