//! Workload of a target: engine, operation, sizes, order, caching.

use std::fmt;
use std::num::NonZeroU32;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use fsstack_pool::Size;
use serde::{Deserialize, Deserializer, Serialize};

use crate::bonnie;

/// A number of bytes; in plans also written with a unit (`"4K"`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Bytes(pub(crate) u64);

impl std::str::FromStr for Bytes {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        text.parse::<Size>().map(|size| Self(size.0)).map_err(|e| e.to_string())
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Size(self.0).approx().fmt(f)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(from)? {
            Written::Number(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// Declares an enum whose values have the same names on the command line, in plans and in results.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$what:meta])* $word:ident = $text:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
        pub(crate) enum $name { $($(#[$what])* #[serde(rename = $text)] #[value(name = $text)] $word),+ }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$word => $text),+ })
            }
        }
    };
}

words! {
    /// Engine that makes the calls.
    Engine {
        /// io_uring, with a queue.
        IoUring = "io_uring",
        /// pread(2) and pwrite(2), one at a time.
        Psync = "psync",
        /// Copies to and from a shared memory map.
        Mmap = "mmap",
        /// Calls on names: create, stat, open, rename, readdir, unlink, mkdir, rmdir.
        Metadata = "metadata",
        /// Reads and writes by NFS without the kernel's client; of targets that the lab exports.
        Nfs = "nfs",
        /// Files that lie elsewhere, one for each task, are copied into the target by cp, or by `fsstack copy`.
        Copy = "copy",
        /// bonnie++ itself, a process for each task: write, rewrite, read (random: its seeks), create, stat, unlink.
        Bonnie = "bonnie++",
        /// Nothing at all: measures the harness.
        Null = "null",
    }
}

words! {
    /// Operation to measure.
    Op {
        /// Fresh files are written.
        Write = "write",
        /// Files that lie there are read.
        Read = "read",
        /// Files that lie there are written over.
        Rewrite = "rewrite",
        /// An empty file is made and closed.
        Create = "create",
        /// A file is asked for its attributes.
        Stat = "stat",
        /// A file is opened and closed.
        Open = "open",
        /// A file gets another name in the same directory.
        Rename = "rename",
        /// A directory is listed; an entry is an operation.
        Readdir = "readdir",
        /// A file is removed.
        Unlink = "unlink",
        /// A directory is made.
        Mkdir = "mkdir",
        /// An empty directory is removed.
        Rmdir = "rmdir",
        /// A file is made, asked for its attributes and removed; the three are one operation.
        FileCycle = "file-cycle",
        /// The same with a directory.
        DirCycle = "dir-cycle",
    }
}

words! {
    /// The order of the blocks.
    Pattern {
        /// From the beginning to the end.
        Sequential = "sequential",
        /// Each block once, in a random order that the seed decides.
        Random = "random",
        /// Every n-th block, then those between.
        Strided = "strided",
    }
}

words! {
    /// How files belong to tasks.
    Files {
        /// Each task has a file (metadata: a directory) of its own.
        PerTask = "per-task",
        /// All tasks use one, in ranges that do not meet (metadata: under names that do not).
        Shared = "shared",
    }
}

words! {
    /// When written bytes are forced to the disk.
    Sync {
        /// Never: dd without conv=fsync.
        Never = "never",
        /// Once, after the last write, within the time measured.
        End = "end",
        /// After every write.
        Each = "each",
    }
}

words! {
    /// Data to write.
    Data {
        /// Zeros: says nothing about compression.
        Zeros = "zeros",
        /// Half of each 4 KiB is zeros.
        Compressible = "compressible",
        /// Random bytes.
        Incompressible = "incompressible",
    }
}

words! {
    /// State of the caches when the time begins.
    Cache {
        /// State after the preparation; files to be read were read once.
        Warm = "warm",
        /// Dropped on the whole machine (root), and clients of GlusterFS waited out; the report says how far, for each cell.
        Cold = "cold",
    }
}

words! {
    /// Where the time begins.
    Timed {
        /// Files are open before the start.
        Data = "data",
        /// Open is the first thing measured, as in `time dd`.
        WholeFile = "whole-file",
    }
}

/// One workload. Sizes in bytes; a task moves `file-size` bytes, in one file or in its part of the shared one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct Workload {
    pub(crate) engine: Engine,
    pub(crate) op: Op,
    pub(crate) pattern: Pattern,
    /// In blocks, for `strided`.
    pub(crate) stride: u64,
    pub(crate) block: Bytes,
    pub(crate) file_size: Bytes,
    pub(crate) tasks: NonZeroU32,
    /// Operations in flight for each task; io_uring only.
    pub(crate) depth: NonZeroU32,
    pub(crate) files: Files,
    /// O_DIRECT.
    pub(crate) direct: bool,
    /// Buffers and files are registered with the ring.
    pub(crate) registered: bool,
    pub(crate) sync: Sync,
    pub(crate) data: Data,
    pub(crate) cache: Cache,
    pub(crate) timed: Timed,
    /// Goes round for so many seconds instead of once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seconds: Option<f64>,
    /// Operations a second of each task, with latencies from the time at which each was due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<f64>,
    /// Names for each task; metadata only.
    pub(crate) entries: NonZeroU32,
    /// TCP connections of each task; nfs only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connections: Option<NonZeroU32>,
    /// Bytes a second that a connection carries at most; nfs only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pace: Option<Bytes>,
}

impl Default for Workload {
    fn default() -> Self {
        const ONE: NonZeroU32 = NonZeroU32::MIN;
        Self {
            engine: Engine::Psync,
            op: Op::Write,
            pattern: Pattern::Sequential,
            stride: 17,
            block: Bytes(1 << 20),
            file_size: Bytes(256 << 20),
            tasks: ONE,
            depth: ONE,
            files: Files::PerTask,
            direct: false,
            registered: false,
            sync: Sync::Never,
            data: Data::Incompressible,
            cache: Cache::Warm,
            timed: Timed::Data,
            seconds: None,
            rate: None,
            entries: ONE.saturating_add(499),
            connections: None,
            pace: None,
        }
    }
}

/// Maximum number of tasks, and of operations in flight per task.
pub(crate) const MOST: u32 = 4096;

impl Op {
    /// True if data is moved, not names.
    pub(crate) fn moves_data(self) -> bool {
        matches!(self, Self::Write | Self::Read | Self::Rewrite)
    }

    /// True if it is done on names that exist.
    pub(crate) fn needs_names(self) -> bool {
        matches!(self, Self::Stat | Self::Open | Self::Rename | Self::Readdir | Self::Unlink | Self::Rmdir)
    }
}

impl Engine {
    /// False for the one that does nothing at all.
    pub(crate) fn has_files(self) -> bool {
        self != Self::Null
    }
}

impl Workload {
    /// Unit of its rates.
    pub(crate) fn unit(&self) -> &'static str {
        let bytes = match self.engine {
            Engine::Null => false,
            // Its seeks are counted.
            Engine::Bonnie => self.op.moves_data() && self.pattern == Pattern::Sequential,
            _ => self.op.moves_data(),
        };
        if bytes { "B/s" } else { "op/s" }
    }

    /// Blocks in a task's part.
    pub(crate) fn blocks(&self) -> u64 {
        self.file_size.0 / self.block.0.max(1)
    }

    /// Length of each file at the end.
    pub(crate) fn file_len(&self) -> u64 {
        let parts = match self.files {
            Files::PerTask => 1,
            Files::Shared => u64::from(self.tasks.get()),
        };
        self.file_size.0.saturating_mul(parts)
    }

    /// Maximum bytes on the target during the measurement.
    pub(crate) fn footprint(&self) -> u64 {
        match self.engine {
            Engine::Null => 0,
            // A name may take a block, and a directory one more.
            Engine::Metadata => u64::from(self.tasks.get()) * (u64::from(self.entries.get()) * 4096 + 4096),
            Engine::IoUring | Engine::Psync | Engine::Mmap | Engine::Nfs | Engine::Copy | Engine::Bonnie => {
                u64::from(self.tasks.get()).saturating_mul(self.file_size.0)
            }
        }
    }

    /// True if files with data exist before the start.
    pub(crate) fn keeps_files(&self) -> bool {
        !matches!(self.engine, Engine::Null | Engine::Bonnie) && matches!(self.op, Op::Read | Op::Rewrite)
    }

    /// True if it needs files or names that exist before the start.
    pub(crate) fn is_laid_out(&self) -> bool {
        self.keeps_files() || (self.engine == Engine::Metadata && self.op.needs_names())
    }

    /// True if its files stay over the rounds, as an NFS server may still have removed ones open.
    pub(crate) fn is_kept(&self) -> bool {
        self.engine == Engine::Nfs
    }

    /// True if each pass has a directory of its own.
    pub(crate) fn uses_dirs(&self) -> bool {
        self.engine.has_files() && !self.is_kept()
    }

    fn check_nfs(&self, name: &str) -> Result<()> {
        let nfs = self.engine == Engine::Nfs;
        ensure!(
            !nfs || (matches!(self.op, Op::Read | Op::Write) && !self.direct),
            "{name}: the engine nfs reads and writes fresh files, and leaves O_DIRECT to the server"
        );
        ensure!(
            !nfs || self.op == Op::Read || (self.files == Files::PerTask && self.sync == Sync::End),
            "{name}: by nfs each task writes a file of its own, with `sync = \"end\"`, as closing does"
        );
        ensure!(
            nfs || (self.connections.is_none() && self.pace.is_none()),
            "{name}: only the engine nfs has connections of its own"
        );
        ensure!(
            self.connections.is_none_or(|c| c.get() <= 256) && self.pace.is_none_or(|p| 0 < p.0),
            "{name}: at most 256 connections, and a pace above 0"
        );
        Ok(())
    }

    /// Checks a workload of the engine copy.
    fn check_copy(&self, name: &str) -> Result<()> {
        let own = self.pattern == Pattern::Sequential
            && !self.direct
            && self.files == Files::PerTask
            && self.sync != Sync::Each
            && self.cache == Cache::Warm
            && self.seconds.is_none();
        ensure!(
            self.engine != Engine::Copy || (self.op == Op::Write && own),
            "{name}: the engine copy only writes whole files: leave pattern, direct, files, sync each, cache and seconds away"
        );
        Ok(())
    }

    /// Refuses invalid combinations; `name` is the case's.
    pub(crate) fn check(&self, name: &str) -> Result<()> {
        match self.engine {
            Engine::Bonnie => bonnie::check(self, name),
            _ => self.check_calls(name),
        }
    }

    /// Checks a workload whose calls the bench makes, or that of a copy.
    fn check_calls(&self, name: &str) -> Result<()> {
        let Self { engine, op, block, file_size, .. } = self;
        ensure!(
            (*engine == Engine::Metadata) != op.moves_data(),
            "{name}: the engine {engine} cannot do {op}: use engine {}",
            if op.moves_data() { "psync, io_uring, mmap or null" } else { "metadata" }
        );
        ensure!(
            self.tasks.get() <= MOST && self.depth.get() <= MOST,
            "{name}: at most {MOST} tasks and a queue of {MOST}"
        );
        ensure!(
            self.seconds.is_none_or(|s| s.is_finite() && 0.0 < s),
            "{name}: seconds must be a positive number"
        );
        ensure!(
            self.rate.is_none_or(|rate| (0.01..=1e7).contains(&rate)),
            "{name}: the rate must lie between 0.01 and 10000000 operations a second"
        );
        ensure!(
            self.rate.is_none() || (self.depth.get() == 1 && *op != Op::Readdir && *engine != Engine::Copy),
            "{name}: a rate is for single operations: leave depth, readdir and the engine copy away"
        );
        if *engine == Engine::Metadata {
            ensure!(self.entries.get() <= 1_000_000, "{name}: at most 1000000 entries for each task");
            ensure!(
                self.seconds.is_none(),
                "{name}: a metadata workload ends with its entries: leave `seconds` away"
            );
            return Ok(());
        }
        ensure!(0 < block.0, "{name}: a block of 0 bytes moves nothing");
        ensure!(
            block.0 <= file_size.0 && file_size.0 % block.0 == 0,
            "{name}: the file size ({file_size}) must be a multiple of the block ({block})"
        );
        ensure!(block.0 <= 256 << 20, "{name}: a block of {block} is too large: the most is 256 MiB");
        ensure!(self.blocks() <= u64::from(u32::MAX), "{name}: more than 2^32 blocks a file");
        ensure!(0 < self.stride, "{name}: a stride of 0 blocks");
        ensure!(
            !self.direct || block.0 % 512 == 0,
            "{name}: O_DIRECT needs a block that is a multiple of 512, not {}",
            block.0
        );
        ensure!(!self.direct || *engine != Engine::Mmap, "{name}: mmap cannot be O_DIRECT");
        ensure!(
            self.sync != Sync::Each || *engine != Engine::Mmap,
            "{name}: mmap cannot force each block to the disk: say sync end, or another engine"
        );
        let queue = matches!(engine, Engine::IoUring | Engine::Nfs | Engine::Null);
        ensure!(queue || self.depth.get() == 1, "{name}: only io_uring has a queue: leave `depth` away");
        self.check_nfs(name)?;
        self.check_copy(name)?;
        ensure!(*engine == Engine::IoUring || !self.registered, "{name}: only io_uring registers buffers");
        let memory = block.0.saturating_mul(self.depth.get().into()).saturating_mul(self.tasks.get().into());
        ensure!(
            memory <= 4 << 30,
            "{name}: tasks x depth x block is {}: more than 4 GiB of buffers",
            Bytes(memory)
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut Workload)) -> String {
        let mut workload = Workload::default();
        change(&mut workload);
        workload.check("w").unwrap_err().to_string()
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        assert!(Workload::default().check("w").is_ok());
        assert!(refusal(|w| w.op = Op::Stat).contains("psync cannot do stat: use engine metadata"));
        assert!(refusal(|w| w.engine = Engine::Metadata).contains("metadata cannot do write"));
        assert!(refusal(|w| w.block = Bytes(0)).contains("0 bytes"));
        assert!(refusal(|w| w.block = Bytes(3 << 20)).contains("multiple of the block"));
        assert!(refusal(|w| w.seconds = Some(f64::NAN)).contains("positive"));
        assert!(
            refusal(|w| {
                w.engine = Engine::Copy;
                w.op = Op::Read;
            })
            .contains("copy only writes")
        );
        assert!(refusal(|w| w.rate = Some(0.0)).contains("between 0.01"));
        assert!(
            refusal(|w| {
                w.engine = Engine::IoUring;
                w.depth = w.depth.saturating_add(1);
                w.rate = Some(10.0);
            })
            .contains("single operations")
        );
        assert!(refusal(|w| w.registered = true).contains("io_uring"));
        assert!(refusal(|w| w.depth = w.depth.saturating_add(1)).contains("queue"));
        assert!(
            refusal(|w| {
                w.engine = Engine::Mmap;
                w.sync = Sync::Each;
            })
            .contains("mmap cannot force each block")
        );
        assert!(
            refusal(|w| {
                w.direct = true;
                w.block = Bytes(100);
                w.file_size = Bytes(1000);
            })
            .contains("multiple of 512")
        );
    }

    #[test]
    fn a_plan_may_write_sizes_with_units() {
        let read: Workload =
            toml::from_str("block = '4K'\nfile-size = 8192\ntasks = 2\nop = 'read'").unwrap();
        assert_eq!((read.block, read.file_size, read.op), (Bytes(4096), Bytes(8192), Op::Read));
        assert!(toml::from_str::<Workload>("blok = 1").unwrap_err().to_string().contains("blok"));
        assert!(toml::from_str::<Workload>("tasks = 0").is_err());
    }
}
