//! A directory of a volume that all tests share, mounted by its own client: a branch for one test.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Gluster, Plan, Steps, Volume};
use crate::cleanup::fresh;
use crate::{MiB, mounts};

/// The lab that tests share; `cargo xtask test` starts it before them and stops it after.
pub const TESTS: &str = "tests";

/// One volume of each kind: distributed, dispersed, distributed and replicated, distributed and dispersed.
pub const KINDS: [&str; 4] = ["dt4", "dp3rd1", "dt2rp2", "dt2dp3rd1"];

/// Plan of the tests' lab. Its bricks are larger than any default floor of a pool.
pub fn plan_of_tests() -> Result<Plan> {
    let volumes = KINDS.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
    Ok(Plan { volumes, bricks: 6, brick_size: MiB(16 << 10), ..Plan::default() })
}

/// The tests' lab; starts it if needed.
pub fn lab_of_tests() -> Result<Gluster> {
    let lab = Gluster::named(TESTS)?;
    lab.up(&plan_of_tests()?, Steps::Quiet)?;
    Ok(lab)
}

/// The directory; removed with its content on drop.
#[derive(Debug)]
pub(crate) struct Part {
    lab: Gluster,
    volume: Volume,
    name: String,
}

impl Part {
    /// Makes it on a volume of the tests' lab.
    pub(crate) fn make(volume: Volume) -> Result<Self> {
        let lab = Gluster::named(TESTS)?;
        let name = fresh("part")?.file_name().context("a name")?.to_string_lossy().into_owned();
        let part = Self { lab, volume, name };
        fs::create_dir(part.path()).with_context(|| format!("{volume} of the tests' lab"))?;
        Ok(part)
    }

    /// Mounts it.
    pub(crate) fn mount(&self, target: &Path) -> Result<()> {
        self.lab.mount(self.volume, &self.name, "acl", target)
    }

    fn path(&self) -> PathBuf {
        self.lab.mount_point(self.volume).join(&self.name)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Best effort: the volume is removed with the lab, and a server that a test has broken must not block it.
        if mounts::at(&self.lab.mount_point(self.volume)).is_ok_and(|mounted| mounted.is_some()) {
            let _goes_with_the_lab = crate::shell::command("rm").arg("-rf").arg(self.path()).output();
        }
    }
}
