//! A pool whose names and attributes the kernel keeps for a minute: clients of the one server that changes it see each other's
//! changes at once.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::test_bed::{CLIENTS, TestBed, forget, in_pool, say, sh};

/// Options of a pool that only the clients of its server change.
pub(crate) const A_MINUTE: &str = ",entry-timeout=60,attr-timeout=60,negative-timeout=60";

pub(crate) fn scenario(test_bed: &mut TestBed) {
    test_bed.stop_server();
    test_bed.unmount_pool();
    test_bed.mount_pool_with("/mnt/a:/mnt/b", A_MINUTE);
    test_bed.start_server();
    let options = "hard,actimeo=0,lookupcache=none";
    sh(&format!(
        "umount /mnt/v3 && umount /mnt/v4 &&
         mount -t nfs -o vers=3,{options},nordirplus,port=2049,mountport=20048,mountproto=tcp 127.0.0.1:/mnt/pool /mnt/v3 &&
         mount -t nfs -o vers=4.2,{options} 127.0.0.1:/mnt/pool /mnt/v4"
    ));
    are_kept();
    let [v3, v4] = CLIENTS.map(Path::new);
    for round in 0..3 {
        for (writer, reader) in [(v3, v4), (v4, v3)] {
            say(&format!("round {round}: {} sees {}", reader.display(), writer.display()));
            each_change_is_seen(writer, reader);
        }
    }
}

/// The kernel keeps attributes: a change of the branch that nobody reports is not seen.
fn are_kept() {
    fs::write(in_pool("kept"), "kept").unwrap();
    let mode = || fs::metadata(in_pool("kept")).unwrap().mode() & 0o7777;
    fs::set_permissions(in_pool("kept"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(mode(), 0o640);
    sh("chmod 600 /mnt/?/kept");
    assert_eq!(mode(), 0o640);
    fs::remove_file(in_pool("kept")).unwrap();
}

/// Each change of one client is seen by the other, which has looked at the name before.
fn each_change_is_seen(writer: &Path, reader: &Path) {
    let both = |name: &str| -> [PathBuf; 2] { [writer.join(name), reader.join(name)] };
    let [dir, dir_seen] = both("dir");
    let [file, file_seen] = both("dir/file");
    let [other, other_seen] = both("dir/other");
    let names = || {
        let mut names: Vec<String> = fs::read_dir(&dir_seen)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    };
    assert!(!dir_seen.exists() && !file_seen.exists());
    fs::create_dir(&dir).unwrap();
    assert_eq!(names(), [""; 0]);
    fs::write(&file, b"made").unwrap();
    assert_eq!((names(), fs::read(&file_seen).unwrap()), (vec!["file".to_owned()], b"made".to_vec()));
    fs::write(&file, b"longer than before").unwrap();
    assert_eq!(fs::read(&file_seen).unwrap(), b"longer than before");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(fs::metadata(&file_seen).unwrap().mode() & 0o7777, 0o600);
    assert!(!other_seen.exists());
    fs::rename(&file, &other).unwrap();
    assert!(other_seen.exists() && !file_seen.exists());
    assert_eq!(names(), ["other"]);
    fs::hard_link(&other, &file).unwrap();
    assert_eq!(fs::metadata(&other_seen).unwrap().nlink(), 2);
    fs::remove_file(&other).unwrap();
    assert_eq!(fs::metadata(&file_seen).unwrap().nlink(), 1);
    assert_eq!(names(), ["file"]);
    // Also what the kernel has forgotten.
    forget();
    assert_eq!(fs::read(&file_seen).unwrap(), b"longer than before");
    fs::remove_file(&file).unwrap();
    fs::remove_dir(&dir).unwrap();
    assert!(!dir_seen.exists() && !file_seen.exists());
}
