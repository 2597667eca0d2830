//! Real programs: seconds that find(1), ls(1) and git(1) take in a tree.
//!
//! The listed directories are made directly on the branches and are new in each round. The repository has one file per
//! name in a hundred directories; its clone, status and removal are one figure each.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use fsstack_bench::turns;
use fsstack_lab::shell::{command, which};

use crate::metadata;
use crate::report::{Sense, Table};
use crate::test_bed::{Contender, Server, Standing, TestBed};

/// Amount of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreesAmount {
    pub(crate) rounds: usize,
    /// Number of files of the repository.
    pub(crate) files: usize,
    /// Number of entries of the listed directory.
    pub(crate) listed: usize,
}

/// Time limit of a program.
const LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn run(test_bed: &TestBed, amount: TreesAmount, tables: &mut Vec<Table>) -> Result<()> {
    let mut table = Table::new("Seconds of real programs", Sense::LessIsBetter);
    table.compare("dev", &["mergerfs", "mhddfs"], "dev to the better rival");
    table.compare("ring", &["mergerfs", "mhddfs"], "ring to it");
    let here = metadata::contenders().into_iter();
    let here: Vec<_> = here.filter(|of| of.missing().is_none() && of.server != Server::Null).collect();
    let standing = test_bed.stand_all(&here)?;
    let source = tempfile::tempdir_in("/dev/shm")?;
    let git = which("git").is_some();
    if git {
        repository(source.path(), amount.files)?;
    } else {
        table.notes.push("git is not installed: not measured".into());
    }
    for round in 0..amount.rounds {
        for (of, at) in turns::of(&standing, round) {
            let mut timed = |label: &str, line: &[&str]| {
                took(line).map(|seconds| table.put(label, of.name, seconds)).context(of.name)
            };
            for (program, label) in [("find", "find -printf '%s %n'"), ("ls", "ls -l")] {
                let dir = listed(of, at, &format!("{program}-{round}"), amount.listed)?;
                let dir = dir.to_str().context("a path of ours")?;
                match program {
                    "find" => timed(label, &["find", dir, "-printf", "%s %n\\n"])?,
                    _ => timed(label, &["ls", "-l", dir])?,
                }
            }
            if git {
                let tree = at.path().join(format!("tree-{round}"));
                let (tree, from) =
                    (tree.to_str().context("a path")?, source.path().to_str().context("a path")?);
                timed("git clone", &["git", "clone", "-q", "--no-hardlinks", from, tree])?;
                timed("git status", &["git", "-C", tree, "status", "--short"])?;
                timed("rm -rf", &["rm", "-rf", tree])?;
            }
        }
    }
    table.notes.extend(standing.iter().map(|(of, _)| of.described()));
    tables.push(table);
    standing.into_iter().try_for_each(|(_, at)| at.fall())
}

/// Makes a directory of `count` empty files, half of them on each branch, that the contender has not seen.
fn listed(of: &Contender, at: &Standing, name: &str, count: usize) -> Result<PathBuf> {
    let alone = of.server == Server::Branch;
    let shares = if alone { 1 } else { at.parts().len() };
    for (n, part) in at.parts().iter().take(shares).enumerate() {
        let dir = part.join(name);
        fs::create_dir(&dir)?;
        (n..count)
            .step_by(shares)
            .try_for_each(|i| fs::File::create(dir.join(format!("entry-{i}"))).map(drop))?;
    }
    rustix::fs::sync();
    Ok(at.path().join(name))
}

fn repository(at: &Path, files: usize) -> Result<()> {
    for i in 0..files {
        let dir = at.join(format!("d{}", i % 100));
        fs::create_dir_all(&dir)?;
        fs::write(dir.join(format!("f{i}")), format!("the file number {i}\n"))?;
    }
    let script =
        "git init -q . && git add . && git -c user.name=b -c user.email=b@example.org commit -qm all";
    command("sh").args(["-c", script]).dir(at).limit(LIMIT).run().map(drop)
}

/// Seconds, timed by the shell: the lab checks for a command's end only every few milliseconds.
fn took(line: &[&str]) -> Result<f64> {
    let script = r#"began=$(date +%s%N); "$@" > /dev/null && echo $(($(date +%s%N) - began))"#;
    let output = command("sh").args(["-c", script, "sh"]).args(line).limit(LIMIT).run()?;
    let nanoseconds: f64 = output.stdout.trim().parse().context("no time in the output")?;
    Ok(nanoseconds / 1e9)
}
