# The same few commands at home and in CI. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Debian's Python is built with what profiles tell of it. One that pyenv has built is not, and takes a fifth longer.
DEBIAN_PYTHON := $(shell /usr/bin/python3.11 -c 'import ensurepip, venv' 2>/dev/null && echo /usr/bin/python3.11)
PYTHON ?= $(or $(DEBIAN_PYTHON),$(shell command -v python3.11 || command -v python3))
export PYTHON
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
COMPILED := $(VENV)/.compiled
CLASSES := build/spark-classes.jsa
KAFKA := build/kafka/.ready
SPARK_KAFKA := build/spark-kafka/.ready
PULSAR := build/pulsar/.ready
SPARK_WITH_KAFKA := 4.2.0
PYSPARK_WITH_KAFKA := build/pyspark-$(SPARK_WITH_KAFKA)/.ready
PREVIOUS := 3be084e
STORE ?= sqlite
MINUTES ?= 10
SEEDS ?= 300
FIRST ?= 1
export PYSPARK_PYTHON := $(abspath $(BIN))/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
export SPARK_LOCAL_IP := 127.0.0.1
export PATH := $(abspath $(BIN)):$(PATH)
# What is compiled is kept: the tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup packages check quick test suite test-all contract console-test chaos upgrade-test fuzz demo bench bench-client bench-commits bench-store bench-coordinator bench-participants bench-compaction bench-backup bench-capacity bench-console bench-tracing bench-lifecycle soak bench-spark-job bench-spark bench-peers bench-peers-spark pulsar-test kafka-test spark-matrix simulate mutants compose-test helm-test object-store-test ops-test dashboards docs clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 20

setup:  ## Make .venv and install everything (Debian packages too, when root)
	$(MAKE) --no-print-directory --jobs=2 packages $(STAMP)

packages: | $(BIN)/pip  # which may need a package itself, and two cannot be installed at once
	scripts/install-debian-packages

$(BIN)/pip:
	scripts/install-debian-packages venv
	$(PYTHON) -m venv $(VENV)

# Spark comes as source, of which pip makes a wheel: to compress its jars again would take as long as all the rest.
$(STAMP): pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --config-settings=--build-option=--compression=stored 'pyspark>=4.0'
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[dev]'
	rm -f $(VENV)/lib/python3.*/site-packages/pyspark/python/lib/*.zip  # see "Making it fast" in spark_connector/README.md
	touch $(STAMP)

check: $(STAMP)  ## Lint, formatting, strict types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: setup  ## Set up, check, and run every test (WORKERS=6)
	$(MAKE) --no-print-directory --jobs=2 check suite

# Many tests wait: with four workers, two cores are idle for a sixth of the time.
suite: $(CLASSES) $(COMPILED)
	$(BIN)/python -m pytest -n $(or $(WORKERS),6) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

quick: setup  ## In a minute: the tests that start no process (no Spark, etcd or ZooKeeper) and do not take long
	METATXN_TESTS=quick $(BIN)/python -m pytest -q -n $(or $(WORKERS),2)

test-all: export METATXN_TESTS = all
test-all: test  ## The same, every sweep as a whole: the hours before a release (WORKERS=6)

# Otherwise each worker compiles all tests, and what they import, for itself.
$(COMPILED): $(STAMP)
	$(BIN)/python -m pytest --collect-only -qqq >$@ || true

$(CLASSES): $(STAMP)
	scripts/install-debian-packages java
	$(BIN)/python -m tests.spark_connector.class_archive $@

contract: setup  ## Only the store contract suite, over every backend
	$(BIN)/python -m pytest tests/metastore/contract

console-test: setup  ## Only the tests of the console, in a browser
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 tests/console

.PHONY: console-shots
console-shots: setup  ## The screenshots of docs/console.md
	$(BIN)/python -m tests.console.shots docs/images

simulate: setup  ## Everything fails, on virtual time (SEEDS=300 FIRST=1 WORKLOAD=bank WORKERS=2; SEED=7 replays one, TRACE=file)
	$(BIN)/python -m tests.simulation $(if $(WORKLOAD),--workload $(WORKLOAD)) $(if $(SEED),--seed $(SEED) $(if $(TRACE),--trace $(TRACE)),--seeds $(SEEDS) --first $(FIRST) --keep-going $(if $(WORKERS),--workers $(WORKERS)) $(if $(PUBLISH),--publish))

mutants: setup  ## Deliberate bugs, each of which a test or the simulation has to find; writes their table (NAME=one, NEW=1: those it does not have as they are)
	$(BIN)/python -m tests.mutants $(if $(NEW),--new) $(NAME)

upgrade-test: setup build/previous/.ready  ## The previous release beside this one, forth and back under load (MINUTES=10, MIX=upgrade-local, SEED=7)
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) --mix $(or $(MIX),upgrades) $(if $(SEED),--seed $(SEED))

# The commit that docs/design.md names in its section on versions.
build/previous/.ready:
	rm -rf $(@D) && mkdir -p $(@D)/source
	git archive $(PREVIOUS) | tar -x -C $(@D)/source
	$(PYTHON) -m venv $(@D)/venv
	$(@D)/venv/bin/python -m pip install --quiet --no-compile $(abspath $(@D))/source
	touch $@

chaos: setup $(if $(filter pulsar,$(MIX)),$(PULSAR))  ## Real processes are killed, frozen and cut off (MINUTES=10, MIX=etcd, SEED=7)
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(MIX),--mix $(MIX)) $(if $(SEED),--seed $(SEED))

fuzz: setup  ## Coverage-guided fuzzing of every decoder (MINUTES=10, TARGET=frames)
	$(BIN)/python -m pip install --quiet --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(TARGET),--target '$(TARGET)')

demo: $(STAMP)  ## The main job, end to end, with two kills (STORE=sqlite or STORE=etcd)
	scripts/install-debian-packages java $(if $(filter etcd,$(STORE)),etcd etcdctl)
	$(BIN)/python -m examples.flights.demo --store $(STORE)

bench: bench-commits bench-store bench-coordinator bench-participants bench-client bench-spark-job bench-spark  ## All measurements; tables here, JSON in build/bench

bench-commits: setup  ## Commits per second on each store, beside single CAS writes
	$(BIN)/python -m benchmarks.commits

bench-store: setup  ## The metadata stores: what group commit gains and costs
	$(BIN)/python -m benchmarks.store

bench-coordinator: setup  ## The coordinator: beside plain writes, and beside an HTTP route that does nothing
	$(BIN)/python -m benchmarks.coordinator

bench-participants: setup  ## The broker: what transactions, HTTP and history cost (all finished transactions: FULL=--full)
	$(BIN)/python -m benchmarks.participants $(FULL)

bench-compaction: setup  ## The compacted view of a compacted topic, beside one of a topic with nothing else (20,000,000 messages, in an hour: KEYS=100000)
	$(BIN)/python -m benchmarks.compaction $(if $(KEYS),--keys $(KEYS))

bench-backup: setup  ## A backup of ledgers in local files, beside `cp`
	$(BIN)/python -m benchmarks.backup

bench-capacity: setup  ## What one transaction, topic and segment cost: the unit costs of docs/operations.md
	$(BIN)/python -m benchmarks.capacity

bench-console: setup  ## Every page of the console of a large cluster (a first look: TOPICS=500 TRANSACTIONS=5000 MESSAGES=50000)
	$(BIN)/python -m benchmarks.console $(if $(TOPICS),--topics $(TOPICS)) $(if $(TRANSACTIONS),--transactions $(TRANSACTIONS)) $(if $(MESSAGES),--messages $(MESSAGES)) $(if $(RUNS),--runs $(RUNS))

bench-tracing: setup  ## What traces cost a coordinator and a broker at the usual sampling, beside none (a first look: ROUNDS=3)
	$(BIN)/python -m benchmarks.tracing $(if $(ROUNDS),--rounds $(ROUNDS))

bench-lifecycle: setup  ## What a long life of aborts, splits and merges leaves behind (the whole, in hours: TRANSACTIONS=1000000 CHANGES=200)
	$(BIN)/python -m benchmarks.lifecycle $(if $(TRANSACTIONS),--transactions $(TRANSACTIONS)) $(if $(CHANGES),--changes $(CHANGES)) $(if $(RUNS),--runs $(RUNS))

soak: setup  ## Constant load for 20 minutes: do store, disk, memory or the time of a commit still grow? (HOURS=2)
	$(BIN)/python -m pip install --quiet --editable '.[plots]'
	$(BIN)/python -m benchmarks.soak --minutes $(if $(HOURS),$$(( 60 * $(HOURS) )),20)

bench-client: setup  ## The client library: CPU of a small transaction, of 10,000 begins at once, and of starting
	$(BIN)/python -m benchmarks.client

bench-spark-job: setup  ## Rows per second of the Spark job, beside Spark's noop and parquet sinks
	$(BIN)/python -m benchmarks.spark_job

bench-spark: setup  ## The Spark connector, beside sinks and sources that do nothing, and parquet (a first look: SMALL=--small)
	$(BIN)/python -m benchmarks.spark $(SMALL)

bench-peers: setup $(KAFKA)  ## metatxn beside Kafka, in turns; takes two hours (a first look: SMALL=--small; PARTS='small wide')
	$(BIN)/python -m pip install --quiet --editable '.[peers]'
	$(BIN)/python -m benchmarks.peers $(PARTS) $(SMALL)

bench-peers-spark: setup $(KAFKA) $(SPARK_KAFKA) $(PYSPARK_WITH_KAFKA)  ## The Spark connector beside Spark's own for Kafka, with a Spark that has one (SMALL=--small)
	$(BIN)/python -m pip install --quiet --editable '.[peers]'
	PYTHONPATH=$(abspath $(dir $(PYSPARK_WITH_KAFKA))) $(BIN)/python -m benchmarks.peers.spark $(SMALL)

pulsar-test: setup $(PULSAR)  ## Pulsar's own V5 client against a broker's listener (needs Maven and a Java compiler)
	@command -v javac >/dev/null || { echo "missing: a Java compiler. On Debian: apt-get install openjdk-17-jdk-headless" >&2; exit 1; }
	$(BIN)/python -m pytest tests/gateways/pulsar/with_java.py tests/gateways/pulsar/with_java_schemas.py

kafka-test: setup $(KAFKA) $(SPARK_KAFKA) $(PYSPARK_WITH_KAFKA)  ## Programs of Kafka's clients and of Spark, against Apache Kafka and against us (needs Maven and a Java compiler)
	@command -v javac >/dev/null || { echo "missing: a Java compiler. On Debian: apt-get install openjdk-17-jdk-headless" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --editable '.[peers]'
	$(BIN)/python -m pytest tests/gateways/differential/with_kafka.py tests/gateways/differential/with_spark.py

# What Maven brings has to be what it was when the benchmark, or the test, was written.
define from_maven
	scripts/install-debian-packages java etcd
	@command -v mvn >/dev/null || { echo "missing: Maven. On Debian: apt-get install maven" >&2; exit 1; }
	rm -rf $(@D)
	mvn --quiet --batch-mode --file $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(abspath $(@D))
	export LC_ALL=C; cd $(@D) && sha256sum *.jar | diff - $(abspath $(word 2,$^))
	touch $@
endef

build/%/.ready: benchmarks/peers/%.pom.xml benchmarks/peers/%.sha256
	$(from_maven)

# A Spark of the version that there is a connector for.
$(PYSPARK_WITH_KAFKA): | $(STAMP)
	rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --no-deps --target $(@D) 'pyspark==$(SPARK_WITH_KAFKA)'
	touch $@

$(PULSAR): tests/gateways/pulsar/pulsar.pom.xml tests/gateways/pulsar/pulsar.sha256
	$(from_maven)

spark-matrix: setup  ## Everything that can fail under a Spark job, on both stores (SPARK=4.0.1: with that version)
	$(BIN)/python -m pip install --quiet --editable '.[matrix]'
	$(if $(SPARK),$(BIN)/python -m pip install --quiet --upgrade --no-deps --target build/pyspark-$(SPARK) 'pyspark==$(SPARK)')
	SPARK_MATRIX=1 $(if $(SPARK),PYTHONPATH=$(abspath build/pyspark-$(SPARK))) $(BIN)/python -m pytest $(addprefix tests/spark_connector/test_,failure_matrix.py connect.py shipping.py tracing.py)

compose-test: setup  ## The images and docker-compose.yml for real, by Podman: used from this machine, with two kills (root)
	scripts/install-debian-packages java
	PACKAGES=tests/compose/debian-packages.txt scripts/install-debian-packages
	$(BIN)/python -m pip install --quiet --editable '.[compose]'
	$(BIN)/python -m tests.compose

HELM ?= $(abspath build/helm/helm)
HELM_VERSION := v3.16.4

helm-test: setup  ## Lint and render the Helm chart, and validate it by Kubernetes' schemas (needs Go, or HELM=its program)
	@[ -x "$(HELM)" ] || GOBIN=$(abspath build/helm) go install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)
	$(BIN)/python -m pip install --quiet --editable '.[helm]'
	$(BIN)/python -m tests.helm $(HELM)

S3_SERVER ?= $(abspath build/versitygw/versitygw)
VERSITYGW_VERSION := v1.8.0

object-store-test: setup  ## Ledgers in a real S3 server, Versity's gateway: their contract, faults, a kill -9, a backup (needs Go, or S3_SERVER=its program)
	scripts/install-debian-packages etcd
	@[ -x "$(S3_SERVER)" ] || GOBIN=$(abspath build/versitygw) go install github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW_VERSION)
	S3_SERVER=$(S3_SERVER) $(BIN)/python -m pytest -k s3 $(addprefix tests/participants/,ledger/with_real_s3.py ledger/test_contract.py ledger/test_faulty_s3.py processes/test_brokers.py backup/with_real_s3.py)

ops-test: setup  ## A real Prometheus scrapes a real cluster: each alert fires by its fault, made for real (root, for a small disk)
	$(BIN)/python -m tests.ops

dashboards: $(STAMP)  ## Write Grafana's dashboards to ops/grafana
	$(BIN)/python scripts/dashboards.py

.PHONY: dashboards-shots
dashboards-shots: setup  ## The pictures of the dashboards in docs/operations.md, of a real cluster under load
	$(BIN)/python -m pip install --quiet --editable '.[plots]'
	$(BIN)/python -m tests.ops.shots docs/images

docs: $(STAMP)  ## The pages as a site in build/site, where every link and anchor has to lead somewhere
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --clean
	@echo "open $(abspath build/site/index.html)"

clean:  ## Remove what the build made
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
