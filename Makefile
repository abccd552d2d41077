# Every command here installs what it needs first (scripts/setup; as root on Debian 12).

CARGO := scripts/cargo
# For scripts that call cargo by its name.
WITH_CARGO = PATH="$$(scripts/cargo --folder):$$PATH"

.PHONY: help build demo test test-mixed test-hops test-outages test-cuts test-iscsi-kills test-initiators test-vhost-user-kills test-netboot test-medium test-api test-ceph test-e2fsprogs test-iotests test-libnbd kernel test-kernel dist test-dist medium lint fmt screenshots fuzz bench bench-storm bench-arm bench-scale bench-store bench-iscsi bench-borrow bench-file bench-cache bench-simulate bench-schedule bench-throttle simulate mutate clean
help:
	@echo "make build   the release binary, target/release/sojourn"
	@echo "make demo    a golden image, three private disks, three real guests (about half a minute, the first time some minutes)"
	@echo "make test    every check and every test"
	@echo "make test-mixed  a server's day in small, as long as you like: MIXED_MINUTES=30"
	@echo "make test-hops   a machine hops between two homes while what it needs is killed, cut off and full, HOPS=100 HOPS_SEED=1 (a quarter of an hour; as root, disks run full, too)"
	@echo "make test-cuts   power cuts on ext4, XFS and btrfs, CUTS=1000 each (as root; about an hour)"
	@echo "make test-outages   roots over NBD, of a machine without a disk and on an attached device, while server and link are away (ten minutes)"
	@echo "make test-initiators   open-iscsi in a guest, set in 32 ways, while its server is killed (eight minutes)"
	@echo "make test-iscsi-kills   the server killed under an iSCSI initiator that stays, ISCSI_KILLS=500 (half an hour)"
	@echo "make test-vhost-user-kills   the server killed under a guest that counts, VHOST_USER_KILLS=500 with each QEMU (half an hour)"
	@echo "make test-netboot   blank machines with every pair of BIOS, UEFI's PXE and HTTP, two cards, NBD and iSCSI; a classroom of thirty whose server is killed and lost; machines whose power is cut (as root; twenty minutes)"
	@echo "make test-medium   a USB key that starts PCs on their free blocks, by BIOS and UEFI, beside clean, dirty, full and suspended disks (as root; a quarter of an hour)"
	@echo "make test-api    the HTTP API asked by its own document, thousands of times (five minutes)"
	@echo "make test-ceph   the stores' tests on Ceph with three OSDs, one of them killed (some minutes)"
	@echo "make test-e2fsprogs   finding free blocks on all test images of e2fsprogs, E2FSPROGS=CHECKOUT"
	@echo "make test-iotests   QEMU's tests of raw images over NBD, beside qemu-nbd, QEMU=SOURCES (some minutes)"
	@echo "make test-libnbd   libnbd's tests of servers, LIBNBD=SOURCES (half a minute)"
	@echo "make kernel   the disk lab's kernel modules: the CATS scheduler and a throttled disk (kernel/README.md)"
	@echo "make test-kernel   those modules in guests: under load, in a power cut, beside mq-deadline and bfq (some minutes)"
	@echo "make dist   what people install, into target/packages: a Debian package, a tar file, a container image, an SBOM"
	@echo "make test-dist   those installed, used, upgraded under a client and purged in fresh trees and a guest (as root)"
	@echo "make medium   a bootable image for a USB key that borrows from the PC it starts, MEDIUM=sojourn.img MEDIUM_OPTIONS= (as root)"
	@echo "make bench   beside other NBD servers and the physical limit"
	@echo "make bench-storm   boot storms on a slow disk beside qemu-nbd, a light client beside a storm, many clients (about half an hour)"
	@echo "make bench-arm   reads from a store on a modelled disk that turns, ordered for its arm and as they come (as root; two minutes)"
	@echo "make bench-scale  what 2,000 disks and 10,000 connections cost a server"
	@echo "make bench-store   importing, storing, exporting and booting images, beside other tools"
	@echo "make bench-iscsi   4 KiB requests by iSCSI beside Debian's tgt and beside NBD (two minutes)"
	@echo "make bench-borrow   finding free blocks, and disks made of them, beside e2fsprogs, OpenSSL and plain files"
	@echo "make bench-file   reads from the disk by threads and by io_uring, DIR=. READS=10000"
	@echo "make bench-cache   CPU time of a hit and a miss of the block cache, and its memory, ENTRIES=262144"
	@echo "make bench-simulate   simulated requests per second of CPU time, TRACE=FILE BLOCKS=65536 POLICY=lru,arc, beside libCacheSim when it is installed"
	@echo "make bench-schedule   simulated disk requests per second of CPU time, and the time of a plan, FILES=1000000"
	@echo "make bench-throttle   how exact a throttle is in real time, and schedulers on one that is 1, 4 and 8 times as slow (five minutes; nothing else may run)"
	@echo "make lint    formatting, clippy, licences, the repository's own rules"
	@echo "make fmt     format the code"
	@echo "make screenshots  the pictures of docs/dashboard.md, anew (ten minutes)"
	@echo "make simulate  10,000 lives of a store in simulated time, and of a home on a simulated file system, SEEDS=10000"
	@echo "make fuzz    the fuzz targets, SECONDS=60 each"
	@echo "make mutate  a million damaged images of every file system that space is borrowed from (long)"
	@echo "make clean   remove what was built and cached"

build:
	@scripts/setup build
	$(CARGO) build --release --locked -p sojourn

demo:
	@scripts/setup build demo
	@# Behind the build: it waits for the network and the disk for much of its time. The demonstration waits for it.
	@lab/make-golden >/dev/null &
	$(CARGO) build --profile demo --locked -p sojourn
	scripts/demo

lint:
	@scripts/setup build test
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked --quiet -- -D warnings
	scripts/check-deps
	scripts/check-repo
	scripts/check-words
	scripts/web check

test: lint
	@scripts/setup demo fuzz netboot python s3 clients web
	scripts/test

MIXED_MINUTES ?= 30
test-mixed:
	@scripts/setup build test
	$(CARGO) build --locked -p sojourn
	MIXED_MINUTES=$(MIXED_MINUTES) $(CARGO) test -p sojourn-tests --locked --test mixed -- --nocapture

HOPS ?= 100
HOPS_SEED ?= 1
test-hops:
	@scripts/setup build demo s3
	lab/make-golden >/dev/null
	$(CARGO) build --locked -p sojourn
	HOPS=$(HOPS) HOPS_SEED=$(HOPS_SEED) $(CARGO) test -p sojourn-tests --locked --test journey -- --nocapture

CUTS ?= 1000
CUTS_SEED ?= 1
test-cuts:
	@scripts/setup build test
	$(CARGO) build --locked -p sojourn
	CUTS=$(CUTS) CUTS_SEED=$(CUTS_SEED) $(CARGO) test -p sojourn-tests --locked --test power_cuts -- --nocapture --test-threads 4

test-outages:
	@scripts/setup build demo netboot
	$(CARGO) build --locked -p sojourn
	scripts/diskless dev >/dev/null
	lab/make-golden >/dev/null
	$(CARGO) test -p sojourn-tests --locked --test netboot -- --ignored --exact --nocapture the_root_of_a_machine_without_a_disk_goes_on_behind_long_outages the_root_of_a_machine_without_a_disk_goes_on_at_another_server_when_its_own_is_lost
	$(CARGO) test -p sojourn-tests --locked --test guest -- --ignored --exact --nocapture the_root_of_a_real_guest_on_an_attached_device_survives_what_befalls_its_server_and_its_link

ISCSI_KILLS ?= 500
ISCSI_KILLS_SEED ?= 1
test-iscsi-kills:
	@scripts/setup build demo test
	$(CARGO) build --locked -p sojourn
	ISCSI_KILLS=$(ISCSI_KILLS) ISCSI_KILLS_SEED=$(ISCSI_KILLS_SEED) $(CARGO) test -p sojourn-tests --locked --test iscsi_kills -- --nocapture

test-initiators:
	@scripts/setup build demo
	$(CARGO) build --locked -p sojourn
	lab/make-golden >/dev/null
	$(CARGO) test -p sojourn-tests --locked --test guest -- --ignored --exact --nocapture the_kernels_iscsi_initiator_works_however_it_is_set_and_goes_on_when_the_server_was_killed

VHOST_USER_KILLS ?= 500
test-vhost-user-kills:
	@scripts/setup build demo test clients
	$(CARGO) build --locked -p sojourn
	VHOST_USER_KILLS=$(VHOST_USER_KILLS) $(CARGO) test -p sojourn-tests --locked --test vhost_user -- --nocapture a_guest_counts

test-netboot:
	@scripts/setup build demo netboot
	lab/make-golden --generic
	$(CARGO) build --locked -p sojourn
	scripts/diskless dev >/dev/null
	lab/make-golden --dracut
	lab/make-golden >/dev/null
	$(CARGO) test -p sojourn-tests --locked --test netboot -- --nocapture --include-ignored --test-threads 1

test-medium:
	@scripts/setup build demo test netboot medium
	$(CARGO) build --locked -p sojourn
	$(CARGO) test -p sojourn-tests --locked --test medium -- --nocapture --include-ignored

test-api:
	@scripts/setup build
	$(CARGO) build --locked -p sojourn
	scripts/test-api

test-ceph:
	@scripts/setup build ceph
	scripts/test-ceph

E2FSPROGS ?=
test-e2fsprogs:
	@scripts/setup build test
	@[ -d "$(E2FSPROGS)/tests" ] || { echo "say where e2fsprogs is checked out: E2FSPROGS=DIR" >&2; exit 2; }
	E2FSPROGS_TESTS="$(abspath $(E2FSPROGS))/tests" $(CARGO) test -p freespace --locked --test ext -- --nocapture e2fsprogs

QEMU ?=
test-iotests:
	@scripts/setup build suites
	$(CARGO) build --locked -p sojourn
	scripts/test-iotests "$(QEMU)"

LIBNBD ?=
test-libnbd:
	@scripts/setup build suites
	$(CARGO) build --locked -p sojourn
	scripts/test-libnbd "$(LIBNBD)"

kernel:
	@scripts/setup kernel
	kernel/build

test-kernel:
	@scripts/setup build kernel
	kernel/test

dist:
	@scripts/setup build dist
	$(CARGO) build --profile dist --locked -p sojourn
	packaging/dist target/dist/sojourn $$(scripts/diskless) target/packages

test-dist:
	@scripts/setup build demo dist
	$(CARGO) build --locked -p sojourn
	packaging/test target/debug/sojourn $$(scripts/diskless dev)
	lab/make-golden >/dev/null
	$(CARGO) test -p sojourn-tests --locked --test guest -- --nocapture --include-ignored --test-threads 1 a_package

MEDIUM ?= sojourn.img
MEDIUM_OPTIONS ?=
medium:
	@scripts/setup build medium
	$(CARGO) build --release --locked -p sojourn
	packaging/medium/make $(MEDIUM) $(MEDIUM_OPTIONS)

bench:
	@scripts/setup build bench
	$(CARGO) build --release --locked -p sojourn -p sojourn-bench
	target/release/sojourn-bench
	target/release/sojourn-bench reopen
	target/release/sojourn-bench tls

bench-storm: BENCH := $(CURDIR)/target/release/sojourn-bench
bench-storm:
	@scripts/setup build bench-storm
	$(CARGO) build --release --locked -p sojourn -p sojourn-bench
	cd crates/trace/tests/boots && $(BENCH) storm idle.csv.zst office-a.csv.zst office-b.csv.zst update.csv.zst; \
		storm=$$?; $(BENCH) fairness; fairness=$$?; $(BENCH) clients && exit $$((storm + fairness))

bench-store:
	@scripts/setup build demo bench bench-store
	$(CARGO) build --release --locked -p sojourn -p sojourn-bench
	images=$$(lab/make-bench-images) && target/release/sojourn-bench store $$images

bench-iscsi:
	@scripts/setup build bench-iscsi
	$(CARGO) build --release --locked -p sojourn -p sojourn-bench
	target/release/sojourn-bench iscsi

bench-arm:
	@scripts/setup build bench-arm
	$(CARGO) build --release --locked -p sojourn
	scripts/bench-arm

bench-scale:
	@scripts/setup build
	$(CARGO) build --release --locked -p sojourn
	scripts/bench-scale

bench-borrow:
	@scripts/setup build bench-borrow
	$(CARGO) build --release --locked -p transient --example bench_borrow
	scripts/bench-borrow

DIR ?= .
READS ?= 10000
bench-file:
	@scripts/setup build
	$(CARGO) build --release --locked -p block --example bench_file
	target/release/examples/bench_file $(DIR) $(READS)

ENTRIES ?= 262144
bench-cache:
	@scripts/setup build
	$(CARGO) build --release --locked -p cache --example bench_cache
	target/release/examples/bench_cache $(ENTRIES)

TRACE ?=
BLOCKS ?= 65536
bench-simulate:
	@scripts/setup build
	$(CARGO) build --release --locked -p simulate --example bench_simulate
	$(CARGO) build --release --locked -p sojourn
	scripts/bench-simulate $(if $(POLICY),--policy $(POLICY)) "$(TRACE)" $(BLOCKS)

FILES ?= 1000000
bench-schedule:
	@scripts/setup build
	$(CARGO) build --release --locked -p schedule --example bench_schedule
	target/release/examples/bench_schedule $(FILES)

bench-throttle:
	@scripts/setup build
	$(CARGO) build --release --locked -p throttle --example bench_throttle
	target/release/examples/bench_throttle accuracy
	target/release/examples/bench_throttle schedulers

fmt:
	$(CARGO) fmt --all

screenshots:
	@scripts/setup build web
	$(CARGO) build --locked -p sojourn
	scripts/web screenshots

SEEDS ?= 10000
simulate:
	@scripts/setup build
	SIMULATION_SEEDS=$(SEEDS) $(CARGO) test -p store -p disk --locked --test simulation any_seed -- --nocapture

SECONDS ?= 60
fuzz:
	@scripts/setup build fuzz
	$(WITH_CARGO) fuzz/run $(SECONDS)

MUTATIONS ?= 1000000
mutate:
	@scripts/setup build test
	FREESPACE_MUTATIONS=$(MUTATIONS) $(CARGO) test --release --locked -p freespace --test mutations --test ext_mutations -- --nocapture

clean:
	$(CARGO) clean
	rm -rf .work
