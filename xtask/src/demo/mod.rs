//! `cargo xtask demo`: a user's first minutes, on this machine, with real files.

mod measure;
mod tree;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, Branch, MiB, Pool, cleanup, mounts, needs};

use crate::{exec, install};

/// Name of the demo's entries in the cleanup journal, and of its directory.
const NAME: &str = "demo";

/// Placement policy: random, weighted by free space, so that all three branches get files.
const PLACEMENT: &str = "create=pfrd";

/// Sizes of its branches, MiB.
const SIZES: [u64; 3] = [360, 480, 600];

/// Arguments of `cargo xtask demo`.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Take the standing demo down.
    #[arg(long)]
    down: bool,
    /// Sizes of the branches in MiB, each at least 300.
    #[arg(long, value_delimiter = ',', default_values_t = SIZES, value_name = "MIB", value_parser = clap::value_parser!(u64).range(300..))]
    size: Vec<u64>,
}

impl Demo {
    /// Starts or removes the demo.
    pub(crate) fn run(self) -> Result<()> {
        able()?;
        let home = cleanup::state_dir()?.join(NAME);
        let target = home.join("pool");
        if self.down {
            let things = lab::take_down(NAME)?;
            println!("{}", if things == 0 { "no demo is up" } else { "the demo is down" });
            return Ok(());
        }
        let answers = || command("stat").arg("-f").arg(&target).limit(Duration::from_secs(3)).run().is_ok();
        if mounts::at(&target)?.is_some() && answers() {
            println!("the demo is up already");
            farewell(&target.display().to_string());
            return Ok(());
        }
        // Leftovers of a demo whose daemon died.
        lab::take_down(NAME)?;
        install::packages(install::TO_MOUNT)?;
        let helper = exec::build_helper("release")?;
        let began = Instant::now();
        let pool = self.show(&home, &helper.display().to_string())?;
        let path = pool.path().display().to_string();
        pool.keep(NAME)?;
        println!("\ndone in {:.1} s after the build", began.elapsed().as_secs_f64());
        farewell(&path);
        Ok(())
    }

    /// Starts and removes it in turn, and checks that nothing is left.
    pub(crate) fn up_and_down() -> Result<()> {
        let home = cleanup::state_dir()?.join(NAME);
        ensure!(mounts::at(&home.join("pool"))?.is_none(), "a demo is up: cargo xtask demo --down");
        let demo = |down| Self { down, size: SIZES.to_vec() };
        demo(false).run()?;
        let stands = mounts::at(&home.join("pool"))?.is_some();
        demo(true).run()?;
        ensure!(stands, "the demo did not stay mounted");
        ensure!(!home.exists() && lab::take_down(NAME)? == 0, "{} is left of the demo", home.display());
        Ok(())
    }

    fn show(&self, home: &std::path::Path, helper: &str) -> Result<Pool> {
        let describe = lab::pool().home(home).option(PLACEMENT).helper(helper).preallocated();
        let names = ('a'..='z').map(String::from);
        let described =
            names.zip(&self.size).fold(describe, |pool, (name, &size)| pool.xfs_branch(&name, MiB(size)));
        let mut pool = described.build()?;
        println!("+ {}", pool.mount_command()?.line());
        pool.try_remount_with(&[PLACEMENT])??;

        let copied = tree::copy(&tree::registry()?, &pool.at("crates"))?;
        println!("\ncopied {copied}");
        println!("\n{:<8} {:>10} {:>10} {:>8} {:>10}", "branch", "size MiB", "free MiB", "files", "took MiB");
        for branch in pool.branches() {
            share(branch)?;
        }
        let checked = copied.verify(&pool.at("crates"))?;
        println!("\nread back: {checked} files, all checksums right");

        measure::table(&mut pool, PLACEMENT)?;
        pool.try_remount_with(&[PLACEMENT])??;
        ensure!(pool.at("crates").is_dir(), "the pool is back without its tree");
        Ok(pool)
    }
}

/// Checks all requirements for mounting at once.
fn able() -> Result<()> {
    let missing: Vec<String> = [needs::root(), needs::fuse(), needs::loop_devices()]
        .into_iter()
        .filter_map(Result::err)
        .map(|s| s.to_string())
        .collect();
    ensure!(missing.is_empty(), "the demo {}", missing.join(", "));
    Ok(())
}

fn share(branch: &Branch) -> Result<()> {
    let (files, bytes) = tree::weigh(branch.path()).with_context(|| branch.name().to_owned())?;
    let mib = |bytes: u64| bytes >> 20;
    let (size, free) = (mib(branch.size()), mib(branch.free()));
    println!("{:<8} {size:>10} {free:>10} {files:>8} {:>10}", branch.name(), mib(bytes));
    Ok(())
}

fn farewell(path: &str) {
    println!("the pool is mounted at {path}");
    println!("take it down with: cargo xtask demo --down");
}
