//! bonnie++ itself as an engine: one run of the program tells the figures of several cases.
//!
//! It prints no rate of a test that lasted less than half a second, and no latencies but the greatest: such cases have none.

mod process;

use anyhow::{Context, Result, ensure};
use fsstack_lab::shell::which;

use crate::measure::Measured;
use crate::stack::{Used, Window};
use crate::task::histogram;
use crate::workload::{Bytes, Cache, Files, MOST, Op, Pattern, Workload};

pub(crate) use process::run;

/// Name of the program.
pub(crate) const PROGRAM: &str = "bonnie++";

/// Why a run has no figure for a case.
pub(crate) const TOO_SHORT: &str =
    "bonnie++ prints no rate of a test that lasts less than half a second: larger files, or slower disks";

/// Files of its tests on names come in multiples of this.
pub(crate) const NAMES_UNIT: u32 = 1024;

/// Fields of a line of CSV, format 1.98.
const FIELDS: usize = 50;
/// Field with the number of seeks.
const SEEKS_FIELD: usize = 7;

/// Checks that the program is installed.
pub(crate) fn installed() -> Result<(), String> {
    let found = which(PROGRAM).map(drop);
    found.ok_or_else(|| format!("{PROGRAM} is not installed: `apt-get install bonnie++`, as root"))
}

/// A test of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    /// Blocks are written.
    Write,
    /// Blocks are read and written over.
    Rewrite,
    /// Blocks are read.
    Read,
    /// Blocks are read at random, one in ten is written over.
    Seeks,
    /// Files are made, in the order of their names.
    Create,
    /// Files are looked at.
    Stat,
    /// Files are removed.
    Delete,
}

impl Test {
    /// All whose figures are used.
    pub(crate) const ALL: [Self; 7] =
        [Self::Write, Self::Rewrite, Self::Read, Self::Seeks, Self::Create, Self::Stat, Self::Delete];

    /// The test of a workload; `None` where the program has none.
    pub(crate) fn of(workload: &Workload) -> Option<Self> {
        Self::ALL.into_iter().find(|test| test.asked() == (workload.op, workload.pattern))
    }

    /// The operation, and the order of its blocks, by which a workload asks for it.
    pub(crate) fn asked(self) -> (Op, Pattern) {
        match self {
            Self::Write => (Op::Write, Pattern::Sequential),
            Self::Rewrite => (Op::Rewrite, Pattern::Sequential),
            Self::Read => (Op::Read, Pattern::Sequential),
            Self::Seeks => (Op::Read, Pattern::Random),
            Self::Create => (Op::Create, Pattern::Sequential),
            Self::Stat => (Op::Stat, Pattern::Sequential),
            Self::Delete => (Op::Unlink, Pattern::Sequential),
        }
    }

    /// Its word in reports.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Rewrite => "rewrite",
            Self::Read => "read",
            Self::Seeks => "seeks",
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Delete => "delete",
        }
    }

    /// True if its rate is one of bytes.
    pub(crate) fn moves_bytes(self) -> bool {
        matches!(self, Self::Write | Self::Rewrite | Self::Read)
    }

    /// Field of its rate; that of its CPU time in percent follows.
    fn field(self) -> usize {
        match self {
            Self::Write => 11,
            Self::Rewrite => 13,
            Self::Read => 17,
            Self::Seeks => 19,
            Self::Create => 26,
            Self::Stat => 28,
            Self::Delete => 30,
        }
    }
}

/// A test's figures: bytes or operations a second, and busy CPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    rate: f64,
    cpus: f64,
}

/// Figures of one run, over all its processes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Told {
    /// In the order of [`Test::ALL`]; `None` for a test that was too short or left out.
    figures: [Option<Figures>; 7],
    /// Seeks of each process.
    seeks: u64,
}

impl Told {
    /// Parses the line of CSV that a process prints.
    pub(crate) fn of_csv(text: &str) -> Result<Self> {
        let line = text.lines().find(|line| line.matches(',').count() + 1 == FIELDS);
        let line =
            line.with_context(|| format!("{PROGRAM} printed no line of {FIELDS} fields: {}", text.trim()))?;
        let fields: Vec<&str> = line.split(',').collect();
        let mut figures = [None; 7];
        for (test, figures) in Test::ALL.into_iter().zip(&mut figures) {
            let [rate, percent] = [fields[test.field()], fields[test.field() + 1]];
            // Too short, or left out.
            if rate.starts_with('+') || rate.is_empty() {
                continue;
            }
            let number = |text: &str| text.parse::<f64>().ok().filter(|number| 0.0 <= *number);
            let rate = number(rate).with_context(|| format!("{PROGRAM}: {} is {rate:?}", test.word()))?;
            // Rates of bytes are in KiB.
            let unit = if test.moves_bytes() { 1024.0 } else { 1.0 };
            let cpus = number(percent).unwrap_or(0.0) / 100.0;
            *figures = Some(Figures { rate: rate * unit, cpus });
        }
        let seeks = fields[SEEKS_FIELD].parse().with_context(|| format!("{PROGRAM}: number of seeks"))?;
        Ok(Self { figures, seeks })
    }

    /// Sums of processes that ran in step.
    fn sum(processes: &[Self]) -> Result<Self> {
        let (first, rest) = processes.split_first().context("no process")?;
        let add = |one: Option<Figures>, other: Option<Figures>| {
            let (one, other) = (one?, other?);
            Some(Figures { rate: one.rate + other.rate, cpus: one.cpus + other.cpus })
        };
        let mut sum = first.clone();
        for process in rest {
            for (one, other) in sum.figures.iter_mut().zip(&process.figures) {
                *one = add(*one, *other);
            }
        }
        Ok(sum)
    }

    fn figures(&self, test: Test) -> Option<Figures> {
        let at = Test::ALL.into_iter().position(|other| other == test)?;
        self.figures[at]
    }

    /// The case's measurement; `None` if its test was too short.
    pub(crate) fn measured(&self, workload: &Workload) -> Option<Measured> {
        let test = Test::of(workload)?;
        let Figures { rate, cpus } = self.figures(test).filter(|told| 0.0 < told.rate)?;
        let tasks = u64::from(workload.tasks.get());
        let bytes = if test.moves_bytes() { workload.footprint() } else { 0 };
        let ops = match test {
            Test::Write | Test::Rewrite | Test::Read => tasks * workload.blocks(),
            Test::Seeks => tasks * self.seeks,
            Test::Create | Test::Stat | Test::Delete => tasks * u64::from(workload.entries.get()),
        };
        let seconds = if test.moves_bytes() { bytes } else { ops } as f64 / rate;
        let used = Used {
            program: PROGRAM.to_owned(),
            processes: workload.tasks.get(),
            cpu_seconds: cpus * seconds,
            voluntary_switches: 0,
            involuntary_switches: 0,
        };
        // No time of a sample: nothing is known of the rest of the machine during one test.
        let window = Window { used: vec![used], ..Window::default() };
        Some(Measured {
            ops,
            bytes,
            seconds,
            // Its processes do not say when they start.
            start_skew_seconds: None,
            latencies: histogram().ok()?,
            window,
            passes: 1,
            cold: None,
        })
    }
}

/// Parameters of a run: processes, size of a file and of a block, files.
pub(crate) type Shape = (u32, u64, u64, u32);

/// The run that tells the figures of `workload`.
pub(crate) fn shape(workload: &Workload) -> Shape {
    let Workload { tasks, file_size, block, entries, .. } = workload;
    (tasks.get(), file_size.0, block.0, entries.get())
}

/// Number of units of files that a process makes; 0 leaves the tests on names out.
fn name_units(workload: &Workload) -> u32 {
    workload.entries.get() / NAMES_UNIT
}

/// Options of the workload's run that say which tests it does.
pub(crate) fn options(workload: &Workload) -> String {
    format!("-f -b -n {}", name_units(workload))
}

/// The processes of a run, in words.
pub(crate) fn processes((count, ..): Shape) -> String {
    format!("{count} {}", if count == 1 { "process" } else { "processes" })
}

/// The parameters of a run, in words.
pub(crate) fn described(shape: Shape) -> String {
    let (_, file, block, files) = shape;
    let (file, block) = (Bytes(file), Bytes(block));
    format!("{}, {file} by {block} and {files} files each,", processes(shape))
}

/// Refuses a workload that the program cannot do.
pub(crate) fn check(workload: &Workload, name: &str) -> Result<()> {
    let Workload { op, direct, registered, files, cache, .. } = *workload;
    let calls = !direct && !registered && files == Files::PerTask && cache == Cache::Warm;
    let nfs = workload.connections.is_some() || workload.pace.is_some();
    let timed = workload.seconds.is_some() || workload.rate.is_some();
    ensure!(
        calls && !nfs && !timed && workload.depth.get() == 1 && workload.tasks.get() <= MOST,
        "{name}: {PROGRAM} does its own, with at most {MOST} tasks: \
         leave depth, direct, registered, files, cache, seconds and rate away"
    );
    ensure!(Test::of(workload).is_some(), "{name}: {PROGRAM} has no test for {}", workload.op);
    let size = workload.file_size.0;
    ensure!(
        4 << 20 <= size && size.is_multiple_of(1 << 20),
        "{name}: {PROGRAM} needs a file of whole MiB, and at least four"
    );
    ensure!(
        (256..=1 << 20).contains(&workload.block.0) && workload.block.0.is_power_of_two(),
        "{name}: {PROGRAM} needs a block of a power of two from 256 B to 1 MiB"
    );
    let entries = workload.entries.get();
    ensure!(
        entries.is_multiple_of(NAMES_UNIT) || (entries < NAMES_UNIT && op.moves_data()),
        "{name}: {PROGRAM} makes files in multiples of {NAMES_UNIT}: give that many entries"
    );
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::workload::Engine;

    /// bonnie++ 2.00a on ext4, `-s 1024 -f -b -n 16`.
    pub(crate) const ON_A_DISK: &str = "1.98,2.00a,vm,1,1796089198,1G,,8192,5,,,826213,33,922550,35,,,+++++,+++,15703,56,16,,,,,5109,24,+++++,+++,9361,27,6506,23,+++++,+++,10665,25,,8026us,5386us,,8030us,5304us,13844us,4347us,7547us,14181us,4030us,7416us\n";
    /// The same on tmpfs, `-s 64 -f -b -n 0`.
    const WITHOUT_NAMES: &str = "1.98,2.00a,vm,1,1796093160,64M,,8192,5,,,+++++,+++,68348,27,,,+++++,+++,+++++,+++,,,,,,,,,,,,,,,,,,,6936us,8130us,,4315us,7540us,,,,,,";

    pub(crate) fn workload(test: Test, tasks: u32) -> Workload {
        let (op, pattern) = test.asked();
        Workload {
            engine: Engine::Bonnie,
            op,
            pattern,
            block: Bytes(8192),
            file_size: Bytes(4 << 20),
            tasks: NonZeroU32::new(tasks).unwrap(),
            entries: NonZeroU32::new(NAMES_UNIT).unwrap(),
            ..Workload::default()
        }
    }

    #[test]
    fn rates_of_its_csv_are_those_of_its_table() {
        let told = Told::of_csv(ON_A_DISK).unwrap();
        let rate = |test| told.figures(test).map(|figures| figures.rate);
        assert_eq!(rate(Test::Write), Some(826_213.0 * 1024.0));
        assert_eq!(rate(Test::Rewrite), Some(922_550.0 * 1024.0));
        assert_eq!(rate(Test::Seeks), Some(15_703.0));
        assert_eq!((rate(Test::Create), rate(Test::Delete)), (Some(5109.0), Some(9361.0)));
        assert_eq!((rate(Test::Read), rate(Test::Stat)), (None, None), "too short");
        assert_eq!(told.figures(Test::Create).unwrap().cpus, 0.24);
        assert_eq!(told.seeks, 8192);
    }

    #[test]
    fn what_it_prints_of_an_error_is_no_line_of_figures() {
        assert!(Told::of_csv("Can't open file ./Bonnie.1\n").unwrap_err().to_string().contains("50 fields"));
        let odd = ON_A_DISK.replace("826213", "fast");
        assert!(Told::of_csv(&odd).unwrap_err().to_string().contains("write is \"fast\""));
        assert_eq!(Told::of_csv(WITHOUT_NAMES).unwrap().figures(Test::Create), None);
    }

    #[test]
    fn processes_in_step_add_up_unless_one_was_too_short() {
        let one = Told::of_csv(ON_A_DISK).unwrap();
        let other = Told::of_csv(&ON_A_DISK.replace("15703,56", "+++++,+++")).unwrap();
        let both = Told::sum(&[one.clone(), other]).unwrap();
        assert_eq!(both.figures(Test::Write).unwrap().rate, 2.0 * 826_213.0 * 1024.0);
        assert_eq!(both.figures(Test::Seeks), None);
        let write = both.measured(&workload(Test::Write, 2)).unwrap();
        assert_eq!(write.start_skew_seconds, None);
        assert_eq!((write.bytes, write.ops, write.rate("B/s")), (8 << 20, 1024, 2.0 * 826_213.0 * 1024.0));
        assert!(both.measured(&workload(Test::Seeks, 2)).is_none());
        let create = both.measured(&workload(Test::Create, 2)).unwrap();
        assert_eq!((create.bytes, create.ops), (0, 2048));
        assert!((create.rate("op/s") - 2.0 * 5109.0).abs() < 1e-6);
    }

    #[test]
    fn a_workload_that_it_has_no_test_for_is_refused() {
        assert!(Test::ALL.into_iter().all(|test| workload(test, 4).check("w").is_ok()));
        let refusal = |workload: Workload| workload.check("w").unwrap_err().to_string();
        let write = workload(Test::Write, 1);
        assert!(refusal(Workload { op: Op::Rename, ..write.clone() }).contains("no test for rename"));
        assert!(refusal(Workload { file_size: Bytes(5000), ..write.clone() }).contains("whole MiB"));
        assert!(refusal(Workload { block: Bytes(5000), ..write.clone() }).contains("power of two"));
        let few = NonZeroU32::new(500).unwrap();
        assert!(Workload { entries: few, ..write.clone() }.check("w").is_ok());
        let create = workload(Test::Create, 1);
        assert!(refusal(Workload { entries: few, ..create }).contains("multiples of 1024"));
        assert!(refusal(Workload { seconds: Some(1.0), ..write }).contains("does its own"));
    }
}
