"""Conformance suites for policies, engines and knobs, both Treadle's own and those of plug-ins.

They are plain functions that work in any test framework. On a failure they raise an AssertionError that names the
problem and the input. A complete test of a plug-in:

    from my_package import Freshest
    from treadle.testing import check_policy

    def test_it_is_a_good_policy():
        check_policy(lambda rng: Freshest())
"""

from treadle.testing.engine import check_engine
from treadle.testing.knob import check_knob
from treadle.testing.policy import check_policy

__all__ = ["check_engine", "check_knob", "check_policy"]
