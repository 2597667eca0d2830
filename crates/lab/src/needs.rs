//! Requirements of tests. A missing one is a skip with its reason, never a pass.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use crate::{gluster, shell, test_bed};

/// Reason why a test cannot run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    reason: String,
}

impl Skip {
    /// A skip for a reason of the test's own.
    pub fn because(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }

    /// Prints `SKIP <test>: <reason>` and appends it to the file FSSTACK_SKIPS, which `cargo xtask test` counts.
    pub fn announce(&self) {
        let thread = std::thread::current();
        let test = std::env::var("NEXTEST_TEST_NAME").ok();
        let test = test.as_deref().or(thread.name()).unwrap_or("unnamed");
        let line = format!("SKIP {test}: {self}\n");
        let mut answer = std::io::stderr().write_all(line.as_bytes());
        if let Some(list) = std::env::var_os("FSSTACK_SKIPS") {
            answer = OpenOptions::new()
                .create(true)
                .append(true)
                .open(list)
                .and_then(|mut f| f.write_all(line.as_bytes()));
        }
        assert!(answer.is_ok(), "a skip could not be announced: {answer:?}");
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Skips the test unless every requirement is met: `needs!(root(), fuse(), program("rsync"));`
#[macro_export]
macro_rules! needs {
    ($($need:ident ( $($argument:expr),* )),+ $(,)?) => {
        $(if let Err(skip) = $crate::needs::$need($($argument),*) {
            skip.announce();
            return;
        })+
    };
}

/// The test changes users, mounts, or makes devices.
pub fn root() -> Result<(), Skip> {
    unless(rustix::process::geteuid().is_root(), || "needs root".into())
}

/// The kernel's FUSE device can be opened.
pub fn fuse() -> Result<(), Skip> {
    let opened = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    opened.map(drop).map_err(|e| Skip::because(format!("needs /dev/fuse: {e}")))
}

/// The kernel's loop devices.
pub fn loop_devices() -> Result<(), Skip> {
    unless(Path::new("/dev/loop-control").exists(), || "needs /dev/loop-control".into())
}

/// Root, loop devices, and a mkfs for each.
pub fn loops() -> Result<(), Skip> {
    unless(!test_bed::is_gluster(), || "sizes of its branches are its own: not on shared volumes".into())?;
    loop_ground()
}

fn loop_ground() -> Result<(), Skip> {
    root()?;
    loop_devices()?;
    program("mkfs.xfs")
}

/// A program is installed.
pub fn program(name: &str) -> Result<(), Skip> {
    unless(shell::which(name).is_some(), || format!("needs the program {name}"))
}

/// A plug-in of a program is installed.
pub fn library(file: &str) -> Result<(), Skip> {
    unless(shell::library(file).is_some(), || format!("needs the plug-in {file}"))
}

/// The machine can run a GlusterFS server and its clients.
pub fn gluster_ground() -> Result<(), Skip> {
    loop_ground()?;
    fuse()?;
    program("mount.glusterfs")?;
    program("ip")?;
    program("nsenter")
}

/// The kernel can drop unused inodes.
pub fn drop_caches() -> Result<(), Skip> {
    let opened = OpenOptions::new().write(true).open("/proc/sys/vm/drop_caches");
    opened.map(drop).map_err(|e| Skip::because(format!("needs /proc/sys/vm/drop_caches: {e}")))
}

/// Groups of the pids controller can be made; tries one.
pub fn pids_groups() -> Result<(), Skip> {
    root()?;
    crate::PidsGroup::new("needed")
        .map(drop)
        .map_err(|e| Skip::because(format!("needs groups of the pids controller: {e:#}")))
}

/// Groups of the cpu controller can be made; tries one.
pub fn cpu_groups() -> Result<(), Skip> {
    root()?;
    crate::CpuGroup::new("needed")
        .map(drop)
        .map_err(|e| Skip::because(format!("needs groups of the cpu controller: {e:#}")))
}

/// Disks can be held to a rate.
pub fn disk_limits() -> Result<(), Skip> {
    root()?;
    crate::disk_limit::able().map_err(|e| Skip::because(format!("needs disks held to a rate: {e:#}")))
}

/// Threads can raise their priority, also after they were idle.
pub fn niceness() -> Result<(), Skip> {
    /// CAP_SYS_NICE.
    const NICE: u32 = 23;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let may = effective
        .and_then(|sets| u64::from_str_radix(sets.trim(), 16).ok())
        .is_some_and(|sets| sets >> NICE & 1 == 1);
    unless(may, || "needs CAP_SYS_NICE".into())
}

/// The kernel counts requests to FUSE daemons.
pub fn counted_requests() -> Result<(), Skip> {
    root()?;
    let made = crate::Trace::new("needed").and_then(|trace| trace.set("events/fuse/enable", "0"));
    made.map_err(|e| Skip::because(format!("needs FUSE's trace events: {e:#}")))
}

/// Root can mount a pool here, with file systems for its branches.
pub fn mounting() -> Result<(), Skip> {
    root()?;
    fuse()?;
    if test_bed::is_gluster() { gluster() } else { Ok(()) }
}

/// The tests' GlusterFS lab, started if possible.
pub fn gluster() -> Result<(), Skip> {
    gluster_ground()?;
    let up = gluster::lab_of_tests();
    up.map(drop).map_err(|e| Skip::because(format!("needs GlusterFS, which cannot be had here: {e:#}")))
}

/// Branches are not on GlusterFS, for features that it lacks or does differently.
pub fn not_on_gluster(because: &str) -> Result<(), Skip> {
    unless(!test_bed::is_gluster(), || format!("not on GlusterFS: {because}"))
}

/// The kernel supports FUSE over `io_uring`; mounts a pool to check, which enables the switch.
pub fn rings() -> Result<(), Skip> {
    mounting()?;
    match crate::pool().tmp_branch("a").option("transport=ring").try_mount() {
        Ok(_) => Ok(()),
        Err(refused) => Err(Skip::because(format!("needs transport=ring: {}", refused.said.trim_end()))),
    }
}

/// The kernel maps owners of FUSE file systems, and root can ask for it; mounts a pool to check. Any other refusal to mount
/// it is left to the test.
pub fn idmaps() -> Result<(), Skip> {
    mounting()?;
    program("python3")?;
    match crate::pool().tmp_branch("a").option("idmap=on").try_mount() {
        Err(refused) if refused.said.contains("no idmapped mounts of FUSE") => {
            Err(Skip::because("needs a kernel with idmapped mounts of FUSE"))
        }
        _ => Ok(()),
    }
}

/// The kernel's switch for FUSE over `io_uring`, restored on drop.
#[derive(Debug)]
pub struct RingSwitch {
    before: Option<Vec<u8>>,
}

impl RingSwitch {
    const PATH: &str = "/sys/module/fuse/parameters/enable_uring";

    /// Saves its value.
    #[must_use]
    pub fn kept() -> Self {
        Self { before: std::fs::read(Self::PATH).ok() }
    }
}

impl Drop for RingSwitch {
    fn drop(&mut self) {
        // If it is missing or read-only, nothing has changed it.
        let now = std::fs::read(Self::PATH).ok();
        if let Some(before) = self.before.as_ref().filter(|before| now.as_ref() != Some(*before))
            && let Err(error) = std::fs::write(Self::PATH, before)
        {
            eprintln!("{} stays switched on: {error}", Self::PATH);
        }
    }
}

fn unless(met: bool, reason: impl FnOnce() -> String) -> Result<(), Skip> {
    if met { Ok(()) } else { Err(Skip::because(reason())) }
}
