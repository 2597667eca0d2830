//! The program in a guest (`tests/nfs_guest`): a pool, exported by the kernel's own NFS server and mounted by its
//! client, and one scenario on them. It exits with 0 if every check passed.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a scenario that cannot go on ends there")]

mod figures;
mod handles;
mod names;
mod operator;
mod replaced;
mod requests;
mod rights;
mod test_bed;
mod timeouts;
mod two_hosts;
mod work;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use test_bed::{Root, TestBed};

type Scenario = fn(&mut TestBed);

/// Scenarios by name: number of connections per client, root's user, and function.
const SCENARIOS: &[(&str, u32, Root, Scenario)] = &[
    ("handles", 16, Root::Nobody, handles::scenario),
    ("names", 4, Root::Itself, names::scenario),
    ("rights", 1, Root::Itself, rights::scenario),
    ("work", 16, Root::Itself, work::scenario),
    ("replaced", 4, Root::Itself, replaced::scenario),
    ("timeouts", 1, Root::Itself, timeouts::scenario),
    ("two-hosts", 0, Root::Itself, two_hosts::scenario),
    ("late", 1, Root::Nobody, operator::comes_late),
    ("figures", 0, Root::Itself, figures::beside),
    ("connections", 0, Root::Itself, figures::connections),
    ("requests", 0, Root::Itself, requests::scenario),
];

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    if name == names::TRY_LOCK {
        return ExitCode::from(u8::from(!names::try_lock(Path::new(&words.next().expect("a file")))));
    }
    let (_, nconnect, root, scenario) =
        SCENARIOS.iter().find(|(known, ..)| *known == name).expect("a scenario of ours");
    let began = Instant::now();
    let mut test_bed = TestBed::new(*nconnect, *root);
    scenario(&mut test_bed);
    test_bed.end();
    println!("{name}: {} s", began.elapsed().as_secs());
    ExitCode::SUCCESS
}
