//! The command line.

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use fsstack_lab::gluster::Volume;
use fsstack_lab::network::Rate;

use crate::target::Target;
use crate::test_bed::Kinds;
use crate::workload::{Bytes, Cache, Data, Engine, Files, Op, Pattern, Sync, Timed};

/// Measures the cost of a stack of file systems on your machine.
#[derive(Debug, Parser)]
#[command(name = "fsstack-bench", version, about, after_help = EXIT)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT: &str = "Exit status: 0 measured (compare-runs: nothing got worse); 1 refused, nothing measured; 2 usage;
3 ended early, or a case failed, with what was measured written; 4 compare-runs: something got worse, or is gone;
130 interrupted, as 3.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure directories against each other, in turn within each round.
    Compare(Compare),
    /// Reproduce a published experiment: what others measured is shown beside.
    Experiment(Experiment),
    /// Run a workload from a plan file, or one of the plans that are built in.
    Plan(PlanFile),
    /// Compare two results: what got worse? For CI.
    CompareRuns(CompareRuns),
    /// Do the same work by fio, in turn, and print the ratio: is the harness right?
    #[command(name = "crosscheck")]
    CrossCheck(CrossCheck),
}

/// Arguments of `experiment`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Experiment {
    /// Which one.
    #[arg(value_enum)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) running: Running,
    /// A first look in some minutes: 3 rounds, each case once in each, no verdicts.
    #[arg(long, conflicts_with = "full", help_heading = "Run")]
    pub(crate) quick: bool,
    /// The published sizes; says what it needs before it starts. The default fits 2 CPUs and 24 GiB of memory, and goes on
    /// until bars are decided.
    #[arg(long, help_heading = "Run")]
    pub(crate) full: bool,
    /// Create the targets: GlusterFS volumes (as root, with podman, docker or chroot), or XFS branches.
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "gluster", value_name = "KIND", help_heading = "Lab")]
    pub(crate) lab: Option<Kinds>,
    /// Volume types for the lab, instead of the experiment's own.
    #[arg(long, value_delimiter = ',', value_name = "TYPE", requires = "lab", help_heading = "Lab")]
    pub(crate) volumes: Vec<Volume>,
    /// Put a link of this rate between clients and servers of the lab, as in 1gbit.
    #[arg(long, value_name = "RATE", requires = "lab", help_heading = "Lab")]
    pub(crate) wan: Option<Rate>,
    /// Hold each disk of the lab to so many bytes a second, reads and writes apart, as in 40M.
    #[arg(long, value_name = "RATE", requires = "lab", help_heading = "Lab")]
    pub(crate) disk: Option<Bytes>,
    /// Hold each disk of the lab to so many requests a second: 200 as a disk that takes 5 ms for each.
    #[arg(long, value_name = "N", requires = "lab", help_heading = "Lab")]
    pub(crate) disk_iops: Option<NonZeroU64>,
    /// Hold this run, and what it starts, to so much memory, page cache included (root).
    #[arg(long, value_name = "SIZE", help_heading = "Lab")]
    pub(crate) memory: Option<Bytes>,
}

/// One experiment, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Which {
    /// The cost of a second FUSE layer.
    DoubleFuse,
    /// Which GlusterFS volume type?
    GlusterVolumes,
    /// The general survey of cluster file systems.
    ClusterIo,
    /// File systems and RAID under a branch.
    RaidCompare,
    /// One NFS mount, several TCP connections.
    NfsNconnect,
    /// All of them, one after the other; --out gets a directory for each.
    All,
}

/// Arguments of `plan`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PlanFile {
    /// A TOML file, or the name of a built-in plan (see --list).
    #[arg(required_unless_present = "list")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) running: Running,
    /// Show the built-in plans.
    #[arg(long)]
    pub(crate) list: bool,
    /// Print the plan as it would be run, and end.
    #[arg(long)]
    pub(crate) print: bool,
}

/// Arguments of `compare-runs`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CompareRuns {
    /// The older results: a results.json, or the directory that --out made.
    pub(crate) before: PathBuf,
    /// The newer results.
    pub(crate) after: PathBuf,
    /// Worse by less than this part is no regression.
    #[arg(long, value_name = "PART", default_value_t = 0.05)]
    pub(crate) tolerance: f64,
}

/// Arguments of `crosscheck`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CrossCheck {
    /// The directory to work in, and its name in the table.
    #[arg(long, value_name = "NAME=DIR")]
    pub(crate) target: Target,
    /// Rounds that count; below 6 nothing is decided.
    #[arg(long, value_name = "N", default_value_t = 7)]
    pub(crate) rounds: u32,
    /// Seconds that each program works in a round.
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    pub(crate) seconds: f64,
    /// Bytes of the file.
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub(crate) file_size: Bytes,
    /// Names that each operation on names is done on, up to 1000000.
    #[arg(long, value_name = "N", default_value = "5000")]
    pub(crate) entries: NonZeroU32,
    /// Decides random orders and random data.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write crosscheck.md into this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// Options of all measuring commands.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Run")]
pub(crate) struct Running {
    /// A directory to measure, and its name in reports; may be given several times.
    #[arg(long = "target", value_name = "NAME=DIR")]
    pub(crate) targets: Vec<Target>,
    /// The target that the others are compared with; the first if not given.
    #[arg(long, value_name = "NAME")]
    pub(crate) baseline: Option<String>,
    /// Rounds that count; below 6 no verdicts are given.
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<u32>,
    /// Rounds before the first that counts [default: 1, or the plan's].
    #[arg(long, value_name = "N")]
    pub(crate) warmups: Option<u32>,
    /// Go on, with the targets of bars that are not decided, up to so many rounds [experiments: 24, with --full 96; without
    /// more than --rounds if that is given].
    #[arg(long, value_name = "N")]
    pub(crate) rounds_max: Option<u32>,
    /// Repeat each case within a round, as often as the warm-up round says, until so many seconds are measured.
    #[arg(long, value_name = "S")]
    pub(crate) cell_seconds: Option<f64>,
    /// Decides random orders and random data.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write results.json, results.csv, report.md, report.html and plot.svg into this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

impl Running {
    /// The same for a first look, but for what is given.
    pub(crate) fn quick(&self) -> Self {
        Self {
            rounds: self.rounds.or(Some(3)),
            warmups: self.warmups.or(Some(0)),
            cell_seconds: self.cell_seconds.or(Some(0.0)),
            ..self.clone()
        }
    }
}

/// Arguments of `compare`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Compare {
    #[command(flatten)]
    pub(crate) running: Running,
    /// Bar for each target: this part of the baseline's rate, as 0.97; met, missed or not decided.
    #[arg(long, value_name = "PART", help_heading = "Run")]
    pub(crate) bar: Option<f64>,
    /// Also mount mhddfs and mergerfs, if installed, over the branches of the pool among the targets.
    #[arg(long, help_heading = "Run")]
    pub(crate) rivals: bool,
    /// A branch for the rivals, where no target is a mounted fsstack; may be given several times.
    #[arg(long = "branch", value_name = "DIR", requires = "rivals", help_heading = "Run")]
    pub(crate) branches: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) work: Work,
}

/// The workload. Where a list is taken, at most one option may have several values: a sweep.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Workload")]
pub(crate) struct Work {
    /// Engine that makes the calls; `metadata` if the first operation is one on names, else psync.
    #[arg(long, value_enum)]
    pub(crate) engine: Option<Engine>,
    /// Operations to measure, a case each [default: write,read].
    #[arg(long = "op", value_enum, value_delimiter = ',')]
    pub(crate) ops: Vec<Op>,
    /// The order of the blocks.
    #[arg(long, value_enum, default_value_t = Pattern::Sequential)]
    pub(crate) pattern: Pattern,
    /// For strided: every so many blocks.
    #[arg(long, value_name = "BLOCKS", default_value_t = 17)]
    pub(crate) stride: u64,
    /// Bytes of one operation, a list for a sweep.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "1M")]
    pub(crate) block: Vec<Bytes>,
    /// Bytes that each task moves, a list for a sweep.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "256M")]
    pub(crate) file_size: Vec<Bytes>,
    /// Threads, released together, a list for a sweep.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    pub(crate) tasks: Vec<NonZeroU32>,
    /// Operations in flight for each task, for io_uring, a list for a sweep.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    pub(crate) depth: Vec<NonZeroU32>,
    /// A file (or directory) for each task, or one that all use.
    #[arg(long, value_enum, default_value_t = Files::PerTask)]
    pub(crate) files: Files,
    /// Open with O_DIRECT.
    #[arg(long)]
    pub(crate) direct: bool,
    /// Register buffers and files with the ring.
    #[arg(long)]
    pub(crate) registered: bool,
    /// When written bytes are forced to the disk, within the time measured.
    #[arg(long, value_enum, default_value_t = Sync::Never)]
    pub(crate) sync: Sync,
    /// Data to write.
    #[arg(long, value_enum, default_value_t = Data::Incompressible)]
    pub(crate) data: Data,
    /// State of the caches when the time begins.
    #[arg(long, value_enum, default_value_t = Cache::Warm)]
    pub(crate) cache: Cache,
    /// Whether opening the file is measured too.
    #[arg(long, value_enum, default_value_t = Timed::Data)]
    pub(crate) timed: Timed,
    /// Go round for so many seconds instead of once; what is written is written over from the second time on.
    #[arg(long, value_name = "S")]
    pub(crate) seconds: Option<f64>,
    /// Operations a second of each task, with latencies from the time at which each was due (an open loop).
    #[arg(long, value_name = "N")]
    pub(crate) rate: Option<f64>,
    /// Names for each task, for metadata.
    #[arg(long, value_name = "N", default_value = "500")]
    pub(crate) entries: NonZeroU32,
}
