//! The kernel's own NFS server and client in a guest, whose scenarios are in `src/bin/guest`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use fsstack_lab::guest::Kernel;
use fsstack_lab::shell::{command, which};
use fsstack_lab::{Guest, GuestDisks, MiB, daemon, needs};

/// Further programs of the scenarios.
const PROGRAMS: &[&str] = &["git", "make", "gcc", "as", "ld"];
/// Parts of the compiler, by the names it uses.
const COMPILER: &[&str] = &["cc1", "collect2"];
const LINKED: &[&str] = &[
    "Scrt1.o",
    "crt1.o",
    "crti.o",
    "crtn.o",
    "crtbeginS.o",
    "crtendS.o",
    "libgcc.a",
    "libgcc_s.so",
    "libgcc_s.so.1",
    "libc.so",
    "libc_nonshared.a",
    "liblto_plugin.so",
];

/// Each takes one to three minutes on a quiet machine.
const LIMIT: Duration = Duration::from_secs(1200);
/// Two disks of files.
const DISKS: GuestDisks = GuestDisks { size: MiB(512), filled: &[] };

fn live(scenario: &str) {
    live_with(scenario, &[], DISKS, LIMIT);
}

/// Runs a scenario that needs further programs.
fn live_with(scenario: &str, more: &[PathBuf], disks: GuestDisks, limit: Duration) {
    if let Err(skip) = PROGRAMS.iter().copied().try_for_each(needs::program).and_then(|()| Guest::able()) {
        return skip.announce();
    }
    let helper = daemon::helper().unwrap();
    let teller = Path::new(env!("CARGO_BIN_EXE_guest"));
    let programs = PROGRAMS.iter().map(|program| which(program).unwrap());
    let guest = Guest::new(
        teller,
        &helper,
        &programs.chain(compiler()).chain(more.iter().cloned()).collect::<Vec<_>>(),
    );
    let lived = guest.live(scenario, disks, limit);
    println!("{}", lived.console);
}

/// Files that gcc needs to build a program that prints a number.
fn compiler() -> Vec<PathBuf> {
    let asked = |how: &str, name: &str| {
        let output = command("gcc").arg(format!("-print-{how}-name={name}")).run().unwrap();
        PathBuf::from(output.stdout.trim())
    };
    let parts = COMPILER.iter().map(|name| asked("prog", name));
    let linked = LINKED.iter().map(|name| asked("file", name));
    let source = tempfile::Builder::new().suffix(".c").tempfile().unwrap();
    std::fs::write(source.path(), "#include <stdio.h>\n").unwrap();
    let headers = command("gcc").arg("-M").arg(source.path()).run().unwrap().stdout;
    let headers: Vec<PathBuf> =
        headers.split_whitespace().filter(|word| word.ends_with(".h")).map(PathBuf::from).collect();
    let there = parts.chain(linked).chain(headers).filter(|path| path.is_absolute());
    // Without the `..` in gcc's paths.
    there.map(|path| path.parent().unwrap().canonicalize().unwrap().join(path.file_name().unwrap())).collect()
}

#[test]
fn handles_mean_the_same_over_whatever_happens_to_the_server() {
    live("handles");
}

#[test]
fn large_directories_and_locks_of_two_clients() {
    live_with(
        "names",
        &[],
        GuestDisks { filled: &[("large-v3", 100_000), ("large-v4", 10_000)], ..DISKS },
        LIMIT,
    );
}

#[test]
fn rights_and_what_nfs_4_2_has() {
    live("rights");
}

#[test]
fn two_minutes_of_work_over_sixteen_connections() {
    live("work");
}

#[test]
fn clients_go_on_while_the_daemon_is_replaced_dies_or_drains_a_branch() {
    live("replaced");
}

#[test]
fn clients_of_the_only_writer_see_each_others_changes_at_once() {
    live("timeouts");
}

#[test]
fn changes_of_one_host_are_left_alone_by_anothers_mounts() {
    live("two-hosts");
}

#[test]
#[ignore = "mountd asks itself again after two minutes"]
fn clients_wait_for_a_pool_that_comes_later_than_its_server() {
    live("late");
}

/// The figures of docs/nfs.md: the pool beside its branch. Needs `fsstack-bench` beside the helper:
/// `cargo build --release -p fsstack-daemon -p fsstack-cli -p fsstack-bench`, and FSSTACK_BIN=target/release/mount-fsstack.
#[test]
#[ignore = "takes minutes: run for its figures"]
fn figures_of_the_pool_beside_its_branch() {
    measure("figures");
}

/// The same for the gain of several connections with a limit each.
#[test]
#[ignore = "takes minutes: run for its figures"]
fn figures_of_connections() {
    measure("connections");
}

/// Requests of the server to the pool for each operation of a client, counted by the kernel.
#[test]
#[ignore = "takes minutes: run for its figures"]
fn figures_of_requests() {
    if Kernel::chosen().unwrap() == Kernel::Distribution {
        let why = "needs FUSE's trace events, which the distribution's kernel does not have: FSSTACK_GUEST_KERNEL=backports";
        return fsstack_lab::Skip::because(why).announce();
    }
    measure("requests");
}

fn measure(scenario: &str) {
    let bench = daemon::helper().unwrap().with_file_name("fsstack-bench");
    if !bench.exists() {
        return fsstack_lab::Skip::because(format!("needs {}", bench.display())).announce();
    }
    let Some(ip) = which("ip") else { return fsstack_lab::Skip::because("needs the program ip").announce() };
    live_with(scenario, &[bench, ip], GuestDisks { size: MiB(2048), ..DISKS }, Duration::from_secs(2400));
}
