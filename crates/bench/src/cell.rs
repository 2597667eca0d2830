//! A cell: one case on one target in one round, laid out anew, in as many passes as it takes to last.
//!
//! Passes use directories of their own, so that none finds what another left in a cache, and files get other places on the
//! target's disks: the interval over the rounds includes the place. Only the passes themselves are in the time.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};

use crate::cache;
use crate::measure::{Bench, Measured};
use crate::serving::{Layer, serving};
use crate::stack::Stack;
use crate::target::remove_all;
use crate::workload::{Cache, Engine, Workload};

/// Most passes of a cell.
const MOST_PASSES: u32 = 256;

/// Passes are estimated with so much to spare.
const MARGIN: f64 = 1.1;

/// One cell.
#[derive(Debug)]
pub(crate) struct Cell<'a> {
    pub(crate) bench: Bench<'a>,
    pub(crate) passes: u32,
    /// The file systems that the target is stacked on.
    pub(crate) layers: &'a [Layer],
}

/// Number of passes that last `wanted` seconds, by one that took `took`; with `free` bytes for what is laid out.
pub(crate) fn passes(workload: &Workload, wanted: f64, took: f64, free: u64) -> u32 {
    let mut passes = 1;
    let most = match workload.footprint() {
        // A quarter of the room: a volume's bricks need not share a disk evenly.
        bytes if workload.is_laid_out() && 0 < bytes => free / 4 / bytes,
        _ => u64::from(MOST_PASSES),
    };
    while f64::from(passes) * took < wanted * MARGIN && u64::from(passes) < most && passes < MOST_PASSES {
        passes += 1;
    }
    if workload.is_kept() { 1 } else { passes }
}

impl Cell<'_> {
    /// Lays out, measures, and removes the files again, whatever happens.
    pub(crate) fn measured(&self) -> Result<Measured> {
        let Bench { workload, work, .. } = self.bench;
        if !workload.uses_dirs() {
            return self.in_dirs(&[work.to_owned()]);
        }
        let dirs: Vec<PathBuf> = (0..self.passes).map(|n| work.join(format!("pass-{n}"))).collect();
        let measured = self.in_dirs(&dirs);
        let tidied = self.tidied(&dirs).context("removing files");
        // The first failure is reported.
        measured.and_then(|measured| tidied.map(|()| measured))
    }

    fn in_dirs(&self, dirs: &[PathBuf]) -> Result<Measured> {
        let workload = self.bench.workload;
        let uses_dirs = workload.uses_dirs();
        for dir in dirs.iter().filter(|_| uses_dirs) {
            fs::create_dir(dir).with_context(|| format!("making {}", dir.display()))?;
            self.bench.within(dir).lay_out()?;
        }
        if workload.is_laid_out() {
            self.quiet()?;
        }
        let cold = match workload.cache {
            Cache::Cold if workload.engine.has_files() => {
                Some(self.emptied(dirs).context("emptying caches")?)
            }
            _ => None,
        };
        let server = self.bench.export.and_then(|(export, _)| export.pid());
        let stack = Stack::of(serving(self.bench.work, server));
        let mut all: Option<Measured> = None;
        for (n, dir) in dirs.iter().enumerate() {
            if self.bench.stop.load(Ordering::Relaxed) && 0 < n {
                break;
            }
            let one = self.bench.within(dir).run(&stack)?;
            all = Some(match all {
                None => one,
                Some(all) => all.and(one)?,
            });
            if 1 < dirs.len() && !workload.is_laid_out() {
                // Space for the next pass.
                remove_all(dir).context("removing files")?;
            }
        }
        let mut measured = all.context("no pass was measured")?;
        measured.cold = cold.map(|cold| cold.answered(&measured.window.used));
        Ok(measured)
    }

    fn emptied(&self, dirs: &[PathBuf]) -> Result<cache::Cold> {
        if let (Engine::Nfs, Some((export, _))) = (self.bench.workload.engine, self.bench.export) {
            export.restart()?;
        }
        let mut files = Vec::new();
        for dir in dirs.iter().filter(|_| self.bench.workload.keeps_files()) {
            for entry in fs::read_dir(dir)? {
                files.push(fs::File::open(entry?.path())?);
            }
        }
        Ok(cache::empty(&files, self.layers)?)
    }

    /// Removes what the passes made, and waits until disks are quiet: the next target does not pay for this one.
    fn tidied(&self, dirs: &[PathBuf]) -> std::io::Result<()> {
        dirs.iter().filter(|dir| dir.exists()).try_for_each(|dir| remove_all(dir))?;
        self.quiet()
    }

    fn quiet(&self) -> std::io::Result<()> {
        cache::quiet(self.layers)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::path::Path;
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, Mutex};

    use fsstack_lab::cleanup::{self, Entry};
    use fsstack_lab::ganesha::{Ganesha, ROOT};
    use fsstack_lab::needs;

    use super::*;
    use crate::plan::Export;
    use crate::workload::{Bytes, Op};

    fn cell<'a>(workload: &'a Workload, work: &'a Path, stop: &'a AtomicBool, passes: u32) -> Cell<'a> {
        Cell {
            bench: Bench { workload, work, seed: 1, stop, export: None, copied: None },
            passes,
            layers: &[],
        }
    }

    #[test]
    fn passes_add_up_and_leave_nothing() {
        let (work, stop) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
        let (size, block) = (Bytes(64 << 10), Bytes(4096));
        for op in [Op::Write, Op::Read, Op::Rewrite] {
            let workload = Workload { op, file_size: size, block, ..Workload::default() };
            let measured = cell(&workload, work.path(), &stop, 3).measured().unwrap();
            assert_eq!((measured.passes, measured.bytes, measured.ops), (3, 3 * size.0, 48));
            assert_eq!(measured.latencies.len(), 48);
            assert_eq!(fs::read_dir(work.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_cell_has_as_many_passes_as_it_takes_and_room_allows() {
        let write = Workload { file_size: Bytes(1 << 20), ..Workload::default() };
        assert_eq!(passes(&write, 2.0, 0.5, 0), 5);
        assert_eq!(passes(&write, 2.0, 3.0, 0), 1);
        assert_eq!(passes(&write, 2.0, 1e-9, 0), MOST_PASSES);
        let read = Workload { op: Op::Read, ..write };
        assert_eq!(passes(&read, 2.0, 0.5, 12 << 20), 3, "files of all passes lie there at once");
        assert_eq!(passes(&read, 2.0, 0.5, 0), 1);
        assert_eq!(passes(&Workload { engine: Engine::Nfs, ..read }, 2.0, 0.5, 1 << 40), 1);
    }

    #[test]
    fn an_nfs_server_starts_anew_before_a_cold_cell_only() {
        needs!(root());
        if let Err(skip) = Ganesha::able() {
            return skip.announce();
        }
        let home = cleanup::fresh("bench-cold").unwrap();
        let _home = Entry::dir(&home).unwrap();
        let shown = home.join("shown");
        let _shown = Entry::dir(&shown).unwrap();
        let server = Arc::new(Mutex::new(Ganesha::serve(&shown, &home.join("server"))));
        let address = server.lock().unwrap().address();
        let export = Export {
            target: "t".to_owned(),
            server: address,
            network: None,
            owner: Arc::downgrade(&server),
            root: ROOT.into(),
        };
        let (stop, (size, block)) = (AtomicBool::new(false), (Bytes(1 << 20), Bytes(64 << 10)));
        let warm =
            Workload { engine: Engine::Nfs, op: Op::Read, file_size: size, block, ..Workload::default() };
        let cold = Workload { cache: Cache::Cold, ..warm.clone() };
        for (workload, starts_anew) in [(&warm, false), (&cold, true), (&cold, true)] {
            let mut cell = cell(workload, &shown, &stop, 1);
            cell.bench.export = Some((&export, &shown));
            cell.bench.lay_out().unwrap();
            let before = export.pid().unwrap();
            assert_eq!(cell.measured().unwrap().bytes, size.0);
            assert_eq!(export.pid().unwrap() != before, starts_anew);
        }
    }

    #[test]
    fn the_first_failure_is_reported() {
        let (gone, stop) = (Path::new("/no/such/place"), AtomicBool::new(false));
        let small = Workload { file_size: Bytes(1 << 20), ..Workload::default() };
        let failure = format!("{:#}", cell(&small, gone, &stop, 1).measured().unwrap_err());
        assert!(failure.contains("No such file") && !failure.contains("removing files"), "{failure}");
    }

    #[test]
    fn a_round_that_ends_half_way_through_its_layout_leaves_nothing() {
        let (work, stop) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
        // The second pass cannot have its directory.
        fs::write(work.path().join("pass-1"), "in the way").unwrap();
        let names = Workload {
            engine: Engine::Metadata,
            op: Op::Stat,
            tasks: NonZeroU32::MIN.saturating_add(1),
            ..Workload::default()
        };
        let failure = format!("{:#}", cell(&names, work.path(), &stop, 2).measured().unwrap_err());
        assert!(failure.starts_with("making "), "{failure}");
        assert!(!work.path().join("pass-0").exists());
    }
}
