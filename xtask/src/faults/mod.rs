//! `cargo xtask faults`: causes each fault of docs/reliability.md for mhddfs, mergerfs and both transports of fsstack.

mod crash;
mod dead;
mod full;
mod gluster;
mod kept;
mod names;
mod subject;
mod test_bed;

use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use fsstack_lab::cleanup::{self, Entry};
use fsstack_lab::{daemon, mounts, needs};

use self::kept::Kept;
use self::subject::{SUBJECTS, Subject};
use self::test_bed::{Reported, TestBed, bad};
use crate::{exec, install};

/// Time limit of one case with one union, after which its mounts are aborted.
const LIMIT: Duration = Duration::from_secs(150);

/// Requirements of the faults besides those of a pool.
const NEEDS: &[install::Need] =
    &[("mhddfs", "mhddfs"), ("mergerfs", "mergerfs"), ("strace", "strace"), ("xfs_io", "xfsprogs")];

/// Prefix of the text for a fault that could not be caused.
const NOT_SHOWN: &str = "not shown";

/// Marks around the generated part of docs/reliability.md.
const MARKS: (&str, &str) = ("<!-- cargo xtask faults -->\n", "<!-- end -->\n");

/// Arguments of `cargo xtask faults`.
#[derive(Debug, Args)]
pub(crate) struct Faults {
    /// Only the faults whose names contain this; nothing is written then.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Only this union; nothing is written then.
    #[arg(long, value_parser = ["mhddfs", "mergerfs", "fsstack"])]
    union: Option<String>,
    /// Continue an earlier run with the same programs.
    #[arg(long, conflicts_with_all = ["only", "union"])]
    resume: bool,
    /// No table: run fsx and mixed work for this long while branches are killed, frozen and restored (30s, 10m, 1h).
    #[arg(long, value_name = "TIME")]
    stress: Option<String>,
}

/// Results of the unions in one fault.
type Row = Vec<(Subject, Reported)>;

/// A fault, and the expected behaviour.
struct Case {
    fault: &'static str,
    run: fn(&mut TestBed) -> Result<Reported>,
    lab: FaultLab,
}

/// Requirements of a case besides disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultLab {
    Disks,
    Gluster,
}

const fn case(fault: &'static str, run: fn(&mut TestBed) -> Result<Reported>) -> Case {
    Case { fault, run, lab: FaultLab::Disks }
}

const fn on_gluster(fault: &'static str, run: fn(&mut TestBed) -> Result<Reported>) -> Case {
    Case { fault, run, lab: FaultLab::Gluster }
}

const CASES: &[Case] = &[
    case("A file outgrows its branch", full::a_write),
    case("... written through two handles in turn", full::two_handles),
    case("... renamed while open, another file under its old name", full::a_renamed_open_file),
    case("... by preallocation (fallocate)", full::preallocation),
    case("... and is sparse: 10 GiB with 80 MiB of data", full::a_sparse_file),
    case("... and has two names (hard links)", full::a_linked_file),
    case("New names in a directory whose branch is full", full::new_names),
    case("A branch's daemon is dead: stat of a file on it", dead::a_name_on_a_dead_branch),
    case("... O_EXCL creation of that file", dead::an_exclusive_create),
    case("... listing the directory", dead::a_listing),
    case("... a file on another branch, and statfs", dead::the_other_branch),
    case("... and it comes back, mounted at its old place", dead::a_branch_that_comes_back),
    case("A branch's daemon hangs (SIGSTOP), 32 callers in it", dead::a_frozen_branch),
    case("A branch is unmounted, its bare directory shows", dead::a_bare_directory),
    case("A branch turns read-only, a new file in a directory of its own", dead::a_read_only_branch),
    case("A branch's XFS is shut down: stat of a file on it", dead::a_shut_down_disk),
    on_gluster(
        "A branch is a GlusterFS volume of two bricks, one is dead: stat of its files",
        gluster::a_dead_brick,
    ),
    on_gluster("... listing the directory, a brick being dead", gluster::a_listing_without_a_brick),
    on_gluster("... its server is stopped: stat of its files", gluster::a_stopped_server),
    case("The union's daemon is killed while a file moves", crash::kill_in_a_move),
    case("... while a directory on three branches is renamed", names::kill_in_a_rename),
    case("unlink of a file that two branches have", names::unlink_of_duplicates),
    case("rename over a directory that has files on another branch", names::rename_over_a_full_directory),
    case("rename of a dangling symbolic link", names::rename_of_a_dangling_link),
    case("A stranger writes a set-uid file", names::set_uid_after_a_write),
    case("A stranger reads root's file of mode 0600 (allow_other)", names::another_users_file),
];

impl Faults {
    /// Runs the faults and writes the table, or the stress.
    pub(crate) fn run(self) -> Result<()> {
        if let Err(skip) = needs::mounting().and_then(|()| needs::loop_devices()) {
            bail!("faults are brought about on real mounts: {skip}");
        }
        install::packages(install::TO_MOUNT)?;
        if let Some(time) = &self.stress {
            return stress(time);
        }
        install::packages(NEEDS)?;
        let helper = match given() {
            true => daemon::helper()?,
            false => exec::build_helper("release")?,
        };
        // Read now: the checkout may change before the table is written.
        let commit = if given() { None } else { Some(git()?) };
        let no_gluster = gluster_missing();
        let switch = needs::RingSwitch::kept();
        let rings = needs::rings().inspect_err(|skip| println!("SKIP fsstack by io_uring: {skip}")).is_ok();
        let whole = self.only.is_none() && self.union.is_none();
        let about = about(&helper)?;
        let mut kept = if self.resume { Kept::of(about)? } else { Kept::none(about) };
        let mut rows: Vec<(&str, Row)> = Vec::new();
        for case in
            CASES.iter().filter(|case| self.only.as_ref().is_none_or(|only| case.fault.contains(only)))
        {
            if let (FaultLab::Gluster, Some(why)) = (case.lab, &no_gluster) {
                println!("SKIP {}: {why}", case.fault);
                continue;
            }
            let shown = |(_, result): &(Subject, Reported)| !result.text.starts_with(NOT_SHOWN);
            if let Some(row) = kept.row(case.fault).filter(|row| row.iter().all(shown)) {
                rows.push((case.fault, row.clone()));
                continue;
            }
            let row = self.row(case, &helper, rings)?;
            // A lab that fails to start is not the union's fault.
            if row.iter().any(shown) {
                if whole {
                    kept.keep(case.fault, &row)?;
                }
                rows.push((case.fault, row));
            }
        }
        drop(switch);
        if no_gluster.is_none() {
            gluster::down()?;
        }
        let ours = |row: &[(Subject, Reported)]| {
            row.iter().any(|(subject, result)| subject.transport().is_some() && !result.good)
        };
        let failed: Vec<&str> = rows.iter().filter(|(_, row)| ours(row)).map(|(fault, _)| *fault).collect();
        if whole {
            write(&table(&rows, &helper, rings, commit.as_deref())?)?;
        }
        if !failed.is_empty() {
            bail!("fsstack fails in {} faults: {}", failed.len(), failed.join("; "));
        }
        Ok(())
    }
}

impl Faults {
    /// Causes the fault for each requested union.
    fn row(&self, case: &'static Case, helper: &Path, rings: bool) -> Result<Row> {
        let mut row = Row::new();
        for subject in SUBJECTS {
            let unwanted = self.union.as_ref().is_some_and(|union| union != subject.name());
            if unwanted || (subject == Subject::FsstackRing && !rings) {
                continue;
            }
            let result = judge(case, subject, helper)?;
            let mark = if result.good { "" } else { "FAULT: " };
            println!("{}: {}: {mark}{}", subject.label(), case.fault, result.text);
            row.push((subject, result));
        }
        Ok(row)
    }
}

/// Reason why GlusterFS cannot be used here, if any.
fn gluster_missing() -> Option<String> {
    if let Err(error) = install::packages(install::TO_GLUSTER) {
        // The lab works without some of them.
        eprintln!("{error:#}");
    }
    needs::gluster_ground().err().map(|skip| skip.to_string())
}

/// Causes the fault for one union, in a thread whose mounts are aborted after the time limit.
fn judge(case: &'static Case, subject: Subject, helper: &Path) -> Result<Reported> {
    let home = cleanup::fresh("faults")?;
    let _home = Entry::dir(&home)?;
    let (tell, result) = channel();
    let (at, helper) = (home.clone(), helper.to_owned());
    let judging = std::thread::Builder::new().name("fault".into()).spawn(move || {
        let result = TestBed::fresh(subject, &at, &helper).and_then(|mut test_bed| (case.run)(&mut test_bed));
        // The receiver waits until the limit.
        let _heard = tell.send(result);
    })?;
    let began = Instant::now();
    let result = match result.recv_timeout(LIMIT) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => {
            free(&home)?;
            result.recv_timeout(LIMIT).context("it hangs even when its mounts are aborted")??;
            bad(format!("hangs: aborted after {} s", began.elapsed().as_secs()))
        }
        Err(RecvTimeoutError::Disconnected) => bail!("{}: {}: the case panicked", subject.name(), case.fault),
    };
    let _ended = judging.join();
    // A fault that cannot be caused says nothing about the union.
    result.or_else(|error| Ok(Reported { good: false, text: format!("{NOT_SHOWN}: {error:#}") }))
}

/// Frees callers that wait for a daemon below `home`.
fn free(home: &Path) -> Result<()> {
    let fuse = mounts::below(home)?.into_iter().filter(mounts::Mounted::is_fuse);
    fuse.into_iter().try_for_each(|mounted| mounts::abort(mounted.connection()))
}

fn table(rows: &[(&str, Row)], helper: &Path, rings: bool, commit: Option<&str>) -> Result<String> {
    let subjects: Vec<Subject> =
        SUBJECTS.into_iter().filter(|subject| *subject != Subject::FsstackRing || rings).collect();
    let mut text = String::new();
    text.push_str("| fault |");
    for subject in &subjects {
        let version = match commit.filter(|_| subject.transport().is_some()) {
            Some(commit) => commit.to_owned(),
            None => subject.version(helper)?,
        };
        let by = subject.transport().map(|by| format!(", {by}")).unwrap_or_default();
        write!(text, " {} {version}{by} |", subject.name())?;
    }
    writeln!(text, "\n|{}", "---|".repeat(subjects.len() + 1))?;
    for (fault, row) in rows {
        write!(text, "| {fault} |")?;
        for (_, result) in row {
            let cell = result.text.replace('|', "/");
            if result.good { write!(text, " {cell} |")? } else { write!(text, " **{cell}** |")? }
        }
        text.push('\n');
    }
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let faults = |subject: &Subject| {
        let counts = |result: &Reported| !result.good && !result.text.starts_with(NOT_SHOWN);
        rows.iter()
            .flat_map(|(_, row)| row)
            .filter(|(known, result)| known == subject && counts(result))
            .count()
    };
    let counts: Vec<String> =
        subjects.iter().map(|subject| format!("{} {}", subject.label(), faults(subject))).collect();
    write!(
        text,
        "\nBold: a fault. Of {} rows: {}. Linux {}, branches XFS of 400 MiB on loop devices",
        rows.len(),
        counts.join(", "),
        kernel.trim()
    )?;
    let profile =
        helper.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
    writeln!(text, ", {profile} build. Options, where new files go to the first branch with room:")?;
    for subject in subjects {
        writeln!(text, "`{}: {}`;", subject.name(), subject.options(subject::Placement::First))?;
    }
    text.push_str("else without the policy. Every outcome is judged by bytes read back and by errno.\n");
    Ok(text)
}

/// True if FSSTACK_BIN names the daemon, whose commit is then unknown.
fn given() -> bool {
    std::env::var_os("FSSTACK_BIN").is_some()
}

/// Describes the programs that the rows are about, because a commit may be built in several ways.
fn about(helper: &Path) -> Result<String> {
    let versions = SUBJECTS.map(|subject| subject.version(helper)).into_iter().collect::<Result<Vec<_>>>()?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&fs::read(helper).with_context(|| helper.display().to_string())?);
    Ok(format!("{}, {:016x}", versions.join(", "), hasher.finish()))
}

fn git() -> Result<String> {
    let result = exec::quiet("git").args(["rev-parse", "--short=9", "HEAD"]).run()?;
    Ok(result.stdout.trim().to_owned())
}

fn write(table: &str) -> Result<()> {
    let page = exec::root().join("docs/reliability.md");
    let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let (before, rest) = text.split_once(MARKS.0).context("docs/reliability.md has lost its marks")?;
    let (_, after) = rest.split_once(MARKS.1).context("docs/reliability.md has lost its end mark")?;
    fs::write(&page, format!("{before}{}{table}{}{after}", MARKS.0, MARKS.1))?;
    println!("docs/reliability.md");
    Ok(())
}

/// Runs the stress test for the given time.
fn stress(time: &str) -> Result<()> {
    let seconds = seconds(time).with_context(|| format!("{time}: not a time such as 30s, 10m or 1h"))?;
    install::packages(install::TO_TEST)?;
    install::suites()?;
    let helper = exec::build_helper("release")?;
    exec::cargo()
        .args([
            "test",
            "--quiet",
            "-p",
            "fsstack-tests",
            "--test",
            "mounted",
            "--",
            "--nocapture",
            "stress::",
        ])
        .env("FSSTACK_BIN", &helper)
        .env("FSSTACK_STRESS", seconds.to_string())
        .limit(Duration::from_secs(seconds + 900))
        .run()
        .map(drop)
}

fn seconds(time: &str) -> Option<u64> {
    let (number, unit) = time.split_at_checked(time.len().checked_sub(1)?)?;
    let factor = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_of_one_build() {
        let dir = tempfile::tempdir().unwrap();
        let build = |text: &str| {
            let path = dir.path().join(text.trim());
            fs::write(&path, format!("#!/bin/sh\necho mount.fsstack 0 # {text}\n")).unwrap();
            fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
            about(&path).unwrap()
        };
        let (one, other) = (build("one"), build("other"));
        assert_ne!(one, other, "the same version, and another build");
        assert_eq!(one, build("one"));
    }

    #[test]
    fn times_have_a_unit() {
        assert_eq!(
            ["30s", "10m", "1h", "10", "m", ""].map(seconds),
            [Some(30), Some(600), Some(3600), None, None, None]
        );
    }
}
