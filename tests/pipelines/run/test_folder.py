"""A pipeline's folder fits the graph that it had last, and while the graph changes both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from treadle.errors import ConfigError, EngineError
from treadle.pipelines.run.folder import RunFolder

OLD, NEW = "pipeline p\nfed feed\nout sink fed\n", "pipeline p\nfed feed\nlate sink fed\n"
OTHER = "pipeline p\nfed feed\nother feed\nout sink other\nlate sink fed\n"


def opened(folder: Path, graph: str) -> RunFolder:
    return RunFolder(folder, "p", graph, "hops")


def killed_at(folder: Path, step: str) -> None:
    """What a process leaves that is killed during a change from OLD to NEW."""
    run = opened(folder, OLD)
    run.claim()
    if step != "before":
        run.propose(NEW)
    if step == "after":
        run.settle(NEW)
    run.close()


@pytest.mark.parametrize(("step", "fits"), [("before", [OLD]), ("during", [OLD]), ("during", [NEW]), ("after", [NEW])])
def test_a_kill_during_a_change_leaves_a_folder_for_the_old_or_the_new_version(
    tmp_path: Path, step: str, fits: list[str]
) -> None:
    killed_at(tmp_path, step)
    if step != "during":
        with pytest.raises(EngineError, match="another graph"):
            opened(tmp_path, NEW if fits == [OLD] else OLD)
    run = opened(tmp_path, fits[0])
    run.claim()
    run.close()
    for other in {OLD, NEW} - set(fits):  # whoever was chosen, the folder is of that one from now on
        with pytest.raises(EngineError, match="another graph"):
            opened(tmp_path, other)


def test_a_name_comes_back_only_as_the_same_node(tmp_path: Path) -> None:
    killed_at(tmp_path, "after")
    run = opened(tmp_path, NEW)
    run.check_again(OLD)
    with pytest.raises(ConfigError, match="the checkpoint of 'out' is of an earlier node"):
        run.check_again(OTHER)
    run.propose(OLD)
    run.settle(OLD)
    run.close()
    assert json.loads((tmp_path / "pipeline.json").read_text())["removed"] == ["late sink fed"]


@pytest.mark.parametrize("card", [{"removed": 3}, {"removed": [1]}, {"next": 3}])
def test_a_damaged_file_is_named(tmp_path: Path, card: dict[str, object]) -> None:
    killed_at(tmp_path, "after")
    file = tmp_path / "pipeline.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | card))
    with pytest.raises(ConfigError, match="does not say which pipeline"):
        opened(tmp_path, NEW)
