# Every command of this project. Each one sets up what it needs, so any of them works first on a fresh machine.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Tools find their programs (penstock, ruff, lint-imports) in the environment that `make setup` makes.
BIN := .venv/bin
# Hundreds of tests start an interpreter, which would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE
SETUP_DONE := .venv/setup-done
# How many tests run side by side, file by file in the order of the tree: largest file first, the few long crash tests would come
# last and alone. Those that run Spark or Kafka have a run of their own, longest file first (tests/distribution.py): they take every
# processor, and all others would wait for them.
JOBS := 2
SIDE_BY_SIDE := --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder
PYTHON_FILES := src tests scripts client $(wildcard bench)

.PHONY: help
help: ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(SETUP_DONE) ## make .venv with penstock and its tools

$(SETUP_DONE): pyproject.toml constraints.txt scripts/setup
	@scripts/setup

.PHONY: run
run: $(SETUP_DONE) ## start a broker with the defaults, in the foreground
	@$(BIN)/penstock serve

.PHONY: demo
demo: $(SETUP_DONE) ## see it work: five protocols, a crash, three tables by Spark; CONSOLE=1 leaves the console open
	@$(BIN)/python -m scripts.demo $(if $(CONSOLE),--console)

.PHONY: demo-cluster
demo-cluster: $(SETUP_DONE) ## see a cluster work: three brokers of Kafka, three nodes, one of each killed under load
	@scripts/install-kafka
	@$(BIN)/python -m scripts.demo.cluster

# $(call pytest_twice,TESTS,OPTIONS of the first run): tests that fail are run once more, alone. One that passes then depends on the load of
# the machine: its first failure stays in the output, and is a bug to look at. One that fails again fails the run.
pytest_twice = $(BIN)/python -m pytest $(1) $(2) || { [ $$? -eq 1 ] && \
	echo "running the tests that failed once more, alone" && \
	$(BIN)/python -m pytest $(1) --last-failed --last-failed-no-failures none; }

.PHONY: test
test: lint ## everything: style, types, import rules and all tests
	@$(call pytest_twice,-m "not jvm" $(DISK_TESTS),$(SIDE_BY_SIDE))
	@export TMPDIR=$(MEMORY); $(call pytest_twice,-m "not jvm" $(MEMORY_TESTS),$(SIDE_BY_SIDE))
	@kafka=tests/kafka; scripts/install-kafka || { echo "note: Kafka could not be fetched, so tests/kafka is left out"; kafka=; }; \
	$(call pytest_twice,-m jvm tests/admin tests/crash $$kafka tests/spark,$(SIDE_BY_SIDE))
	@$(call pytest_twice,$(SKIPPING_TESTS) --engine skipping,--numprocesses $(JOBS) --dist loadfile)
	@[ ! -e .cache/kafka/versions.txt ] || { export TMPDIR=$(MEMORY); \
		$(call pytest_twice,$(KAFKA_ENGINE_TESTS) --engine kafka,--numprocesses $(JOBS) --dist loadfile); }

# Tests of the log, and of processes that end at any moment, write to a disk and flush it. All others have their files in memory, those
# too that simulate what a disk loses in a power cut.
MEMORY = $(shell scripts/memory-directory)
POWER_CUT_TESTS := $(wildcard tests/crash/test_*power_cut.py)
DISK_TESTS := $(filter-out $(POWER_CUT_TESTS),$(wildcard tests/crash/test_*.py)) tests/log tests/testing
MEMORY_TESTS := $(POWER_CUT_TESTS) $(wildcard tests/test_*.py) \
	$(filter-out tests/__pycache__ tests/crash tests/log tests/testing,$(patsubst %/,%,$(wildcard tests/*/)))

# What relies most on how a log answers, on an engine that answers as freely as it may.
SKIPPING_TESTS := $(addprefix tests/broker/,deliveries groups schedule topics transactions)
# The same on a real Kafka, as far as it takes a minute or so; `make test-engines` has all of them.
KAFKA_ENGINE_TESTS := $(addprefix tests/broker/,deliveries groups topics transactions)
.PHONY: test-engines
test-engines: $(SETUP_DONE) ## broker and sessions on an engine that skips, delays and reorders; broker on a real Kafka (25 min)
	@$(call pytest_twice,tests/broker tests/protocols --engine shared --engine-seed $(or $(SEED),0),--numprocesses $(JOBS) --dist loadfile)
	@$(call pytest_twice,tests/broker tests/protocols --engine skipping --engine-seed $(or $(SEED),0),--numprocesses $(JOBS) --dist loadfile)
	@scripts/install-kafka
	@export TMPDIR=$(MEMORY); $(call pytest_twice,tests/broker --engine kafka,--numprocesses $(JOBS) --dist loadfile)

# What shows most mistakes soonest: no crash tests, no fuzzing, no Spark, no log on a real disk.
QUICK_TESTS := $(addprefix tests/,admin clients net protocols quic test_background.py test_config.py test_logs.py test_tidy.py test_units.py)
.PHONY: test-fast
test-fast: lint ## style, types, import rules and the quick tests (3 min)
	@$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile $(QUICK_TESTS)

# In an environment of its own below build/: the quick tests and those of what leans most on libraries. TESTS=tests/net takes others.
OTHER_TESTS = $(if $(filter command,$(firstword $(origin TESTS))),$(TESTS),$(QUICK_TESTS) tests/broker/schemas tests/broker/access)
.PHONY: test-python
test-python: ## the quick tests with another Python (PYTHON=python3.13; 10 min)
	@scripts/test-elsewhere $(or $(PYTHON),python3) constraints.txt $(OTHER_TESTS)

.PHONY: test-lowest
test-lowest: $(SETUP_DONE) ## the quick tests with the lowest versions pyproject.toml allows
	@mkdir -p build && $(BIN)/python -m scripts.lowest_versions >build/lowest.txt
	@scripts/test-elsewhere $(BIN)/python build/lowest.txt $(OTHER_TESTS)

# All that runs a session of Spark, pipelines and a cluster included.
.PHONY: test-spark
test-spark: $(SETUP_DONE) ## tests that run Spark with another version of it (SPARK=4.2.1; 15 min)
	@mkdir -p build && sed 's/^pyspark==.*/pyspark==$(or $(SPARK),4.2.1)/' constraints.txt >build/spark-$(or $(SPARK),4.2.1).txt
	@EXTRA=dev scripts/test-elsewhere $(BIN)/python build/spark-$(or $(SPARK),4.2.1).txt -m jvm tests/spark tests/crash/test_spark_cluster.py

.PHONY: packages
packages: ## build and check wheels and sdist, in dist/
	@scripts/release-packages

.PHONY: sbom
sbom: packages ## the SBOM of each package (CycloneDX), in build/sbom
	@scripts/release-sbom

.PHONY: lint
lint: $(SETUP_DONE) ## style, types and import rules
	@$(BIN)/ruff check $(PYTHON_FILES)
	@$(BIN)/ruff format --check $(PYTHON_FILES)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

.PHONY: format
format: $(SETUP_DONE) ## put every Python file into the house format
	@$(BIN)/ruff check --fix $(PYTHON_FILES)
	@$(BIN)/ruff format $(PYTHON_FILES)

.PHONY: docs
docs: $(SETUP_DONE) ## build the documentation site into build/site
	@$(BIN)/zensical build --clean --strict

.PHONY: reference
reference: $(SETUP_DONE) ## write the reference pages of the docs from the code
	@$(BIN)/python -m scripts.reference

.PHONY: sync
sync: $(SETUP_DONE) ## write the sync clients from the async ones
	@$(BIN)/python -m scripts.sync_clients

.PHONY: bench
bench: $(SETUP_DONE) ## measure, side by side with Redis Streams, NATS and Kafka
	@scripts/install-debian-packages redis-server
	@scripts/install-nats
	@scripts/install-kafka
	@$(BIN)/python -m bench

# BASE is the revision to compare with; CASES are cases of `python -m bench --help`.
BASE := main
CASES := produce one-in-flight partitions

.PHONY: bench-compare
bench-compare: $(SETUP_DONE) ## measure this tree and another revision (BASE=...), turn by turn
	@scripts/install-debian-packages redis-server
	@$(BIN)/python -m bench $(CASES) --against $(BASE)

.PHONY: test-cluster
test-cluster: $(SETUP_DONE) ## Spark on a cluster, executors and workers killed (ENGINE=kafka for a log in Kafka)
	@[ "$(ENGINE)" != kafka ] || scripts/install-kafka
	@$(BIN)/python -m tests.crash.spark_cluster --rounds $(or $(ROUNDS),5) --engine $(or $(ENGINE),embedded)

.PHONY: torture-spark
torture-spark: $(SETUP_DONE) ## kill Spark and broker 200 times: each record once (25 min; ENGINE=kafka for a log in Kafka)
	@[ "$(ENGINE)" != kafka ] || scripts/install-kafka
	@$(BIN)/python -m tests.crash.spark_torture --kills $(or $(KILLS),200) --engine $(or $(ENGINE),embedded)

.PHONY: torture-pipeline
torture-pipeline: $(SETUP_DONE) ## the same for pipelines: each record once in each table (60 min)
	@[ "$(ENGINE)" != kafka ] || scripts/install-kafka
	@$(BIN)/python -m tests.crash.pipeline_torture --kills $(or $(KILLS),200) --engine $(or $(ENGINE),embedded)

.PHONY: torture-log
torture-log: $(SETUP_DONE) ## end the log at every operation of its disk (10 min)
	@$(BIN)/python -m tests.crash.every_operation

# SEEDS=n runs so many seeds, from FIRST on; SEED=k runs that one; OPTIONS are those of `python -m tests.simulation --help`.
SEEDS := 100
FIRST := 0
OPTIONS :=

.PHONY: simulate
simulate: $(SETUP_DONE) ## the whole broker under simulated faults, by seed (SEEDS=n, SEED=k)
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --first $(FIRST)) $(OPTIONS)

# Slow: everything takes two to three times as long, so timeouts are longer and tests that measure time are left out. TESTS=tests/net takes a part.
TESTS := tests
.PHONY: coverage
coverage: $(SETUP_DONE) ## branch coverage by package (TESTS=tests; 40 min)
	@rm -rf .coverage && mkdir .coverage
	@status=0; $(BIN)/coverage run -m pytest $(TESTS) $(SIDE_BY_SIDE) -m "not jvm" \
		-o timeout=300 --ignore-glob="*frame_cost.py" || status=$$?; \
	$(BIN)/coverage combine --quiet; $(BIN)/coverage json --quiet -o .coverage/all.json; \
	$(BIN)/python -m scripts.coverage_by_package .coverage/all.json; exit $$status

.PHONY: fuzz
fuzz: $(SETUP_DONE) ## MINUTES=10 of new examples for every codec, session and file
	@$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),10) --jobs $(JOBS) $(if $(SEED),--seed $(SEED))

.PHONY: fuzz-api
fuzz-api: $(SETUP_DONE) ## EXAMPLES=50 requests for every endpoint of the admin API (10 min)
	@EXAMPLES=$(or $(EXAMPLES),50) $(BIN)/python -m pytest tests/admin/api/test_openapi.py

.PHONY: screenshots
screenshots: $(SETUP_DONE) ## every page of the console, in build/screenshots
	@$(BIN)/python -m scripts.screenshots

.PHONY: hostile
hostile: $(SETUP_DONE) ## what a thousand hostile peers cost a broker in memory (4 min)
	@$(BIN)/python -m tests.crash.hostile

.PHONY: torture-cluster
torture-cluster: $(SETUP_DONE) ## three brokers of Kafka and three nodes, killed, frozen, cut off and stopped under load (ROUNDS=22)
	@scripts/install-kafka
	@$(BIN)/python -m tests.crash.cluster_faults --rounds $(or $(ROUNDS),22)

.PHONY: torture-migration
torture-migration: $(SETUP_DONE) ## a log is moved to Kafka and back under load, the command killed (RECORDS=1000000 KILLS=3)
	@scripts/install-kafka
	@$(BIN)/python -m tests.crash.migration --records $(or $(RECORDS),1000000) --kills $(or $(KILLS),3)

.PHONY: soak
soak: $(SETUP_DONE) ## MINUTES=10 of mixed load: memory and descriptors must not grow
	@$(BIN)/python -m tests.crash.soak --minutes $(or $(MINUTES),10)

.PHONY: check-deploy
check-deploy: $(SETUP_DONE) ## the systemd unit and the Helm chart by their own tools (5 min)
	@scripts/check-deploy

.PHONY: clean
clean: ## remove .venv, caches and builds; data directories stay
	@rm -rf .venv build dist .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find src tests scripts -type d -name __pycache__ -prune -exec rm -rf {} +
