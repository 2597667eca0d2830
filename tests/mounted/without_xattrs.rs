//! A pool without extended attributes (`xattr=off`): what goes with them, and that nobody gains by it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use fsstack_lab::{self as lab, needs};

use crate::command::output_of;
use crate::script::{STRANGER, refused, refused_to_stranger, sh, sh_as_stranger, ways};

fn shown(pool: &lab::Pool, name: &str) -> u32 {
    fs::symlink_metadata(pool.at(name)).unwrap().mode() & 0o7777
}

#[test]
fn no_attribute_is_shown_or_taken() {
    needs!(mounting(), program("setfattr"));
    let pool = lab::pool().tmp_branch("a").option("xattr=off").mount();
    fs::write(pool.branch("a").path().join("file"), "some").unwrap();
    sh(pool.branch("a").path(), "setfattr -n user.color -v red file");
    assert!(refused(pool.path(), "setfattr -n user.color -v blue file").contains("not supported"));
    assert!(refused(pool.path(), "getfattr -n user.color file").contains("not supported"));
    assert!(refused(pool.path(), "setfattr -x user.color file").contains("not supported"));
    assert!(refused(pool.path(), "getfattr -d file").contains("not supported"));
    // Programs that carry attributes go on without.
    sh(
        pool.path(),
        "ls -l > /dev/null; cp -a file copy; rsync -aX file synced; tar --xattrs --acls -cf - file | tar xf - -O | cmp - file; cmp copy synced",
    );
    // The attribute on the branch stays.
    assert_eq!(sh(pool.branch("a").path(), "getfattr --only-values -n user.color file"), "red");
    // `fsstack where` goes by the daemon then.
    let told = output_of(&["where", &pool.at("file").display().to_string()]);
    assert!(told.contains(&pool.branch("a").path().display().to_string()), "{told}");
}

#[test]
fn nobody_comes_in_whom_an_acl_keeps_out() {
    needs!(mounting(), program("setfacl"), not_on_gluster("its volumes keep no ACLs here"));
    acls_are_kept("out-of-band=timeout");
}

#[test]
fn nobody_comes_in_whom_an_acl_keeps_out_of_a_pool_that_has_its_branches_for_itself() {
    needs!(mounting(), program("setfacl"), not_on_gluster("its volumes keep no ACLs here"));
    acls_are_kept("out-of-band=never");
}

fn acls_are_kept(out_of_band: &str) {
    let builder = lab::pool().tmp_branch("a").tmp_branch("b").option("xattr=off");
    let mut pool = builder.option(out_of_band).mount();
    let branch = &pool.branch("a").path().to_owned();
    sh(
        branch,
        &format!(
            "for name in plain user group mask; do echo $name > $name; chmod 664 $name; done
             setfacl -m u:{STRANGER}:- user; setfacl -m g:{STRANGER}:- group; setfacl -m u:1234:rw,g::-,m::rw mask
             mkdir dir; echo in > dir/file; setfacl -m u:{STRANGER}:- dir"
        ),
    );
    assert_eq!(sh_as_stranger(pool.path(), "cat plain"), "plain");
    for name in ["user", "group", "dir/file"] {
        let said = refused_to_stranger(pool.path(), &format!("cat {name}"));
        assert!(said.contains("denied"), "{name}: {said}");
    }
    // Also after changes by the pool.
    sh(
        pool.path(),
        "chmod 660 user group dir/file; mv user renamed; mv renamed user; touch user; ln plain link",
    );
    for name in ["user", "group", "dir/file"] {
        assert!(refused_to_stranger(pool.path(), &format!("cat {name}")).contains("denied"), "{name}");
    }
    sh(pool.path(), "chmod 664 user group dir/file");
    assert_eq!(sh_as_stranger(pool.path(), "cat link"), "plain");
    sh(pool.path(), "rm link");
    // From a listing with attributes, of a kernel that knows none yet; then by name.
    pool.remount();
    assert_eq!(
        sh(pool.path(), "ls -l | awk '/user|group|mask/ {print substr($1, 1, 10), $NF}'"),
        "-rw-rw---- group\n-rw----r-- mask\n-rw------- user"
    );
    assert_eq!((shown(&pool, "plain"), shown(&pool, "user"), shown(&pool, "group")), (0o664, 0o600, 0o660));
    assert_eq!(shown(&pool, "mask"), 0o604);
    assert_eq!(shown(&pool, "dir"), 0o700);
    // The branch's own stay as they are.
    assert_eq!(fs::metadata(branch.join("user")).unwrap().permissions().mode() & 0o777, 0o664);
}

#[test]
fn new_objects_keep_out_whom_a_default_acl_keeps_out() {
    needs!(mounting(), program("setfacl"), not_on_gluster("its volumes keep no ACLs here"));
    inherited("out-of-band=timeout");
    inherited("out-of-band=never");
}

fn inherited(out_of_band: &str) {
    let pool = lab::pool().tmp_branch("a").option("xattr=off").option(out_of_band).mount();
    let branch = pool.branch("a").path();
    sh(branch, &format!("mkdir dir; chmod 755 dir . ..; setfacl -d -m u:{STRANGER}:-,g::rw,o::rw dir"));
    sh(pool.path(), "umask 0; echo new > dir/file; mkdir dir/sub; echo in > dir/sub/file; touch other");
    for name in ["dir/file", "dir/sub/file"] {
        assert!(refused_to_stranger(pool.path(), &format!("cat {name}")).contains("denied"), "{name}");
    }
    assert_eq!(shown(&pool, "dir/file"), 0o600);
    assert_eq!(shown(&pool, "other"), 0o666);
    assert!(sh(branch, "getfacl -n -c dir/sub").contains("default:user"), "the branch hands its ACL on");
}

#[test]
fn set_id_bits_and_capabilities_go_with_a_strangers_write() {
    needs!(mounting(), program("setcap"), not_on_gluster("it stores no capabilities"));
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").unmounted();
        let options: Vec<&str> = way.iter().copied().chain(["xattr=off"]).collect();
        pool.remount_with(&options);
        let branch = pool.branch("a").path().to_owned();
        let fresh =
            "rm -f prog; cp /bin/true prog; chmod 6777 prog; setcap cap_net_raw+ep prog; chmod 6777 prog";
        let writes = [
            "echo >> prog",
            ": > prog",
            "dd if=/dev/zero of=prog bs=1 count=1 conv=notrunc status=none",
            "fallocate -l 90000 prog",
            "exec 8< prog; echo >> prog",
        ];
        for write in writes {
            sh(&branch, fresh);
            sh_as_stranger(pool.path(), write);
            assert_eq!(sh(&branch, "getcap prog; stat -c %a prog"), "777", "{way:?}: {write}");
        }
        sh(&branch, fresh);
        sh(pool.path(), "chown 1000 prog");
        assert_eq!(sh(&branch, "getcap prog"), "", "{way:?}: chown");
    }
}

#[test]
fn the_control_file_goes_with_them_or_excludes_the_option() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("xattr=nosys").mount();
    sh(pool.path(), "echo mine > .mergerfs; cat .mergerfs | grep -qx mine");
    let refused = lab::pool()
        .tmp_branch("a")
        .option("xattr=off")
        .option("mergerfs-control=read")
        .try_mount()
        .err()
        .map(|refused| refused.said)
        .unwrap_or_default();
    assert!(refused.contains("xattr") && refused.contains("mergerfs-control"), "{refused}");
}
