# Rules of tests, benchmarks and fuzzing. Included by the Makefile, which has the variants, flags and
# objects; all paths are from the root.

CHECK_CFLAGS := $(shell pkg-config --cflags check 2>/dev/null | sed 's/-I/-isystem /g')
CHECK_LIBS := $(shell pkg-config --libs check 2>/dev/null)
SUPPORT_C := $(wildcard tests/support/*.c)
UNIT_C := $(shell find tests/unit -name '*.c' 2>/dev/null) $(SUPPORT_C)
SIMULATION_C := $(wildcard tests/simulation/*.c)

.PHONY: test test-run test-parts test-beside check tidy integration e2e chaos fuzz soak sim
.PHONY: unit unit-asan-build unit-worker unit-kernels unit-controller unit-core
.PHONY: bench bench-cpu bench-http bench-core bench-comm bench-fanout bench-ranks bench-core-peer

# ---- programs ------------------------------------------------------------------------------------
$(OUT)/tests/%.o: tests/%.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(WARN) $(ISA) $(CHECK_CFLAGS) -MMD -MP -c -o $@ $<

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

# ---- what a change must pass ---------------------------------------------------------------------
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
check: deps-test    ## every variant, short fuzz, soak, short chaos: at most 80 minutes
	@sh tests/check.sh

# ---- one kind of tests ---------------------------------------------------------------------------
# libcheck forks for every test: what the address sanitizer keeps of freed memory would make each
# fork slow. Its timeouts end what hangs, also under sanitizers on a busy machine.
FORKS_FAST := ASAN_OPTIONS=quarantine_size_mb=8 CK_TIMEOUT_MULTIPLIER=5
unit: $(OUT)/tests/unit/run    ## unit tests of one variant (BUILD=asan, CC=clang, SUITE=name)
	@echo "unit tests, $(notdir $(CC)) $(BUILD)"; $(FORKS_FAST) $(OUT)/tests/unit/run $(SUITE)

# The same suites in four parts, for two cores.
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
fuzz:    ## every fuzz target for FUZZ_S seconds (600)
	@sh tests/fuzz/run.sh
soak: $(OUT)/tests/soak/soak $(OUT)/tests/soak/interpose.so    ## SOAK_STEPS random steps (1,000,000) with every allocation watched
	@LD_PRELOAD=$(if $(filter release debug,$(BUILD)),$(OUT)/tests/soak/interpose.so) $(OUT)/tests/soak/soak $(or $(SOAK_STEPS),1000000)
sim: all $(OUT)/tests/simulation/run    ## the controller's core in simulated worlds for SIM_S seconds (1200)
	@sh tests/simulation/sim.sh $(or $(SIM_S),1200) $(OUT)
chaos: all    ## random kills and disconnects for CHAOS_S seconds (900)
	@sh tests/e2e/chaos.sh

# ---- benchmarks ----------------------------------------------------------------------------------
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
