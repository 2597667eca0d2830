//! The RPM packages, built by rpm's own programs from the staged files. They hold static programs, as RPM distributions differ in
//! their C library more than in anything else.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::stage::Stage;
use super::static_build::Machine;
use super::{Release, exec};

/// Revision of the packages, after the programs' version.
const REVISION: u32 = 1;

/// Sections with the scripts that Debian's packages have; in packaging/debian. The first argument of rpm's is how many packages of
/// the name are left, that of Debian's is what happens.
const SCRIPTS: [(&str, &str, &str); 3] = [
    ("post", "postinst", "set -- configure\n"),
    ("preun", "prerm", "[ \"$1\" = 0 ] || exit 0; set -- remove\n"),
    ("postun", "postrm", "[ \"$1\" = 0 ] || exit 0; set -- remove\n"),
];

const HEAD: &str = "Summary: Stacks several file systems into one tree\nLicense: MIT OR Apache-2.0\nGroup: System\n\
    AutoReqProv: no\nRequires: util-linux\nRequires(preun): grep sed\nRecommends: fuse3\nSuggests: logrotate\n\n\
    %global debug_package %{nil}\n%global __os_install_post %{nil}\n%define _build_id_links none\n\
    %define _binary_payload w9.xzdio\n%define _buildhost localhost\n%define use_source_date_epoch_as_buildtime 1\n\
    %define clamp_mtime_to_source_date_epoch 1\n\n\
    %description\n\
    mount.fsstack shows several directories, usually the roots of file systems (disks, GlusterFS\n\
    volumes, NFS mounts), as one tree. A file lies whole on one of them and can be read without it.\n\
    fsstack shows and changes mounted pools. fsstack-bench measures a stack of file systems.\n\n";

/// Builds the package; returns the file.
pub(super) fn pack(stage: &Stage, release: &Release, machine: &Machine) -> Result<PathBuf> {
    let top = tempfile::tempdir()?;
    let spec = top.path().join("fsstack.spec");
    fs::write(&spec, spec_of(stage, release)?)?;
    exec::shown("rpmbuild")
        .args(["-bb", "--quiet", "--target", &format!("{}-linux", machine.name)])
        .args(["--define", &format!("_topdir {}", top.path().display())])
        .arg(&spec)
        .env("SOURCE_DATE_EPOCH", &release.time)
        .run()?;
    let name = format!("fsstack-{}-{REVISION}.{}.rpm", release.version, machine.name);
    let made = top.path().join("RPMS").join(machine.name).join(&name);
    let file = release.out.join(name);
    fs::copy(&made, &file).with_context(|| made.display().to_string())?;
    Ok(file)
}

fn spec_of(stage: &Stage, release: &Release) -> Result<String> {
    let mut spec = format!("Name: fsstack\nVersion: {}\nRelease: {REVISION}\n{HEAD}", release.version);
    write!(
        spec,
        "%install\nmkdir -p %{{buildroot}}\ncp -a '{}/.' %{{buildroot}}\n\n",
        stage.root().display()
    )?;
    for (section, script, before) in SCRIPTS {
        let text = fs::read_to_string(exec::root().join("packaging/debian").join(script)).context(script)?;
        // rpm's macros begin with the same sign as those of printf and systemd.
        write!(spec, "%{section}\n{before}{}\n", text.replace('%', "%%"))?;
    }
    spec.push_str("%files\n%defattr(-,root,root,-)\n");
    for dir in stage.own_dirs()? {
        line(&mut spec, "%dir ", &dir)?;
    }
    for file in stage.files()? {
        line(&mut spec, if file.starts_with("etc") { "%config(noreplace) " } else { "" }, &file)?;
    }
    Stage::links().iter().try_for_each(|link| line(&mut spec, "", Path::new(link)))?;
    Ok(spec)
}

fn line(spec: &mut String, kind: &str, path: &Path) -> Result<()> {
    let path = path
        .to_str()
        .filter(|path| !path.contains([' ', '%', '"']))
        .context("a name that rpm reads otherwise")?;
    ensure!(!path.is_empty(), "a path without a name");
    Ok(writeln!(spec, "{kind}/{path}")?)
}
