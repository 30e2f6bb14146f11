"""The random numbers of java.util.Random, so that queries are drawn as the papers' programs draw them."""

from __future__ import annotations

_FACTOR, _ADDED, _MASK = 0x5DEECE66D, 0xB, (1 << 48) - 1


class JavaRandom:
    """Draws the same numbers as java.util.Random with the same seed."""

    def __init__(self, seed: int) -> None:
        self._state = (seed ^ _FACTOR) & _MASK

    def integer(self, bound: int) -> int:
        """Draw a whole number from 0 to `bound` - 1, as nextInt does."""
        if bound & -bound == bound:  # a power of two
            return (bound * self._bits(31)) >> 31
        while True:
            drawn = self._bits(31)
            if drawn - drawn % bound + bound - 1 < 1 << 31:  # else small numbers would be more frequent
                return drawn % bound

    def real(self) -> float:
        """Draw a number from 0 to 1, as nextDouble does."""
        high, low = self._bits(26), self._bits(27)
        return float((high << 27) + low) / (1 << 53)

    def _bits(self, count: int) -> int:
        self._state = (self._state * _FACTOR + _ADDED) & _MASK
        return self._state >> (48 - count)
