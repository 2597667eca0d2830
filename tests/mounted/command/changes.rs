//! Changes at run time: set, the write path, `mount -o remount`, and changes of the config file.

use std::fs;

use fsstack_lab::{self as lab, mounts, needs};

use super::*;

#[test]
fn set_changes_at_once_and_shows_the_difference() {
    needs!(mounting());
    let pool = pool();
    let at = at(&pool);
    let dry = json("set", &["set", &at, "create=mfs", "attr-timeout=7", "--dry-run"]);
    assert_eq!(dry["changes"].as_array().unwrap().len(), 2);
    assert_eq!(output_of(&["get", &at, "create"]), "ff\n");
    assert_eq!(
        output_of(&["set", &at, "create=mfs", "attr-timeout=7"]),
        "create: ff -> mfs\nattr-timeout: 1 -> 7\n"
    );
    assert_eq!(output_of(&["get", &at, "create"]), "mfs\n");
    assert!(output_of(&["set", &at, "create=mfs"]).contains("nothing changes"));
    output_of(&["set", &at, "log-level=debug", "relocate=off", "statfs=as-placed", "page-cache=on"]);
    assert_eq!(output_of(&["get", &at, "log-level"]), "debug\n");
    // One branch may not take all threads, as at the mount.
    let (code, line) = refused(&["set", &at, "branch-inflight=64"]);
    assert!(code == 2 && line.contains("fewer than max-threads=64"), "{code}: {line}");
    // A file is placed by the policy at its creation.
    output_of(&["branch", "mode", &at, &branch(&pool, "a"), "NC"]);
    output_of(&["set", &at, "create=ff"]);
    pool.write("file", b"x");
    assert_eq!(pool.holders("file"), ["b"]);
}

#[test]
fn the_write_path_switches_at_the_next_first_open() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("write-path=stacked").mount();
    let at = at(&pool);
    let path = pool.at("file");
    let way = |of: &std::path::Path| {
        json("explain", &["explain", of.to_str().unwrap()])["write_path"]["now"].clone()
    };
    let open = fs::File::create(&path).unwrap();
    assert_eq!(way(&path), "stacked");
    let switched = json("write-path", &["write-path", &at, "auto"]);
    assert_eq!((&switched["from"], &switched["to"]), (&"stacked".into(), &"auto".into()));
    if crate::script::passthrough().is_ok() {
        output_of(&["set", &at, "passthrough-headroom=0"]);
        assert_eq!(way(&path), "stacked", "it is open");
        let counted = json("write-path", &["write-path", &at, "auto"]);
        assert_eq!(counted["other_way"], 1);
        drop(open);
        output_of(&["write-path", &at, "auto", "--wait"]);
        assert_eq!(way(&path), "passthrough");
    }
}

#[test]
fn persisted_settings_hold_at_the_next_mount_and_comments_stay() {
    needs!(mounting());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pool.toml");
    fs::write(&file, "# ours\ncreate = \"ff\" # in order\n").unwrap();
    let mut pool =
        lab::pool().tmp_branch("a").tmp_branch("b").option(&format!("config={}", file.display())).mount();
    let at = at(&pool);
    let set = json("set", &["set", &at, "create=mfs", "relocate=off", "--persist"]);
    assert_eq!(set["persisted"], file.to_str().unwrap());
    output_of(&["write-path", &at, "stacked", "--subtree", "/scratch", "--persist"]);
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(
        text,
        "# ours\ncreate = \"mfs\" # in order\nrelocate = \"off\"\nwrite-rules = \"/scratch=stacked\"\n"
    );
    // -o overrides the file, and the output says so.
    let note = output_of(&["set", &at, "minfreespace=5M", "--persist", "--dry-run"]);
    assert!(note.contains("note: minfreespace: also stands behind -o"), "{note}");
    pool.remount();
    assert_eq!(output_of(&["get", &at, "create"]), "mfs\n");
    assert_eq!(output_of(&["get", &at, "write-rules"]), "/scratch=stacked\n");
    assert_eq!(
        output_of(&["write-path", &at, "inherit", "--subtree", "/scratch"]).lines().next().unwrap(),
        "write-path below /scratch: stacked -> inherit"
    );
}

#[test]
fn a_directory_whose_name_has_separators_keeps_its_rule() {
    needs!(mounting());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pool.toml");
    fs::write(&file, "").unwrap();
    let mut pool = lab::pool().tmp_branch("a").option(&format!("config={}", file.display())).mount();
    let at = at(&pool);
    let name = r#"a:b=c,d"e\f"#;
    pool.mkdir(name);
    pool.write(format!("{name}/file"), b"x");
    output_of(&["write-path", &at, "stacked", "--subtree", pool.at(name).to_str().unwrap(), "--persist"]);
    let listed = "/a\\:b\\=c\\054d\\042e\\134f=stacked\n";
    assert_eq!(output_of(&["get", &at, "write-rules"]), listed);
    let decided = |pool: &lab::Pool| {
        let explained = json("explain", &["explain", pool.at(name).join("file").to_str().unwrap()]);
        explained["write_path"]["setting"].clone()
    };
    assert_eq!(decided(&pool), "stacked");
    pool.remount();
    assert_eq!(output_of(&["get", &at, "write-rules"]), listed);
    assert_eq!(decided(&pool), "stacked");
    // What is printed can be given after -o as it is.
    output_of(&["set", &at, "write-rules="]);
    assert_eq!(decided(&pool), "auto");
    output_of(&["set", &at, &format!("write-rules={}", listed.trim_end())]);
    assert_eq!(decided(&pool), "stacked");
}

#[test]
fn mount_with_remount_changes_options_and_flags() {
    needs!(mounting());
    let pool = pool();
    let remount = |options: &str| remount(&pool, options);
    let done = remount("rw,create=mfs,attr-timeout=3,user_id=0,group_id=0");
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(output_of(&["get", &at(&pool), "create"]), "mfs\n");
    // An option that cannot change keeps its value, with a notice.
    let kept = remount("rw,nfs-export,transport=auto");
    assert_eq!(kept.code, 0, "{}", kept.stderr);
    assert!(
        kept.stderr.contains("nfs-export: stays false") && kept.stderr.lines().count() == 1,
        "{}",
        kept.stderr
    );
    // By mergerfs's words, as a line of fstab may have them.
    let by_words = remount("rw,statfs-ignore=nc,cache.files=full,passthrough.io=off,fuse-msg-size=128K");
    assert_eq!(by_words.code, 0, "{}", by_words.stderr);
    let key = |key: &str| output_of(&["get", &at(&pool), key]);
    assert_eq!(
        ["statfs", "page-cache", "write-path"].map(key),
        ["ignore-nc\n", "on\n", "stacked\n"].map(str::to_owned)
    );
    assert!(by_words.stderr.contains("fuse-msg-size=128K: max-write stays"), "{}", by_words.stderr);
    assert_eq!(remount("cache.files=off,passthrough.io=rw").code, 0);
    assert_eq!(["page-cache", "write-path"].map(key), ["off\n", "auto\n"].map(str::to_owned));
    let read_only = remount("ro,create=mfs");
    assert_eq!(read_only.code, 0, "{}", read_only.stderr);
    let mount = mounts::at(pool.path()).unwrap().unwrap();
    assert!(fs::write(pool.at("file"), "x").is_err(), "{mount:?}");
    assert_eq!(remount("rw").code, 0);
    pool.write("file", b"x");
    // Options that need a new mount stay unchanged; invalid ones are refused.
    assert_eq!(remount("transport=dev").code, 0);
    let wrong = remount("create=nonsense");
    assert_eq!(wrong.code, 1);
    assert!(wrong.stderr.contains("is not a placement policy"), "{}", wrong.stderr);
}

#[test]
fn a_remount_is_synchronous_and_refuses_contradictions_as_a_mount() {
    needs!(mounting());
    let pool = pool();
    let remount = |options: &str| remount(&pool, options);
    for together in
        ["category.create=mfs,func.create=ff", "mlimit=1G,create=mfs", "mlimit=1G,minfreespace=5M"]
    {
        let refused = remount(together);
        assert_eq!(refused.code, 1, "{together}");
        assert!(refused.stderr.contains("keep one of them"), "{}", refused.stderr);
    }
    let is_so = || {
        fs::read(pool.at("file")).is_ok_and(|_| {
            crate::script::sh(pool.path(), "getfattr --only-values -n user.fsstack.why file")
                .contains("synchronous")
        })
    };
    for (options, is_synchronous) in [("rw,sync", true), ("rw,async", false)] {
        assert_eq!(remount(options).code, 0);
        let open =
            fs::File::options().create(true).truncate(false).write(true).open(pool.at("file")).unwrap();
        assert_eq!(is_so(), is_synchronous, "{options}");
        drop(open);
    }
}

/// The kernel is the one that refuses.
#[test]
fn a_remount_that_the_kernel_refuses_changes_no_option() {
    needs!(mounting());
    let pool = pool();
    let written = fs::File::create(pool.at("file")).unwrap();
    let refused = remount(&pool, "ro,create=mfs");
    assert_ne!(refused.code, 0);
    assert!(refused.stderr.contains("nothing is changed"), "{}", refused.stderr);
    assert_eq!(output_of(&["get", &at(&pool), "create"]), "ff\n");
    drop(written);
}

#[test]
fn a_remount_keeps_the_sync_of_the_config_file() {
    needs!(mounting());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pool.toml");
    fs::write(&file, "sync = true\n").unwrap();
    let config = format!("config={}", file.display());
    let pool = lab::pool().tmp_branch("a").option(&config).mount();
    let done = remount(&pool, &format!("{config},attr-timeout=3"));
    assert_eq!(done.code, 0, "{}", done.stderr);
    pool.write("file", b"x");
    let _open = fs::File::options().append(true).open(pool.at("file")).unwrap();
    let why = crate::script::sh(pool.path(), "getfattr --only-values -n user.fsstack.why file");
    assert!(why.contains("synchronous"), "{why}");
}

/// mhddfs's limit is a floor of its own.
#[test]
fn a_policy_after_mlimit_has_a_floor_again() {
    needs!(mounting());
    let pool = pool();
    output_of(&["set", &at(&pool), "mlimit=1G"]);
    let set = json("set", &["set", &at(&pool), "create=mfs"]);
    assert!(set["notes"].to_string().contains("minfreespace: 4G"), "{set}");
    assert_eq!(output_of(&["get", &at(&pool), "minfreespace"]), "4G\n");
    output_of(&["set", &at(&pool), "minfreespace=0"]);
    let set = json("set", &["set", &at(&pool), "create=ff"]);
    assert_eq!(output_of(&["get", &at(&pool), "minfreespace"]), "0\n", "{set}");
}

/// The mount tells of it too.
#[test]
fn a_rules_target_that_no_branch_is_has_a_note() {
    needs!(mounting());
    let pool = pool();
    let set = json("set", &["set", &at(&pool), "place-rules=/films=@nosuch"]);
    assert!(set["notes"].to_string().contains("nosuch"), "{set}");
}

/// A line that was added to fstab does nothing by itself.
#[test]
fn a_remount_names_branches_of_source_that_the_pool_lacks() {
    needs!(mounting());
    let pool = pool();
    let more = pool.path().parent().unwrap().join("more");
    fs::create_dir(&more).unwrap();
    let (more, helper) = (more.display().to_string(), lab::daemon::helper().unwrap());
    let remount = |source: String| {
        let helper = command(&helper).arg(source).arg(pool.path()).args(["-o", "remount,rw"]);
        helper.output().unwrap()
    };
    let both = format!("{}:{}", branch(&pool, "a"), branch(&pool, "b"));
    let told = remount(format!("{both}:{more}"));
    assert_eq!(told.code, 0, "{}", told.stderr);
    assert!(told.stderr.contains(&format!("branch {more}: SOURCE names it")), "{}", told.stderr);
    assert_eq!(remount(both).stderr, "");
}

/// In whatever order a line of fstab has them.
#[test]
fn mergerfss_two_options_of_the_cache_count_together_at_a_remount() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("page-cache=on").mount();
    let page_cache = || output_of(&["get", &at(&pool), "page-cache"]);
    for options in ["cache.files=off,cache.writeback=false", "cache.writeback=false,cache.files=off"] {
        assert_eq!(remount(&pool, "cache.writeback=false,cache.files=full").code, 0);
        assert_eq!(page_cache(), "on\n");
        assert_eq!(remount(&pool, options).code, 0);
        assert_eq!(page_cache(), "off\n", "{options}");
    }
    let pool = lab::pool().tmp_branch("a").option("page-cache=writeback").mount();
    for options in ["cache.files=full,cache.writeback=false", "cache.writeback=false,cache.files=full"] {
        let refused = remount(&pool, options);
        assert_ne!(refused.code, 0, "{options}");
        assert!(refused.stderr.contains("negotiated at the mount"), "{options}: {}", refused.stderr);
    }
}

/// By mergerfs's words for what is settled at the mount.
#[test]
fn a_remount_does_not_pass_over_a_cache_that_cannot_change() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("page-cache=writeback").mount();
    let refused = remount(&pool, "rw,cache.writeback=false");
    assert_ne!(refused.code, 0);
    assert!(refused.stderr.contains("negotiated at the mount"), "{}", refused.stderr);
    // As it was mounted.
    let same = remount(&pool, "rw,cache.files=full,cache.writeback=true");
    assert_eq!(same.code, 0, "{}", same.stderr);
    assert_eq!(output_of(&["get", &at(&pool), "page-cache"]), "writeback\n");
}

/// Another line of the file would leave no pool at the next start, or one with the former value.
#[test]
fn what_would_not_mount_is_not_persisted() {
    needs!(mounting());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pool.toml");
    for (text, assignment, why) in [
        ("mlimit = \"40M\"\n", "create=ff", "two placement policies"),
        ("relocate = true\n", "write-path=passthrough", "relocate"),
        ("cache = { attr = 5 }\n", "attr-timeout=2", "leaves attr-timeout=5"),
        ("create = \"ff\"\nno-such-option = 1\n", "attr-timeout=2", "no-such-option"),
    ] {
        fs::write(&file, "").unwrap();
        let pool = lab::pool().tmp_branch("a").option(&format!("config={}", file.display())).mount();
        fs::write(&file, text).unwrap();
        let (code, refused) = super::refused(&["set", &at(&pool), assignment, "--persist"]);
        assert!(code == 2 && refused.contains(why) && refused.lines().count() == 1, "{code}: {refused}");
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
}
