//! Branches without room.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};

use anyhow::Result;
use fsstack_lab::MiB;
use rustix::fs::{FallocateFlags, fallocate};

use super::ground::{Ground, Told, bad, errno, good, mib, write_mibs, writer, wrong_mibs};
use super::subject::Placement;

/// `a` is where new files go and has 60 MiB left; `b` and `c` are empty.
fn nearly_full(ground: &mut Ground) -> Result<()> {
    ground.mount(Placement::First)?;
    ground.branch("a")?.fill_until_free(MiB(60));
    Ok(())
}

/// State after `count` MiBs were written with success.
fn judged(ground: &Ground, name: &str, count: u64) -> Result<Told> {
    match wrong_mibs(ground.at(name), count) {
        Ok(0) => good(format!("goes on, all bytes right (file on {})", ground.holders(name).join(", "))),
        Ok(wrong) => {
            bad(format!("{wrong} of {count} MiB that were written with success are wrong or missing"))
        }
        Err(error) => bad(format!("reading it back: {}", errno(&error))),
    }
}

pub(crate) fn a_write(ground: &mut Ground) -> Result<Told> {
    nearly_full(ground)?;
    let file = writer(ground.at("film"))?;
    if let Err((done, error)) = write_mibs(&file, 0, 100) {
        return bad(format!("{} after {done} MiB, with 800 MiB free", errno(&error)));
    }
    judged(ground, "film", 100)
}

pub(crate) fn two_handles(ground: &mut Ground) -> Result<Told> {
    nearly_full(ground)?;
    let one = writer(ground.at("film"))?;
    let other = writer(ground.at("film"))?;
    for n in 0..100 {
        let file = if n % 2 == 0 { &one } else { &other };
        if let Err(error) = file.write_all_at(&mib(n), n << 20) {
            return bad(format!("{} at MiB {n}, with 800 MiB free", errno(&error)));
        }
    }
    drop((one, other));
    judged(ground, "film", 100)
}

pub(crate) fn a_renamed_open_file(ground: &mut Ground) -> Result<Told> {
    nearly_full(ground)?;
    let file = writer(ground.at("name"))?;
    file.write_all_at(&mib(0), 0)?;
    fs::rename(ground.at("name"), ground.at("renamed"))?;
    fs::write(ground.at("name"), "another file")?;
    let wrote = write_mibs(&file, 1, 100);
    drop(file);
    let other = fs::read(ground.at("name"))?;
    if other != b"another file" {
        return bad(format!("the other file has {} bytes that were written to this one", other.len()));
    }
    match wrote {
        Err((done, error)) => bad(format!("{} after {done} MiB, with 800 MiB free", errno(&error))),
        Ok(()) => judged(ground, "renamed", 100),
    }
}

pub(crate) fn preallocation(ground: &mut Ground) -> Result<Told> {
    nearly_full(ground)?;
    let file = writer(ground.at("film"))?;
    file.write_all_at(&mib(0), 0)?;
    match fallocate(file.as_fd(), FallocateFlags::empty(), 0, 120 << 20) {
        Ok(()) => judged(ground, "film", 1),
        Err(error) => bad(format!("{}, with 800 MiB free", errno(&error.into()))),
    }
}

pub(crate) fn new_names(ground: &mut Ground) -> Result<Told> {
    fs::create_dir(ground.on("a", "d")?)?;
    ground.mount(Placement::Default)?;
    ground.branch("a")?.fill_until_free(MiB(0));
    let made = [
        ("create", fs::write(ground.at("d/file"), "x")),
        ("mkdir", fs::create_dir(ground.at("d/dir"))),
        ("symlink", symlink("x", ground.at("d/link"))),
    ];
    let refused: Vec<String> = made
        .iter()
        .filter_map(|(what, told)| told.as_ref().err().map(|e| format!("{what} {}", errno(e))))
        .collect();
    if refused.is_empty() { good("file, directory and link are made") } else { bad(refused.join(", ")) }
}

pub(crate) fn a_sparse_file(ground: &mut Ground) -> Result<Told> {
    nearly_full(ground)?;
    let file = writer(ground.at("sparse"))?;
    file.set_len(10 << 30)?;
    for n in 0..80 {
        if let Err(error) = file.write_all_at(&mib(n), n << 25) {
            return bad(format!("{} at MiB {n}, with 800 MiB free", errno(&error)));
        }
    }
    for n in 0..80 {
        let mut piece = vec![0; 1 << 20];
        file.read_exact_at(&mut piece, n << 25)?;
        if piece != mib(n) {
            return bad(format!("MiB {n} is wrong"));
        }
    }
    let stored = file.metadata()?.blocks() >> 11;
    if stored < 200 {
        good(format!("10 GiB with 80 MiB of data stay {stored} MiB"))
    } else {
        bad(format!("80 MiB of data take {stored} MiB"))
    }
}

pub(crate) fn a_linked_file(ground: &mut Ground) -> Result<Told> {
    nearly_full(ground)?;
    let file = writer(ground.at("film"))?;
    file.write_all_at(&mib(0), 0)?;
    if let Err(error) = fs::hard_link(ground.at("film"), ground.at("twin")) {
        return bad(format!("link: {}", errno(&error)));
    }
    let wrote = write_mibs(&file, 1, 100);
    drop(file);
    let count = 1 + wrote.as_ref().map_or_else(|(done, _)| *done, |()| 99);
    let wrong = ["film", "twin"].map(|name| wrong_mibs(ground.at(name), count).unwrap_or(count));
    match (wrong, wrote) {
        ([0, 0], Ok(())) => good("goes on under both names"),
        ([0, 0], Err((done, error))) => {
            good(format!("{} after {done} MiB; both names have all of it", errno(&error)))
        }
        ([film, twin], _) => {
            bad(format!("of {count} MiB written, {film} are wrong under one name and {twin} under the other"))
        }
    }
}
