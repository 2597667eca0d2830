//! Names on several branches, and what users may do.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use anyhow::Result;
use fsstack_lab::shell::command;

use super::subject::Placement;
use super::test_bed::{Reported, TestBed, bad, errno, good};

/// A user id without rights.
const STRANGER: u32 = 65534;

pub(crate) fn unlink_of_duplicates(test_bed: &mut TestBed) -> Result<Reported> {
    for branch in ["a", "b"] {
        fs::write(test_bed.on(branch, "file")?, branch)?;
    }
    test_bed.mount(Placement::First)?;
    if let Err(error) = fs::remove_file(test_bed.at("file")) {
        return bad(format!("unlink: {}", errno(&error)));
    }
    match fs::read(test_bed.at("file")) {
        Ok(text) => bad(format!("an old copy is back (from {})", String::from_utf8_lossy(&text))),
        Err(_) => good("gone"),
    }
}

pub(crate) fn rename_over_a_full_directory(test_bed: &mut TestBed) -> Result<Reported> {
    for (branch, name) in [("a", "from"), ("b", "to")] {
        fs::create_dir(test_bed.on(branch, name)?)?;
        fs::write(test_bed.on(branch, &format!("{name}/{branch}"))?, branch)?;
    }
    test_bed.mount(Placement::First)?;
    match fs::rename(test_bed.at("from"), test_bed.at("to")) {
        Err(error) if test_bed.at("to/b").exists() && test_bed.at("from/a").exists() => {
            good(format!("{}, nothing changed", errno(&error)))
        }
        Err(error) => bad(format!("{}, and the trees changed", errno(&error))),
        Ok(()) => bad("success: the two are merged"),
    }
}

pub(crate) fn rename_of_a_dangling_link(test_bed: &mut TestBed) -> Result<Reported> {
    test_bed.mount(Placement::First)?;
    symlink("nowhere", test_bed.at("link"))?;
    match fs::rename(test_bed.at("link"), test_bed.at("other")) {
        Ok(()) if test_bed.at("other").symlink_metadata().is_ok() => good("renamed"),
        Ok(()) => bad("success, and nothing is renamed"),
        Err(error) => bad(errno(&error)),
    }
}

pub(crate) fn set_uid_after_a_write(test_bed: &mut TestBed) -> Result<Reported> {
    test_bed.mount(Placement::First)?;
    fs::write(test_bed.at("program"), "x")?;
    fs::set_permissions(test_bed.at("program"), fs::Permissions::from_mode(0o4777))?;
    command("bash")
        .args(["-c", "printf y >> \"$0\""])
        .arg(test_bed.at("program"))
        .as_user(STRANGER, STRANGER)
        .run()?;
    let mode = fs::metadata(test_bed.at("program"))?.mode() & 0o7777;
    if mode & 0o6000 == 0 {
        good(format!("cleared ({mode:o})"))
    } else {
        bad(format!("kept ({mode:o}): whoever may write it becomes root"))
    }
}

pub(crate) fn another_users_file(test_bed: &mut TestBed) -> Result<Reported> {
    test_bed.mount(Placement::First)?;
    fs::write(test_bed.at("secret"), "secret")?;
    fs::set_permissions(test_bed.at("secret"), fs::Permissions::from_mode(0o600))?;
    let read = command("cat").arg(test_bed.at("secret")).as_user(STRANGER, STRANGER).output()?;
    if read.code == 0 { bad("root's file of mode 0600 is read by anybody") } else { good("EACCES") }
}

/// Kills the daemon at its second rename; the directory is on three branches.
pub(crate) fn kill_in_a_rename(test_bed: &mut TestBed) -> Result<Reported> {
    for branch in ["a", "b", "c"] {
        fs::create_dir(test_bed.on(branch, "dir")?)?;
        fs::write(test_bed.on(branch, &format!("dir/{branch}"))?, branch)?;
    }
    test_bed.mount(Placement::First)?;
    let inject = "inject=rename,renameat,renameat2:signal=SIGKILL:when=2";
    let daemon = test_bed.daemon()?;
    let tracer = std::thread::spawn(move || {
        command("strace")
            .args(["-f", "-qq", "-e", "trace=rename,renameat,renameat2", "-e", inject, "-p"])
            .arg(daemon.pid.to_string())
            .limit(std::time::Duration::from_secs(20))
            .output()
    });
    // Until strace is attached, a rename would succeed.
    let began = std::time::Instant::now();
    while !is_traced(daemon.pid) && began.elapsed().as_secs() < 10 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let renamed = fs::rename(test_bed.at("dir"), test_bed.at("new"));
    let killed = daemon.wait(std::time::Duration::from_secs(5)).is_ok();
    if killed {
        test_bed.unmount();
        test_bed.mount(Placement::First)?;
    }
    let traced = tracer.join();
    if !killed {
        let why = if renamed.is_ok() { "it was not killed in time" } else { "it could not be traced" };
        anyhow::bail!("{why}: {traced:?}");
    }
    let names = |dir: &str| -> usize {
        ["a", "b", "c"].iter().filter(|name| test_bed.at(&format!("{dir}/{name}")).exists()).count()
    };
    match (names("dir"), names("new")) {
        (3, 0) => good("after the next mount: as before"),
        (0, 3) => good("after the next mount: renamed"),
        (old, new) => {
            bad(format!("for ever split: {old} of 3 files under the old name, {new} under the new"))
        }
    }
}

fn is_traced(pid: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.into_iter().all(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
    })
}
