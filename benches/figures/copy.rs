//! First load of a pool: `fsstack copy`, cp(1) into the pool and onto the branch, and rsync(1) into the rivals, with
//! many small files and one large one.
//!
//! `fsstack copy` returns when everything is on disk; the others leave data in the page cache. So they are measured
//! with and without a sync of the branches' file system.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fsstack_bench::turns;
use fsstack_lab::cleanup::{self, Entry};
use fsstack_lab::daemon;
use fsstack_lab::needs;
use fsstack_lab::rival::Union;
use fsstack_lab::shell::command;

use crate::report::{Sense, Table};
use crate::test_bed::{Contender, Server, TestBed};

const SMALL: usize = 4096;
const A_DIRECTORY: usize = 200;
const POOL: &[&str] = &["create=mfs", "minfreespace=16M"];

/// Amount of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyAmount {
    pub(crate) rounds: usize,
    /// Number of small files.
    pub(crate) files: usize,
    /// Size of the large file in MiB.
    pub(crate) mib: u64,
}

/// A method of copying.
struct CopyWay {
    name: &'static str,
    server: Server,
    options: &'static [&'static str],
    /// Shell script that copies `$SRC` into `$TO`; `$FSSTACK` is the command.
    script: &'static str,
}

const WAYS: &[CopyWay] = &[
    CopyWay {
        name: "fsstack-copy",
        server: Server::Fsstack,
        options: POOL,
        script: r#""$FSSTACK" copy "$SRC" "$TO""#,
    },
    CopyWay { name: "cp-pool", server: Server::Fsstack, options: POOL, script: r#"cp -r "$SRC" "$TO""# },
    CopyWay {
        name: "cp-sync-pool",
        server: Server::Fsstack,
        options: POOL,
        script: r#"cp -r "$SRC" "$TO"; sync -f "$PART""#,
    },
    CopyWay { name: "cp-branch", server: Server::Branch, options: &[], script: r#"cp -r "$SRC" "$TO""# },
    CopyWay {
        name: "cp-sync-branch",
        server: Server::Branch,
        options: &[],
        script: r#"cp -r "$SRC" "$TO"; sync -f "$PART""#,
    },
    CopyWay {
        name: "rsync-mergerfs",
        server: Server::Rival(Union::Mergerfs),
        options: &["allow_other", "category.create=mfs", "minfreespace=16M"],
        script: r#"rsync -a "$SRC" "$TO""#,
    },
    CopyWay {
        name: "rsync-mhddfs",
        server: Server::Rival(Union::Mhddfs),
        options: &["allow_other", "mlimit=100M"],
        script: r#"rsync -a "$SRC" "$TO""#,
    },
];

pub(crate) fn run(test_bed: &TestBed, amount: CopyAmount, tables: &mut Vec<Table>) -> Result<()> {
    let home = cleanup::fresh("figures-copy")?;
    let _home = Entry::dir(&home)?;
    let small = home.join("small");
    lay_out_small(&small, amount.files)?;
    let large = home.join("large");
    lay_out_large(&large, amount.mib)?;
    command("sync").arg("-f").arg(&home).run()?;
    let fsstack = daemon::helper()?.with_file_name("fsstack");
    let mut files =
        Table::new(&format!("{} files of 4 KiB, files a second", amount.files), Sense::MoreIsBetter);
    files.compare("fsstack-copy", &["cp-pool"], "to cp-pool");
    files.compare("fsstack-copy", &["rsync-mergerfs", "rsync-mhddfs"], "to rsync");
    let mut bytes = Table::new(&format!("A file of {} MiB, MiB a second", amount.mib), Sense::MoreIsBetter);
    bytes.compare("fsstack-copy", &["cp-branch"], "to cp-branch");
    bytes.compare("fsstack-copy", &["cp-sync-branch"], "to cp-sync-branch");
    for round in 0..amount.rounds {
        for way in turns::of(WAYS, round) {
            if way.script.starts_with("rsync") && needs::program("rsync").is_err() {
                continue;
            }
            let contender = Contender::new(way.name, way.server, &[way.options]);
            if contender.missing().is_some() {
                continue;
            }
            let measured = [
                (&small, &mut files, "files", u32::try_from(amount.files)?),
                (&large, &mut bytes, "bytes", u32::try_from(amount.mib)?),
            ];
            for (source, table, row, count) in measured {
                let at = test_bed.stand(&contender, 2)?;
                let part = at.parts().first().context("no branch")?.clone();
                let script = format!(
                    r#"began=$(date +%s%N); {}; echo $(($(date +%s%N) - began)) > "$TOOK""#,
                    way.script
                );
                let took = home.join("took");
                let copying = command("sh").args(["-euc", &script]).env("SRC", source).env("TO", at.path());
                let copying = copying.env("PART", &part).env("FSSTACK", &fsstack).env("TOOK", &took);
                copying.limit(Duration::from_secs(300)).run()?;
                let nanos: f64 = fs::read_to_string(&took)?.trim().parse()?;
                table.put(row, way.name, f64::from(count) * 1e9 / nanos);
                ensure!(at.path().join(source.file_name().context("a name")?).exists(), "nothing was copied");
                for part in at.parts() {
                    fs::remove_dir_all(part)?;
                    fs::create_dir(part)?;
                }
                at.fall()?;
                // Written data is on disk before the next one begins.
                command("sync").arg("-f").arg(&part).run()?;
            }
        }
    }
    tables.push(files);
    tables.push(bytes);
    Ok(())
}

fn lay_out_small(at: &Path, files: usize) -> Result<()> {
    for number in 0..files {
        let dir = at.join(format!("d{}", number / A_DIRECTORY));
        if number % A_DIRECTORY == 0 {
            fs::create_dir_all(&dir)?;
        }
        let byte = u8::try_from(number % 251)?;
        File::create(dir.join(number.to_string()))?.write_all(&[byte; SMALL])?;
    }
    Ok(())
}

fn lay_out_large(at: &Path, mib: u64) -> Result<()> {
    fs::create_dir(at)?;
    let file = File::create(at.join("film"))?;
    let piece: Vec<u8> = (0..1_u32 << 20).map(|at| u8::try_from(at % 253).unwrap_or(0)).collect();
    (0..mib).try_for_each(|n| file.write_all_at(&piece, n << 20))?;
    Ok(file.sync_all()?)
}
