//! One measurement: prepares files and caches, releases the tasks together, and records the resources used.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use rustix::fs::{Advice, fadvise};

use crate::buffers::Aligned;
use crate::cache::Cold;
use crate::cell::Cell;
use crate::copying::Copier;
use crate::gate::Gate;
use crate::plan::Export;
use crate::serving::Layer;
use crate::stack::{Stack, Used, Window};
use crate::task::{Done, Role, file_of, histogram};
use crate::workload::{Bytes, Cache, Engine, Files, Workload};
use crate::{metadata, stack, task};

/// Block size for laying out files.
const LAYOUT_BLOCK: u64 = 1 << 20;

/// One round of one case on one target.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    /// From the first start to the last end.
    pub(crate) seconds: f64,
    /// Between the first task's start and the last one's; `None` where these are not known.
    pub(crate) start_skew_seconds: Option<f64>,
    pub(crate) latencies: Histogram<u64>,
    pub(crate) window: Window,
    /// How often the case was done.
    pub(crate) passes: u32,
    /// How far caches were emptied, if asked.
    pub(crate) cold: Option<Cold>,
}

/// A case on a target.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) workload: &'a Workload,
    /// The directory to work in.
    pub(crate) work: &'a Path,
    pub(crate) seed: u64,
    pub(crate) stop: &'a AtomicBool,
    /// The target's NFS export, and its directory.
    pub(crate) export: Option<(&'a Export, &'a Path)>,
    /// For the engine copy: source and program.
    pub(crate) copied: Option<(&'a Path, Copier)>,
}

impl Bench<'_> {
    /// Makes what the case needs: names, or files to be read, which are read once for a warm case.
    pub(crate) fn lay_out(&self) -> Result<()> {
        if self.workload.engine == Engine::Metadata {
            metadata::lay_out(self.workload, self.work, self.stop).context("laying out names")?;
        }
        if !self.workload.keeps_files() {
            return Ok(());
        }
        let files = match self.workload.files {
            Files::PerTask => self.workload.tasks.get(),
            Files::Shared => 1,
        };
        for number in 0..files {
            self.lay_out_file(number, self.workload.file_len()).context("laying out files")?;
        }
        Ok(())
    }

    /// Writes the source of the engine copy.
    pub(crate) fn lay_out_source(&self) -> Result<()> {
        let write = |number| self.lay_out_file(number, self.workload.file_len());
        (0..self.workload.tasks.get()).try_for_each(write).context("laying out what is copied")
    }

    fn lay_out_file(&self, number: u32, size: u64) -> io::Result<()> {
        let block = usize::try_from(LAYOUT_BLOCK).map_err(io::Error::other)?;
        let mut source = Aligned::source(self.workload.data, block, self.seed ^ u64::from(number));
        let path = file_of(self.workload, number, self.work);
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        let step = |offset: u64, len: u64| usize::try_from(len.min(size - offset)).map_err(io::Error::other);
        let offsets = || (0..size).step_by(block).take_while(|_| !self.stop.load(Ordering::Relaxed));
        for offset in offsets() {
            let from = usize::try_from(offset % source.bytes().len() as u64).map_err(io::Error::other)?;
            let len = step(offset, LAYOUT_BLOCK)?;
            file.write_all_at(&source.bytes()[from..from + len], offset)?;
        }
        file.sync_all()?;
        if self.workload.direct {
            // Else each O_DIRECT write would first have to throw a page out of the cache.
            fadvise(&file, 0, None, Advice::DontNeed)?;
        } else if self.workload.cache == Cache::Warm {
            for offset in offsets() {
                file.read_exact_at(&mut source.bytes_mut()[..step(offset, LAYOUT_BLOCK)?], offset)?;
            }
        }
        Ok(())
    }

    /// A cell of so many passes.
    pub(crate) fn cell<'b>(&'b self, passes: u32, layers: &'b [Layer]) -> Cell<'b> {
        Cell { bench: self.within(self.work), passes, layers }
    }

    /// The same in another directory.
    pub(crate) fn within<'b>(&'b self, work: &'b Path) -> Bench<'b> {
        let Bench { workload, seed, stop, export, copied, .. } = *self;
        Bench { workload, work, seed, stop, export, copied }
    }

    /// Measures one pass.
    pub(crate) fn run(&self, stack: &Stack) -> Result<Measured> {
        match self.copied {
            Some((source, copier)) => self.copy(source, copier, stack),
            None => self.released(stack),
        }
    }

    /// A program copies everything, as one operation.
    fn copy(&self, source: &Path, copier: Copier, stack: &Stack) -> Result<Measured> {
        let (before, children, began) = (stack.sample_before(), stack::children_seconds(), Instant::now());
        copier.copy(source, self.work)?;
        let ended = Instant::now();
        let mut window = before.until(&stack.sample());
        window.used.push(Used {
            program: copier.program().to_owned(),
            processes: 1,
            cpu_seconds: stack::children_seconds() - children,
            voluntary_switches: 0,
            involuntary_switches: 0,
        });
        let mut latencies = histogram()?;
        task::note(&mut latencies, ended.duration_since(began));
        let done = Done { began, ended, ops: 1, bytes: self.workload.footprint(), latencies };
        // The program starts its work itself.
        Ok(Measured { start_skew_seconds: None, ..gather(vec![done], window)? })
    }

    /// Removes files that were kept over the rounds: emptied first, as a server keeps removed files open for a while.
    pub(crate) fn clear(&self) -> Result<()> {
        for entry in fs::read_dir(self.work).context("listing files")? {
            let path = entry?.path();
            File::options()
                .write(true)
                .open(&path)
                .and_then(|file| file.set_len(0))
                .context("emptying files")?;
            fs::remove_file(path).context("removing files")?;
        }
        Ok(())
    }

    fn released(&self, stack: &Stack) -> Result<Measured> {
        let gate = Gate::new(self.workload.tasks.get());
        let role = |number| Role {
            workload: self.workload,
            number,
            seed: self.seed,
            work: self.work,
            gate: &gate,
            stop: self.stop,
            export: self.export,
        };
        thread::scope(|scope| {
            let mut tasks = Vec::new();
            for number in 0..self.workload.tasks.get() {
                let role = role(number);
                let body = move || match role.workload.engine {
                    Engine::Metadata => metadata::run(&role),
                    _ => task::Role::run(&role),
                };
                match thread::Builder::new().name(format!("task-{number}")).spawn_scoped(scope, body) {
                    Ok(task) => tasks.push(task),
                    Err(e) => {
                        // Tasks that wait already must not wait for ever.
                        for _ in number..self.workload.tasks.get() {
                            scope.spawn(|| gate.enter(false));
                        }
                        gate.wait_ready();
                        gate.open();
                        gate.close();
                        return Err(e).with_context(|| format!("starting task {number}"));
                    }
                }
            }
            gate.wait_ready();
            let before = stack.sample_before();
            gate.open();
            gate.wait_finished();
            let after = stack.sample();
            gate.close();
            let mut done = Vec::new();
            let mut failed: Option<io::Error> = None;
            for task in tasks {
                match task.join() {
                    Ok(Ok(Some(one))) => done.push(one),
                    Ok(Ok(None)) => {}
                    Ok(Err(e)) => failed = failed.or(Some(e)),
                    Err(_) => bail!("a task panicked"),
                }
            }
            if let Some(e) = failed {
                return Err(e.into());
            }
            gather(done, before.until(&after))
        })
    }
}

fn gather(done: Vec<Done>, window: Window) -> Result<Measured> {
    let mut latencies = histogram()?;
    for one in &done {
        latencies.add(&one.latencies)?;
    }
    let first = done.iter().map(|d| d.began).min().context("no task began")?;
    let last_start = done.iter().map(|d| d.began).max().unwrap_or(first);
    let last = done.iter().map(|d| d.ended).max().unwrap_or(first);
    Ok(Measured {
        ops: done.iter().map(|d| d.ops).sum(),
        bytes: done.iter().map(|d| d.bytes).sum(),
        seconds: last.duration_since(first).as_secs_f64(),
        start_skew_seconds: Some(last_start.duration_since(first).as_secs_f64()),
        latencies,
        window,
        passes: 1,
        cold: None,
    })
}

impl Measured {
    /// Two passes as one.
    pub(crate) fn and(mut self, other: Self) -> Result<Self> {
        self.ops += other.ops;
        self.bytes += other.bytes;
        self.seconds += other.seconds;
        let skews = self.start_skew_seconds.zip(other.start_skew_seconds);
        self.start_skew_seconds = skews.map(|(one, other)| one.max(other));
        self.latencies.add(&other.latencies)?;
        self.window = self.window.and(other.window);
        self.passes += other.passes;
        Ok(self)
    }

    /// Bytes or operations a second, as `unit` says.
    pub(crate) fn rate(&self, unit: &str) -> f64 {
        let amount = if unit == "B/s" { self.bytes } else { self.ops };
        amount as f64 / self.seconds.max(1e-9)
    }
}

/// Space needed on one file system if all targets are on it: files that are kept over the rounds exist on every target at
/// once, those of one cell's passes on one.
pub(crate) fn need(workload: &Workload, targets: usize) -> Bytes {
    let copies = if workload.is_kept() { targets.max(1) } else { 1 };
    Bytes(workload.footprint().saturating_mul(copies as u64))
}
