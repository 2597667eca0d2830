//! Full branches.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};

use anyhow::Result;
use fsstack_lab::MiB;
use rustix::fs::{FallocateFlags, fallocate};

use super::subject::Placement;
use super::test_bed::{Reported, TestBed, bad, errno, good, mib, write_mibs, writer, wrong_mibs};

/// New files go to `a`, which has 60 MiB left; `b` and `c` are empty.
fn nearly_full(test_bed: &mut TestBed) -> Result<()> {
    test_bed.mount(Placement::First)?;
    test_bed.branch("a")?.fill_until_free(MiB(60));
    Ok(())
}

/// Judges the file after `count` MiB were written successfully.
fn judged(test_bed: &TestBed, name: &str, count: u64) -> Result<Reported> {
    match wrong_mibs(test_bed.at(name), count) {
        Ok(0) => good(format!("goes on, all bytes right (file on {})", test_bed.holders(name).join(", "))),
        Ok(wrong) => {
            bad(format!("{wrong} of {count} MiB that were written with success are wrong or missing"))
        }
        Err(error) => bad(format!("reading it back: {}", errno(&error))),
    }
}

pub(crate) fn a_write(test_bed: &mut TestBed) -> Result<Reported> {
    nearly_full(test_bed)?;
    let file = writer(test_bed.at("film"))?;
    if let Err((done, error)) = write_mibs(&file, 0, 100) {
        return bad(format!("{} after {done} MiB, with 800 MiB free", errno(&error)));
    }
    judged(test_bed, "film", 100)
}

pub(crate) fn two_handles(test_bed: &mut TestBed) -> Result<Reported> {
    nearly_full(test_bed)?;
    let one = writer(test_bed.at("film"))?;
    let other = writer(test_bed.at("film"))?;
    for n in 0..100 {
        let file = if n % 2 == 0 { &one } else { &other };
        if let Err(error) = file.write_all_at(&mib(n), n << 20) {
            return bad(format!("{} at MiB {n}, with 800 MiB free", errno(&error)));
        }
    }
    drop((one, other));
    judged(test_bed, "film", 100)
}

pub(crate) fn a_renamed_open_file(test_bed: &mut TestBed) -> Result<Reported> {
    nearly_full(test_bed)?;
    let file = writer(test_bed.at("name"))?;
    file.write_all_at(&mib(0), 0)?;
    fs::rename(test_bed.at("name"), test_bed.at("renamed"))?;
    fs::write(test_bed.at("name"), "another file")?;
    let wrote = write_mibs(&file, 1, 100);
    drop(file);
    let other = fs::read(test_bed.at("name"))?;
    if other != b"another file" {
        return bad(format!("the other file has {} bytes that were written to this one", other.len()));
    }
    match wrote {
        Err((done, error)) => bad(format!("{} after {done} MiB, with 800 MiB free", errno(&error))),
        Ok(()) => judged(test_bed, "renamed", 100),
    }
}

pub(crate) fn preallocation(test_bed: &mut TestBed) -> Result<Reported> {
    nearly_full(test_bed)?;
    let file = writer(test_bed.at("film"))?;
    file.write_all_at(&mib(0), 0)?;
    match fallocate(file.as_fd(), FallocateFlags::empty(), 0, 120 << 20) {
        Ok(()) => judged(test_bed, "film", 1),
        Err(error) => bad(format!("{}, with 800 MiB free", errno(&error.into()))),
    }
}

pub(crate) fn new_names(test_bed: &mut TestBed) -> Result<Reported> {
    fs::create_dir(test_bed.on("a", "d")?)?;
    test_bed.mount(Placement::Default)?;
    test_bed.branch("a")?.fill_until_free(MiB(0));
    let made = [
        ("create", fs::write(test_bed.at("d/file"), "x")),
        ("mkdir", fs::create_dir(test_bed.at("d/dir"))),
        ("symlink", symlink("x", test_bed.at("d/link"))),
    ];
    let refused: Vec<String> = made
        .iter()
        .filter_map(|(what, answer)| answer.as_ref().err().map(|e| format!("{what} {}", errno(e))))
        .collect();
    if refused.is_empty() { good("file, directory and link are made") } else { bad(refused.join(", ")) }
}

pub(crate) fn a_sparse_file(test_bed: &mut TestBed) -> Result<Reported> {
    nearly_full(test_bed)?;
    let file = writer(test_bed.at("sparse"))?;
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

pub(crate) fn a_linked_file(test_bed: &mut TestBed) -> Result<Reported> {
    nearly_full(test_bed)?;
    let file = writer(test_bed.at("film"))?;
    file.write_all_at(&mib(0), 0)?;
    if let Err(error) = fs::hard_link(test_bed.at("film"), test_bed.at("twin")) {
        return bad(format!("link: {}", errno(&error)));
    }
    let wrote = write_mibs(&file, 1, 100);
    drop(file);
    let count = 1 + wrote.as_ref().map_or_else(|(done, _)| *done, |()| 99);
    let wrong = ["film", "twin"].map(|name| wrong_mibs(test_bed.at(name), count).unwrap_or(count));
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
