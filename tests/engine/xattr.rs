//! Extended attributes: the branch's, and the pool's virtual ones.

use fsstack_engine::Caller;
use fsstack_engine::settings::Settings;
use fsstack_lab::needs;
use fsstack_pool::BranchMode::{NoCreate, ReadWrite};
use fsstack_pool::Ino;
use fsstack_sys::Errno;
use std::ffi::CStr;

use crate::test_bed::{TestBed, settings};

fn get(pool: &TestBed, ino: Ino, name: &CStr) -> Result<String, Errno> {
    let mut value = vec![0; 8192];
    let len = pool.union.getxattr(ino, name, Caller::DAEMON, &mut value).map_err(|e| e.errno())?;
    value.truncate(len);
    Ok(String::from_utf8(value).unwrap())
}

fn list(pool: &TestBed, ino: Ino, caller: Caller) -> Vec<String> {
    let mut names = vec![0; 8192];
    let len = pool.union.listxattr(ino, caller, &mut names).unwrap();
    let names = String::from_utf8(names[..len].to_vec()).unwrap();
    names.split_terminator('\0').map(str::to_owned).collect()
}

#[test]
fn set_get_list_remove() {
    let pool = TestBed::new(2);
    let ino = pool.write("film", "x");
    let set = |value: &[u8], flags| {
        pool.union.setxattr(ino, c"user.a", value, flags, false, Caller::DAEMON).map_err(|e| e.errno())
    };
    const CREATE: u32 = 1;
    const REPLACE: u32 = 2;
    assert_eq!(set(b"1", REPLACE), Err(Errno::NODATA));
    set(b"1", CREATE).unwrap();
    assert_eq!(set(b"2", CREATE), Err(Errno::EXIST));
    set(b"22", REPLACE).unwrap();
    assert_eq!(get(&pool, ino, c"user.a").unwrap(), "22");
    assert_eq!(pool.union.getxattr(ino, c"user.a", Caller::DAEMON, &mut []).unwrap(), 2);
    assert_eq!(
        pool.union.getxattr(ino, c"user.a", Caller::DAEMON, &mut [0]).unwrap_err().errno(),
        Errno::RANGE
    );
    assert_eq!(list(&pool, ino, Caller::DAEMON), ["user.a"]);
    assert_eq!(pool.union.listxattr(ino, Caller::DAEMON, &mut [0; 3]).unwrap_err().errno(), Errno::RANGE);
    pool.union.removexattr(ino, c"user.a", Caller::DAEMON).unwrap();
    assert_eq!(get(&pool, ino, c"user.a").unwrap_err(), Errno::NODATA);
    assert_eq!(pool.union.removexattr(ino, c"user.a", Caller::DAEMON).unwrap_err().errno(), Errno::NODATA);
}

#[test]
fn a_file_without_an_acl_is_asked_once_where_nothing_else_changes_the_branches() {
    needs!(program("setfacl"));
    for exclusive in [false, true] {
        let pool = TestBed::with(&[ReadWrite; 2], Settings { exclusive, ..settings() });
        let (file, with_acl) = (pool.write("film", "x"), pool.write("kept", "x"));
        let has_acl = |ino| pool.union.access_acl(ino, &mut [0; 1024]).unwrap().is_some();
        let add_acl = |name: &str| {
            let path = pool.on(0, name);
            fsstack_lab::shell::command("setfacl").args(["-m", "u:1234:r"]).arg(path).run().unwrap();
        };
        add_acl("kept");
        assert_eq!([has_acl(file), has_acl(with_acl)], [false, true]);
        add_acl("film");
        assert_eq!(has_acl(file), !exclusive, "exclusive: {exclusive}");
        assert!(has_acl(with_acl), "one that has an ACL is asked each time");
    }
}

#[test]
fn a_directory_on_one_branch_without_an_acl_is_asked_once_where_nothing_else_changes_the_branches() {
    needs!(program("setfacl"));
    for exclusive in [false, true] {
        let settings = Settings { exclusive, recheck: std::time::Duration::ZERO, ..settings() };
        let pool = TestBed::with(&[ReadWrite; 2], settings);
        pool.put_dir(1, "dir");
        let dir = pool.ino("dir");
        let has_acl_of = |dir: Ino| pool.union.access_acl(dir, &mut [0; 1024]).unwrap().is_some();
        let has_acl = || has_acl_of(dir);
        let add_acl = |at: usize| {
            let path = pool.on(at, "dir");
            fsstack_lab::shell::command("setfacl").args(["-m", "u:1234:r"]).arg(path).run().unwrap();
        };
        assert!(!has_acl());
        let (_, again) = fsstack_sys::count::scope(has_acl);
        assert_eq!(again.total(), u64::from(!exclusive));
        add_acl(1);
        assert_eq!(has_acl(), !exclusive, "exclusive: {exclusive}");
        // Without the first branch the attributes of the second copy are shown: both are asked, whichever is there.
        (0..2).for_each(|at| pool.put_dir(at, "both"));
        let both = pool.ino("both");
        assert!(!has_acl_of(both));
        let (has_acl_still, asked) = fsstack_sys::count::scope(|| has_acl_of(both));
        assert_eq!((has_acl_still, asked.total()), (false, 1));
        // Another copy is the shown one from now on.
        pool.put_dir(0, "dir");
        add_acl(0);
        assert_eq!(pool.ino("dir"), dir);
        assert!(has_acl(), "exclusive: {exclusive}");
    }
}

#[test]
fn a_directorys_attributes_change_on_all_copies() {
    let pool = TestBed::new(2);
    (0..2).for_each(|at| pool.put_dir(at, "d"));
    let dir = pool.ino("d");
    pool.union.setxattr(dir, c"user.a", b"1", 0, false, Caller::DAEMON).unwrap();
    for at in 0..2 {
        let copy = std::fs::File::open(pool.on(at, "d")).unwrap();
        let on = fsstack_sys::xattr::On::Fd(std::os::fd::AsFd::as_fd(&copy));
        assert_eq!(fsstack_sys::xattr::get_vec(on, c"user.a").unwrap(), b"1");
    }
    pool.union.removexattr(dir, c"user.a", Caller::DAEMON).unwrap();
    assert_eq!(get(&pool, dir, c"user.a").unwrap_err(), Errno::NODATA);
}

#[test]
fn the_pools_own_attributes_are_hidden_and_cannot_be_set() {
    let pool = TestBed::with(&[NoCreate, ReadWrite], settings());
    pool.put_dir(0, "d");
    pool.write("d/film", "x");
    // The root has the branch's id, the new copy the directory's mark.
    for ino in [Ino::ROOT, pool.ino("d")] {
        assert_eq!(list(&pool, ino, Caller::DAEMON), Vec::<String>::new());
        for name in [c"trusted.fsstack.branch", c"trusted.fsstack.dir", c"user.fsstack.branch-id"] {
            assert_eq!(get(&pool, ino, name).unwrap_err(), Errno::NODATA, "{name:?}");
            assert_eq!(
                pool.union.setxattr(ino, name, b"x", 0, false, Caller::DAEMON).unwrap_err().errno(),
                Errno::PERM
            );
            assert_eq!(pool.union.removexattr(ino, name, Caller::DAEMON).unwrap_err().errno(), Errno::PERM);
        }
    }
    let film = pool.ino("d/film");
    for name in [c"user.fsstack.branch", c"user.fsstack.x", c"user.mergerfs.basepath", c"trusted.fsstack.x"] {
        assert_eq!(
            pool.union.setxattr(film, name, b"x", 0, false, Caller::DAEMON).unwrap_err().errno(),
            Errno::PERM,
            "{name:?}"
        );
    }
}

/// mergerfs stores attributes under its prefix that it does not use itself, and cannot read them back.
#[test]
fn attributes_stored_under_the_prefixes_are_listed_only_if_they_can_be_read() {
    let pool = TestBed::new(1);
    let ino = pool.write("film", "x");
    let file = std::fs::File::open(pool.on(0, "film")).unwrap();
    let on = || fsstack_sys::xattr::On::Fd(std::os::fd::AsFd::as_fd(&file));
    for name in [c"user.mergerfs.note", c"user.mergerfs.basepath", c"user.fsstack.note", c"user.a"] {
        fsstack_sys::xattr::set(on(), name, b"stored", 0).unwrap();
    }
    let mut names = list(&pool, ino, Caller::DAEMON);
    names.sort();
    assert_eq!(names, ["user.a", "user.mergerfs.note"]);
    assert_eq!(get(&pool, ino, c"user.mergerfs.note").unwrap(), "stored");
    assert_eq!(get(&pool, ino, c"user.mergerfs.basepath").unwrap(), pool.branch(0).display().to_string());
    assert_eq!(get(&pool, ino, c"user.fsstack.note").unwrap_err(), Errno::NODATA);
    // A copy of the file can have it too.
    pool.union.setxattr(ino, c"user.mergerfs.note", b"copied", 0, false, Caller::DAEMON).unwrap();
    assert_eq!(fsstack_sys::xattr::get_vec(on(), c"user.mergerfs.note").unwrap(), b"copied");
    pool.union.removexattr(ino, c"user.mergerfs.note", Caller::DAEMON).unwrap();
    assert_eq!(list(&pool, ino, Caller::DAEMON), ["user.a"]);
}

#[test]
fn attributes_that_only_root_may_see_are_listed_to_root_only() {
    fsstack_lab::needs!(root());
    let pool = TestBed::new(1);
    let ino = pool.write("film", "x");
    pool.union.setxattr(ino, c"trusted.a", b"1", 0, false, Caller::DAEMON).unwrap();
    pool.union.setxattr(ino, c"user.b", b"1", 0, false, Caller::DAEMON).unwrap();
    let alice = Caller { uid: 1234, ..Caller::DAEMON };
    assert_eq!(list(&pool, ino, alice), ["user.b"]);
    let mut both = list(&pool, ino, Caller::DAEMON);
    both.sort();
    assert_eq!(both, ["trusted.a", "user.b"]);
}

#[test]
fn the_pool_tells_where_a_file_is() {
    let pool = TestBed::new(3);
    pool.put_dir(0, "d");
    pool.put(1, "d/film", "shown");
    pool.put(2, "d/film", "hidden");
    let ino = pool.ino("d/film");
    let (branch, path) = (pool.branch(1).display().to_string(), pool.on(1, "d/film").display().to_string());
    let hidden = pool.on(2, "d/film").display().to_string();
    for (name, want) in [
        (c"user.fsstack.branch", branch.clone()),
        (c"user.fsstack.path", path.clone()),
        (c"user.fsstack.paths", format!("{path}\n{hidden}")),
        (c"user.fsstack.write-path", "stacked".into()),
        (c"user.mergerfs.basepath", branch),
        (c"user.mergerfs.relpath", "/d/film".into()),
        (c"user.mergerfs.fullpath", path.clone()),
        (c"user.mergerfs.allpaths", format!("{path}\0{hidden}")),
    ] {
        assert_eq!(get(&pool, ino, name).unwrap(), want, "{name:?}");
    }
    assert_eq!(get(&pool, ino, c"user.fsstack.nonsense").unwrap_err(), Errno::NODATA);
    assert_eq!(get(&pool, Ino::ROOT, c"user.mergerfs.relpath").unwrap(), "/");
    let copies = [0, 1, 2].map(|at| pool.on(at, "d").display().to_string()).join("\n");
    assert_eq!(get(&pool, pool.ino("d"), c"user.fsstack.paths").unwrap(), copies);
}

#[test]
fn a_path_in_a_closed_directory_is_told_to_root_only() {
    let pool = TestBed::new(1);
    let close = |dir: &str| {
        std::fs::set_permissions(pool.on(0, dir), std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .unwrap();
    };
    pool.put(0, "shared/film", "x");
    pool.put_dir(0, "closed");
    std::fs::hard_link(pool.on(0, "shared/film"), pool.on(0, "closed/secret")).unwrap();
    close("closed");
    let ino = pool.ino("shared/film");
    assert_eq!(pool.ino("closed/secret"), ino);
    let told = |uid, name| {
        let mut value = vec![0; 8192];
        let told = pool.union.getxattr(ino, name, Caller { uid, ..Caller::DAEMON }, &mut value);
        told.map(|len| String::from_utf8(value[..len].to_vec()).unwrap()).map_err(|error| error.errno())
    };
    let names = [
        c"user.fsstack.path",
        c"user.fsstack.paths",
        c"user.mergerfs.relpath",
        c"user.mergerfs.fullpath",
        c"user.mergerfs.allpaths",
    ];
    for name in names {
        assert!(told(0, name).unwrap().ends_with("/closed/secret"), "{name:?}");
        assert!(told(1234, name).unwrap().ends_with("/shared/film"), "{name:?}");
    }
    close("shared");
    for name in names {
        assert_eq!(told(1234, name).unwrap_err(), Errno::NODATA, "{name:?}");
    }
}

#[test]
fn an_acl_that_clears_setgid_does() {
    let pool = TestBed::new(1);
    let ino = pool.write("film", "x");
    pool.setattr(ino, fsstack_engine::ops::Change { mode: Some(0o2755), ..Default::default() }).unwrap();
    let entry =
        |tag: u16, perm: u16| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &u32::MAX.to_le_bytes()].concat();
    let acl = [2_u32.to_le_bytes().to_vec(), entry(1, 7), entry(4, 5), entry(32, 0)].concat();
    match pool.union.setxattr(ino, c"system.posix_acl_access", &acl, 0, true, Caller::DAEMON) {
        Err(error) if error.errno() == Errno::OPNOTSUPP => {
            fsstack_lab::Skip::because("no ACLs under /tmp").announce();
        }
        set => {
            set.unwrap();
            assert_eq!(pool.getattr(ino).unwrap().stat.mode & 0o7777, 0o750);
        }
    }
}

#[test]
fn an_acl_that_is_not_there_is_taken_away_without_error() {
    let pool = TestBed::new(2);
    pool.put_dir(0, "d");
    let (dir, file) = (pool.ino("d"), pool.write("film", "x"));
    for name in [c"system.posix_acl_access", c"system.posix_acl_default"] {
        pool.union.removexattr(dir, name, Caller::DAEMON).unwrap();
    }
    pool.union.removexattr(file, c"system.posix_acl_access", Caller::DAEMON).unwrap();
}

#[test]
fn attributes_of_the_file_system_itself_are_for_root_and_the_owner() {
    needs!(root());
    let pool = TestBed::new(2);
    (0..2).for_each(|at| pool.put_dir(at, "d"));
    let (dir, file) = (pool.ino("d"), pool.write("film", "x"));
    let (owner, stranger) = (Caller { uid: 1234, ..Caller::DAEMON }, Caller { uid: 1235, ..Caller::DAEMON });
    for ino in [dir, file] {
        let change = fsstack_engine::ops::Change { uid: Some(owner.uid), ..Default::default() };
        pool.setattr(ino, change).unwrap();
        for name in [c"system.nfs4_acl", c"system.cifs_acl", c"system.ntfs_acl"] {
            let answers = |caller| {
                let set = pool.union.setxattr(ino, name, b"x", 0, false, caller);
                [set, pool.union.removexattr(ino, name, caller)].map(|check| check.unwrap_err().errno())
            };
            assert_eq!(answers(stranger), [Errno::PERM; 2], "{name:?}");
            for caller in [Caller::DAEMON, owner] {
                assert_eq!(answers(caller), [Errno::OPNOTSUPP; 2], "{name:?}: the branch's own answer");
            }
        }
        // The kernel's checks are not repeated.
        pool.union.setxattr(ino, c"user.a", b"x", 0, false, stranger).unwrap();
        pool.union.removexattr(ino, c"system.posix_acl_access", stranger).unwrap();
    }
}
