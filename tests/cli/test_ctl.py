"""`treadle ctl` on a server with settings like those of a pipeline: short commands, dry runs, names in front."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support import treadle
from treadle.cli.ctl import SHORT
from treadle.control import control_socket
from treadle.control.settings import Setting, Settings, duration, flag, numbers
from treadle.decide import registry
from treadle.linux.files import runtime_folder

Say = Callable[..., tuple[int, str]]


def thing(**values: Any) -> Settings:
    """Settings with these values, of kinds that pipelines have too."""

    def put(name: str) -> Callable[[Any], None]:
        return lambda value: values.__setitem__(name, value)

    def policy(spec: Any) -> Callable[[], None]:
        registry.create(spec)
        return lambda: put("policy")(spec)

    def any_value(name: str) -> Setting:
        return Setting(lambda: values[name], lambda value: lambda: put(name)(value))

    def priorities(value: Any) -> Callable[[], None]:
        given = numbers(value, "priorities", "thing")
        return lambda: put("priorities")(given)

    kinds = {
        "policy": Setting(lambda: values["policy"], policy),
        "priorities": Setting(lambda: values["priorities"], priorities),
        "period": duration(lambda: values["period"], put("period"), "period", "thing"),
        "paused": flag(lambda: values["paused"], put("paused"), "paused", "thing"),
    }
    return Settings({name: kinds.get(name) or any_value(name) for name in values}, threading.Lock(), "thing")


@pytest.fixture
def open_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Settings]]:
    """Opens a target of this name with these settings, in a folder where no others are seen."""
    folder = Path(tempfile.mkdtemp(prefix="tctl"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setattr(runtime_folder, "places", lambda _: [folder / "own"])
    with ExitStack() as opened:

        def begin(name: str, **values: Any) -> Settings:
            settings = thing(**values)
            commands = {**settings.commands(), "slots": lambda count=None: 7}
            opened.enter_context(control_socket.Server(control_socket.path_for(name), commands))
            return settings

        yield begin
    shutil.rmtree(folder)


@pytest.fixture
def settings(open_one: Callable[..., Settings]) -> Settings:
    return open_one("fraud", policy="fcfs", priorities={"a": 1.0}, period=0.1, slots="auto", paused=False, extra=[1])


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    def said(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = treadle(monkeypatch, "ctl", *words)
        told = capsys.readouterr()
        return code, (told.out + told.err).strip()

    return said


@pytest.mark.parametrize(
    ("words", "printed", "setting", "value"),
    [
        (("policy", "chain"), "chain", "policy", "chain"),
        (("priority", "a=10", "b=-2.5"), '{"a": 10.0, "b": -2.5}', "priorities", {"a": 10.0, "b": -2.5}),
        (("priority", '{"a": 3}'), '{"a": 3.0}', "priorities", {"a": 3.0}),
        (("period", "20ms"), "0.02", "period", 0.02),
        (("period", "1"), "1", "period", 1.0),
        (("slots", "3"), "7", "slots", 3),
        (("slots", "auto"), "7", "slots", "auto"),
        (("set", 'extra={"b": [2]}'), 'changed extra from [1] to {"b": [2]}', "extra", {"b": [2]}),
    ],
)
def test_a_short_command_sets_its_setting_and_shows_what_holds_now(
    settings: Settings, say: Say, words: tuple[str, ...], printed: str, setting: str, value: Any
) -> None:
    before = settings.read()[setting]
    assert say(*words) == (0, printed.replace("1", "1.0") if words == ("period", "1") else printed)
    assert settings.read()[setting] == value
    if value != before:
        assert [(each.setting, each.before, each.after) for each in settings.history] == [(setting, before, value)]


def test_without_a_value_it_is_shown(settings: Settings, say: Say) -> None:
    assert say("policy") == (0, "fcfs")
    assert say("priority") == (0, '{"a": 1.0}')
    assert say("slots") == (0, "7")  # the number in force, where the setting is `auto`
    assert say("get", "slots") == (0, "auto")
    assert say("get", "extra", "period") == (0, "extra=[1]\nperiod=0.1")
    assert say("get") == say("set")
    assert settings.history == []


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("policy", "chain"), "would change policy from fcfs to chain"),
        (("period", "100ms"), "nothing would change"),
        (("period", "1min"), "would change period from 0.1 to 60.0"),
        (("priority", "a=2"), 'would change priorities from {"a": 1.0} to {"a": 2}'),
        (("slots", "9"), "would change slots from auto to 9"),
        (("pause",), "would change paused from False to True"),
        (("resume",), "nothing would change"),
        (("set", "slots=2", "extra=x"), "would change slots from auto to 2\nwould change extra from [1] to x"),
    ],
)
def test_a_dry_run_says_what_would_change_and_changes_nothing(
    settings: Settings, say: Say, words: tuple[str, ...], printed: str
) -> None:
    before = settings.read()
    assert say(*words, "--dry-run") == (0, printed)
    assert (settings.read(), settings.history) == (before, [])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("policy", "fcsf"), "did you mean fcfs"),
        (("policy", "chain", "fcfs"), "takes one value, not 2"),
        (("period", "often"), "period is not a duration"),
        (("priority", "a"), "priorities can't be 'a'"),
        (("priority", "a=high"), "priorities of 'a' can't be 'high'"),
        (("priority", "a=1", "a=2"), "'a=2' is given twice"),
        (("patience", "1s"), "thing: there is no setting 'patience' ("),
        (("assign",), "'fraud': has no setting 'assign' (it has policy, priorities, period, slots, paused, extra)"),
        (("get", "sise"), "has no setting 'sise'"),
        (("set", "policy=chain", "period=0"), "period must be above zero"),
    ],
)
def test_what_is_wrong_is_one_line_and_changes_nothing(
    settings: Settings, say: Say, words: tuple[str, ...], problem: str
) -> None:
    before = settings.read()
    code, told = say(*words)
    assert (code, told.count("\n"), told.startswith("error: "), problem in told) == (2, 0, True, True), told
    assert (settings.read(), settings.history) == (before, [])


def test_a_policy_gets_the_options_of_the_configuration(
    settings: Settings, say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "treadle.toml").write_text('[adaptive]\nlearner = "ucb"\n')
    for words in (("policy", "adaptive"), ("set", "policy=adaptive")):
        settings.set({"policy": "fcfs"})
        assert say(*words)[0] == 0
        assert settings.read()["policy"].startswith("adaptive:learner=ucb,")


def test_of_several_targets_one_is_named_in_front_or_by_the_option(
    settings: Settings, open_one: Callable[..., Settings], say: Say
) -> None:
    other = open_one("policy", policy="chain", period=1.0)
    code, told = say("policy")
    assert (code, "several pipelines are running" in told) == (2, True)
    assert say("fraud", "policy") == (0, "fcfs")
    assert say("fraud", "get", "policy") == (0, "fcfs")
    assert say("period", "--pipeline", "policy") == (0, "1.0")  # a name that is a command too
    assert say("fraud", "policy", "--pipeline", "fraud") == (0, "fcfs")
    assert "names two targets" in say("fraud", "policy", "--pipeline", "policy")[1]
    assert "no pipeline 'frau' is running" in say("frau", "policy")[1]
    assert say("frau")[0] == 2
    assert other.history == []


def test_every_setting_of_the_table_has_a_command_with_help_and_a_dry_run(say: Say) -> None:
    for short in SHORT:
        code, told = say(short.name, "--help")
        assert (code, "--dry-run" in told, "--pipeline" in told) == (0, True, True)
