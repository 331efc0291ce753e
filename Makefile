# Everything a contributor runs. `make` alone lists the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --warn-undefined-variables --no-print-directory

# Knobs; give them on the command line: make fuzz FUZZTIME=5m
PKG ?= ./...
FUZZTIME ?= 20s
BENCH ?= .
COUNT ?= 6
MILLION ?=
BASE ?=
CHECKS ?= 5000
# Of properties in `make test`: the same tree gives the same answer. 0 draws a new one, as `make soak` does.
PROPERTY_SEED ?= 1
ROUNDS ?= 20
BENCH_ROUNDS ?= 3
CRASHES ?= 200
SEED ?= 42
MESOS ?=
TASKS ?=
SOAK ?= 10m
SEEDS ?= 42-51
ONLY ?= .
TRACES ?= $(PACELINE_TRACES)
PACELINE_TRACES ?=

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -s -w -X main.version=$(VERSION)
OUT := out
TOOLS := .tools

# Pinned tools. A changed version changes the name of the stamp, so that the next use reinstalls.
TOOL_LIST := golangci-lint gofumpt buf protoc-gen-go protoc-gen-connect-go benchstat helm
golangci-lint := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
gofumpt := mvdan.cc/gofumpt@v0.12.0
buf := github.com/bufbuild/buf/cmd/buf@v1.73.0
protoc-gen-go := google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
protoc-gen-connect-go := connectrpc.com/connect/cmd/protoc-gen-connect-go@v1.21.1
helm := helm.sh/helm/v3/cmd/helm@v3.22.0
benchstat := golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da

stamp = $(TOOLS)/.$(1)@$(lastword $(subst @, ,$($(1))))
define tool-rule
$(call stamp,$(1)):
	@mkdir -p $(TOOLS)
	version=$(lastword $(subst @, ,$($(1))))
	have=$$$$(go version -m $(TOOLS)/$(1) 2>/dev/null | awk '$$$$1 == "mod" {print $$$$3}' || true)
	if [ "$$$$have" != "$$$$version" ]; then
	  echo "installing $($(1))"
	  GOFLAGS=-mod=mod GOBIN=$$(abspath $(TOOLS)) go install $($(1))
	fi
	rm -f $(TOOLS)/.$(1)@*
	touch $$@
endef
$(foreach tool,$(TOOL_LIST),$(eval $(call tool-rule,$(tool))))

# Tracked and new Go files of ours; what generators write is theirs to format.
GO_FILES = git ls-files --cached --others --exclude-standard '*.go' | grep -vE '(^|/)gen/|\.pb\.go$$|\.connect\.go$$' | xargs -r ls 2>/dev/null || true
# tests-importing <pattern>: the packages whose tests import such a path.
tests-importing = git grep -lE --untracked '^[[:space:]]+"$(1)"$$' -- '*_test.go' | xargs -r -n1 dirname | sort -u | sed 's|^|./|'

.PHONY: help
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/paceline, stamped with the version
	@mkdir -p bin
	go build -trimpath -ldflags '$(LDFLAGS)' -o bin/paceline ./cmd/paceline

# A program that ran under the race detector would wait a second before it ends, in case somebody races late.
GORACE ?= atexit_sleep_ms=0
export GORACE

# Folders that start no goroutine, nor do their tests: there is no race to find in them, and under the detector they take three to ten times as long. conformance/tidy
# holds them to it. Tests that replay whole traces wait for PACELINE_WHOLE=1, which `make soak` sets; `make traces` has
# them with their bars. Who starts goroutines over them has tests of his own, in which they are under the detector too.
UNRACED := core/resource core/execution core/workload core/host core/respool core/admission core/placement core/shard core/preemption \
  core/fragment core/disruption core/estimate core/lifecycle core/usage core/scheduler core/rollout conformance/sim conformance/scenarios \
  policies/native policies/builtin cmd/paceline/internal/policy cmd/paceline/internal/replay cmd/paceline/internal/simpack cmd/paceline/internal/simrun
empty :=
unraced = /paceline/($(subst $(empty) $(empty),|,$(strip $(UNRACED))))$$

.PHONY: test
test: ## run every test, under the race detector wherever goroutines run (PKG=./core/...)
	@all=$$(go list $(PKG))
	raced=$$(grep -vE '$(unraced)' <<<"$$all" || true)
	plain=$$(grep -E '$(unraced)' <<<"$$all" || true)
	export RAPID_SEED=$(PROPERTY_SEED)
	failed=0
	[ -z "$$raced" ] || go test -race -timeout 15m $$raced || failed=1
	[ -z "$$plain" ] || go test -timeout 15m $$plain || failed=1
	exit $$failed

.PHONY: lint
lint: $(call stamp,golangci-lint) $(call stamp,helm) ## golangci-lint with the rules of .golangci.yml (PKG=./core/...), and the Helm chart linted and rendered
	@$(TOOLS)/golangci-lint run $(PKG)
	go test -run '^Test(Chart|SameRights)' ./conformance/deploy

.PHONY: fmt
fmt: $(call stamp,gofumpt) $(call stamp,buf) ## format Go and proto files
	@$(GO_FILES) | xargs -r $(TOOLS)/gofumpt -w
	$(TOOLS)/buf format -w

.PHONY: generate
generate: $(call stamp,buf) $(call stamp,protoc-gen-go) $(call stamp,protoc-gen-connect-go) ## lint the protos and regenerate code
	@export PATH="$(abspath $(TOOLS)):$$PATH"
	buf lint
	for template in $$(git ls-files --cached --others --exclude-standard '*buf.gen*.yaml'); do
	  buf generate --template "$$template"
	done

.PHONY: check-generate
check-generate: $(call stamp,buf) $(call stamp,protoc-gen-go) $(call stamp,protoc-gen-connect-go) ## fail when generated code is stale
	@export PATH="$(abspath $(TOOLS)):$$PATH"
	buf lint
	fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT
	for template in $$(git ls-files --cached --others --exclude-standard '*buf.gen*.yaml'); do
	  buf generate --template "$$template" --output "$$fresh"
	done
	stale=0
	while read -r file; do
	  cmp -s "$$fresh/$$file" "$$file" || { echo "stale: $$file"; stale=1; }
	done < <(cd "$$fresh" && find . -type f | sed 's|^\./||')
	while read -r file; do
	  [ -e "$$fresh/$$file" ] || { echo "no longer generated: $$file"; stale=1; }
	done < <(git ls-files '*.pb.go' '*.connect.go')
	[ $$stale = 0 ] || { echo "run 'make generate' and commit the result"; exit 1; }

.PHONY: conformance
conformance: ## the repository's own rules, and every kit against everything that it judges
	@go test -race -count=1 ./conformance/... $$($(call tests-importing,.*/paceline/conformance/.*))

# tests-reading <name>: the packages whose tests look at such a variable of the environment.
tests-reading = git grep -lw --untracked '$(1)' -- '*_test.go' | xargs -r -n1 dirname | sort -u | sed 's|^|./|'

# Not from the environment: whoever has a cluster of theirs there did not ask for work on it.
KUBECONFIG =
.PHONY: conformance-kubernetes
conformance-kubernetes: $(call stamp,helm) ## what speaks to Kubernetes against a real control plane, built and started here, or a live one (KUBECONFIG=...)
	@packages=$$($(call tests-reading,PACELINE_KUBECONFIG))
	if [ -n '$(KUBECONFIG)' ]; then
	  PACELINE_KUBECONFIG='$(abspath $(KUBECONFIG))' go test -count=1 -timeout 30m $$packages
	else
	  go run ./conformance/controlplane/run -kwok -- go test -count=1 -timeout 30m $$packages
	fi

.PHONY: smoke-kubernetes
smoke-kubernetes: ## the heart of conformance-kubernetes: the API that is recorded, and the kit of drivers, against a real control plane
	@go run ./conformance/controlplane/run -kwok -- go test -count=1 -timeout 10m ./conformance/kubeapi ./hostmanagers/kubernetes

.PHONY: conformance-deploy
conformance-deploy: ## the image's program, built as deploy/Containerfile says, in a read-only root as another user; systemd's word on the unit; wants root
	@PACELINE_DEPLOY=1 go test -count=1 -v -timeout 30m -run '^Test(Image|Unit)' ./conformance/deploy

.PHONY: conformance-containerfile
conformance-containerfile: ## build deploy/Containerfile with buildah, asking no registry, and look at the image; wants root, and skips by name without buildah
	@PACELINE_CONTAINERFILE=1 go test -count=1 -v -timeout 30m -run '^TestContainerfile' ./conformance/deploy

CONTAINER ?= podman
.PHONY: image
image: ## build the container image paceline:VERSION (CONTAINER=docker for another builder)
	$(CONTAINER) build -f deploy/Containerfile --build-arg VERSION='$(VERSION)' -t 'paceline:$(VERSION)' .

UPDATE ?=

.PHONY: conformance-kubelet
conformance-kubelet: $(call stamp,helm) ## real pods on real kubelets, and the chart installed there, in namespaces of their own; takes root and cgroups (UPDATE=1 records the pods anew)
	@mkdir -p $(OUT)/kubelet
	go build -o $(OUT)/kubelet/run ./conformance/controlplane/run
	go test -c -o $(OUT)/kubelet/kubelet.test ./conformance/kubelet
	go test -c -o $(OUT)/kubelet/deploy.test ./conformance/deploy
	export PACELINE_KUBELETS=1
	go test -count=1 ./conformance/controlplane/isolate
	cd conformance/kubelet
	$(abspath $(OUT))/kubelet/run -isolated -- $(abspath $(OUT))/kubelet/kubelet.test -test.run Real -test.parallel 12 -test.timeout 30m $(if $(UPDATE),-update)
	if [ -x /bin/busybox ] && ! ldd /bin/busybox >/dev/null 2>&1; then
	  $(abspath $(OUT))/kubelet/run -kubelets 2 -scheduler -controllers -- env -u PACELINE_CONTROLPLANE PACELINE_IMAGE=paceline.test/shell:1 \
	    $(abspath $(OUT))/kubelet/kubelet.test -test.run Live -test.parallel 12 -test.timeout 30m
	else
	  echo "what is run on live clusters is not tried: it wants busybox-static"
	fi
	cd ../deploy
	$(abspath $(OUT))/kubelet/run -isolated -- $(abspath $(OUT))/kubelet/deploy.test -test.v -test.run Release -test.timeout 30m

.PHONY: conformance-mesos
conformance-mesos: ## hold a Mesos master to what Paceline needs of it (MESOS=http://host:5050; without it an emulated one)
	@go test -race -count=1 -v -timeout 30m ./conformance/mesos -mesos='$(MESOS)'

.PHONY: faults-mesos
faults-mesos: ## a cell that is killed and started again, on an emulated Mesos cluster where everything goes wrong (TASKS=10000)
	@go test -count=1 -v -timeout 2h -run '^TestFaults$$' ./conformance/mesos -tasks='$(or $(TASKS),10000)'
	PACELINE_MESOS_TASKS='$(or $(TASKS),10000)' go test -count=1 -v -timeout 2h -run '^TestMesosCrashes$$' ./cmd/paceline/e2e

.PHONY: faults-kubernetes
faults-kubernetes: ## the same on an emulated Kubernetes cluster, and on a real control plane where its programs are built; wants an idle machine for twelve minutes (TASKS=5000)
	@go test -count=1 -v -timeout 2h ./conformance/kubefaults -tasks='$(or $(TASKS),5000)' -real
	PACELINE_KUBERNETES_TASKS='$(or $(TASKS),5000)' go test -count=1 -v -timeout 2h -run 'KubernetesCrashes$$' ./cmd/paceline/e2e

.PHONY: bench
bench: $(call stamp,benchstat) ## run benchmarks COUNT times, beside their bars (BENCH=regexp PKG=./core/... BASE=old.txt to compare, MILLION=1 for a million tasks)
	@mkdir -p $(OUT)/bench
	packages=$$(go list -f '{{.Dir}}' $(PKG) | while read -r dir; do
	  grep -qsE '^func Benchmark' "$$dir"/*_test.go && echo "$$dir" || true
	done)
	go test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) -timeout 4h $$packages | tee $(OUT)/bench/now.txt
	if [ -n '$(MILLION)' ]; then
	  go test -run '^$$' -bench '^BenchmarkMillion$$' -benchtime 1x -count $(COUNT) -timeout 4h ./conformance/bench -million | tee -a $(OUT)/bench/now.txt
	fi
	$(TOOLS)/benchstat $(BASE) $(OUT)/bench/now.txt
	go run ./conformance/bench/bars <$(OUT)/bench/now.txt

.PHONY: bench-mesos
bench-mesos: ## 100,000 tasks on 10,000 agents of an emulated Mesos cluster that is a process of its own, through the whole cell and through the driver alone
	go test -run '^$$' -bench '^BenchmarkMesos' -benchtime 1x -count $(COUNT) -timeout 1h ./conformance/bench
	go test -run '^$$' -bench . -benchmem ./hostmanagers/mesos/framework

.PHONY: bench-kubernetes
bench-kubernetes: build ## 10,000 pods on 1,000 and 5,000 nodes of a real API server, beside kube-scheduler and beside no scheduler; three rounds, medians; wants an idle machine for 40 minutes (BENCH_ROUNDS=1; ONLY=regexp of runs, such as paceline/1000$$)
	@mkdir -p $(OUT)/bench
	go run ./conformance/controlplane/run -build etcd,kube-apiserver,kwok,kube-scheduler
	go run ./conformance/bench/kubernetes -paceline bin/paceline -rounds $(BENCH_ROUNDS) -only '$(ONLY)' | tee $(OUT)/bench/kubernetes.md

.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZTIME (default 20s)
	@git grep -nE --untracked '^func Fuzz[A-Z][A-Za-z0-9_]*\(' -- '*_test.go' |
	  sed -E 's|^([^:]*)/[^/:]*:[0-9]+:func (Fuzz[A-Za-z0-9_]*).*|\1 \2|' |
	while read -r dir target; do
	  echo "== $$dir $$target"
	  go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 2s "./$$dir"
	done

.PHONY: soak
soak: ## long runs: properties with CHECKS cases each, kits ROUNDS times over, simulated cells for SOAK, CRASHES killed servers
	@for package in $$($(call tests-importing,(pgregory\.net/rapid|.*/conformance/storetest))); do
	  go test -race -count=1 -timeout 4h "$$package" -rapid.checks=$(CHECKS)
	done
	go test -race -count=$(ROUNDS) -timeout 4h $$($(call tests-importing,.*/paceline/conformance/[a-z]+test))
	@mkdir -p $(OUT)/sim
	go test -count=1 -timeout 4h -v -run '^TestSoak$$' ./conformance/sim -sim.for=$(SOAK) -sim.out='$(abspath $(OUT)/sim)'
	PACELINE_CRASHES=$(CRASHES) go test -count=1 -timeout 4h -run '^TestCrashes$$' -v ./cmd/paceline/e2e
	PACELINE_OVERLOAD=full go test -count=1 -run '^TestOverload$$' -v ./cmd/paceline/e2e
	PACELINE_WHOLE=1 go test -count=1 -timeout 1h ./cmd/paceline/internal/simpack ./cmd/paceline/internal/simrun

# What policies in other languages than Go are built with. What cannot be installed is said, and the tests that want it skip by name.
ASSEMBLYSCRIPT := 0.28.20
.PHONY: policy-tools
policy-tools: ## install clang, rustc (Debian's) and the AssemblyScript compiler (below .tools), which the examples of policies are built with
	@if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then
	  for packages in 'clang lld wasi-libc' 'rustc libstd-rust-dev-wasm32 lld'; do
	    dpkg -s $$packages >/dev/null 2>&1 || DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$packages || echo "not installed: $$packages"
	  done
	else
	  echo "not Debian, or not root: install clang with lld, and rustc with the target wasm32-unknown-unknown, yourself"
	fi
	if ! command -v npm >/dev/null; then
	  echo "not installed: assemblyscript, for want of npm"
	elif ! grep -qs '"version": "$(ASSEMBLYSCRIPT)"' $(TOOLS)/assemblyscript/node_modules/assemblyscript/package.json; then
	  mkdir -p $(TOOLS)/assemblyscript
	  npm install --no-audit --no-fund --prefix $(TOOLS)/assemblyscript assemblyscript@$(ASSEMBLYSCRIPT) || echo "not installed: assemblyscript"
	fi

.PHONY: soak-policies
soak-policies: ## 1,000 swaps of policies, every tenth a bad one, under 10,000,000 batches; wants an idle machine for the times by the clock
	PACELINE_POLICY_SOAK=1 go test -count=1 -timeout 4h -run '^TestSwapSoak$$' -v ./policies/registry

.PHONY: sim
sim: ## replay one simulated cell from its seed, with a trace when it fails (SEED=42)
	@mkdir -p $(OUT)/sim
	go test -count=1 -v -run '^TestSeed$$' ./conformance/sim -sim.seed=$(SEED) -sim.out='$(abspath $(OUT)/sim)'

.PHONY: pack
pack: build ## pack a real trace with policies of placement (TRACES=folder SEEDS=42-51)
	@[ -d '$(TRACES)' ] || { echo "pack needs the openb trace files: make pack TRACES=<folder with inventory/ and tasks/>"; exit 2; }
	mkdir -p $(OUT)/sim
	bin/paceline sim pack --hosts '$(TRACES)/inventory/openb_nodes.csv' --pods '$(TRACES)/tasks/openb_pods_default.csv' \
	  --policy best-fit,fgd,least-residue --seeds $(SEEDS) --demand 1.3 --plot $(OUT)/sim/pack.svg -o json | tee $(OUT)/sim/pack.json

.PHONY: traces
traces: build ## replay real traces through whole cells, every figure beside its bar; takes many minutes (TRACES=folder ONLY=regexp of swf, pack, google, philly)
	@[ -d '$(TRACES)' ] || { echo "traces needs the trace files: make traces TRACES=<folder with hpc/, inventory/ and tasks/>"; exit 2; }
	mkdir -p $(OUT)/sim
	go run ./conformance/bench/traces -paceline bin/paceline -traces '$(TRACES)' -only '$(ONLY)' | tee $(OUT)/sim/traces.md

.PHONY: demo
demo: build ## real processes scheduled, killed, restarted and explained: one job on three clusters, policies and rules too, every claim checked
	@go run ./examples/demo -paceline bin/paceline

.PHONY: clean
clean: ## remove what builds and runs leave behind; the tools stay
	@rm -rf bin $(OUT)
