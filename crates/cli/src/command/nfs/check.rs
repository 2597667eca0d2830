//! Checks whether an export keeps file handles valid, and lists the holders of the pool. A branch that hangs, or a stopped
//! daemon, does not keep other findings from being shown.

use super::{Mounted, Stored, handles, stored};
use crate::command::Failed;
use crate::command::pool::Pool;
use crate::command::show::{self, Style};
use crate::command::time_limit::{HUNG_AFTER, unless_it_hangs};
use fsstack_control::api::{Finding, Findings, Level};
use fsstack_control::exports::{self, ETAB, ExportClient, ExportLine};
use fsstack_control::ganesha::{self, CONFIG, GaneshaConfig};
use fsstack_control::holders;
use fsstack_pool::Printable;
use fsstack_sys::dirents::Dirents;
use fsstack_sys::handle::ByNumber;
use fsstack_sys::{OFlags, at, file};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

pub(super) fn check(pool: &Pool, style: Style) -> Result<(), Failed> {
    let mut findings = Vec::new();
    let mut add = |level, about: &str, text: String| {
        findings.push(Finding { level, about: about.to_owned(), text });
    };
    let mount_point = pool.entry.mount_point();
    let exported = mounted(pool, &mut add);
    // A request to a daemon that never replies would keep the process from ending.
    if exported.is_some() {
        check_stored(pool, &mut add);
    }
    branches(pool, &mut add);
    exports(&mount_point, &mut add);
    by_ganesha(&mount_point, &mut add);
    held(&mount_point, &mut add);
    if exported == Some(true) {
        handles::tried(pool, &mount_point, &mut add);
    }
    let findings = Findings { findings };
    show::answer(style, &findings, crate::command::doctor::human)?;
    match findings.findings.iter().filter(|finding| finding.level == Level::Fail).count() {
        0 => Ok(()),
        count => Err(Failed::Refused(format!("nfs: checks that failed: {count}"))),
    }
}

/// Checks the mount options. Returns whether handles are to last; `None` if the daemon does not answer.
fn mounted(pool: &Pool, add: &mut impl FnMut(Level, &str, String)) -> Option<bool> {
    let Mounted { exported, identity, timeouts, out_of_band } = match Mounted::of(pool) {
        Ok(mounted) => mounted,
        Err(Failed::Dead(why)) => {
            add(Level::Fail, "pool", format!("its daemon is stopped; other checks of it are skipped: {why}"));
            return None;
        }
        Err(failed) => {
            add(Level::Fail, "options", failed.to_string());
            return Some(false);
        }
    };
    match exported {
        true => add(Level::Ok, "nfs-export", "on".into()),
        false => add(
            Level::Fail,
            "nfs-export",
            "off: handles go stale when the kernel forgets; mount the pool with nfs-export".into(),
        ),
    }
    let (level, text) = judged_timeouts(&timeouts, &out_of_band);
    add(level, "timeouts", text);
    match identity {
        Some(uuid) => add(Level::Ok, "nfs-identity", uuid),
        None => add(
            Level::Warn,
            "nfs-identity",
            "none: nfs-ganesha's handles go stale over a remount; the kernel's server needs none".into(),
        ),
    }
    Some(exported)
}

/// Seconds up to which a timeout is no finding: the default of all three.
const SHORT: f64 = 1.0;

/// Finding of how late clients see what was changed on a branch past the pool.
fn judged_timeouts(timeouts: &[(&'static str, f64)], out_of_band: &str) -> (Level, String) {
    let longest = timeouts.iter().copied().max_by(|(_, one), (_, other)| one.total_cmp(other));
    let Some((name, seconds)) = longest.filter(|(_, seconds)| *seconds > SHORT) else {
        let text = format!("changes that others make on the branches show within {SHORT} s");
        return (Level::Ok, text);
    };
    match out_of_band {
        "never" => {
            (Level::Ok, format!("{name}={seconds} with out-of-band=never: nobody else changes the branches"))
        }
        "watch" => (
            Level::Ok,
            format!("{name}={seconds} with out-of-band=watch: changes on local branches show at once"),
        ),
        _ => (
            Level::Warn,
            format!(
                "{name}={seconds}: clients see changes that others make on the branches up to {seconds} s late; right only if this server alone writes, else set it to 1"
            ),
        ),
    }
}

/// Text for the lifetime of an index in memory.
const SHORT_LIVED: &str = "until the pool is unmounted";

/// Checks the state that the pool has stored.
fn check_stored(pool: &Pool, add: &mut impl FnMut(Level, &str, String)) {
    let Stored { id, index } = match stored(pool) {
        Ok(stored) => stored,
        Err(failed) => return add(Level::Fail, "pool", failed.to_string()),
    };
    match id {
        Ok(id) => add(Level::Ok, "fsid", id.to_string()),
        Err(failed) => add(Level::Fail, "fsid", failed.to_string()),
    }
    if index.ends_with(SHORT_LIVED) {
        let text =
            format!("{index}: what only it finds is out of reach then; the log says why it cannot be kept");
        return add(Level::Warn, "index", text);
    }
    match index.starts_with("complete") {
        true => add(Level::Ok, "index", index),
        false => add(
            Level::Warn,
            "index",
            format!("{index}: what only it finds cannot be opened until it is complete"),
        ),
    }
}

/// Checks how each branch finds objects that the kernel has forgotten.
fn branches(pool: &Pool, add: &mut impl FnMut(Level, &str, String)) {
    for branch in &pool.entry.branches {
        let path = branch.path();
        let about = Printable::path(&path).to_string();
        let Some((by_number, tells_births, is_whole, other_number)) =
            unless_it_hangs(HUNG_AFTER, move || {
                (by_number(&path), tells_births(&path), is_whole(&path), other_number(&path))
            })
        else {
            add(Level::Fail, &about, "it hangs: clients wait for what is there".into());
            continue;
        };
        if let Ok(Some(name)) = other_number {
            let name = Printable(name.to_bytes());
            let text = format!(
                "{name}: its inode number is not the one that the directory lists: the server of the branch numbers files anew each time the kernel forgets them, and handles are stale then; mount the branch with use_ino if it knows that option, else do not export it"
            );
            add(Level::Fail, &about, text);
        }
        match by_number {
            Ok(true) if is_whole.is_ok_and(|whole| !whole) => add(
                Level::Warn,
                &about,
                "opens files by number, and is a directory of a larger file system: clients that make up handles can reach files outside of it; make it a file system of its own, unless you trust them"
                    .into(),
            ),
            Ok(true) => add(Level::Ok, &about, "opens files by number".into()),
            Ok(false) => add(
                Level::Warn,
                &about,
                "neither ext4, XFS nor btrfs: what the kernel forgot is looked for through all of the branch"
                    .into(),
            ),
            Err(error) => add(Level::Fail, &about, error.to_string()),
        }
        if tells_births.is_ok_and(|tells| !tells) {
            add(
                Level::Warn,
                &about,
                "tells no birth times: where an inode number is used again, an old handle opens the new file"
                    .into(),
            );
        }
    }
}

/// True if the branch has birth times, which distinguish objects that reuse an inode number.
fn tells_births(branch: &Path) -> io::Result<bool> {
    let root = at::open_root(branch).map_err(|error| error.errno)?;
    let root = at::stat_fd(root.as_fd()).map_err(|error| error.errno)?;
    Ok(root.btime.is_some())
}

/// True if the branch is its whole file system, so that opening by number cannot leave it.
fn is_whole(branch: &Path) -> io::Result<bool> {
    let root = at::open_root(branch).map_err(|error| error.errno)?;
    let space = file::statfs(root.as_fd()).map_err(|error| error.errno)?;
    ByNumber::of(root.as_fd(), space.f_type).map_or(Ok(true), |how| how.is_all_below(root.as_fd(), branch))
}

fn by_number(branch: &Path) -> io::Result<bool> {
    let root = at::open_root(branch).map_err(|error| error.errno)?;
    let space = file::statfs(root.as_fd()).map_err(|error| error.errno)?;
    Ok(ByNumber::of(root.as_fd(), space.f_type).is_some())
}

/// Entries of a branch's root whose numbers are compared.
const COMPARED: usize = 64;

/// Returns an entry of the branch's root whose inode number is not the listed one. Objects are found by the numbers that
/// directories list where a file system cannot open by number, so such a file is never found again. Servers by libfuse that do
/// not set `use_ino` have nothing else.
fn other_number(branch: &Path) -> io::Result<Option<CString>> {
    if by_number(branch)? {
        return Ok(None);
    }
    let root = at::open_root(branch).map_err(|error| error.errno)?;
    let once = differing(root.as_fd())?;
    if once.is_empty() {
        return Ok(None);
    }
    // A name that was given to another file between listing and look differs once.
    Ok(differing(root.as_fd())?.into_iter().find(|again| once.contains(again)).map(|(name, _)| name))
}

/// Entries whose inode number is not the listed one, with their own.
fn differing(root: BorrowedFd<'_>) -> io::Result<Vec<(CString, u64)>> {
    let dev = at::stat_fd(root).map_err(|error| error.errno)?.dev;
    let list = at::reopen_quietly(root, OFlags::RDONLY | OFlags::DIRECTORY).map_err(|error| error.errno)?;
    let mut entries = Dirents::new(list, 32 << 10);
    let mut found = Vec::new();
    for _ in 0..COMPARED {
        let Some(entry) = entries.next().map_err(|error| error.errno)? else { break };
        let is_dot = matches!(entry.name.to_bytes(), b"." | b"..");
        // One that was removed meanwhile, or a mount point, tells nothing.
        if let Ok(stat) = at::stat(root, entry.name)
            && !is_dot
            && stat.dev == dev
            && stat.ino != entry.ino
        {
            found.push((entry.name.to_owned(), stat.ino));
        }
    }
    Ok(found)
}

/// Checks exports of the pool by the kernel's server.
fn exports(mount_point: &Path, add: &mut impl FnMut(Level, &str, String)) {
    let Ok(table) = exports::exported() else {
        return add(Level::Warn, "exports", format!("{ETAB}: the kernel's server is not set up here"));
    };
    let ours: Vec<&ExportLine> = table.iter().filter(|line| line.is_of(mount_point)).collect();
    if ours.is_empty() {
        add(Level::Warn, "exports", "the kernel's server does not export the pool".into());
    }
    for line in ours {
        for client in &line.clients {
            let to = format!("{}({})", client.name, client.options);
            let shown = format!("{} {}", Printable::path(&line.path), Printable(to.as_bytes()));
            let defects = judged(line, client, &table);
            if defects.is_empty() {
                add(Level::Ok, "exports", shown);
                continue;
            }
            for (level, text) in defects {
                add(level, "exports", format!("{shown}: {text}"));
            }
        }
    }
}

/// Checks exports of the pool by nfs-ganesha.
fn by_ganesha(mount_point: &Path, add: &mut impl FnMut(Level, &str, String)) {
    match ganesha::read(Path::new(CONFIG)) {
        Ok(config) => {
            judged_ganesha(&config, mount_point)
                .into_iter()
                .for_each(|(level, text)| add(level, "nfs-ganesha", text));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => add(Level::Warn, "nfs-ganesha", format!("{CONFIG}: {error}")),
    }
}

/// Findings of late changes and slow reads.
fn judged_ganesha(config: &GaneshaConfig, mount_point: &Path) -> Vec<(Level, String)> {
    let ours: Vec<_> = config.exports.iter().filter(|export| export.path.starts_with(mount_point)).collect();
    let mut found: Vec<(Level, String)> = ours
        .iter()
        .map(|export| {
            let path = Printable::path(&export.path);
            match export.attributes_kept {
                0 => (Level::Ok, format!("{path}: clients see at once what others change")),
                kept => {
                    let late = match kept {
                        ..0 => "clients never see changes that others make".to_owned(),
                        _ => format!("clients see changes that others make up to {kept} s late"),
                    };
                    (
                        Level::Warn,
                        format!(
                            "{path}: Attr_Expiration_Time = {kept}: {late}; right only if clients of this server alone write, else set 0"
                        ),
                    )
                }
            }
        })
        .collect();
    if !ours.is_empty() && config.attributes_after_reads {
        found.push((
            Level::Warn,
            "Getattrs_In_Complete_Read is true: each read asks for attributes, too; set it to false in NFS_CORE_PARAM unless clients are VMware ESXi"
                .to_owned(),
        ));
    }
    found
}

/// Findings that put file handles at risk.
fn judged(line: &ExportLine, client: &ExportClient, table: &[ExportLine]) -> Vec<(Level, String)> {
    let mut defects = Vec::new();
    let has = |option: &str| client.option(option).is_some();
    match client.option("fsid") {
        None => defects.push((Level::Fail, "without fsid= every handle is stale after a remount".to_owned())),
        Some(fsid) => {
            let same =
                |client: &ExportClient| client.option("fsid").is_some_and(|other| is_same_fsid(fsid, other));
            let twin = table.iter().find(|other| other.path != line.path && other.clients.iter().any(same));
            if let Some(twin) = twin {
                let path = Printable::path(&twin.path);
                defects.push((
                    Level::Fail,
                    format!(
                        "{path} has the same fsid: handles lead to the one or the other; give that another"
                    ),
                ));
            }
        }
    }
    if !has("no_subtree_check") {
        defects.push((Level::Warn, "with subtree_check every rename makes handles stale".to_owned()));
    }
    if !has("mountpoint") && !has("mp") {
        defects.push((
            Level::Warn,
            "without mountpoint the bare directory is exported while the pool is not mounted, and handles are stale"
                .to_owned(),
        ));
    }
    if has("async") {
        defects
            .push((Level::Warn, "with async what was acknowledged is lost when the machine is".to_owned()));
    }
    defects
}

/// Compares fsids: hyphens of a UUID do not count, and 0 equals `root`.
fn is_same_fsid(one: &str, other: &str) -> bool {
    let plain = |fsid: &str| match fsid {
        "root" => "0".to_owned(),
        fsid => fsid.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase(),
    };
    plain(one) == plain(other)
}

/// Lists processes that keep the pool from being unmounted.
fn held(mount_point: &Path, add: &mut impl FnMut(Level, &str, String)) {
    holders::of(mount_point).iter().for_each(|holder| add(Level::Ok, "to unmount", holder.to_string()));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the findings about the pool's lines in a table.
    fn told(table: &[u8]) -> Vec<(Level, String)> {
        let table = exports::parse(table);
        let ours = table.iter().filter(|line| line.is_of(Path::new("/srv/pool")));
        ours.flat_map(|line| line.clients.iter().flat_map(|client| judged(line, client, &table))).collect()
    }

    #[test]
    fn options_that_make_handles_stale_are_reported() {
        let levels = |options: &str| {
            let table = format!("/srv/pool\t*({options})\n");
            told(table.as_bytes()).into_iter().map(|(level, _)| level).collect::<Vec<_>>()
        };
        assert_eq!(levels("rw,sync,no_subtree_check,mountpoint,fsid=1"), []);
        assert_eq!(levels("rw,sync,no_subtree_check,mountpoint=/srv/pool,fsid=1"), []);
        assert_eq!(levels("rw,sync,no_subtree_check,mp"), [Level::Fail]);
        assert_eq!(levels("rw,sync,subtree_check,mountpoint,fsid=1"), [Level::Warn]);
        assert_eq!(levels("rw,sync,no_subtree_check,fsid=1"), [Level::Warn]);
        assert_eq!(levels("rw,async,no_subtree_check,mountpoint,fsid=1"), [Level::Warn]);
        assert_eq!(levels("rw,async"), [Level::Fail, Level::Warn, Level::Warn, Level::Warn]);
    }

    #[test]
    fn late_changes_and_slow_reads_by_ganesha_are_reported() {
        let export =
            |path: &str, attributes_kept| ganesha::GaneshaExport { path: path.into(), attributes_kept };
        let told = |exports: &[ganesha::GaneshaExport], attributes_after_reads| {
            let config = GaneshaConfig { exports: exports.to_vec(), attributes_after_reads };
            judged_ganesha(&config, Path::new("/srv/pool"))
        };
        let levels =
            |found: Vec<(Level, String)>| found.into_iter().map(|(level, _)| level).collect::<Vec<_>>();
        assert_eq!(levels(told(&[export("/srv/pool", 0)], false)), [Level::Ok]);
        assert_eq!(levels(told(&[export("/srv/pool/sub", 60)], true)), [Level::Warn, Level::Warn]);
        assert_eq!(told(&[export("/srv/other", 60)], true), []);
        assert!(told(&[export("/srv/pool", -1)], false)[0].1.contains("never"));
    }

    #[test]
    fn long_timeouts_are_reported_where_others_may_write() {
        let level = |entry, attr, out_of_band| {
            judged_timeouts(&[("entry-timeout", entry), ("attr-timeout", attr)], out_of_band).0
        };
        assert_eq!(level(1.0, 0.0, "timeout"), Level::Ok);
        assert_eq!(level(60.0, 1.0, "timeout"), Level::Warn);
        assert_eq!(level(1.0, 60.0, "timeout"), Level::Warn);
        assert_eq!(level(60.0, 60.0, "never"), Level::Ok);
        assert!(judged_timeouts(&[("attr-timeout", 60.0)], "timeout").1.starts_with("attr-timeout=60:"));
    }

    #[test]
    fn an_fsid_that_another_path_has_too_is_reported() {
        let with = |other: &str, fsid: &str, others: &str| {
            let options = "rw,no_subtree_check,mountpoint,fsid";
            let table = format!("/srv/pool\t*({options}={fsid})\n{other}\t*({options}={others})\n");
            let told = told(table.as_bytes());
            told.into_iter().any(|(level, text)| level == Level::Fail && text.starts_with(other))
        };
        let uuid = "0a0b0c0d-0102-4304-8506-0708090a0b0c";
        assert!(with("/srv/other", uuid, uuid));
        assert!(with("/srv/other", uuid, "0A0B0C0D:01024304:85060708:090A0B0C"));
        assert!(with("/srv/pool/sub", uuid, uuid));
        assert!(with("/srv/other", "0", "root"));
        assert!(!with("/srv/other", uuid, "1"));
        // The same path for another client.
        assert!(!with("/srv/pool", uuid, uuid));
    }
}
