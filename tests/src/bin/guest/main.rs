//! What a guest runs (`tests/nfs_guest`): a pool, exported by the kernel's own NFS server, mounted by its client, and one
//! story lived with them. It ends with 0 when all of it came true.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a story that cannot go on ends there")]

mod ground;
mod handles;
mod names;
mod rights;
mod work;

use std::time::Instant;

use ground::Ground;

type Story = fn(&mut Ground);

/// By name: how many connections a client has, and what happens.
const STORIES: &[(&str, u32, Story)] = &[
    ("handles", 1, handles::story),
    ("names", 4, names::story),
    ("rights", 4, rights::story),
    ("work", 16, work::story),
];

fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    let (_, nconnect, story) = STORIES.iter().find(|(known, ..)| *known == name).expect("a story of ours");
    let began = Instant::now();
    let mut ground = Ground::new(*nconnect);
    story(&mut ground);
    ground.end();
    println!("{name}: {} s", began.elapsed().as_secs());
}
