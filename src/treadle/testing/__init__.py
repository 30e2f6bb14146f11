"""The conformance suites: what every policy, engine and knob must hold to, for Treadle's own and for plug-ins alike.

Plain functions that raise an AssertionError which says what was wrong and for which input; they work in any test
framework. The whole test of a plug-in:

    from my_package import Freshest
    from treadle.testing import check_policy

    def test_it_is_a_good_policy():
        check_policy(lambda rng: Freshest())
"""

from treadle.testing.engine import check_engine
from treadle.testing.knob import check_knob
from treadle.testing.policy import check_policy

__all__ = ["check_engine", "check_knob", "check_policy"]
