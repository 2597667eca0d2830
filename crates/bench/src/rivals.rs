//! mhddfs and mergerfs over the branches of a measured pool.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use fsstack_lab::cleanup::{self, Entry};
use fsstack_lab::rival::{Rival, Union};

use crate::machine;
use crate::plan::Plan;
use crate::record::Skipped;
use crate::target::Target;

/// A floor for small branches: by default both skip branches with less than 4 GiB free.
pub(crate) fn options(union: Union) -> &'static [&'static str] {
    match union {
        Union::Mergerfs => &["minfreespace=1M"],
        Union::Mhddfs => &["mlimit=100M"],
    }
}

/// First line of an error: programs print their whole usage when they refuse arguments.
pub(crate) fn first_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    text.lines().next().unwrap_or_default().trim_end().to_owned()
}

/// Mounts of rivals; unmounted on drop.
#[derive(Debug, Default)]
pub(crate) struct Rivals {
    // Dropped in this order: the mounts, then the directory of their mount points.
    mounted: Vec<Rival>,
    _home: Option<Entry>,
}

impl Rivals {
    /// Mounts installed rivals over `branches`, or those of the first target that is a pool, and adds them to the plan.
    pub(crate) fn mount(&mut self, plan: &mut Plan, branches: &[PathBuf]) -> Result<()> {
        let of_pool = || plan.targets.iter().find_map(|target| branches_of(&target.dir));
        let branches = if branches.is_empty() { of_pool().unwrap_or_default() } else { branches.to_vec() };
        if branches.is_empty() {
            bail!(
                "--rivals: no target is a mounted fsstack whose branches can be read: name them with --branch DIR"
            );
        }
        let parts: Vec<&Path> = branches.iter().map(PathBuf::as_path).collect();
        let home = cleanup::fresh("rivals")?;
        self._home = Some(Entry::dir(&home)?);
        for union in [Union::Mhddfs, Union::Mergerfs] {
            let name = union.program().to_owned();
            let at = home.join(&name);
            match union.installed() {
                Err(skip) => plan.skipped.push(Skipped::of(format!("rival {name}"), skip)),
                Ok(()) => match Rival::mount(union, &parts, &at, options(union)) {
                    Ok(rival) => {
                        self.mounted.push(rival);
                        plan.targets.push(Target { name, dir: at });
                    }
                    Err(e) => plan.skipped.push(Skipped::of(format!("rival {name}"), first_line(&e))),
                },
            }
        }
        Ok(())
    }
}

/// Branches of the pool at `dir`, from the mount table.
fn branches_of(dir: &Path) -> Option<Vec<PathBuf>> {
    let (fs_type, source, _) = machine::mount_of(&dir.canonicalize().ok()?)?;
    if fs_type != "fuse.fsstack" && fs_type != "fsstack" {
        return None;
    }
    let specs = fsstack_pool::parse_source(OsStr::new(&source)).ok()?;
    Some(specs.into_iter().map(|spec| spec.path).collect())
}
