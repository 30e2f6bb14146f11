# Two commands for a new user: `make demo` shows what Treadle does, `make test` shows that it holds.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test check bench soak lock clean

setup: .venv/installed

.venv/installed: requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

demo: setup
	$(BIN)/treadle demo

CHECK := $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

# Checks, tests that need no Spark, and some that need no more than a session run beside the others, which also share
# what the kernel has. With two cores both parts should take equally long; a third is no gain.
BESIDE := tests/decide tests/loop tests/testing tests/engines/simulator tests/bench/test_orderings.py tests/test_model.py \
	tests/test_broker.py $(wildcard tests/observe/test_*.py) tests/bench/test_claims.py tests/bench/test_core.py \
	tests/bench/test_policies.py \
	$(patsubst %,tests/attachment/test_%.py,pace task_order report met promises sources_last in_proportion) \
	$(patsubst %,tests/engines/spark/test_%.py,batches batch_costs counters flow live naming operators plan progress queues reports) \
	$(patsubst %,tests/pipelines/test_%.py,ages drops gathering load own_sources show totals turns) \
	tests/pipelines/channels tests/workloads tests/test_cli.py tests/test_doctor.py tests/test_examples.py tests/cli/test_run.py \
	tests/bench/test_pipelines.py \
	$(patsubst %,tests/pipelines/test_%.py,app bad_input channel_on_spark corrected output_rows pipeline placement session)
test: setup
	@log=$$(mktemp); { $(CHECK) && $(BIN)/python -m pytest $(BESIDE); } >$$log 2>&1 & beside=$$!; \
	$(BIN)/python -m pytest $(addprefix --ignore=,$(BESIDE)); failed=$$?; \
	wait $$beside || failed=1; cat $$log; rm $$log; exit $$failed

check: setup
	$(CHECK)

# Goes on after a benchmark with a claim that does not hold, and fails at the end.
BENCHES := core hops channels pipelines loop attach
bench: setup
	@failed=; for name in $(BENCHES); do \
		echo "treadle bench $$name"; \
		$(BIN)/treadle bench $$name || failed="$$failed $$name"; \
	done; test -z "$$failed" || { echo "claims that do not hold, or variants that died:$$failed" >&2; exit 1; }

# 45 minutes: 50 hops for ten, 20 kills of a driver on each kind of channel, 100 of an enforcer and 100 of attach; five minutes
# in which queries, executors and applications come and go under attach, and a line of JSON about whose priority threads had.
soak: setup
	$(BIN)/python benchmarks/soak.py
	TREADLE_SOAK=1 TREADLE_KILLS=100 $(BIN)/python -m pytest tests/bench/test_orderings.py tests/enforce/test_guardian.py \
		tests/cli/test_kills.py tests/attachment/test_livelock.py tests/pipelines/test_cluster.py tests/pipelines/test_promises.py \
		tests/bench/test_quality.py tests/bench/test_adaptive.py tests/bench/test_pipelines.py tests/pipelines/test_crash.py
	TREADLE_SOAK=1 $(BIN)/python -m pytest -s tests/soak

# Writes the lock file anew from pyproject.toml; the only target that chooses versions.
lock:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-tools
	$(BIN)/pip-compile --quiet --strip-extras --allow-unsafe --no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
		--extra dev --extra build --extra spark --extra kafka --output-file requirements.lock pyproject.toml

clean:
	rm -rf .venv build dist out
