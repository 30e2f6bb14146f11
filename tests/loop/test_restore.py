"""What the loop has changed is put back at its end, however that comes."""

from __future__ import annotations

import pytest

from loop.worlds import FOUND, World
from treadle.enforce import Target, Value
from treadle.model import ThreadRef


class TestRestore:
    def test_leaving_puts_back_what_was_found(self, world: World) -> None:
        with world.loop() as loop:
            loop.run(2.0)
            assert world.engine.nices() != [FOUND] * 3
        assert world.engine.nices() == [FOUND] * 3
        writes = len(world.engine.nice.writes)
        loop.restore()
        assert len(world.engine.nice.writes) == writes

    def test_what_fails_at_the_end_is_tried_once_more(self, world: World) -> None:
        write = world.engine.nice.write

        def write_later(target: Target, value: Value) -> None:
            world.engine.nice.write = write  # type: ignore[method-assign]
            raise OSError("busy")

        with world.loop() as loop:
            loop.round()
            world.engine.nice.write = write_later  # type: ignore[method-assign]
        assert world.engine.nices() == [FOUND] * 3

    def test_an_error_puts_back_what_was_found(self, world: World) -> None:
        def stumble() -> None:
            raise RuntimeError("in the middle")

        world.clock.meanwhile = stumble
        with pytest.raises(RuntimeError), world.loop() as loop:
            loop.run()
        assert world.engine.nices() == [FOUND] * 3

    def test_what_somebody_else_changed_is_left_and_told(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        with world.loop() as loop:
            loop.round()
            world.engine.nice.values[ThreadRef(1)] = 7.0
        assert world.engine.nices() == [7.0, FOUND, FOUND]
        assert "is left at 7.0: another program has changed it since Treadle set it to 19.0" in caplog.text

    def test_what_cannot_be_put_back_is_told(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        with world.loop() as loop:
            loop.round()
            world.engine.nice.refuses = True
        assert "could not put back nice of thread 1 to 3.0: not permitted" in caplog.text
        world.engine.nice.refuses = False
        loop.restore()
        assert world.engine.nices() == [FOUND] * 3
