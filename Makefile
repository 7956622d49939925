# tare: the only build file. `make help` lists the targets; `make info` says what was detected.

# ---- choices ------------------------------------------------------------------------------------
BUILD ?= release#            release | debug | asan | tsan | fuzz
ifeq ($(origin CC),default)
CC := gcc
endif
WERROR ?= 1
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
MODEL ?= models/smollm2-135m-instruct-q4_1.gguf
SERVE_FLAGS ?=#              make serve SERVE_FLAGS="--port 8001"
VERSION := 0.1.0
COMMIT := $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)

VARIANTS := release debug asan tsan fuzz
ifeq ($(filter $(BUILD),$(VARIANTS)),)
$(error BUILD=$(BUILD) is unknown; choose one of: $(VARIANTS))
endif

OUT := build/$(notdir $(CC))-$(BUILD)
GEN := build/gen

# ---- packages -----------------------------------------------------------------------------------
PKGS := libuv libzmq libprotobuf-c jansson yaml-0.1 libsodium libxxhash libutf8proc libpcre2-8 libcurl
DEB_BUILD := gcc libc6-dev pkg-config git libuv1-dev libzmq3-dev libprotobuf-c-dev \
    protobuf-c-compiler libjansson-dev libyaml-dev libsodium-dev libxxhash-dev libutf8proc-dev \
    libpcre2-dev libcurl4-openssl-dev
DEB_MODEL := python3 python3-pip ca-certificates curl
DEB_TEST := check clang clang-format clang-tidy libclang-rt-dev procps python3-venv python3-jinja2
# promtool alone: the package prometheus would also start a server and enable it at boot.
export PATH := $(PATH):$(CURDIR)/build/promtool/usr/bin
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null | sed 's/-I/-isystem /g')
PKG_LIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null)
ifeq ($(PKG_LIBS)$(filter deps deps-test serve model test check format info help clean,$(MAKECMDGOALS)),)
$(error missing: $(shell for p in $(PKGS); do pkg-config --exists $$p 2>/dev/null || echo $$p; done); run make deps)
endif
CHECK_CFLAGS := $(shell pkg-config --cflags check 2>/dev/null | sed 's/-I/-isystem /g')
CHECK_LIBS := $(shell pkg-config --libs check 2>/dev/null)

# Collectives of CUDA devices are compiled where the headers are (NCCL=0: not). They belong to the
# CUDA plug-in: no program links the library.
NCCL_DIR ?= $(patsubst %/nccl.h,%,$(firstword $(wildcard /usr/local/cuda/include/nccl.h /usr/local/cuda-*/include/nccl.h /usr/include/nccl.h)))
NCCL ?= $(if $(and $(NCCL_DIR),$(wildcard $(NCCL_DIR)/cuda_runtime_api.h)),1,0)

# ---- flags --------------------------------------------------------------------------------------
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wdouble-promotion -Wstrict-prototypes \
    -Wmissing-prototypes -Wold-style-definition -Wvla -Wundef -Wpointer-arith -Wwrite-strings \
    -Wformat=2 -Wimplicit-fallthrough
ifeq ($(WERROR),1)
WARN += -Werror
endif
# No contraction: a product and a sum are fused only where the source says fma, so that every
# instruction set computes the same bits.
CFLAGS := -std=c11 -g -fno-omit-frame-pointer -fno-common -fstack-protector-strong \
    -ffp-contract=off -D_GNU_SOURCE \
    -I. -I$(GEN) $(PKG_CFLAGS)
LDFLAGS := -g
LDLIBS := $(PKG_LIBS) -lpthread -lm
ifeq ($(BUILD),release)
CFLAGS += -O2 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
else ifeq ($(BUILD),debug)
CFLAGS += -O0 -DTARE_SLOW_CHECKS
else ifeq ($(BUILD),asan)
CFLAGS += -O1 -DTARE_SLOW_CHECKS -fsanitize=address,undefined -fno-sanitize-recover=all
LDFLAGS += -fsanitize=address,undefined
else ifeq ($(BUILD),tsan)
CFLAGS += -O1 -DTARE_SLOW_CHECKS -fsanitize=thread
export TSAN_OPTIONS := suppressions=$(CURDIR)/tests/tsan.supp
LDFLAGS += -fsanitize=thread
else ifeq ($(BUILD),fuzz)
CFLAGS += -O1 -DTARE_SLOW_CHECKS -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
LDFLAGS += -fsanitize=fuzzer,address,undefined
endif
# Instruction sets are chosen at run time; only files named after one may use it.
# Kernels are optimised hard where speed matters; under the sanitizers that would take minutes.
KERNEL_O := $(if $(filter release,$(BUILD)),-O3,-O1)
# Adding parts of ranks: plain loops over memory, which only want wide loads.
%/ordered_sum.o: ISA := $(KERNEL_O)
%/collective_nccl.o: ISA := -isystem $(NCCL_DIR)
%_sse42.o: ISA := -msse4.2
%_avx2.o: ISA := -mavx2 -mfma -mf16c $(KERNEL_O)
%_avx512.o: ISA := -mavx512f -mavx512bw -mavx512vl -mavx512vnni -mavx2 -mfma -mf16c $(KERNEL_O)

# ---- sources ------------------------------------------------------------------------------------
PROTO_SRC := $(wildcard proto/*.proto)
PROTO_GEN := $(PROTO_SRC:proto/%.proto=$(GEN)/proto/%.pb-c.c)
COMMON_C := $(wildcard common/*.c)
PROTO_C := $(wildcard proto/*.c)
KERNELS_C := $(wildcard kernels/*.c kernels/cpu/*.c kernels/sim/*.c)
CONTROLLER_C := $(filter-out controller/main.c,$(wildcard controller/*.c controller/core/*.c \
    controller/text/*.c controller/http/*.c controller/net/*.c))
WORKER_C := $(filter-out worker/main.c worker/comm/collective_nccl.c,$(wildcard worker/*.c worker/*/*.c))
CLI_C := $(filter-out controller/cli/main.c,$(wildcard controller/cli/*.c))
SUPPORT_C := $(wildcard tests/support/*.c)
UNIT_C := $(shell find tests/unit -name '*.c' 2>/dev/null) $(SUPPORT_C)
FUZZ_C := $(wildcard tests/fuzz/fuzz_*.c)
SIMULATION_C := $(wildcard tests/simulation/*.c)
BENCH_C := $(wildcard tests/bench/bench_*.c)
HEADERS := $(shell find common proto kernels controller worker -name '*.h' 2>/dev/null)

# Short lines by default; V=1 shows whole commands.
ifeq ($(V),1)
Q :=
else
Q = @echo "  $(if $(filter $(OUT)/bin/%,$@),LD,CC) $@";
endif
obj = $(1:%.c=$(OUT)/%.o)
GEN_O := $(PROTO_GEN:$(GEN)/%.c=$(OUT)/gen/%.o)
BASE_O := $(call obj,$(COMMON_C) $(PROTO_C)) $(GEN_O)
CONTROLLER_O := $(call obj,$(CONTROLLER_C))
WORKER_O := $(call obj,$(WORKER_C) $(KERNELS_C))
CLI_O := $(call obj,$(CLI_C))
ALL_O := $(BASE_O) $(CONTROLLER_O) $(WORKER_O) $(CLI_O)

PROGRAMS := tare tare-controller tare-worker
BINS := $(PROGRAMS:%=$(OUT)/bin/%)

.PHONY: all programs deps deps-test serve model format lint info help clean
.PHONY: test test-run test-parts test-beside check tidy integration e2e chaos fuzz soak sim
.PHONY: unit unit-asan-build unit-worker unit-kernels unit-controller unit-core
.PHONY: bench bench-cpu bench-http bench-core bench-comm bench-fanout bench-ranks bench-core-peer
.DELETE_ON_ERROR:
.SECONDARY:

all: programs    ## build the three programs into bin/
programs: $(BINS) $(if $(filter 1,$(NCCL)),$(OUT)/worker/comm/collective_nccl.o)
ifeq ($(OUT),build/gcc-release)
	@mkdir -p bin && for p in $(PROGRAMS); do cmp -s $(OUT)/bin/$$p bin/$$p || install -m 755 $(OUT)/bin/$$p bin/$$p; done
endif

# ---- rules --------------------------------------------------------------------------------------
$(OUT)/bin/tare-controller: $(OUT)/controller/main.o $(CONTROLLER_O) $(BASE_O)
$(OUT)/bin/tare-worker: $(OUT)/worker/main.o $(WORKER_O) $(BASE_O)
$(OUT)/bin/tare: $(OUT)/controller/cli/main.o $(CLI_O) $(BASE_O)
$(BINS):
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LDLIBS)

$(GEN)/proto/%.pb-c.c $(GEN)/proto/%.pb-c.h: proto/%.proto
	@mkdir -p $(GEN)/proto
	protoc-c --proto_path=. --c_out=$(GEN) $<
$(OUT)/gen/proto/%.o: $(GEN)/proto/%.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -w -c -o $@ $<
$(call obj,proto/codec.c proto/codec_control.c): $(PROTO_GEN)

# The commit is compiled into one object, again whenever it changes.
build/version: FORCE
	@mkdir -p build; echo '$(VERSION)-$(COMMIT)' | cmp -s - $@ || echo '$(VERSION)-$(COMMIT)' >$@
.PHONY: FORCE    # or .SECONDARY would keep make from it
$(call obj,common/version.c): build/version
$(call obj,common/version.c): CFLAGS += -DTARE_VERSION='"$(VERSION)"' -DTARE_COMMIT='"$(COMMIT)"'

$(OUT)/tests/%.o: tests/%.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(WARN) $(ISA) $(CHECK_CFLAGS) -MMD -MP -c -o $@ $<
$(OUT)/%.o: %.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(WARN) $(ISA) -MMD -MP -c -o $@ $<

$(OUT)/tests/unit/run: $(call obj,$(UNIT_C)) $(ALL_O)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(CHECK_LIBS) $(LDLIBS)
$(OUT)/tests/soak/soak: $(call obj,tests/soak/soak.c $(SUPPORT_C)) $(ALL_O)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -rdynamic -o $@ $^ $(LDLIBS)
$(OUT)/tests/soak/interpose.so: tests/soak/interpose.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(WARN) -fPIC -shared -o $@ $<
# The simulator links the very objects of the core that the daemon links.
$(OUT)/tests/simulation/run: $(call obj,$(SIMULATION_C) $(wildcard controller/core/*.c)) $(BASE_O)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(OUT)/tests/bench/%: $(OUT)/tests/bench/%.o $(ALL_O)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(OUT)/tests/golden/%: $(OUT)/tests/golden/%.o $(ALL_O)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(OUT)/tests/fuzz/%: $(OUT)/tests/fuzz/%.o $(ALL_O)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# A worker that fails on demand (tests/e2e/faulty_worker.c), beside copies of the other programs.
FAULTY := $(OUT)/tests/e2e/bin
FAULTY_WRAPS := worker_run engine_create collective_attach collective_all_reduce_add executor_run \
    codec_result_encode
$(FAULTY)/tare-worker: $(call obj,tests/e2e/faulty_worker.c worker/main.c) $(WORKER_O) $(BASE_O)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $(FAULTY_WRAPS:%=-Wl,--wrap=%) -o $@ $^ $(LDLIBS)
$(FAULTY)/tare $(FAULTY)/tare-controller: $(FAULTY)/%: $(OUT)/bin/%
	@mkdir -p $(@D)
	@cp $< $@

# ---- people -------------------------------------------------------------------------------------
SUDO := $(shell [ "$$(id -u 2>/dev/null)" = 0 ] || echo sudo)
define install_debs
	@missing=""; for p in $(1); do dpkg-query -W -f '$${db:Status-Status}' $$p 2>/dev/null | grep -qx installed || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then echo "installing Debian packages:$$missing"; \
	  [ -z "$(SUDO)" ] || command -v sudo >/dev/null || { echo "this needs root or sudo; as root: apt-get install$$missing" >&2; exit 1; }; \
	  $(SUDO) apt-get update -q && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$missing; fi
endef
deps:    ## install what building and serving need
	$(call install_debs,$(DEB_BUILD) $(DEB_MODEL))
deps-test: deps    ## install what the tests need
	$(call install_debs,$(DEB_TEST))
	@command -v promtool >/dev/null || { echo "unpacking promtool into build/promtool"; mkdir -p build/promtool && cd build/promtool && \
	  { apt-get download -q -o APT::Sandbox::User=root prometheus || { $(SUDO) apt-get update -q && apt-get download -q -o APT::Sandbox::User=root prometheus; }; } && \
	  dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb; }

serve: deps    ## install what is missing, fetch the demo model, build, serve it (MODEL=, SERVE_FLAGS=)
	@$(if $(filter file,$(origin MODEL)),$(MAKE) --no-print-directory model)
	@$(MAKE) --no-print-directory -j$(JOBS) all
	@exec bin/tare serve $(MODEL) $(SERVE_FLAGS)

MODEL_SHA256 := $(shell cut -d' ' -f1 deploy/models/smollm2-135m-instruct-q4_1.sha256 2>/dev/null)
model: models/smollm2-135m-instruct-q4_1.gguf    ## fetch the demo model (93 MB) into models/
	@:
models/smollm2-135m-instruct-q4_1.gguf:
	@sh deploy/models/fetch-demo.sh $@ $(MODEL_SHA256)

test: deps-test    ## what every change must pass: at most 12 minutes on 2 cores
	@$(MAKE) --no-print-directory model
	@$(MAKE) --no-print-directory test-run
test-run:
	@$(MAKE) --no-print-directory -j$(JOBS) all $(OUT)/tests/unit/run test-parts
	@sh tests/e2e/clients/venv.sh >/dev/null
	@$(MAKE) --no-print-directory tidy
	@$(MAKE) --no-print-directory -j2 unit unit-asan-build
	@$(MAKE) --no-print-directory -j2 unit-worker unit-kernels unit-controller BUILD=asan
	@$(MAKE) --no-print-directory test-beside >build/beside.log 2>&1 & beside=$$!; \
	$(MAKE) --no-print-directory e2e; clients=$$?; \
	wait $$beside; others=$$?; cat build/beside.log; exit $$((clients + others))
	@echo "make test: all parts passed"
# All that is built by parts that run side by side.
test-parts: $(OUT)/tests/simulation/run $(OUT)/tests/soak/soak $(OUT)/tests/soak/interpose.so $(OUT)/tests/golden/run_model \
    $(PROGRAMS:%=$(FAULTY)/%)
# What one core does while the other waits with real clients for real processes.
test-beside:
	@CHAOS_S=60 sh tests/e2e/chaos.sh
	@$(MAKE) --no-print-directory soak SOAK_STEPS=20000
	@$(MAKE) --no-print-directory integration
	@$(MAKE) --no-print-directory sim SIM_S=45
	@$(MAKE) --no-print-directory unit-core BUILD=asan
unit-asan-build:
	@$(MAKE) --no-print-directory BUILD=asan $(OUT:%-$(BUILD)=%-asan)/tests/unit/run

unit: $(OUT)/tests/unit/run    ## unit tests of one variant (BUILD=asan, CC=clang, SUITE=name)
	@echo "unit tests, $(notdir $(CC)) $(BUILD)"; $(OUT)/tests/unit/run $(SUITE)

# The same suites in four parts, for two cores. libcheck forks for every test: what the
# address sanitizer keeps of freed memory would make each fork slow.
FORKS_FAST := ASAN_OPTIONS=quarantine_size_mb=8
unit-worker: $(OUT)/tests/unit/run
	@$(FORKS_FAST) $(OUT)/tests/unit/run worker/
unit-kernels: $(OUT)/tests/unit/run
	@$(FORKS_FAST) $(OUT)/tests/unit/run kernels/
unit-controller: $(OUT)/tests/unit/run
	@$(FORKS_FAST) $(OUT)/tests/unit/run common/ proto/ controller/ -controller/core
unit-core: $(OUT)/tests/unit/run
	@$(FORKS_FAST) $(OUT)/tests/unit/run controller/core

integration: all    ## numbers against an independent float64 implementation
	@sh tests/integration/run.sh
e2e: all $(PROGRAMS:%=$(FAULTY)/%)    ## real clients against real processes
	@sh tests/e2e/run.sh
tidy:    ## layers, doors, purity, bans, formatting
	@sh tests/tidy/tidy.sh
bench: bench-cpu bench-http bench-core bench-comm bench-fanout    ## all benchmarks
bench-cpu: all    ## tokens per second against llama.cpp in the same run; start, memory, idle time
	@sh tests/bench/bench_cpu.sh
	@sh tests/bench/bench_machine.sh
bench-http: all    ## requests and streamed tokens per second with a simulated worker, beside libuv alone
	@sh tests/bench/bench_http.sh
bench-core: $(OUT)/tests/bench/bench_core    ## the controller's turn: microseconds and instructions at 256, 1,024 and 8,192 sequences
	@sh tests/bench/bench_core.sh $(OUT)
bench-comm: $(OUT)/tests/bench/bench_comm    ## sums over 2 and 8 ranks in shared memory, beside copying as many bytes
	@$(OUT)/tests/bench/bench_comm
bench-fanout: $(OUT)/tests/bench/bench_fanout    ## a plan to the 8 ranks of a group against one rank
	@$(OUT)/tests/bench/bench_fanout
bench-ranks: all    ## tokens per second of two ranks with a thread each against one worker with two threads
	@sh tests/bench/bench_ranks.sh
bench-core-peer: all    ## a turn of the controller against one of vLLM's scheduler (PyPI, 6 GB), in the same run
	@sh tests/bench/bench_core_peer.sh
fuzz:    ## every fuzz target for FUZZ_S seconds (600)
	@sh tests/fuzz/run.sh
soak: $(OUT)/tests/soak/soak $(OUT)/tests/soak/interpose.so    ## SOAK_STEPS random steps (1,000,000) with every allocation watched
	@LD_PRELOAD=$(if $(filter release debug,$(BUILD)),$(OUT)/tests/soak/interpose.so) $(OUT)/tests/soak/soak $(or $(SOAK_STEPS),1000000)
sim: all $(OUT)/tests/simulation/run    ## the controller's core in simulated worlds for SIM_S seconds (1200)
	@sh tests/simulation/sim.sh $(or $(SIM_S),1200) $(OUT)
chaos: all    ## random kills and disconnects for CHAOS_S seconds (900)
	@sh tests/e2e/chaos.sh
check: deps-test    ## every variant, short fuzz, soak, short chaos: at most 80 minutes
	@sh tests/check.sh

format:    ## rewrite sources in the house format
	clang-format -i $$(git ls-files '*.c' '*.h')
lint: $(PROTO_GEN)    ## clang-tidy over all sources
	clang-tidy --quiet $$(git ls-files '*.c' | grep -v '^tests/') -- $(CFLAGS) -DTARE_LINT
info:    ## what was detected, and what it means
	@echo "version $(VERSION) ($(COMMIT))  compiler $(CC)  variant $(BUILD)  output $(OUT)"
	@for p in $(PKGS); do printf '%-16s %s\n' $$p "$$(pkg-config --modversion $$p 2>/dev/null || echo 'missing: run make deps')"; done
	@printf '%-16s %s\n' nccl.h '$(if $(filter 1,$(NCCL)),$(NCCL_DIR),not found: no collectives of CUDA devices)'
	@printf '%-16s %s\n' nvcc "$$(command -v nvcc || echo 'not found: no CUDA plug-in')"
help:    ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):[^#]*##[ ]*/\1|/' | awk -F'|' '{printf "  %-15s %s\n", $$1, $$2}'
clean:    ## remove build/ and bin/
	rm -rf build bin

-include $(shell find $(OUT) -name '*.d' 2>/dev/null)
