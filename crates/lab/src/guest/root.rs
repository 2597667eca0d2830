//! A guest's file systems: an initrd that finds the disks, and a root made of this machine's programs with their
//! libraries.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{IMAGE_TIMEOUT, Packages, write};
use crate::shell::{command, which};

/// Programs of every guest: mount tools, and those of an NFS server and client.
const PROGRAMS: &[&str] = &[
    "busybox",
    "mount",
    "umount",
    "modprobe",
    "mount.nfs",
    "rpcbind",
    "rpc.statd",
    "sm-notify",
    "fusermount3",
    "setfacl",
    "getfacl",
    "setfattr",
    "getfattr",
    "tc",
];
/// Programs of the package that is only unpacked.
const SERVER: &[&str] = &["usr/sbin/exportfs", "usr/sbin/rpc.mountd", "usr/sbin/rpc.nfsd"];
/// Modules needed to find the root.
const DISKS: &[&str] = &["virtio_pci", "virtio_blk"];
/// Enough for the programs, the modules, and what a scenario writes beside the disks.
const SIZE: &str = "1G";

/// First program: finds the root.
const INITRD: &str = "#!/bin/busybox sh
export PATH=/bin
busybox mount -t devtmpfs dev /dev
for module in $(busybox cat /modules); do busybox insmod /$module; done
busybox mount -t ext4 /dev/vda /root || exec busybox poweroff -f
exec busybox switch_root /root /sbin/init
";

/// Second program: runs the scenario and powers the machine off.
const INIT: &str = "#!/bin/sh
export PATH=/usr/sbin:/usr/bin HOME=/root
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
ln -sf /proc/self/fd /dev/fd
hostname guest
ifconfig lo up
/usr/bin/teller $scenario </dev/null 2>&1
ended=$?
if [ $ended = 0 ]; then echo 'fsstack-guest: done'; else dmesg | tail -n 60; echo \"fsstack-guest: failed with $ended\"; fi
exec poweroff -f
";

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh
_rpc:x:100:65534::/run:/bin/false
statd:x:101:65534::/var/lib/nfs:/bin/false
many:x:1000:1000::/tmp:/bin/sh
few:x:1001:1001::/tmp:/bin/sh
nobody:x:65534:65534::/tmp:/bin/false
";

/// The root's image.
pub(super) fn image(
    home: &Path,
    packages: &Packages,
    teller: &Path,
    helper: &Path,
    files: &[PathBuf],
) -> Result<PathBuf> {
    let root = home.join("root");
    for dir in
        ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "dev", "proc", "sys", "run", "tmp", "mnt", "root"]
    {
        fs::create_dir_all(root.join(dir))?;
    }
    for dir in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{dir}"), root.join(dir))?;
    }
    let mut wanted = BTreeSet::new();
    for program in PROGRAMS {
        wanted.insert(which(program).with_context(|| format!("the program {program}"))?);
    }
    wanted.extend(files.iter().cloned());
    for path in &wanted {
        // A file built with the helper is not part of this machine.
        let beside = path.file_name().filter(|_| path.parent() == helper.parent());
        place(&root, path, &beside.map_or_else(|| path.clone(), |name| Path::new("/usr/bin").join(name)))?;
    }
    place(&root, teller, Path::new("/usr/bin/teller"))?;
    place(&root, helper, Path::new("/usr/sbin/mount.fsstack"))?;
    place(&root, &helper.with_file_name("fsstack"), Path::new("/usr/bin/fsstack"))?;
    for program in SERVER {
        place(&root, &packages.unpacked().join(program), &Path::new("/").join(program))?;
    }
    settle(&root)?;
    let modules = format!("lib/modules/{}", packages.version());
    copy_tree(&packages.unpacked().join(&modules), &root.join("usr").join(&modules))?;
    applets(&root)?;
    let image = home.join("root.img");
    command("mkfs.ext4")
        .args(["-q", "-F", "-d"])
        .arg(&root)
        .arg(&image)
        .arg(SIZE)
        .limit(IMAGE_TIMEOUT)
        .run()?;
    fs::remove_dir_all(&root)?;
    Ok(image)
}

/// System settings other than programs.
fn settle(root: &Path) -> Result<()> {
    write(&root.join("sbin/init"), INIT)?;
    executable(&root.join("sbin/init"))?;
    let members = (2000..2024).map(|gid| format!("g{gid}:x:{gid}:many\n")).collect::<String>();
    write(&root.join("etc/passwd"), PASSWD)?;
    write(
        &root.join("etc/group"),
        &format!("root:x:0:\nmany:x:1000:\nfew:x:1001:\n{members}nogroup:x:65534:\n"),
    )?;
    write(&root.join("etc/netconfig"), &fs::read_to_string("/etc/netconfig")?)?;
    // rpcbind listens on the service of that name.
    let services = "sunrpc 111/tcp portmapper\nsunrpc 111/udp portmapper\nnfs 2049/tcp\nnfs 2049/udp\n";
    write(&root.join("etc/services"), services)?;
    write(&root.join("etc/protocols"), "tcp 6 TCP\nudp 17 UDP\n")?;
    write(&root.join("etc/hosts"), "127.0.0.1 localhost guest\n")?;
    write(
        &root.join("etc/nsswitch.conf"),
        "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\nrpc: files\n",
    )?;
    for dir in ["sm", "sm.bak", "rpc_pipefs", "v4recovery"] {
        fs::create_dir_all(root.join("var/lib/nfs").join(dir))?;
    }
    for empty in ["etab", "rmtab", "state", "xtab"] {
        write(&root.join("var/lib/nfs").join(empty), "")?;
    }
    for empty in ["etc/exports", "etc/fstab"] {
        write(&root.join(empty), "")?;
    }
    symlink("/proc/self/mounts", root.join("etc/mtab"))?;
    symlink("/run", root.join("var/run"))?;
    symlink("mount.nfs", root.join("usr/sbin/mount.nfs4"))?;
    Ok(())
}

/// All names of busybox that no other program here has.
fn applets(root: &Path) -> Result<()> {
    for applet in command("busybox").arg("--list").run()?.stdout.lines() {
        let taken = ["bin", "sbin"]
            .iter()
            .any(|dir| root.join("usr").join(dir).join(applet).symlink_metadata().is_ok());
        if !taken {
            symlink("/usr/bin/busybox", root.join("usr/bin").join(applet))?;
        }
    }
    Ok(())
}

/// Copies `path` to `to` below `root`, with its libraries at their paths here.
fn place(root: &Path, path: &Path, to: &Path) -> Result<()> {
    copy(path, &below(root, to))?;
    if !fs::read(path)?.starts_with(b"\x7fELF") {
        return Ok(());
    }
    let output = command("ldd").arg(path).output()?;
    for line in output.stdout.lines() {
        let library = line.split_whitespace().find(|word| word.starts_with('/'));
        if let Some(library) = library.map(Path::new)
            && !below(root, library).exists()
        {
            copy(library, &below(root, library))?;
        }
    }
    Ok(())
}

/// Path of a system's `path` below `root`, whose `/bin` and the like are links.
fn below(root: &Path, path: &Path) -> PathBuf {
    let path = path.strip_prefix("/").unwrap_or(path);
    let linked = ["bin", "sbin", "lib", "lib64"].iter().any(|dir| path.starts_with(dir));
    if linked { root.join("usr").join(path) } else { root.join(path) }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file in a directory")?)?;
    fs::copy(from, to).with_context(|| from.display().to_string())?;
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a directory in a directory")?)?;
    command("cp").arg("-a").arg(from).arg(to).limit(IMAGE_TIMEOUT).run().map(drop)
}

fn executable(path: &Path) -> Result<()> {
    command("chmod").arg("755").arg(path).run().map(drop)
}

/// Makes the initrd as `initrd` in `home`.
pub(super) fn initrd(home: &Path, packages: &Packages) -> Result<()> {
    let dir = home.join("initrd.d");
    for sub in ["bin", "dev", "root"] {
        fs::create_dir_all(dir.join(sub))?;
    }
    copy(&which("busybox").context("busybox")?, &dir.join("bin/busybox"))?;
    let mut names = Vec::new();
    for module in DISKS {
        let how = command("modprobe").arg("-d").arg(packages.unpacked()).args(["-S", packages.version()]);
        for line in how.args(["--show-depends", module]).run()?.stdout.lines() {
            let path = line.split_whitespace().nth(1).filter(|_| line.starts_with("insmod"));
            let Some(path) = path.map(Path::new) else { continue };
            let file = path.file_name().context("a module")?.to_string_lossy().into_owned();
            let name = file.strip_suffix(".xz").unwrap_or(&file).to_owned();
            if !names.contains(&name) {
                copy(path, &dir.join(&file))?;
                if name != file {
                    // The program that inserts it does not support compressed modules.
                    command("busybox").arg("unxz").arg(dir.join(&file)).run()?;
                }
                names.push(name);
            }
        }
    }
    write(&dir.join("modules"), &names.join("\n"))?;
    write(&dir.join("init"), INITRD)?;
    executable(&dir.join("init"))?;
    let pack = "busybox find . | busybox cpio -o -H newc > ../initrd";
    command("sh").args(["-c", pack]).dir(&dir).limit(IMAGE_TIMEOUT).run()?;
    fs::remove_dir_all(&dir)?;
    Ok(())
}
