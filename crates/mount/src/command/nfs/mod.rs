//! `fsstack nfs`: what a server is told to export a pool, and whether all is as it should be.

mod handles;

use super::Failed;
use super::args::{Nfs, NfsAction};
use super::pool::{self, Pool};
use super::show::{self, Style};
use crate::holders;
use crate::nfs::{Export, escaped};
use fsstack_control::api::{Finding, Findings, Level};
use fsstack_engine::poolid::PoolId;
use fsstack_pool::Printable;
use fsstack_sys::handle::ByNumber;
use fsstack_sys::{at, file};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Where the kernel's server reads further exports from.
const EXPORTS: &str = "/etc/exports.d";
/// What it exports now.
const EXPORTED: &str = "/var/lib/nfs/etab";

pub(crate) fn run(wish: &Nfs, style: Style) -> Result<(), Failed> {
    match &wish.action {
        NfsAction::Show { pool, clients: Some(clients), install: true } => {
            install(&pool::find(pool)?, clients)
        }
        NfsAction::Show { pool, clients, .. } => shown(&pool::find(pool)?, clients.as_deref().unwrap_or("*")),
        NfsAction::Check { pool } => check(&pool::find(pool)?, style),
    }
}

fn shown(pool: &Pool, clients: &str) -> Result<(), Failed> {
    let mount_point = pool.entry.mount_point();
    let export = Export { mount_point: &mount_point, id: id(&mount_point)? };
    show::text(&format!(
        "# For the kernel's server, in {}:\n{}{}\n\n# For nfs-ganesha; mount the pool with nfs-identity=UUID besides nfs-export,\n# so that its handles survive remounts:\n{}",
        file_of(pool).display(),
        export.reasons(),
        export.exports_line(clients),
        export.ganesha_block()
    ))
}

fn install(pool: &Pool, clients: &str) -> Result<(), Failed> {
    let mount_point = pool.entry.mount_point();
    let export = Export { mount_point: &mount_point, id: id(&mount_point)? };
    let path = file_of(pool);
    let failed = |error: io::Error| Failed::system(Printable::path(&path), &error);
    fs::create_dir_all(EXPORTS).map_err(failed)?;
    // Whole under its name, or not there.
    let fresh = path.with_extension("new");
    fs::write(&fresh, format!("{}{}\n", export.reasons(), export.exports_line(clients))).map_err(failed)?;
    fs::rename(&fresh, &path).map_err(failed)?;
    let reloaded = match holders::is_serving() {
        true => reload()?,
        false => "; no server runs: it reads that when it is started",
    };
    show::text(&format!("wrote {}{reloaded}\n", Printable::path(&path)))
}

/// The running server exports what was written.
fn reload() -> Result<&'static str, Failed> {
    let told = std::process::Command::new("exportfs").arg("-r").output();
    let told = told.map_err(|error| Failed::system("exportfs -r", &error))?;
    if told.status.success() {
        return Ok("; the server has read it");
    }
    let said = String::from_utf8_lossy(&told.stderr);
    Err(Failed::Refused(format!("exportfs -r: {}", said.lines().next().unwrap_or("failed"))))
}

fn file_of(pool: &Pool) -> PathBuf {
    Path::new(EXPORTS).join(format!("fsstack-{}.exports", pool.entry.id))
}

fn id(mount_point: &Path) -> Result<PoolId, Failed> {
    let failed = |error: io::Error| Failed::system(Printable::path(mount_point), &error);
    let told = attribute(mount_point, "user.fsstack.id").map_err(failed)?;
    told.parse().map_err(|why| Failed::Refused(format!("{}: {why}", Printable::path(mount_point))))
}

fn attribute(path: &Path, name: &str) -> io::Result<String> {
    let mut value = [0; 256];
    let len = rustix::fs::getxattr(path, name, &mut value)?;
    Ok(String::from_utf8_lossy(value.get(..len).unwrap_or_default()).into_owned())
}

fn check(pool: &Pool, style: Style) -> Result<(), Failed> {
    let mut findings = Vec::new();
    let mut add = |level, about: &str, text: String| {
        findings.push(Finding { level, about: about.to_owned(), text });
    };
    let mount_point = pool.entry.mount_point();
    let keys = pool.client().keys()?;
    let value = |name: &str| keys.keys.iter().find(|key| key.key == name).map(|key| key.value.clone());
    let exported = value("nfs-export").as_deref() == Some("true");
    match exported {
        true => add(Level::Ok, "nfs-export", "on".into()),
        false => add(
            Level::Fail,
            "nfs-export",
            "off: handles go stale when the kernel forgets; mount the pool with nfs-export".into(),
        ),
    }
    match value("nfs-identity").filter(|uuid| !uuid.is_empty()) {
        Some(uuid) => add(Level::Ok, "nfs-identity", uuid),
        None => add(
            Level::Warn,
            "nfs-identity",
            "none: nfs-ganesha's handles go stale over a remount; the kernel's server needs none".into(),
        ),
    }
    match id(&mount_point) {
        Ok(id) => add(Level::Ok, "fsid", id.to_string()),
        Err(failed) => add(Level::Fail, "fsid", failed.to_string()),
    }
    match attribute(&mount_point, "user.fsstack.index") {
        Ok(told) if told.starts_with("complete") => add(Level::Ok, "index", told),
        Ok(told) => add(
            Level::Warn,
            "index",
            format!("{told}: what only it finds cannot be opened until it is complete"),
        ),
        Err(error) => add(Level::Fail, "index", error.to_string()),
    }
    branches(pool, &mut add);
    if exported {
        handles::tried(pool, &mount_point, &mut add);
    }
    exports(&mount_point, &mut add);
    held(&mount_point, &mut add);
    let findings = Findings { findings };
    show::answer(style, &findings, super::doctor::human)?;
    match findings.findings.iter().filter(|finding| finding.level == Level::Fail).count() {
        0 => Ok(()),
        count => Err(Failed::Refused(format!("nfs: checks that failed: {count}"))),
    }
}

/// How each branch finds what the kernel forgot.
fn branches(pool: &Pool, add: &mut impl FnMut(Level, &str, String)) {
    for branch in &pool.entry.branches {
        let path = branch.path();
        let about = Printable::path(&path).to_string();
        match by_number(&path) {
            Ok(true) => add(Level::Ok, &about, "opens files by number".into()),
            Ok(false) => add(
                Level::Warn,
                &about,
                "neither ext4, XFS nor btrfs: what the kernel forgot is looked for through all of the branch"
                    .into(),
            ),
            Err(error) => add(Level::Fail, &about, error.to_string()),
        }
        if tells_births(&path).is_ok_and(|tells| !tells) {
            add(
                Level::Warn,
                &about,
                "tells no birth times: where an inode number is used again, an old handle opens the new file"
                    .into(),
            );
        }
    }
}

/// Whether objects there are told apart that have the same inode number one after the other.
fn tells_births(branch: &Path) -> io::Result<bool> {
    let root = at::open_root(branch).map_err(|error| error.errno)?;
    let root = at::stat_fd(root.as_fd()).map_err(|error| error.errno)?;
    Ok(root.btime.is_some())
}

/// The lines of the table that are the pool's; paths stand there with escapes.
fn lines_of<'a>(table: &'a str, mount_point: &Path) -> Vec<&'a str> {
    let path = escaped(mount_point);
    table.lines().filter(|line| line.split_whitespace().next() == Some(&*path)).collect()
}

/// What the kernel's server exports of the pool.
fn exports(mount_point: &Path, add: &mut impl FnMut(Level, &str, String)) {
    let Ok(table) = fs::read_to_string(EXPORTED) else {
        return add(Level::Warn, "exports", format!("{EXPORTED}: the kernel's server is not set up here"));
    };
    let lines = lines_of(&table, mount_point);
    if lines.is_empty() {
        add(Level::Warn, "exports", "the kernel's server does not export the pool".into());
    }
    for line in lines {
        let (level, text) = judged(line);
        add(level, "exports", text);
    }
}

/// Whether a line of the table keeps handles good.
fn judged(line: &str) -> (Level, String) {
    let has = |option: &str| {
        line.split(['(', ')', ',']).any(|word| word == option || word.starts_with(&format!("{option}=")))
    };
    if !has("fsid") {
        (Level::Fail, format!("{line}: without fsid= every handle is stale after a remount"))
    } else if !has("no_subtree_check") {
        (Level::Warn, format!("{line}: with subtree_check every rename makes handles stale"))
    } else if has("async") {
        (Level::Warn, format!("{line}: with async what was acknowledged is lost when the machine is"))
    } else {
        (Level::Ok, line.to_owned())
    }
}

/// Who keeps the pool from being unmounted.
fn held(mount_point: &Path, add: &mut impl FnMut(Level, &str, String)) {
    holders::of(mount_point).iter().for_each(|holder| add(Level::Ok, "to unmount", holder.to_string()));
}

fn by_number(branch: &Path) -> io::Result<bool> {
    let root = at::open_root(branch).map_err(|error| error.errno)?;
    let space = file::statfs(root.as_fd()).map_err(|error| error.errno)?;
    Ok(ByNumber::of(root.as_fd(), space.f_type).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_blanks_is_found_among_the_exports() {
        let table = "/srv/my\\040pool\t*(rw,fsid=1)\n/srv/my\t*(ro)\n";
        assert_eq!(lines_of(table, Path::new("/srv/my pool")), ["/srv/my\\040pool\t*(rw,fsid=1)"]);
        assert_eq!(lines_of(table, Path::new("/srv/my")), ["/srv/my\t*(ro)"]);
        assert!(lines_of(table, Path::new("/srv")).is_empty());
    }

    #[test]
    fn what_makes_handles_stale_is_warned_of() {
        let level = |options: &str| judged(&format!("/srv/pool\t*({options})")).0;
        assert_eq!(level("rw,sync,no_subtree_check,fsid=1"), Level::Ok);
        assert_eq!(level("rw,sync,no_subtree_check"), Level::Fail);
        assert_eq!(level("rw,sync,subtree_check,fsid=1"), Level::Warn);
        assert_eq!(level("rw,async,no_subtree_check,fsid=1"), Level::Warn);
    }
}
