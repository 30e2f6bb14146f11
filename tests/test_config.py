import os
from pathlib import Path

import pytest

from support import treadle
from treadle import config, doctor
from treadle.decide import registry
from treadle.decide.adaptive import Adaptive
from treadle.errors import ConfigError


@pytest.fixture(autouse=True)
def nobody_elses_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TREADLE_CONFIG", raising=False)


def test_without_a_file_there_are_defaults() -> None:
    assert config.load() == (config.Config(), "defaults")


def test_what_is_shown_can_be_read_back(tmp_path: Path) -> None:
    settings = config.Config(
        adaptive=config.Adaptive(learner="ucb", objectives=("min latency 0.7", "max output_rate 0.3")),
        rules=({"queries": "alerts-*", "policy": "fcfs", "priority": 10}, {"queries": "*", "policy": "hr"}),
    )
    (tmp_path / "shown.toml").write_text(config.as_toml(settings))
    assert config.load("shown.toml")[0] == settings


def test_a_named_file_comes_before_the_environment_the_folder_and_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [
        tmp_path / "named.toml",
        tmp_path / "env.toml",
        tmp_path / "treadle.toml",
        tmp_path / "home/treadle/treadle.toml",
    ]
    places[3].parent.mkdir(parents=True)
    for seed, place in enumerate(places):
        place.write_text(f"[simulate]\nseed = {seed}\n")
    monkeypatch.setenv("TREADLE_CONFIG", "env.toml")
    assert config.load("named.toml")[0].simulate.seed == 0
    assert config.load()[0].simulate.seed == 1
    monkeypatch.delenv("TREADLE_CONFIG")
    assert config.load()[0].simulate.seed == 2
    places[2].unlink()
    assert config.load()[0].simulate.seed == 3


def test_a_bare_adaptive_is_spelt_out_as_configured() -> None:
    settings = config.Config(adaptive=config.Adaptive(candidates=("fifo", "hr"), learner="ucb", delay=2))
    assert settings.policy("adaptive@nice") == "adaptive:learner=ucb,candidates=fifo+hr,delay=2@nice"
    judged = config.Config(adaptive=config.Adaptive(objectives=("min latency", "max throughput 2")))
    assert judged.policy("adaptive") == "adaptive:learner=ucb,objective=min latency+max throughput 2,delay=2"
    assert settings.policy("adaptive:learner=roulette") == "adaptive:learner=roulette"
    assert settings.policy("hr@nice") == "hr@nice"


def test_what_is_learned_is_kept_where_the_file_says_but_not_what_is_simulated(tmp_path: Path) -> None:
    (tmp_path / "kept.toml").write_text("[adaptive]\nlearned = 'a,b/learned.json'")
    found = config.load("kept.toml")[0]
    made = registry.create(found.policy("adaptive"))
    assert isinstance(made, Adaptive)
    assert made.status()["learned"] == str(tmp_path / "a,b" / "learned.json")
    simulated = registry.create(found.policy("adaptive", simulated=True))
    assert isinstance(simulated, Adaptive)
    assert simulated.status()["learned"] is None


def test_a_candidate_may_have_options_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mixed.toml").write_text("[adaptive]\ncandidates = ['fifo', 'weighted:qs=0.7,hr=0.3']")
    made = registry.create(config.load("mixed.toml")[0].policy("adaptive"))
    assert isinstance(made, Adaptive)
    assert made.candidates == ("fifo", "weighted:qs=0.7,hr=0.3")


@pytest.mark.parametrize(
    ("text", "place", "remedy"),
    [
        ("[adaptive", "is not valid TOML", "fix this line"),
        ("[adaptve]\nlearner = 'ucb'", "adaptve: unknown key", "adaptive, simulate"),
        ("[adaptive]\nlerner = 'ucb'", "adaptive.lerner: unknown key", "learner"),
        ("[adaptive]\nlearner = 'sarsa'", "adaptive.learner", "known here"),
        ("[adaptive]\nobjectives = []", "adaptive.objectives", "known here"),
        ("[adaptive]\ncandidates = 'fifo'", "adaptive.candidates", "known here"),
        ("[adaptive]\ncandidates = ['foo']", "foo", ""),
        ("[adaptive]\nobjectives = ['low latency']", "low latency", ""),
        ("[adaptive]\ndelay = 0", "adaptive.delay", "known here"),
        ("[adaptive]\ndelay = nan", "adaptive.delay", "known here"),
        ("[simulate]\nseconds = -1", "simulate.seconds", "known here"),
        ("[simulate]\nseed = '5'", "simulate.seed", "known here"),
        ("[adaptive]\ndelay = true", "adaptive.delay", "known here"),
        ("[simulate]\nseed = 1.5", "simulate.seed", "known here"),
        ("simulate = 3", "simulate", "known here"),
        ("[[rules]]\nqueries = 'a'", "rule 1 ('a'): has no policy", "policy ="),
        ("[[rules]]\nqueries = 'a'\npolicy = 'fastest'", "rule 1 ('a'): there is no policy 'fastest'", "use one of"),
        ("[[rules]]\nqueries = 'a'\npolicy = 'fcfs'\nprio = 1", "rule 1 ('a'): there is no key 'prio'", "priority"),
        ("rules = 'fcfs'", "rules", "known here"),
    ],
)
def test_a_wrong_file_is_one_error_with_place_and_remedy(tmp_path: Path, text: str, place: str, remedy: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.load("bad.toml")
    assert str(caught.value).startswith("bad.toml: ")
    assert place in str(caught.value)
    assert remedy in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.toml: can't read it: No such file"):
        config.load("no.toml")


@pytest.mark.parametrize(("owner", "mode"), [(12345, 0o600), (os.geteuid(), 0o620), (os.geteuid(), 0o602)])
@pytest.mark.parametrize("place", ["treadle.toml", "home/treadle/treadle.toml"])
def test_a_file_that_another_user_could_have_written_is_ignored_by_a_line_that_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str, owner: int, mode: int
) -> None:
    if owner != os.geteuid() and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[attach]\npolicy = 'none'\nbroken")
    os.chown(path, owner, -1)
    path.chmod(mode)
    assert config.load() == (config.Config(), "defaults")
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"{place} is ignored: " in said
    assert ("belongs to user 12345" if owner == 12345 else "other users can write to it (chmod go-w)") in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_link_that_another_user_made_is_ignored_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "mine.toml").write_text("[simulate]\nseed = 5\n")
    (tmp_path / "treadle.toml").symlink_to("mine.toml")
    assert config.load()[0].simulate.seed == 5
    os.lchown(tmp_path / "treadle.toml", 12345, 12345)
    assert config.load()[1] == "defaults"
    assert "treadle.toml is ignored: it belongs to user 12345" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_foreign_file_that_was_named_is_used_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "theirs.toml").write_text("[simulate]\nseed = 5\n")
    os.chown(tmp_path / "theirs.toml", 12345, 12345)
    assert config.load("theirs.toml")[0].simulate.seed == 5
    assert "theirs.toml is used, since you named it, but it belongs to user 12345" in caplog.text


@pytest.mark.parametrize("words", [["restore"], ["attach", "--help"], ["--help"], ["policies"]])
def test_a_broken_file_blocks_nothing_that_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_journals: Path, words: list[str]
) -> None:
    (tmp_path / "treadle.toml").write_text("[attach")
    (tmp_path / "treadle.toml").chmod(0o600)
    assert treadle(monkeypatch, *words) == 0
    assert treadle(monkeypatch, "config", "show") == 2


def test_doctor_names_what_is_wrong_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "treadle.toml").write_text("[attach")
    (tmp_path / "treadle.toml").chmod(0o600)
    found = doctor._configuration()
    assert (found.state, found.needed) == ("note", False)
    assert "is not valid TOML" in found.found


def test_the_owner_of_applications_is_a_name_or_a_number(tmp_path: Path) -> None:
    for given, taken in (("'spark'", "spark"), ("1000", 1000)):
        (tmp_path / "user.toml").write_text(f"[attach]\nuser = {given}\n")
        settings = config.load("user.toml")[0]
        assert settings.attach.user == taken
        (tmp_path / "shown.toml").write_text(config.as_toml(settings))
        assert config.load("shown.toml")[0] == settings
