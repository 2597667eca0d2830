//! Package source of a guest: the machine's own apt sources, or the backports of the same mirrors, which the machine's
//! apt does not use.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::write;
use crate::debian;
use crate::shell::{Run, command};

/// Time limit of apt: longer than a slow mirror takes.
pub(super) const APT_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Sources and their package lists.
#[derive(Debug)]
pub(super) struct Apt {
    options: Vec<String>,
}

impl Apt {
    /// The machine's own.
    pub(super) fn machines() -> Self {
        Self { options: Vec::new() }
    }

    /// The backports of this machine's release, with lists and downloads below `dir`.
    ///
    /// # Errors
    /// This is no Debian or its like, or its mirrors do not have them.
    pub(super) fn backports(dir: &Path) -> Result<Self> {
        let codename = debian::release()?;
        let suite = format!("{codename}-backports");
        let [parts, lists, cache] = ["sources", "lists", "cache"].map(|sub| dir.join(sub));
        for made in [&parts, &lists.join("partial"), &cache.join("archives/partial")] {
            fs::create_dir_all(made)?;
        }
        for (name, text) in debian::with_suite(Path::new("/etc/apt"), &codename, &suite)? {
            write(&parts.join(name), &text)?;
        }
        let option = |name: &str, value: &Path| format!("{name}={}", value.display());
        let options = vec![
            option("Dir::Etc::SourceList", Path::new("/dev/null")),
            option("Dir::Etc::SourceParts", &parts),
            option("Dir::State::Lists", &lists),
            option("Dir::Cache", &cache),
            format!("APT::Default-Release={suite}"),
        ];
        let apt = Self { options };
        apt.update().with_context(|| format!("the machine's mirrors have no {suite}"))?;
        Ok(apt)
    }

    /// `apt-get` or a related program with these sources.
    pub(super) fn run(&self, program: &str) -> Run {
        let options = self.options.iter().flat_map(|option| ["-o", option]);
        command(program).args(options).limit(APT_TIMEOUT)
    }

    /// Fetches the package lists.
    ///
    /// # Errors
    /// What apt says.
    pub(super) fn update(&self) -> Result<()> {
        self.run("apt-get").args(["update", "-qq"]).run().map(drop)
    }

    /// Downloads the packages' files into the directory `into`.
    ///
    /// # Errors
    /// apt's error, after a retry with fresh lists.
    pub(super) fn download(&self, packages: &[&str], into: &Path) -> Result<()> {
        let get = || self.run("apt-get").args(["download", "-qq"]).args(packages).dir(into).run();
        // The package lists may be as old as the machine's image.
        get().or_else(|_| self.update().and_then(|()| get())).map(drop)
    }
}
