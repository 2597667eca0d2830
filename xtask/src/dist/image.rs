//! The container image: static programs, a shell, and a demo. It is an archive of an OCI image layout, for `podman load`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::stage::Stage;
use super::static_build::Machine;
use super::{Release, archive, exec};

/// The shell and the usual programs, all in one static file.
const BUSYBOX: &str = "busybox";
const BUSYBOX_PACKAGE: &str = "busybox-static";

/// The demo, which runs unless another command is named.
const DEMO: (&str, &str) = ("packaging/image/demo", "usr/bin/fsstack-demo");

/// Directories that a container's programs expect.
const DIRS: [&str; 8] = ["dev", "proc", "sys", "run", "srv", "root", "tmp", "var/lib"];

/// Users and groups that programs look up.
const FILES: [(&str, &str); 2] =
    [("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"), ("etc/group", "root:x:0:\nadm:x:4:\n")];

/// Packs the image from the staged files, which it adds to; returns the file.
pub(super) fn pack(stage: &Stage, release: &Release, machine: &Machine) -> Result<PathBuf> {
    add_system(stage)?;
    let layout = tempfile::tempdir()?;
    let blobs = Blobs::begin(layout.path())?;
    let layer = layout.path().join("layer.tar");
    archive(stage.root(), release, &layer).run()?;
    let whole = sha256(&layer)?;
    exec::quiet("gzip").arg("-9n").arg(&layer).run()?;
    let layer =
        blobs.take(&layout.path().join("layer.tar.gz"), "application/vnd.oci.image.layer.v1.tar+gzip")?;
    let created = date(&release.time)?;
    let config = json!({
        "architecture": machine.debian, "os": "linux", "created": created,
        "config": {
            "Cmd": [format!("/{}", DEMO.1)],
            "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            "Labels": {
                "org.opencontainers.image.title": "fsstack",
                "org.opencontainers.image.version": release.version,
                "org.opencontainers.image.licenses": "(MIT OR Apache-2.0) AND GPL-2.0-only",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{whole}")] },
        "history": [{ "created": created, "created_by": "cargo xtask dist" }],
    });
    let config = blobs.put(&config, "application/vnd.oci.image.config.v1+json")?;
    let manifest = "application/vnd.oci.image.manifest.v1+json";
    let content = json!({ "schemaVersion": 2, "mediaType": manifest, "config": config, "layers": [layer] });
    let mut manifest = blobs.put(&content, manifest)?;
    manifest["annotations"] =
        json!({ "org.opencontainers.image.ref.name": format!("fsstack:{}", release.version) });
    write(layout.path(), "index.json", &json!({ "schemaVersion": 2, "manifests": [manifest] }))?;
    write(layout.path(), "oci-layout", &json!({ "imageLayoutVersion": "1.0.0" }))?;
    let file = release.out.join(format!("fsstack-{}-{}.oci.tar", release.version, machine.name));
    archive(layout.path(), release, &file).run()?;
    Ok(file)
}

/// Adds all that makes a system of the stage.
fn add_system(stage: &Stage) -> Result<()> {
    let busybox = fsstack_lab::shell::which(BUSYBOX).context("busybox is not installed")?;
    stage.put(&busybox, "bin/busybox", 0o755)?;
    for name in exec::quiet(BUSYBOX).arg("--list").run()?.stdout.lines().filter(|name| *name != BUSYBOX) {
        symlink(BUSYBOX, stage.root().join("bin").join(name))?;
    }
    let about = format!("usr/share/doc/{BUSYBOX_PACKAGE}");
    stage.put(&Path::new("/").join(&about).join("copyright"), &format!("{about}/copyright"), 0o644)?;
    let query = ["-W", "-f", "${source:Package} ${source:Version}", BUSYBOX_PACKAGE];
    let source = exec::quiet("dpkg-query").args(query).run()?.stdout;
    let text =
        format!("busybox is Debian's, without changes. Its source: Debian's source package {source}\n");
    fs::write(stage.place(&format!("{about}/source"))?, text)?;
    stage.put(&exec::root().join(DEMO.0), DEMO.1, 0o755)?;
    for dir in DIRS {
        fs::create_dir_all(stage.root().join(dir))?;
    }
    for (name, text) in FILES {
        fs::write(stage.place(name)?, text)?;
    }
    Ok(())
}

/// The files of an image, named by their checksums.
struct Blobs(PathBuf);

impl Blobs {
    fn begin(layout: &Path) -> Result<Self> {
        let dir = layout.join("blobs/sha256");
        fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }

    /// Moves a file there; returns its descriptor.
    fn take(&self, file: &Path, kind: &str) -> Result<Value> {
        let (sum, size) = (sha256(file)?, fs::metadata(file)?.len());
        fs::rename(file, self.0.join(&sum))?;
        Ok(json!({ "mediaType": kind, "digest": format!("sha256:{sum}"), "size": size }))
    }

    fn put(&self, document: &Value, kind: &str) -> Result<Value> {
        let file = write(&self.0, "unnamed", document)?;
        self.take(&file, kind)
    }
}

fn write(dir: &Path, name: &str, document: &Value) -> Result<PathBuf> {
    let file = dir.join(name);
    fs::write(&file, serde_json::to_vec(document)?)?;
    Ok(file)
}

fn sha256(file: &Path) -> Result<String> {
    let output = exec::quiet("sha256sum").arg(file).run()?.stdout;
    output.split_whitespace().next().map(str::to_owned).context("sha256sum prints no sum")
}

/// The time in the form of RFC 3339.
fn date(seconds: &str) -> Result<String> {
    let at = format!("--date=@{seconds}");
    Ok(exec::quiet("date").args(["--utc", &at, "+%Y-%m-%dT%H:%M:%SZ"]).run()?.stdout.trim().to_owned())
}
