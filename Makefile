# What there is to do here; `make help` lists it. Every target prints the time it took.

SHELL := bash
TIDEGATE := $(or $(CARGO_TARGET_DIR),target)/release/tidegate
TIMED := scripts/timed.sh

.PHONY: help build run test fuzz soak test-guest record bench bench-cold bench-device bench-recovery bench-engine bench-abuse bench-nbd bench-pages bench-queue clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## the program, optimised: target/release/tidegate
	@$(TIMED) build cargo build --release --locked

run: build ## a volume in ./tidegate-data, served until Ctrl-C (ARGS="--origin … --cache …" for another one)
	@$(TIMED) run $(TIDEGATE) up $(ARGS)

test: ## everything that must hold: format, lints, tests, real clients, the swarm (some twenty minutes on two cores; needs root for mounts)
	@$(TIMED) test scripts/test.sh

fuzz: ## inputs guided by coverage: make fuzz TARGET=journal SECONDS=600 (TARGET=list names all; without TARGET: what CI runs)
	@scripts/setup.sh
	@$(TIMED) fuzz scripts/fuzz.sh $(TARGET) $(if $(TARGET),$(SECONDS))

soak: build ## the swarm, corruptions, fuzzing, kills, crashes of databases and file systems for hours (SEEDS= WIDE= REFUSING= FAILING= FIRST= KILLS= CONNECTIONS= ROUNDS= CORRUPTIONS= FUZZ=)
	@$(TIMED) soak scripts/soak.sh

test-guest: build ## disks told to stand still by the real ioctls, in an emulated guest with a kernel of its own (a few minutes)
	@$(TIMED) test-guest scripts/test-guest.sh

record: build ## what ext4, XFS and btrfs of this machine ask of a disk under three kinds of work (SECONDS_EACH=60): target/traces, replayed by `tidegate sim run sim/plans/001-recorded.toml`
	@scripts/setup.sh
	@$(TIMED) record scripts/record.sh

bench: ## speed beside other servers on the same disk, cold reads beside the origin, in one process beside the bare file, hits in memory; tables and target/bench/{volume,cold,device,nbd}.json
	@scripts/setup.sh
	@$(TIMED) bench cargo bench --locked --bench volume --bench cold --bench device --bench nbd

bench-cold: ## the second part of it: cold reads before a model of a slow disk, beside that disk
	@scripts/setup.sh
	@$(TIMED) bench-cold cargo bench --locked --bench cold

bench-device: ## the third part of it: the log on a real device, without sockets; needs 2 GiB of disk
	@$(TIMED) bench-device cargo bench --locked --bench device

bench-recovery: ## recovery of 100 GiB of metadata beside reading it
	@$(TIMED) bench-recovery cargo bench --locked --bench recovery

bench-engine: ## instructions per request and bytes per cached block
	@$(TIMED) bench-engine cargo bench --locked --bench engine

bench-abuse: ## what a good client notices of a thousand idle and a hundred hostile ones
	@$(TIMED) bench-abuse cargo bench --locked --bench abuse

bench-nbd: ## the fourth part of it: hits in memory over NBD beside null exports and files in the page cache; a table and target/bench/nbd.json
	@scripts/setup.sh
	@$(TIMED) bench-nbd cargo bench --locked --bench nbd

bench-pages: ## hits in the memory tier beside copying, two threads beside one, other caches; a table and target/bench/pages.json
	@$(TIMED) bench-pages cargo bench --locked -p tidegate-pages --bench pages

bench-queue: ## what a scheduler costs, and six patterns on this machine's disk beside noop; tables and target/bench/queue.json; needs 2 GiB of disk
	@$(TIMED) bench-queue cargo bench --locked --bench queue

clean: ## everything that was built; never ./tidegate-data
	@$(TIMED) clean cargo clean
