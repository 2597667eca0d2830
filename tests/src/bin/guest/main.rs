//! What a guest runs (`tests/nfs_guest`): a pool, exported by the kernel's own NFS server, mounted by its client, and one
//! story lived with them. It ends with 0 when all of it came true.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a story that cannot go on ends there")]

mod figures;
mod ground;
mod handles;
mod names;
mod operator;
mod requests;
mod rights;
mod work;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use ground::Ground;

type Story = fn(&mut Ground);

/// By name: how many connections a client has, and what happens.
const STORIES: &[(&str, u32, Story)] = &[
    ("handles", 16, handles::story),
    ("names", 4, names::story),
    ("rights", 1, rights::story),
    ("work", 16, work::story),
    ("late", 1, operator::comes_late),
    ("figures", 0, figures::beside),
    ("connections", 0, figures::connections),
    ("requests", 0, requests::story),
];

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    if name == names::TRY_LOCK {
        return ExitCode::from(u8::from(!names::try_lock(Path::new(&words.next().expect("a file")))));
    }
    let (_, nconnect, story) = STORIES.iter().find(|(known, ..)| *known == name).expect("a story of ours");
    let began = Instant::now();
    let mut ground = Ground::new(*nconnect);
    story(&mut ground);
    ground.end();
    println!("{name}: {} s", began.elapsed().as_secs());
    ExitCode::SUCCESS
}
