"""Settings that are changed while something runs: all or none, remembered, and never in the middle of a round."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.control.control_socket import Server, ask
from treadle.control.settings import MOST, Setting, Settings, duration, flag, numbers, of_name
from treadle.errors import ConfigError


class Thing:
    """What has the settings: `size` may be 1 to 9, `mood` any text; `fails` is raised where a size is set."""

    def __init__(self) -> None:
        self.size, self.mood, self.period, self.open = 1, "calm", 1.0, False
        self.fails: Exception | None = None
        self.lock = threading.RLock()
        self.settings = Settings(
            {
                "mood": Setting(lambda: self.mood, lambda value: lambda: setattr(self, "mood", value)),
                "size": Setting(lambda: self.size, self._prepared_size),
                "period": duration(
                    lambda: self.period, lambda value: setattr(self, "period", value), "period", "thing"
                ),
                "open": flag(lambda: self.open, lambda value: setattr(self, "open", value), "open", "thing"),
            },
            self.lock,
            "thing",
        )

    def _prepared_size(self, value: Any) -> Callable[[], None]:
        if value not in range(1, 10):
            raise ConfigError(f"size can't be {value!r}", where="thing", remedy="use 1 to 9")

        def put() -> None:
            if self.fails is not None:
                raise self.fails
            self.size = value

        return put

    @property
    def state(self) -> tuple[int, str, float, bool]:
        return self.size, self.mood, self.period, self.open


@pytest.fixture
def thing() -> Thing:
    return Thing()


def test_several_are_changed_at_once_and_remembered(thing: Thing, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "treadle.control")
    changes = thing.settings.set({"size": 3, "period": "250ms", "open": True, "mood": "calm"})
    assert thing.state == (3, "calm", 0.25, True)
    assert [(each.setting, each.before, each.after) for each in changes] == [
        ("size", 1, 3),
        ("period", 1.0, 0.25),
        ("open", False, True),
    ]
    assert thing.settings.history == changes
    assert {each.who for each in changes} == {"this process"}
    assert [record.getMessage() for record in caplog.records] == [
        "thing changes size from 1 to 3 (this process)",
        "thing changes period from 1.0 to 0.25 (this process)",
        "thing changes open from False to True (this process)",
    ]
    assert thing.settings.read() == {"mood": "calm", "size": 3, "period": 0.25, "open": True}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 10}, "size can't be 10"),
        ({"period": "often"}, "often"),
        ({"period": -1}, "above zero"),
        ({"open": 1}, "open can't be 1"),
        ({"sise": 1}, "no setting 'sise'.*size"),
    ],
)
def test_one_wrong_value_changes_nothing(thing: Thing, wrong: dict[str, Any], message: str) -> None:
    for wanted in ({"mood": "wild", **wrong}, {**wrong, "mood": "wild"}):
        with pytest.raises(ConfigError, match=message):
            thing.settings.set(wanted)
    assert thing.state == (1, "calm", 1.0, False)
    assert thing.settings.history == []


def test_a_dry_run_checks_and_changes_nothing(thing: Thing) -> None:
    assert [str(each) for each in thing.settings.set({"size": 2, "mood": "calm"}, dry_run=True)] == ["size from 1 to 2"]
    assert thing.state == (1, "calm", 1.0, False)
    assert thing.settings.history == []
    with pytest.raises(ConfigError):
        thing.settings.set({"size": 0}, dry_run=True)


def test_where_setting_fails_what_was_set_is_set_back(thing: Thing) -> None:
    thing.fails = OSError("gone")
    with pytest.raises(OSError, match="gone"):
        thing.settings.set({"mood": "wild", "size": 2})
    assert thing.state == (1, "calm", 1.0, False)
    assert thing.settings.history == []


def test_nothing_is_set_in_the_middle_of_a_round(thing: Thing) -> None:
    done: list[Any] = []
    setter = threading.Thread(target=lambda: done.append(thing.settings.set({"size": 2, "mood": "wild"})))
    with thing.lock:
        setter.start()
        setter.join(0.05)
        assert thing.state == (1, "calm", 1.0, False)
    setter.join(60.0)
    assert done
    assert thing.state[:2] == (2, "wild")


def test_only_the_last_changes_are_kept(thing: Thing) -> None:
    for number in range(MOST + 3):
        thing.settings.set({"mood": str(number)})
    assert [each.after for each in thing.settings.history] == [str(number) for number in range(3, MOST + 3)]


@given(st.lists(st.dictionaries(st.sampled_from(["size", "mood"]), st.integers(-2, 12)), max_size=20))
def test_from_the_first_value_the_history_leads_to_the_last(wishes: list[dict[str, int]]) -> None:
    thing = Thing()
    for wish in wishes:
        before = thing.state
        try:
            thing.settings.set(wish)
        except ConfigError:
            assert thing.state == before
    now = {"size": 1, "mood": "calm"}
    for change in thing.settings.history:
        assert now[change.setting] == change.before
        now[change.setting] = change.after
    assert now == {"size": thing.size, "mood": thing.mood}


def test_a_dry_run_shows_values_as_they_would_be_read(thing: Thing) -> None:
    assert thing.settings.set({"period": "1s"}, dry_run=True) == []
    assert [each.after for each in thing.settings.set({"period": "50ms"}, dry_run=True)] == [0.05]


@pytest.mark.parametrize("value", [None, 3, "a=1", [], {"a": "1"}, {"a": True}, {"a": float("nan")}, {"a": 2.0}])
def test_numbers_by_name_are_checked(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"shares( of 'a')? can't be .* \(use .*\)"):
        numbers(value, "shares", "thing", 0.0, 1.0)


def test_the_first_pattern_that_matches_gives_the_number() -> None:
    given = {"alerts-*": 3.0, "alerts-2": 5.0, "odd[1]": 7.0}
    assert [of_name(name, given, 1.0) for name in ("alerts-2", "odd1", "odd[1]", "x")] == [3.0, 7.0, 7.0, 1.0]


def test_changes_of_many_clients_at_once_are_each_whole_and_all_in_the_history(tmp_path: Path) -> None:
    """Each client sets two settings to the same number; whoever reads them sees them equal."""
    values = {"left": 0, "right": 0}

    def same(name: str) -> Setting:
        return Setting(lambda: values[name], lambda value: lambda: values.__setitem__(name, value))

    lock = threading.RLock()
    settings = Settings({name: same(name) for name in values}, lock, "thing")
    torn: list[dict[str, int]] = []
    with Server(tmp_path / "x.sock", settings.commands()) as server:

        def client(first: int) -> None:
            for number in range(first, first + 50):
                ask(server.path, "set", settings={"left": number, "right": number})
                with lock:
                    torn.extend([dict(values)] if values["left"] != values["right"] else [])

        clients = [threading.Thread(target=client, args=(1 + 50 * number,)) for number in range(4)]
        for each in clients:
            each.start()
        for each in clients:
            each.join()
        history = ask(server.path, "history")
    assert torn == []
    assert sorted(each["after"] for each in history if each["setting"] == "left") == list(range(1, 201))
    now = {"left": 0, "right": 0}
    for each in history:
        assert each["before"] == now[each["setting"]]
        now[each["setting"]] = each["after"]
    assert now == values
    assert {each["who"].split()[1] for each in history} == {str(os.getpid())}


class TestCommands:
    def test_they_do_what_the_methods_do(self, thing: Thing) -> None:
        commands = thing.settings.commands()
        assert commands["set"]({"size": 4}, dry_run=True)[0]["after"] == 4  # type: ignore[index]
        assert commands["set"]({"size": 4})[0]["after"] == 4  # type: ignore[index]
        assert commands["settings"]()["size"] == 4  # type: ignore[index]
        assert [each["setting"] for each in commands["history"]()] == ["size"]  # type: ignore[attr-defined]

    @pytest.mark.parametrize("settings", [None, [], "size", 3])
    def test_settings_that_are_no_object_are_refused(self, thing: Thing, settings: Any) -> None:
        with pytest.raises(ConfigError, match="not an object"):
            thing.settings.commands()["set"](settings)
