"""One driver per engine. All pass the conformance suite that `treadle.testing` ships."""
