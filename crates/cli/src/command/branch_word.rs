//! A branch, as it is typed: the daemon has another working directory, so a relative path is made absolute here.

use fsstack_pool::{BranchSpec, Printable, escape};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The branch's path for the daemon.
pub(super) fn path(typed: &Path) -> String {
    let full = std::path::absolute(typed).unwrap_or_else(|_| typed.to_owned());
    let path = if typed.is_relative() { &full } else { typed };
    // The daemon knows its branches as they are shown, too.
    Printable::path(path).to_string()
}

/// Like [`path`], for a branch that may have an id in place of a path: a number.
pub(super) fn path_or_id(typed: &Path) -> String {
    match typed.to_str() {
        Some(id) if id.parse::<u64>().is_ok() => id.to_owned(),
        _ => path(typed),
    }
}

/// The branch in the notation of a pool's source, with its attributes.
pub(super) fn spec(typed: &str) -> String {
    match std::env::current_dir() {
        Ok(dir) => spec_in(&dir, typed),
        Err(_) => typed.to_owned(),
    }
}

fn spec_in(dir: &Path, typed: &str) -> String {
    let begins_elsewhere = escape::unescape(typed.as_bytes())
        .map_or(true, |symbols| symbols.first().is_none_or(|first| b"/:,=".contains(&first.byte)));
    // The first `#` that is not escaped belongs to the prefix of an fstab line, which is no path.
    if begins_elsewhere || ["fsstack#", "mergerfs#", "mhddfs#"].iter().any(|prefix| typed.starts_with(prefix))
    {
        return typed.to_owned();
    }
    let mut shown = BranchSpec::new(PathBuf::from(dir)).to_string();
    // The printed branch ends in its mode, which is not part of the path.
    shown.truncate(shown.rfind('=').unwrap_or(shown.len()));
    let slash = if dir.as_os_str().as_bytes().ends_with(b"/") { "" } else { "/" };
    format!("{shown}{slash}{typed}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use fsstack_pool::parse_source;
    use std::ffi::OsStr;

    #[test]
    fn a_relative_branch_keeps_its_attributes_and_pattern() {
        let of = |dir: &str, typed: &str| spec_in(Path::new(dir), typed);
        assert_eq!(of("/srv", "disk=NC,1G"), "/srv/disk=NC,1G");
        assert_eq!(of("/srv", "./vol*"), "/srv/./vol*");
        assert_eq!(of("/", "disk"), "/disk");
        for kept in ["/disk=RW", "", "=RW", "fsstack#/a"] {
            assert_eq!(of("/srv", kept), kept);
        }
        let odd = of("/a:b=c,d [x]", "disk=NC");
        let specs = parse_source(OsStr::new(&odd)).unwrap();
        assert_eq!((specs.len(), &specs[0].path), (1, &PathBuf::from("/a:b=c,d [x]/disk")));
    }

    #[test]
    fn an_id_and_an_absolute_path_are_kept() {
        assert_eq!(path_or_id(Path::new("7")), "7");
        assert_eq!(path(Path::new("/srv//a/")), "/srv//a/");
        assert!(path(Path::new("7")).ends_with("/7"));
    }
}
