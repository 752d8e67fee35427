# The two that matter: `make demo` and `make test`. Both leave .venv in the root.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PODS ?= 1000
SEEDS ?= 1000
SECONDS ?= 600
CASES ?= 10000
FAULTS ?= 10000
# How much `make nightly` does: cases of fuzz, seeds of sim, seconds of guided and of churn; and the most seconds that
# the mutants, the versions, and each of the others may take
NIGHTLY_CASES ?= 100000
NIGHTLY_SEEDS ?= 100000
NIGHTLY_GUIDED_S ?= 3600
NIGHTLY_SECONDS ?= 3600
NIGHTLY_MUTANTS_S ?= 14400
NIGHTLY_VERSIONS_S ?= 14400
NIGHTLY_LIMIT_S ?= 14400
STAMP := $(VENV)/.installed
# Minor versions of Kubernetes besides the main one, each pinned in a module of its own
MINORS := $(sort $(patsubst tools/k8s/%/go.mod,%,$(wildcard tools/k8s/*/go.mod)))
# A line for each test that failed, of all suites of `make test`
FAILED := build/failed-tests.txt
# pytest's workers: as many as there are cores
JOBS ?= auto

# Of batch systems: those that every `make test` builds and runs, and those that `make neighbours` adds
NEIGHBOURS := lws jobset
MORE_NEIGHBOURS := trainer mpi-operator kuberay volcano-controllers volcano-admission volcano-scheduler kueue karpenter

.PHONY: interposer demo test test-unit test-node test-page test-install image manifests node-binaries lint schemas \
  protos model sim guided mutants chaos churn fuzz soak nightly kube kube-versions versions fakes bench docs picture clean neighbours

$(STAMP): requirements.lock pyproject.toml
	@test -x $(PY) || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Kerf needs Python 3.11 or later; name one with make PYTHON=python3.12")'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (half a minute the first time)" >&2
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock >&2
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . >&2
	@$(PY) -m services.placement.engine.precompile
	@touch $@

demo: $(STAMP)  ## openb pods on openb nodes, everything embedded; KUBE=1 for a real API server, STAY=1 keeps the live page
	@$(PY) -m cli demo --pods $(PODS) $(if $(KUBE),--kube) $(if $(STAY),--stay)

test: $(STAMP) lint fakes kube kube-versions  ## everything, on real NATS and a real Kubernetes control plane
	@$(MAKE) --quiet node-binaries || echo "the tests of a real node are skipped" >&2
	@tools/program.sh promtool >/dev/null || echo "promtool's checks are skipped" >&2
	@for name in $(NEIGHBOURS); do tools/program.sh $$name >/dev/null || echo "the tests of $$name are skipped" >&2; done
	@mkdir -p $(dir $(FAILED)); rm -f $(FAILED); export KERF_FAILED_TESTS=$(abspath $(FAILED)); status=0; \
	$(PY) -m pytest -q -n $(JOBS) --dist loadgroup tests --ignore tests/node --ignore tests/install || status=$$?; \
	$(PY) -m pytest -q tests/node || status=$$?; \
	$(MAKE) --quiet test-install || status=$$?; \
	test ! -s $(FAILED) || { echo "failed, of all suites:"; cat $(FAILED); }; \
	exit $$status  # one suite that fails does not keep the next from running

test-node: $(STAMP) node-binaries  ## a real kubelet with containerd in a sandbox; needs root
	$(PY) -m pytest -q tests/node

neighbours: $(STAMP) kube  ## Kerf beside the real controllers of batch systems, with their projects' examples
	@for name in $(NEIGHBOURS) $(MORE_NEIGHBOURS); do tools/program.sh $$name >/dev/null || exit 1; done
	REQUIRE_NEIGHBOURS=1 $(PY) -m pytest -q -n $(JOBS) --dist loadgroup tests/cluster/neighbours

test-install: $(STAMP) node-binaries fakes  ## the image on a real kubelet, installed, upgraded and removed by helm; needs root
	@tools/build.sh kube-scheduler kubectl >/dev/null
	@if $(PY) -m tools.image >/dev/null; then unshare --net $(PY) -m pytest -q -rP tests/install; \
	else echo "THE INSTALLATION IS NOT TESTED: there is no image" >&2; test -z "$$REQUIRE_KUBE"; fi

image: $(STAMP)  ## the container image in build/kerf-image.tar, without a container engine; needs root and mmdebstrap
	@$(PY) -m tools.image

manifests: $(STAMP)  ## after a change of k8s/chart: the plain manifests
	@$(PY) -m tools.manifests

test-page: $(STAMP)  ## the live page in headless Chromium, which must be installed
	REQUIRE_PAGE=1 $(PY) -m pytest -q tests/page

test-unit: $(STAMP)  ## seconds
	$(PY) -m pytest -q tests/unit

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check --quiet .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) -m shared.contracts.generate --check
	$(PY) -m tools.manifests --check

schemas: $(STAMP)  ## after a change of shared/contracts
	$(PY) -m shared.contracts.generate

fakes: $(STAMP)  ## the interposer, the fake libnvidia-ml.so.1 and libcuda.so.1, and the programs that tests run on them
	@$(PY) -m tests.support.native

interposer:  ## what keeps slices to their limits, in containers
	@$(MAKE) --quiet -C native/interposer

node-binaries:
	@tools/build.sh node >/dev/null

kube:  ## builds (or finds) the control plane; minutes the first time, nothing after that
	@tools/build.sh >/dev/null

kube-versions:  ## the API servers of the oldest and the newest version: six minutes of a processor each the first time
	@for minor in $(firstword $(MINORS)) $(lastword $(MINORS)); do tools/build.sh --kubernetes $$minor >/dev/null || exit; done

versions: $(STAMP) kube  ## nightly: the contract with Kubernetes on an API server of every minor version
	@for minor in $(MINORS); do tools/build.sh --kubernetes $$minor >/dev/null || exit; done
	KERF_KUBERNETES=all $(PY) -m pytest -q -rs -n $(JOBS) --dist loadgroup tests/cluster/versions

protos: $(STAMP)  ## after a change of a .proto of services/node_agent
	$(PY) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. services/node_agent/kubelet_api/*.proto
	$(PY) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. services/node_agent/nri_api/*.proto

model: $(STAMP)  ## the protocol, state by state
	$(PY) -m pytest -q tests/model

sim: $(STAMP)  ## all cores under a simulated clock and drawn faults: make sim SEEDS=100000
	$(PY) -m tests.sim --seeds $(SEEDS)

guided: $(STAMP)  ## worlds that reached a new state are begun again and go on otherwise: make guided SECONDS=600
	$(PY) -m tests.sim --guided $(SECONDS)

mutants: $(STAMP) fakes  ## weakens the code line by line; each time a test must fail
	$(PY) -m tests.mutants

chaos: $(STAMP) kube  ## kill -9, freezes and wipes, for long
	KERF_CHAOS_ROUNDS=20 $(PY) -m pytest -q tests/chaos

churn: $(STAMP) kube  ## pods come and go under faults, with an auditor of its own: make churn SECONDS=3600 SEED=7
	$(PY) -m tests.chaos.churn --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

soak: $(STAMP) kube  ## the same until a number of faults has struck: make soak FAULTS=10000 SEED=7
	@$(PY) -m bench.soak --faults $(FAULTS) $(if $(SEED),--seed $(SEED))

fuzz: $(STAMP)  ## damaged input for every parser that reads what others write: make fuzz CASES=100000
	@$(PY) -m tests.fuzz --cases $(CASES)

nightly: $(STAMP) fakes kube  ## fuzz, sim, guided, churn, mutants and versions, one after the other, each with its bound
	@$(PY) -m tools.nightly --cases $(NIGHTLY_CASES) --seeds $(NIGHTLY_SEEDS) --guided-s $(NIGHTLY_GUIDED_S) \
	  --seconds $(NIGHTLY_SECONDS) \
	  --mutants-s $(NIGHTLY_MUTANTS_S) --versions-s $(NIGHTLY_VERSIONS_S) --limit-s $(NIGHTLY_LIMIT_S)

docs: $(VENV)/.docs  ## the documentation as a site in site/; a link that leads nowhere is an error
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --clean  # not --quiet: it hides from --strict what is wrong

$(VENV)/.docs: $(STAMP) docs/requirements.lock
	@echo "installing mkdocs-material into $(VENV)" >&2
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r docs/requirements.lock >&2
	@touch $@

picture: $(STAMP)  ## records the terminal sessions and the live page that README and docs show
	@$(PY) -m tools.record_terminal
	@$(PY) -m tools.record_page

clean:
	rm -rf $(VENV) build site
