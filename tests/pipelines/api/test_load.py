"""A pipeline comes out of a file without leaving traces, and what is wrong with the file is said with its line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from treadle.errors import ConfigError, TreadleError
from treadle.pipelines import load

GOOD = """
from treadle.pipelines import Pipeline

{variable} = Pipeline("{name}")
{variable}.feed("payments", schema="id long")

@{variable}.sink
def alerts(payments):
    pass
"""


@pytest.fixture(autouse=True)
def _path_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder: Path, text: str, name: str = "flow.py") -> Path:
    path = folder / name
    path.write_text(dedent(text))
    return path


def good(variable: str = "p", name: str = "fraud") -> str:
    return GOOD.format(variable=variable, name=name)


def refusal(path: str | Path, name: str | None = None) -> TreadleError:
    with pytest.raises(ConfigError) as error:
        load(path, name)
    assert error.value.remedy
    return error.value


class TestFiles:
    def test_the_one_pipeline_of_a_file_is_found(self, tmp_path: Path) -> None:
        assert load(write(tmp_path, good())).name == "fraud"
        assert load(str(write(tmp_path, good()))).name == "fraud"

    def test_the_file_leaves_no_module_behind(self, tmp_path: Path) -> None:
        before = set(sys.modules)
        load(write(tmp_path, good(), "json.py"))
        assert set(sys.modules) == before
        assert sys.modules["json"].__file__ != str(tmp_path / "json.py")

    def test_it_is_no_main_program(self, tmp_path: Path) -> None:
        load(write(tmp_path, good() + "\nif __name__ == '__main__':\n    raise RuntimeError('ran')\n"))

    def test_classes_and_annotations_of_the_file_work(self, tmp_path: Path) -> None:
        text = """
        from __future__ import annotations
        import dataclasses, typing

        @dataclasses.dataclass
        class Row:
            id: typing.ClassVar[int] = 1
            kind: dataclasses.InitVar[int] = 2

        assert typing.get_type_hints(Row)
        """
        load(write(tmp_path, dedent(text) + good()))

    def test_the_files_neighbours_can_be_imported_now_and_later(self, tmp_path: Path) -> None:
        write(tmp_path, "WORD = 'now'", "my_neighbour.py")
        write(tmp_path, "WORD = 'later'", "my_other_neighbour.py")
        later = "\ndef word():\n    import my_other_neighbour\n    return my_other_neighbour.WORD\np.word = word\n"
        p = load(write(tmp_path, "import my_neighbour\n" + good() + later))
        assert p.word() == "later"  # type: ignore[attr-defined]
        assert sys.path[-1] == str(tmp_path)

    def test_its_functions_go_to_other_processes_by_value(self, tmp_path: Path) -> None:
        cloudpickle = pytest.importorskip("pyspark.cloudpickle")
        text = good() + "\nFACTOR = 3\ndef times(x):\n    return FACTOR * x\np.times = times\n"
        pickled = cloudpickle.dumps(load(write(tmp_path, text)).times)  # type: ignore[attr-defined]
        code = f"import pickle; print(pickle.loads({pickled!r})(2))"
        done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True)
        assert done.stdout == "6\n"

    def test_two_files_of_one_name_are_two_pipelines(self, tmp_path: Path) -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            write(tmp_path / name, good(name=name))
        assert [load(tmp_path / name / "flow.py").name for name in ("one", "two")] == ["one", "two"]

    def test_a_change_of_the_file_is_seen_at_once(self, tmp_path: Path) -> None:
        for name in ("aaa", "bbb"):
            assert load(write(tmp_path, good(name=name))).name == name


class TestSeveral:
    @pytest.fixture
    def two(self, tmp_path: Path) -> Path:
        return write(tmp_path, good("first", "fraud") + good("second", "clicks"))

    def test_one_of_several_must_be_chosen(self, two: Path) -> None:
        error = refusal(two)
        assert "several pipelines: first, second" in str(error)
        assert f"{two}:first" in error.remedy

    @pytest.mark.parametrize("name", ["second", "clicks"])
    def test_it_is_chosen_by_variable_or_name(self, two: Path, name: str) -> None:
        assert load(f"{two}:{name}").name == "clicks"
        assert load(two, name).name == "clicks"

    def test_an_unknown_one_is_named_with_those_there_are(self, two: Path) -> None:
        assert "did you mean second?" in refusal(f"{two}:secnd").remedy

    def test_two_variables_for_one_pipeline_are_one(self, tmp_path: Path) -> None:
        assert load(write(tmp_path, good() + "\nsame = p\n")).name == "fraud"


class TestModules:
    def test_an_importable_module_will_do(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(tmp_path, good(), "my_flow_module.py")
        monkeypatch.syspath_prepend(str(tmp_path))
        assert load("my_flow_module").name == "fraud"
        assert load("my_flow_module:p").name == "fraud"

    def test_one_that_is_not_there_is_refused(self) -> None:
        assert "no file and no module 'nowhere_at_all.flow'" in str(refusal("nowhere_at_all.flow"))

    def test_one_that_raises_is_named_with_its_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(tmp_path, "x = 1\nx / 0\n", "my_broken_module.py")
        monkeypatch.syspath_prepend(str(tmp_path))
        assert "my_broken_module.py:2: ZeroDivisionError" in str(refusal("my_broken_module"))


class TestBadFiles:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("x = 1\n", "flow.py: has no pipeline"),
            ("x = 1\n\nx / 0\n", "flow.py:3: ZeroDivisionError: division by zero"),
            ("def f():\n    import json\n    json.loads('{')\nf()\n", "flow.py:3: JSONDecodeError"),
            ("x = 1\ny = (\n", "flow.py:2: SyntaxError: '(' was never closed"),
            ("if 1:\nx = 1\n", "flow.py:2: IndentationError"),
            ("x = 1\nimport surely_not_there\n", "flow.py:2: needs the module surely_not_there"),
            ("import sys\nsys.exit(0)\n", "flow.py:2: ends the program while it is imported"),
            ("x = '\0'\n", "flow.py"),
        ],
    )
    def test_what_is_wrong_is_said_with_its_line(self, tmp_path: Path, text: str, message: str) -> None:
        assert message in str(refusal(write(tmp_path, text)))

    def test_a_pipeline_that_makes_no_sense_is_refused(self, tmp_path: Path) -> None:
        assert "reads 'payment'" in str(refusal(write(tmp_path, good().replace("(payments)", "(payment)"))))

    def test_one_that_runs_itself_while_imported_is_refused(self, tmp_path: Path) -> None:
        error = refusal(write(tmp_path, good() + "\np.run()\n"))
        assert "is run while its file is being imported" in str(error)
        assert "__main__" in error.remedy

    def test_a_definition_that_is_refused_keeps_its_own_place(self, tmp_path: Path) -> None:
        assert "feed 'alerts' (flow.py:10): the name is already that of sink 'alerts' (flow.py:7)" in str(
            refusal(write(tmp_path, good() + "p.feed('alerts', schema='id long')\n"))
        )

    def test_a_missing_file_is_named_with_the_near_ones(self, tmp_path: Path) -> None:
        write(tmp_path, good())
        error = refusal(tmp_path / "flwo.py")
        assert "there is no such file" in str(error)
        assert "did you mean flow.py?" in error.remedy

    def test_a_missing_folder_is_a_missing_file(self, tmp_path: Path) -> None:
        assert "no such file" in str(refusal(tmp_path / "nowhere" / "flow.py"))

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        assert "is a folder" in str(refusal(tmp_path))
