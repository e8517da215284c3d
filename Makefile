# One command per need, each from a fresh clone: every target sets up what it needs first.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
UV     := .tools/bin/uv
READY  := $(VENV)/.ready
BROKER := /usr/lib/rabbitmq/bin/rabbitmq-server
POSTGRES := /usr/lib/postgresql/*/bin/postgres
# Whether installing PostgreSQL makes a cluster, and starts it.
CLUSTER := /etc/postgresql-common/createcluster.d/spica.conf

# A find-links of pip's that uv does not know only makes it warn.
export UV_FIND_LINKS :=
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
# Set in many images; each process would compile all its modules anew, half of its time to start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: accuracy run test test-slow bench bench-accuracy bench-journal bench-loop bench-messaging bench-optimizer bench-rival bench-scheduling bench-replay bench-warm-start bench-trust bench-window bench-setup soak torture fuzz mutants lint format lock setup broker postgres schemas clean help

help: ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

run: setup ## Search the quickstart's deployments and print the best ones.
	$(BIN)/spica-async run examples/quickstart.yaml

test: lint broker postgres ## Every check but the slow tests.
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

test-slow: setup broker postgres ## The tests that need minutes: real traces, real sweeps, real knobs.
	$(BIN)/pytest -n 2 --dist worksteal -m slow --timeout 1200

bench: setup ## The published planner and router sweeps on a real trace (half an hour).
	$(BIN)/python benchmarks/published_sweeps.py planner router

bench-messaging: setup broker ## What messaging over RabbitMQ costs, against its goals (some minutes).
	$(BIN)/python benchmarks/messaging.py

bench-journal: setup postgres ## What the journal costs, and how fast sweeps are resumed and shown (some minutes).
	$(BIN)/python benchmarks/journal.py

bench-loop: setup ## How long the daemon's event loop is busy at a time, with eight sweeps and a disk that hangs.
	$(BIN)/python benchmarks/loop_lag.py

bench-optimizer: setup bench-setup ## What suggestions cost and are worth, against Optuna (over an hour; it can be interrupted).
	$(BIN)/python benchmarks/optimizer.py

bench-rival: setup ## The rival's sweeps by it and by us, on one core (half an hour).
	$(BIN)/python benchmarks/against_rival.py

bench-scheduling: setup ## Rounds against the continuous schedule (half an hour).
	$(BIN)/python benchmarks/scheduling.py

bench-replay: setup ## What setting up a replay costs, with and without prepared tables.
	$(BIN)/python benchmarks/replay_setup.py

bench-accuracy: setup ## How far replays are from silicon, and what makes TTFT so far off (half an hour).
	$(BIN)/python benchmarks/accuracy.py versions
	$(BIN)/python benchmarks/accuracy.py why --points 2
	$(BIN)/python benchmarks/accuracy.py check --cells 8

accuracy: setup ## Make the table of accuracies that ships anew, for the engine that is installed (an hour).
	$(BIN)/python benchmarks/accuracy.py ship --points 1000

bench-warm-start: setup ## What the first candidates are worth, with and without a warm start.
	$(BIN)/python benchmarks/warm_start.py

bench-trust: setup ## What confirming the best is worth, under noise that is known and the engine's own.
	$(BIN)/python benchmarks/trust.py

bench-window: setup ## Whether short closed loads measure what long ones do, whole and in their steady part.
	$(BIN)/python benchmarks/steady_window.py

# Optuna's Gaussian process needs PyTorch, which nothing else here does.
bench-setup: .venv-bench/.ready

.venv-bench/.ready: benchmarks/requirements.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install --quiet --requirement benchmarks/requirements.txt
	touch $@

soak: setup broker ## Ten minutes of random faults; every sweep must end with exactly its budget.
	$(BIN)/python benchmarks/soak.py --seconds 600 --seed 1

torture: setup broker ## A hundred kills in one sweep, which must end with exactly its budget.
	$(BIN)/python benchmarks/torture.py --kills 100 --seed 1

fuzz: setup ## Ten thousand spoilt documents, traces, model folders and messages each (half an hour).
	$(BIN)/python benchmarks/fuzz.py --count 10000

mutants: .venv-mutants/.ready ## Mutate the pure core and name what no test notices (an hour).
	.venv-mutants/bin/mutmut run --max-children 2
	.venv-mutants/bin/mutmut results

# Mutmut needs what the tests need, and more that nothing else here does.
.venv-mutants/.ready: $(READY)
	test -x .venv-mutants/bin/python || $(UV) venv --quiet --python $(PYTHON) .venv-mutants
	VIRTUAL_ENV=$(CURDIR)/.venv-mutants $(UV) pip sync --quiet --require-hashes requirements.lock
	VIRTUAL_ENV=$(CURDIR)/.venv-mutants $(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	VIRTUAL_ENV=$(CURDIR)/.venv-mutants $(UV) pip install --quiet mutmut==3.8.1
	@touch $@

lint: setup ## ruff, mypy, and that imports point down.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Let ruff put the code in order.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schemas: setup ## Write the JSON Schemas anew.
	$(BIN)/python -m schemas.generate

lock: $(UV) ## Resolve the dependencies anew into requirements.lock.
	$(UV) pip compile --quiet --no-emit-index-url --no-header --generate-hashes \
	  --python-version 3.11 --extra dev pyproject.toml --output-file requirements.lock

setup: $(READY) ## The virtual environment with the locked packages.

# The tests start nodes of their own. The package would start one more, as a service: runlevel 1 and
# the mask keep it from that now, `disable` keeps it from that at the next boot.
broker: ## Debian's RabbitMQ, where it is missing and may be installed.
	@test -x $(BROKER) || { \
	  as=; test "$$(id -u)" = 0 || as="sudo -n"; \
	  unit=; test ! -d /run/systemd/system || unit=rabbitmq-server.service; \
	  if command -v apt-get >/dev/null && $$as true 2>/dev/null; then \
	    echo "Installing Debian's rabbitmq-server for the tests."; \
	    test -z "$$unit" || $$as systemctl --quiet mask --runtime $$unit; \
	    $$as apt-get update -qq; \
	    $$as env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
	      apt-get install -qq --no-install-recommends rabbitmq-server >/dev/null 2>&1 || true; \
	    test -z "$$unit" || { \
	      $$as systemctl --quiet unmask --runtime $$unit; \
	      $$as systemctl --quiet disable $$unit 2>/dev/null || true; }; \
	  fi; \
	  test -x $(BROKER) \
	    || echo "Debian's rabbitmq-server is missing: tests that need a broker are skipped." >&2; }

# The tests start servers of their own here, too. Without a cluster the package has nothing to start.
postgres: ## Debian's PostgreSQL, likewise.
	@ls $(POSTGRES) >/dev/null 2>&1 || { \
	  as=; test "$$(id -u)" = 0 || as="sudo -n"; \
	  if command -v apt-get >/dev/null && $$as true 2>/dev/null; then \
	    echo "Installing Debian's postgresql for the tests."; \
	    $$as mkdir -p $(dir $(CLUSTER)); \
	    echo "create_main_cluster = false" | $$as tee $(CLUSTER) >/dev/null; \
	    $$as apt-get update -qq; \
	    $$as env DEBIAN_FRONTEND=noninteractive \
	      apt-get install -qq --no-install-recommends postgresql >/dev/null 2>&1 || true; \
	    $$as rm -f $(CLUSTER); \
	  fi; \
	  ls $(POSTGRES) >/dev/null 2>&1 \
	    || echo "Debian's postgresql is missing: tests that need a server are skipped." >&2; }

$(READY): $(UV) requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
	  || { echo "Python 3.11 is needed, $(PYTHON) is another: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	$(UV) pip sync --quiet --require-hashes requirements.lock
	$(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(UV):
	$(PYTHON) -m venv .tools
	.tools/bin/pip install --quiet uv

clean: ## Remove what the targets above have made.
	rm -rf $(VENV) .venv-bench .venv-mutants mutants .tools .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
