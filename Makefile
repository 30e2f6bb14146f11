# Two commands for a new user: `make demo` shows what Treadle does, `make test` shows that it holds.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test test-fast check bench soak lock clean

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
BESIDE := $(addprefix tests/,attachment/micro_batches control decide loop testing observe workloads engines/simulator engines/spark/counters pipelines/channels \
	bench/simulator bench/pipelines test_model.py test_broker.py test_cli.py test_doctor.py test_examples.py \
	$(patsubst %,linux/%.py,test_cores test_pressure test_thread_times files/test_file_lock files/test_inotify) \
	$(patsubst %,bench/%.py,test_claims test_core attach/test_policies) cli/test_run.py cli/test_ctl.py cli/test_workloads.py \
	$(patsubst %,attachment/%.py,test_pace test_coverage policies/test_sources_last policies/test_in_proportion shown/test_report \
		quality/test_promises) \
	$(patsubst %,engines/spark/%.py,kafka/test_flow threads/test_thread_names threads/test_idle_queues queries/test_operators \
		queries/test_plan queries/test_progress agent/test_reports) \
	$(patsubst %,pipelines/%.py,api/test_load api/test_show api/test_query_gate api/test_pipeline gating/test_arrival_history \
		gating/test_parked_hops hops/test_latency hops/test_totals nodes/test_ddl quality/test_drops quality/test_own_sources \
		quality/test_placement spark/test_output_rows spark/test_session test_gathering test_bad_input test_channel_on_spark test_live_policy test_live_gate \
		test_corrected))
test: setup
	@log=$$(mktemp); { $(CHECK) && $(BIN)/python -m pytest $(BESIDE); } >$$log 2>&1 & beside=$$!; \
	$(BIN)/python -m pytest $(addprefix --ignore=,$(BESIDE)); failed=$$?; \
	wait $$beside || failed=1; cat $$log; rm $$log; exit $$failed

# What is pure Python, in less than a minute.
test-fast: setup
	$(BIN)/python -m pytest -m "unit and not slow" $(addprefix tests/,decide loop observe engines/spark \
		attachment/policies attachment/shown enforce/gate enforce/test_changes.py enforce/test_enforcer.py test_model.py test_values.py \
		test_config.py test_durations.py test_estimates.py test_text.py)

check: setup
	$(CHECK)

# Goes on after a benchmark with a claim that does not hold, and fails at the end.
# A part of a benchmark, as attach-policies, has a result file of its own.
BENCHES := core hops channels loop truth $(addprefix pipelines-,classes policies assign rules) \
	$(addprefix attach-,policies uneven batches slots rules contention chain) $(addprefix quality-,1 2 3)
bench: setup
	@failed=; for name in $(BENCHES); do \
		part=$${name#*-}; test $$part != $$name || part=; \
		option=--part; test $${name%%-*} != quality || option=--scenario; \
		set -- $${name%%-*} $${part:+$$option $$part}; \
		echo "treadle bench $$*"; \
		$(BIN)/treadle bench "$$@" --save benchmarks/results/$$name.json || failed="$$failed $$name"; \
	done; $(BIN)/treadle bench results > docs/results.md; test -z "$$failed" || { echo "claims that do not hold, or variants that died:$$failed" >&2; exit 1; }

# 45 minutes: 50 hops for ten, 20 kills of a driver on each kind of channel, 100 of an enforcer and 100 of attach; five minutes
# in which queries, executors and applications come and go under attach, and a line of JSON about whose priority threads had.
soak: setup
	$(BIN)/python benchmarks/soak.py
	TREADLE_SOAK=1 TREADLE_KILLS=100 $(BIN)/python -m pytest tests/bench/simulator/test_orderings.py tests/enforce/recovery/test_guardian.py \
		tests/cli/test_kills.py tests/attachment/test_livelock.py tests/pipelines/test_cluster.py tests/pipelines/quality/test_promises.py \
		tests/bench/quality/test_scenario_run.py tests/bench/test_adaptive.py tests/bench/pipelines/test_schedulers.py tests/pipelines/test_crash.py \
		tests/pipelines/test_live_policy.py tests/pipelines/test_live_gate.py tests/attachment/test_live_settings.py tests/pipelines/run/test_change.py
	TREADLE_SOAK=1 $(BIN)/python -m pytest -s tests/soak

# Writes the lock file anew from pyproject.toml; the only target that chooses versions.
lock:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-tools
	$(BIN)/pip-compile --quiet --strip-extras --allow-unsafe --no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
		--extra dev --extra build --extra spark --extra kafka --extra plot --output-file requirements.lock pyproject.toml

clean:
	rm -rf .venv build dist out
