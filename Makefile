# Everything that a person does with this repository. `make` alone lists it.
.DEFAULT_GOAL := help
.PHONY: help install serve models-of-tests test test-long test-levels test-mp test-qemu test-slow soak test-clients test-codegen test-ecosystem test-containers test-cluster conformance coverage lint format protos protos-freeze clients-typescript clients-cpp clients-go clients-java client-python docs site bench bench-report release test-release version images push sbom clean
SHELL := /bin/bash

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

MODEL ?= smollm2-135m-vision
PORT ?= 8000
ARGS ?=
# Processes of `make test` and `make test-levels`; 0 runs the tests in pytest's own. Tests wait for a third of their time, so three
# keep two cores busy.
JOBS ?= 3
# The order of files stays: a file of many short tests ends the run, so that no process waits long for the others.
IN_PARALLEL = -n $(JOBS) --no-loadscope-reorder
LANGUAGE ?=
# docker or podman, for `make images` and `make sbom`.
CONTAINER ?= docker
BUILD_ARGS ?=
TAG ?= latest
# For `make version`.
VERSION ?=
# Registry and path in front of the images' names, for `make push`.
REGISTRY ?=
# For `make test-cluster`: the directory with kube-apiserver, kube-controller-manager and etcd, and the one with the definitions of
# other projects' kinds.
KUBERNETES_BIN ?=
KUBERNETES_CRDS ?=

# Torch by itself and first: its CPU build where no NVIDIA GPU is visible and pip was not told where to look.
TORCH := torch>=2.11,<2.14
# What depends on the instruction set: kernels, and for the lowest level also models that compute with them.
LEVEL_TESTS := tests/unit/common/test_cpu.py tests/unit/common/test_torch_env.py tests/unit/encoder/test_packed_linear.py \
	tests/unit/engine/cpu tests/unit/engine/quantization tests/unit/engine/runner/test_sampling_kernels.py \
	tests/integration/parity/test_bfloat16_parity.py
LOWEST_LEVEL_TESTS := $(addprefix tests/unit/engine/, lora parallel runner) tests/integration/encoder/test_encoder_parity.py \
	tests/integration/parity
# What runs requests through the engine's step loop with a real model.
MP_TESTS := tests/integration/parity tests/unit/engine/lora tests/unit/engine/runner tests/unit/engine/scheduling
QEMU_TESTS := tests/unit/common/test_cpu.py tests/unit/common/test_torch_env.py tests/unit/encoder/test_packed_linear.py \
	$(addprefix tests/unit/engine/cpu/test_, cpu_attention.py cpu_kernels.py kernel_build.py decoder.py layer_kernel.py \
	linear_bf16.py linear_quant.py optimize.py quantization.py) tests/unit/engine/runner/test_sampling_kernels.py \
	tests/integration/parity/test_bfloat16_parity.py
INSTALL_TORCH := $(BIN)/python tools/install_torch.py -q -c constraints.txt '$(TORCH)'

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Stamps: what is installed already is not installed again. `dev` holds everything that `run` does.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.created pyproject.toml clients/python/pyproject.toml constraints.txt
	@if [ ! -e $(VENV)/.dev ] || [ pyproject.toml -nt $(VENV)/.dev ] || [ constraints.txt -nt $(VENV)/.dev ]; then \
		echo "installing Triptych and what it needs to run into $(VENV) (a minute or two)"; \
		$(INSTALL_TORCH) && $(PIP) install -q -c constraints.txt -e clients/python -e '.[all]'; \
	fi
	@touch $@

$(VENV)/.dev: $(VENV)/.created pyproject.toml clients/python/pyproject.toml constraints.txt
	$(INSTALL_TORCH)
	$(PIP) install -q -c constraints.txt -e clients/python -e '.[dev]'
	@touch $@

install: $(VENV)/.dev ## Make the virtual environment with all that development needs

serve: $(VENV)/.run ## Serve a model: make serve [PORT=8000] [MODEL=directory, GGUF file, built-in name or hub id] [ARGS='--max-model-len 2048']
	@exec $(BIN)/triptych serve $(MODEL) --port $(PORT) $(ARGS)

models-of-tests: $(VENV)/.dev
	$(BIN)/triptych fetch
	$(BIN)/triptych fetch all-minilm-l6-v2

# Where the environment switches compiled files off, each process would compile all that it imports, and pytest rewrite the
# assertions of all tests again.
test test-long test-levels test-mp: export PYTHONDONTWRITEBYTECODE =

test: models-of-tests ## Run the tests that a change should pass before it is shared (17 minutes on two slow cores)
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest $(IN_PARALLEL) $(ARGS)

test-long: models-of-tests ## Run the longer tests of CI: services that are killed and replaced under load, statistics of sampling
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m long $(ARGS)

test-levels: models-of-tests ## Run the tests of engine and encoder with each instruction set below this CPU's
	levels=$$($(BIN)/python -m triptych_common.host.cpu) || exit 1; \
	[ -n "$$levels" ] || echo "this CPU has no instruction set below its best one"; \
	for level in $$levels; do echo "TRIPTYCH_CPU_ISA=$$level"; \
		[ "$$level" != "$${levels##* }" ] || more="$(LOWEST_LEVEL_TESTS)"; \
		TRIPTYCH_CPU_ISA=$$level HF_HUB_OFFLINE=1 $(BIN)/python -m pytest $(IN_PARALLEL) $(LEVEL_TESTS) $$more $(ARGS) || exit 1; \
	done

# Where a test looks into the runner, it looks into the one of its own process.
test-mp: models-of-tests ## Run the tests of the engine's steps with a worker process that computes them (10 minutes on two slow cores)
	TRIPTYCH_TEST_EXECUTOR=mp HF_HUB_OFFLINE=1 $(BIN)/python -m pytest $(IN_PARALLEL) $(MP_TESTS) $(ARGS)

# An emulator computes 10 to 30 times slower than the CPU: only the files in which instruction sets matter. Processes that these
# tests start run on the real CPU.
QEMU_CPU ?= EPYC-Milan
test-qemu: models-of-tests ## Run tests of the CPU kernels and of parity on an emulated CPU with AVX2 only; needs qemu-x86_64
	qemu-x86_64 -cpu $(QEMU_CPU),check=off $(BIN)/python -c 'from triptych_common.host.cpu import isas_of_this_cpu as isas; print(*isas())'
	HF_HUB_OFFLINE=1 qemu-x86_64 -cpu $(QEMU_CPU),check=off $(BIN)/python -m pytest --timeout 1500 $(QEMU_TESTS) $(ARGS)

test-slow: $(VENV)/.dev ## Run the tests that take long: real downloads, soak
	$(BIN)/python -m pytest -m slow $(ARGS)

soak: $(VENV)/.dev ## Two hours of mixed load with faults and restarts: no memory grows (TRIPTYCH_SOAK_S=7200)
	$(BIN)/python -m pytest -m slow -s tests/integration/stack/test_soak.py $(ARGS)

test-clients: ## Check style and tests of the clients in other languages; leaves out those whose tools the machine lacks
	@if command -v npm >/dev/null; then \
		$(MAKE) --no-print-directory clients-typescript && cd clients/typescript && npm run lint && npm test; \
	else echo "the TypeScript client is left out: this machine has no npm"; fi
	@if command -v cmake >/dev/null && command -v grpc_cpp_plugin >/dev/null; then \
		$(MAKE) --no-print-directory clients-cpp && ctest --test-dir build/clients/cpp --output-on-failure; \
	else echo "the C++ client is left out: this machine has no cmake, or no grpc_cpp_plugin"; fi
	@if command -v go >/dev/null && command -v protoc-gen-go-grpc >/dev/null; then \
		$(MAKE) --no-print-directory clients-go && $(MAKE) --no-print-directory -C clients/go lint test; \
	else echo "the Go client is left out: this machine has no go, or no protoc-gen-go-grpc"; fi
	@if command -v javac >/dev/null && command -v grpc_java_plugin >/dev/null; then \
		$(MAKE) --no-print-directory -C clients/java test; \
	else echo "the Java client is left out: this machine has no javac, or no grpc_java_plugin"; fi

test-codegen: $(VENV)/.dev ## Generate clients in TypeScript, C++, Go and Java, compile and run them; downloads the tools for it
	$(BIN)/python -m pytest -m codegen tests/codegen $(ARGS)

test-ecosystem: models-of-tests ## Use LangChain, LiteLLM, Instructor, Pydantic AI, the Agents SDK, the Codex CLI, Anthropic's tool runner, Ollama's clients, openai of npm, SMG and Schemathesis; downloads them
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m ecosystem tests/ecosystem $(ARGS)

conformance: $(VENV)/.dev ## Run the golden cases with the clients: make conformance [LANGUAGE=typescript] [ARGS='--server 127.0.0.1:50051']
	PYTHONPATH=clients $(BIN)/python -m conformance $(LANGUAGE) $(ARGS)

coverage: models-of-tests ## Run the tests and tell which lines they reach, in services' processes too (30 minutes); pages in build/coverage/html
	rm -rf build/coverage
	@# tests/guard counts Python calls, which the measurement makes too.
	HF_HUB_OFFLINE=1 $(BIN)/coverage run -m pytest --ignore tests/guard --timeout 900 $(ARGS); status=$$?; \
		$(BIN)/coverage combine --quiet && $(BIN)/coverage html --quiet && $(BIN)/coverage report; exit $$status

lint: $(VENV)/.dev ## Check style, types, who imports whom, contracts, generated code, documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile
	$(BIN)/buf lint
	$(BIN)/buf breaking --against protos/baseline.binpb
	$(BIN)/python tools/gen_protos.py --check
	$(BIN)/python -m tools.gen_sync_client --check
	$(BIN)/python -m tools.docs.configuration --check
	$(BIN)/python -m tools.docs.families --check
	$(BIN)/python -m tools.docs.openai --check
	$(BIN)/python -m tools.dashboard --check
	$(BIN)/python -m tools.docs.links
	$(BIN)/python -m tools.docs.site
	$(BIN)/python -m tools.release.version --check
	$(BIN)/python -m tools.helm.schema --check
	$(BIN)/python -m tools.helm.golden --check
	$(BIN)/helm lint --strict --quiet helm/triptych

format: $(VENV)/.dev ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: $(VENV)/.dev ## Regenerate the Python of protos/
	$(BIN)/python tools/gen_protos.py

client-python: $(VENV)/.dev ## Regenerate the Python client for threads from the one for asyncio
	$(BIN)/python -m tools.gen_sync_client

protos-freeze: $(VENV)/.dev ## Make the public contracts, as they are now, what `make lint` compares later ones with
	$(BIN)/buf build --path protos/triptych/v1 --exclude-source-info -o protos/baseline.binpb

clients/typescript/node_modules/.package-lock.json: clients/typescript/package-lock.json
	cd clients/typescript && npm ci
	@touch $@

clients-typescript: $(VENV)/.dev clients/typescript/node_modules/.package-lock.json ## Generate and build the TypeScript client; needs Node.js 20 or newer with npm, and downloads packages
	cd clients/typescript && export PATH="$(abspath $(BIN)):$$PATH" && npm run generate && npm run build

clients-cpp: ## Build the C++ client with tests, conformance program, example and benchmark in build/clients/cpp
	cmake -S clients/cpp -B build/clients/cpp -DCMAKE_BUILD_TYPE=Release
	cmake --build build/clients/cpp --parallel $$(nproc)

clients-go: ## Build the Go client's conformance program and example in build/clients/go; needs Go, protoc and its two plugins for Go
	$(MAKE) --no-print-directory -C clients/go build

clients-java: ## Build the Java client with tests, conformance program and example in build/clients/java
	$(MAKE) --no-print-directory -C clients/java

docs: $(VENV)/.dev ## Regenerate what follows from the code: docs/configuration.md, docs/families.md, docs/openai.md, the Grafana dashboard, the Helm chart's schema and renderings; check all links
	$(BIN)/python -m tools.docs.configuration
	$(BIN)/python -m tools.docs.families
	$(BIN)/python -m tools.docs.openai
	$(BIN)/python -m tools.dashboard
	$(BIN)/python -m tools.helm.schema
	$(BIN)/python -m tools.helm.golden
	$(BIN)/python -m tools.docs.links

site: $(VENV)/.dev ## Build the documentation as a web site in build/site (3 seconds); no page of it loads anything from elsewhere
	$(BIN)/python -m tools.docs.site

bench: $(VENV)/.dev ## Measure and write benchmarks/results (20 minutes): make bench [ARGS='streams steps', or one part with options: see benchmarks/README.md]
	$(BIN)/python -m benchmarks $(ARGS)

bench-report: $(VENV)/.dev ## Write tables and charts of docs/architecture/measurements.md: make bench-report [ARGS='benchmarks/results/FILE.json ...']
	$(BIN)/python -m benchmarks.report $(ARGS)

release: $(VENV)/.dev ## Make wheels with CPU kernels, the npm package, the chart and their checksums in dist/ (minutes); needs npm
	$(BIN)/python -m tools.release $(ARGS)

test-release: $(VENV)/.dev ## Install what `make release` made into empty environments and use it; downloads what it depends on
	TRIPTYCH_DIST=dist $(BIN)/python -m pytest -m ecosystem tests/ecosystem/test_release.py -s $(ARGS)

version: $(VENV)/.dev ## Print the version, or write it to all packages and the chart: make version [VERSION=1.2.3]
	@$(BIN)/python -m tools.release.version $(VERSION)

IMAGES := gateway frontend encoder engine fetch
# What every image is built with: labels, and whatever BUILD_ARGS adds.
BUILD_IMAGE := $(CONTAINER) build --build-arg VERSION=$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml) \
	--build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null)

images: ## Build the container images: make images [CONTAINER=podman] [BUILD_ARGS='--build-arg TORCH_BACKEND=cu128'] [TAG=latest]
	for target in $(IMAGES); do \
		$(BUILD_IMAGE) $(BUILD_ARGS) --target $$target --tag triptych-$$target:$(TAG) . || exit 1; \
	done
	$(BUILD_IMAGE) $(BUILD_ARGS) --tag triptych:$(TAG) .

push: ## Tag the images and push them to a registry: make push REGISTRY=registry.example.com/triptych [CONTAINER=podman] [TAG=latest]
	@[ -n "$(REGISTRY)" ] || { echo "REGISTRY is not set: make push REGISTRY=registry.example.com/triptych" >&2; exit 2; }
	for name in triptych $(IMAGES:%=triptych-%); do \
		$(CONTAINER) tag $$name:$(TAG) $(REGISTRY)/$$name:$(TAG) && $(CONTAINER) push $(REGISTRY)/$$name:$(TAG) || exit 1; \
	done

sbom: ## Write what the images contain to build/sbom, as CycloneDX: make sbom [CONTAINER=podman] [BUILD_ARGS=...]
	$(BUILD_IMAGE) $(BUILD_ARGS) --target sbom --output build/sbom .

test-containers: $(VENV)/.dev ## Build the images, run them with the compose file, measure and break them; needs podman and podman-compose
	$(BIN)/python -m pytest -m podman tests/containers -s $(ARGS)

test-cluster: $(VENV)/.dev ## Install, upgrade and roll back the chart on a real Kubernetes API server: make test-cluster KUBERNETES_BIN=DIR KUBERNETES_CRDS=DIR
	KUBERNETES_BIN="$(KUBERNETES_BIN)" KUBERNETES_CRDS="$(KUBERNETES_CRDS)" $(BIN)/python -m pytest -m cluster tests/cluster $(ARGS)

clean: ## Remove what tools left behind; the virtual environment and fetched models stay
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	rm -rf clients/typescript/dist clients/typescript/src/gen
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
